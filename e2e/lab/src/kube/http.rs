//! The part of HTTP/1.1 that the lab's client, proxy and fake of the API server need.

use std::io::{BufRead, Error, ErrorKind, Read, Result, Write};

/// Of a message's first line and header fields, in bytes. Clients in tests send shorter ones.
const LONGEST: u64 = 64 * 1024;

#[derive(Debug, Clone, Default)]
pub(crate) struct Head {
    pub(crate) first: String,
    pub(crate) fields: Vec<(String, String)>,
}

impl Head {
    /// A head for a response.
    pub(crate) fn for_json_response(status: u16) -> Head {
        Head {
            first: format!("HTTP/1.1 {status} Lab"),
            fields: vec![("Content-Type".to_owned(), "application/json".to_owned())],
        }
    }

    /// `None` if the peer has closed the connection.
    pub(crate) fn read(from: &mut dyn BufRead) -> Result<Option<Head>> {
        let mut from = from.take(LONGEST);
        let Some(first) = read_line_without_ending(&mut from)? else {
            return Ok(None);
        };
        let mut head = Head { first, fields: Vec::new() };
        while let Some(line) = read_line_without_ending(&mut from)?.filter(|line| !line.is_empty())
        {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| Error::new(ErrorKind::InvalidData, line.clone()))?;
            head.fields.push((name.to_owned(), value.trim().to_owned()));
        }
        Ok(Some(head))
    }

    pub(crate) fn write(&self, to: &mut dyn Write) -> Result<()> {
        let fields: String =
            self.fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        to.write_all(format!("{}\r\n{fields}\r\n", self.first).as_bytes())
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The length of the body that follows.
    pub(crate) fn content_length(&self) -> usize {
        let length = self.field("content-length");
        length.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// HTTP/1.1, whose body follows in chunks.
    pub(crate) fn set_chunked(&mut self) {
        self.first = self.first.replacen("HTTP/1.0", "HTTP/1.1", 1);
        self.fields.retain(|(name, _)| {
            let of_length = ["content-length", "transfer-encoding", "connection"];
            !of_length.contains(&name.to_ascii_lowercase().as_str())
        });
        self.fields.push(("Transfer-Encoding".to_owned(), "chunked".to_owned()));
    }

    /// 0 if there is none.
    pub(crate) fn status(&self) -> u16 {
        self.first.split_whitespace().nth(1).and_then(|code| code.parse().ok()).unwrap_or_default()
    }
}

/// A line has no line ending here; `None` at the end of the stream.
fn read_line_without_ending(from: &mut dyn BufRead) -> Result<Option<String>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
}
