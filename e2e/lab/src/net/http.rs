//! HTTP GET requests inside a namespace.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result};

use crate::net::netns::Netns;
use wait::Wait;

/// The status code and the body.
pub fn send_get_request(netns: &Netns, address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let text = netns.run(|| -> Result<String> {
        let left = Wait::start().left();
        let mut stream = TcpStream::connect_timeout(&address, left)?;
        stream.set_read_timeout(Some(left))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    })?;
    let text = text.with_context(|| format!("GET http://{address}{path}"))?;
    let (head, body) = text.split_once("\r\n\r\n").context("an answer without a body")?;
    let code = head.split_whitespace().nth(1).and_then(|code| code.parse().ok());
    Ok((code.with_context(|| format!("no status in {head:?}"))?, body.to_owned()))
}
