//! Serves the status page with a prepared status document, as the daemon does.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use flanneld::api::node::safe;
use flanneld::api::page::{html, policy};
use node_api::Node;
use node_api::query::parameter;
use node_api::view::{RowDetails, View};

use crate::cluster;

/// An HTTP server that runs until the test process ends.
pub(crate) struct Server {
    port: u16,
}

impl Server {
    pub(crate) fn start(node: Node) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let view = View::of(&node, cluster::charts(), cluster::events());
        let document = safe(&view).unwrap();
        let content = Arc::new((node, view, document));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let content = content.clone();
                // A browser opens connections in advance and closes them unused.
                std::thread::spawn(move || {
                    let (node, view, document) = &*content;
                    let _ = answer(&stream, node, view, document);
                });
            }
        });
        Self { port }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }
}

fn answer(mut stream: &TcpStream, node: &Node, view: &View, document: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let Some(first) = lines.next().transpose()? else {
        return Ok(());
    };
    let mut is_known = false;
    for line in lines {
        let line = line?.to_ascii_lowercase();
        is_known |= line == "if-none-match: \"1\"";
        if line.is_empty() {
            break;
        }
    }
    let target = first.split(' ').nth(1).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let row = || {
        let subnet = parameter(Some(query), "row")?.parse().ok()?;
        safe(&RowDetails::of(node, subnet)?).ok()
    };
    let (status, kind, body) = match (path, is_known) {
        ("/", _) => ("200 OK", "text/html; charset=utf-8", html(&view.node, &view.sentence)),
        (node_api::VIEW, true) => ("304 Not Modified", "application/json", String::new()),
        (node_api::VIEW, _) if query.is_empty() => {
            ("200 OK", "application/json", document.to_owned())
        }
        (node_api::VIEW, _) => match row() {
            Some(row) => ("200 OK", "application/json", row),
            None => ("404 Not Found", "text/plain", String::new()),
        },
        _ => ("404 Not Found", "text/plain", String::new()),
    };
    let policy = policy();
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nContent-Security-Policy: {policy}\r\nETag: \"1\"\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n{body}"
    )
}
