//! The part of HTTP/1.1 that a proxy needs: parsed header fields, and bodies that the proxy forwards unchanged.

use std::io::{BufRead, Error, ErrorKind, Read, Result, Write};

/// Maximum length of a message's first line and header fields, in bytes. Clients in tests send shorter header fields.
const LONGEST: u64 = 64 * 1024;

/// The first line of a message and its header fields.
#[derive(Debug, Clone, Default)]
pub(crate) struct Head {
    pub(crate) first: String,
    pub(crate) fields: Vec<(String, String)>,
}

/// Framing of a message body, which determines where the body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    Length(u64),
    Chunked,
    UntilClose,
}

impl Head {
    /// Reads a head. Returns `None` if the peer has closed the connection.
    pub(crate) fn read(from: &mut dyn BufRead) -> Result<Option<Head>> {
        let mut from = from.take(LONGEST);
        let Some(first) = line(&mut from)? else {
            return Ok(None);
        };
        let mut head = Head {
            first,
            fields: Vec::new(),
        };
        while let Some(line) = line(&mut from)?.filter(|line| !line.is_empty()) {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| Error::new(ErrorKind::InvalidData, line.clone()))?;
            head.fields.push((name.to_owned(), value.trim().to_owned()));
        }
        Ok(Some(head))
    }

    pub(crate) fn write(&self, to: &mut dyn Write) -> Result<()> {
        let fields: String = self
            .fields
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        to.write_all(format!("{}\r\n{fields}\r\n", self.first).as_bytes())?;
        to.flush()
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Sets a header field and removes other header fields of the same name.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.fields
            .retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.fields.push((name.to_owned(), value.to_owned()));
    }

    /// Returns the status code of a response, or 0 if the response has no status code.
    pub(crate) fn status(&self) -> u16 {
        self.first
            .split_whitespace()
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or_default()
    }

    /// Returns the framing of the body that follows these header fields. For a response, `answer_to` is the method of its request; for a request, `answer_to` is `None`.
    pub(crate) fn body(&self, answer_to: Option<&str>) -> Body {
        if let Some(method) = answer_to
            && (method == "HEAD" || matches!(self.status(), 100..=199 | 204 | 304))
        {
            return Body::Length(0);
        }
        if self
            .field("transfer-encoding")
            .is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
        {
            return Body::Chunked;
        }
        let length = self
            .field("content-length")
            .and_then(|value| value.parse().ok());
        let without = if answer_to.is_some() {
            Body::UntilClose
        } else {
            Body::Length(0)
        };
        length.map_or(without, Body::Length)
    }
}

/// Forwards a body piece by piece. Calls `gate` before each piece, and stops with the error of `gate`, if any.
pub(crate) fn relay(
    body: Body,
    from: &mut dyn BufRead,
    to: &mut dyn Write,
    gate: &dyn Fn() -> Result<()>,
) -> Result<()> {
    match body {
        Body::Length(length) => pieces(&mut from.take(length), to, gate),
        Body::UntilClose => pieces(from, to, gate),
        Body::Chunked => loop {
            let size = line(from)?.ok_or(ErrorKind::UnexpectedEof)?;
            let digits = size.split(';').next().unwrap_or_default().trim();
            let length = u64::from_str_radix(digits, 16)
                .map_err(|_| Error::new(ErrorKind::InvalidData, size.clone()))?;
            gate()?;
            to.write_all(format!("{size}\r\n").as_bytes())?;
            pieces(&mut from.take(length), to, gate)?;
            // The last chunk is empty. Clients in tests send no trailers.
            line(from)?;
            to.write_all(b"\r\n")?;
            to.flush()?;
            if length == 0 {
                return Ok(());
            }
        },
    }
}

fn pieces(from: &mut dyn BufRead, to: &mut dyn Write, gate: &dyn Fn() -> Result<()>) -> Result<()> {
    loop {
        let piece = from.fill_buf()?;
        if piece.is_empty() {
            return Ok(());
        }
        let length = piece.len();
        gate()?;
        to.write_all(piece)?;
        to.flush()?;
        from.consume(length);
    }
}

/// Reads a line without its line ending. Returns `None` at the end of the stream.
fn line(from: &mut dyn BufRead) -> Result<Option<String>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relayed(text: &str) -> (Head, String, String) {
        let mut from = text.as_bytes();
        let head = Head::read(&mut from).unwrap().unwrap();
        let mut to = Vec::new();
        relay(head.body(Some("GET")), &mut from, &mut to, &|| Ok(())).unwrap();
        (
            head,
            String::from_utf8(to).unwrap(),
            String::from_utf8(from.to_vec()).unwrap(),
        )
    }

    #[test]
    fn body_ends_as_its_header_declares() {
        let (head, body, rest) = relayed("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcNEXT");
        assert_eq!(
            (head.status(), body.as_str(), rest.as_str()),
            (200, "abc", "NEXT")
        );
        let (_, body, rest) = relayed(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nNEXT",
        );
        assert_eq!(
            (body.as_str(), rest.as_str()),
            ("3\r\nabc\r\n0\r\n\r\n", "NEXT")
        );
        let (_, body, _) = relayed("HTTP/1.1 200 OK\r\n\r\nall of it");
        assert_eq!(body, "all of it");
        let (_, body, rest) = relayed("HTTP/1.1 204 No Content\r\n\r\nNEXT");
        assert_eq!((body.as_str(), rest.as_str()), ("", "NEXT"));
    }

    #[test]
    fn closed_gate_ends_a_body() {
        let closed = || Err(ErrorKind::ConnectionAborted.into());
        assert!(
            relay(
                Body::UntilClose,
                &mut "x".as_bytes(),
                &mut Vec::new(),
                &closed
            )
            .is_err()
        );
    }
}
