//! Asks the daemon of this node by its socket.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use doctor::Report;
use run_dir::api_socket;

/// How long the daemon may take, which makes a round of its own for the answer: one that hangs is looked at without it.
const PATIENCE: Duration = Duration::from_secs(3);
/// A longer answer is not a report.
const LIMIT: u64 = 16 * 1024 * 1024;

/// The daemon's report; `None` where no daemon answers, or has none yet.
pub fn findings(subnet_file: &Path) -> Option<Report> {
    let mut stream = api_socket::connect_to(&api_socket::path(subnet_file)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"GET /api/v1/findings HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.take(LIMIT).read_to_end(&mut answer).ok()?;
    parse(&String::from_utf8(answer).ok()?)
}

/// The report in an answer.
fn parse(answer: &str) -> Option<Report> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let ok = head.lines().next()?.split(' ').nth(1) == Some("200");
    serde_json::from_str(body).ok().filter(|_| ok)
}

/// Now, for a report of our own.
pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_report_or_nothing() {
        let body =
            r#"{"schema":"flannel.findings/1","node":"n","at":"2026-01-01T00:00:00Z","daemon":"running","checks":53,"findings":[],"unknown":[]}"#;
        assert_eq!(parse(&format!("HTTP/1.0 200 OK\r\nx: y\r\n\r\n{body}")).unwrap().checks, 53);
        for wrong in [format!("HTTP/1.0 503 No\r\n\r\n{body}"), "HTTP/1.0 200 OK\r\n\r\nnull".to_owned(), String::new(), "\r\n\r\n".to_owned()] {
            assert!(parse(&wrong).is_none(), "{wrong}");
        }
        assert!(findings(Path::new("/nosuch/subnet.env")).is_none());
    }
}
