//! Sends requests to this node's daemon through its Unix socket.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use doctor::Report;
use node_api::routes::{self, Routes};
use node_api::{Node, Probe};
use run_dir::{api_socket, instance, status_file};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use terminal::rights;
use thiserror::Error;

/// For a complete response of the daemon.
const TIMEOUT: Duration = Duration::from_millis(2900);
/// For a report, for which the daemon lists the firewalls' rules. Thousands of them take seconds.
const REPORT_TIMEOUT: Duration = Duration::from_secs(11);
/// A probe waits for other probes and for replies.
const PROBE_TIMEOUT: Duration = Duration::from_secs(11);
/// A starting or ending daemon may have no socket for this time.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(1);
/// The health check, to which the daemon responds at once.
const ALIVE: &str = "/livez";
/// Between two attempts to send a request.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// The longest response, in bytes.
const LIMIT: usize = 64 * 1024 * 1024;

/// Why a request to the daemon failed. A path is that of the socket.
#[derive(Debug, Error)]
pub(crate) enum AskError {
    #[error("flanneld does not run on this node: no process listens on {}; start flanneld (systemctl start flanneld), or name its --subnet-file", .0.display())]
    Stopped(PathBuf),
    /// A running daemon does not listen on the expected socket. `who` describes its processes.
    #[error(
        "flanneld ({}) runs on this node and has no socket {}: it is Go flannel, an older version, or a flanneld with another --subnet-file",
        .who.join("; "), .path.display()
    )]
    Foreign { path: PathBuf, who: Vec<String> },
    #[error("{} is no socket: another program wrote this file; delete it, and a running flanneld creates its socket within a second", .0.display())]
    NoSocket(PathBuf),
    #[error("only root may connect to flanneld: permission denied on {}; use sudo", .0.display())]
    Denied(PathBuf),
    /// The daemon did not respond within this time.
    #[error("flanneld is running, but does not respond on {} within {:?}: it hangs, or has too many clients", .0.display(), .1)]
    Hangs(PathBuf, Duration),
    /// With the daemon's reason.
    #[error("{0}")]
    Refused(String),
    #[error("flanneld sends an unexpected answer on {}: {what}; flannelctl and flanneld may be of different versions", .path.display())]
    BadAnswer { path: PathBuf, what: anyhow::Error },
}

/// The state of this node. With `rows`, the daemon also requests the other nodes' verdicts on their peers.
pub(crate) fn node(subnet_file: &Path, rows: bool) -> Result<Node, AskError> {
    let path = api_socket::path(subnet_file);
    let target = if rows { node_api::NODE_AND_ROWS } else { node_api::NODE };
    let answer = get(subnet_file, &path, target, TIMEOUT)?;
    document(&answer, node_api::SCHEMA).map_err(|what| AskError::BadAnswer { path, what })
}

/// The report of the daemon's doctor.
pub(crate) fn findings(subnet_file: &Path) -> Result<Report, AskError> {
    let path = api_socket::path(subnet_file);
    // This detects a hanging daemon without the long timeout of a report.
    get(subnet_file, &path, ALIVE, TIMEOUT)?;
    let answer = get(subnet_file, &path, node_api::FINDINGS, REPORT_TIMEOUT)?;
    document(&answer, doctor::finding::SCHEMA).map_err(|what| AskError::BadAnswer { path, what })
}

/// The daemon's comparison of the desired and actual kernel state.
pub(crate) fn routes(subnet_file: &Path) -> Result<Routes, AskError> {
    let path = api_socket::path(subnet_file);
    let answer = get(subnet_file, &path, node_api::ROUTES, TIMEOUT)?;
    refused(&answer)?;
    document(&answer, routes::SCHEMA).map_err(|what| AskError::BadAnswer { path, what })
}

/// Makes the daemon probe a peer or a pod.
pub(crate) fn probe(subnet_file: &Path, peer: &str) -> Result<Probe, AskError> {
    let path = api_socket::path(subnet_file);
    // This detects a hanging daemon without the long timeout of a probe.
    get(subnet_file, &path, ALIVE, TIMEOUT)?;
    let answer = get(subnet_file, &path, &node_api::probe::request(peer), PROBE_TIMEOUT)?;
    refused(&answer)?;
    document(&answer, node_api::PROBE).map_err(|what| AskError::BadAnswer { path, what })
}

/// The body of the daemon's response to a request, with any status code.
pub(crate) fn text(subnet_file: &Path, target: &str) -> Result<String, AskError> {
    let path = api_socket::path(subnet_file);
    let patience = if target == node_api::FINDINGS { REPORT_TIMEOUT } else { TIMEOUT };
    let answer = get(subnet_file, &path, target, patience)?;
    let (_, body) = split(&answer).map_err(|what| AskError::BadAnswer { path, what })?;
    Ok(String::from_utf8_lossy(body).into_owned())
}

fn get(
    subnet_file: &Path,
    path: &Path,
    target: &str,
    patience: Duration,
) -> Result<Vec<u8>, AskError> {
    let begun = Instant::now();
    let end = begun + patience;
    loop {
        let error = match attempt(path, target, end) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => match absent(subnet_file, path) {
                AskError::Foreign { .. } | AskError::Hangs(..)
                    if begun.elapsed() < SOCKET_TIMEOUT =>
                {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                error => return Err(error),
            },
            ErrorKind::PermissionDenied => return Err(AskError::Denied(path.to_owned())),
            // The daemon may have too many clients. The next attempt may succeed.
            ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof => {
                if Instant::now() + RETRY_INTERVAL >= end {
                    return Err(AskError::Hangs(path.to_owned(), patience));
                }
                std::thread::sleep(RETRY_INTERVAL);
            }
            _ => {
                return Err(AskError::BadAnswer { path: path.to_owned(), what: error.into() });
            }
        }
    }
}

fn attempt(path: &Path, target: &str, end: Instant) -> io::Result<Vec<u8>> {
    let left = || end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let mut stream = api_socket::connect_to(path)?;
    stream.set_write_timeout(Some(left()))?;
    stream.write_all(format!("GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 64 * 1024];
    loop {
        stream.set_read_timeout(Some(left()))?;
        let count = match stream.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            count => count?,
        };
        if count == 0 {
            break;
        }
        answer.extend(piece.get(..count).unwrap_or_default());
        if Instant::now() >= end || answer.len() > LIMIT {
            return Err(ErrorKind::TimedOut.into());
        }
    }
    if answer.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
}

/// Why no process listens on the socket.
fn absent(subnet_file: &Path, path: &Path) -> AskError {
    if path.symlink_metadata().is_ok_and(|file| !file.file_type().is_socket()) {
        return AskError::NoSocket(path.to_owned());
    }
    if status_file::lives(subnet_file) {
        return AskError::Hangs(path.to_owned(), SOCKET_TIMEOUT);
    }
    // Only root can distinguish this host's daemon from those of containers.
    match instance::running::running(subnet_file) {
        who if who.is_empty() || !rights::is_root() => AskError::Stopped(path.to_owned()),
        who => AskError::Foreign { path: path.to_owned(), who },
    }
}

/// Splits an HTTP response into head and body.
fn split(answer: &[u8]) -> anyhow::Result<(String, &[u8])> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let (head, body) =
        end.and_then(|end| answer.split_at_checked(end + 4)).context("the answer is not HTTP")?;
    Ok((String::from_utf8_lossy(head).into_owned(), body))
}

/// The daemon's reason as an error if it refused the request.
fn refused(answer: &[u8]) -> Result<(), AskError> {
    match split(answer) {
        Ok((head, body)) if matches!(code(&head), "422" | "503") => {
            Err(AskError::Refused(String::from_utf8_lossy(body).trim_end().to_owned()))
        }
        _ => Ok(()),
    }
}

/// The status code in the head of a response.
fn code(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

/// Decodes the JSON document in a response, and checks its schema.
fn document<T: DeserializeOwned>(answer: &[u8], schema: &str) -> anyhow::Result<T> {
    #[derive(Deserialize)]
    struct Named {
        schema: String,
    }
    let (head, body) = split(answer)?;
    let code = code(&head);
    if code != "200" {
        bail!("code {code}: {}", String::from_utf8_lossy(body).lines().next().unwrap_or_default());
    }
    // The schema is checked first, because a document with another schema may lack expected fields.
    let Named { schema: theirs } = serde_json::from_slice(body)?;
    if theirs != schema {
        bail!("the answer has the schema {theirs}, not {schema}");
    }
    Ok(serde_json::from_slice(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: &[u8]) -> anyhow::Result<Node> {
        document(answer, node_api::SCHEMA)
    }

    fn good() -> String {
        serde_json::to_string(&Node {
            schema: node_api::SCHEMA.to_owned(),
            node: "n".to_owned(),
            ..Node::default()
        })
        .unwrap()
    }

    #[test]
    fn answer_is_a_document_or_an_error() {
        assert_eq!(
            read(format!("HTTP/1.0 200 OK\r\nx: y\r\n\r\n{}", good()).as_bytes()).unwrap().node,
            "n"
        );
        for (wrong, why) in [
            (String::new(), "not HTTP"),
            ("HTTP/1.0 200 OK\r\n".to_owned(), "not HTTP"),
            (format!("HTTP/1.0 404 Not Found\r\n\r\n{}", good()), "404"),
            ("HTTP/1.0 200 OK\r\n\r\n{".to_owned(), "EOF"),
            ("HTTP/1.0 200 OK\r\n\r\n{}".to_owned(), "missing field"),
            (
                format!("HTTP/1.0 200 OK\r\n\r\n{}", good().replace("node/1", "node/2")),
                "flannel.node/2",
            ),
        ] {
            let error = read(wrong.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn missing_answer_fails_in_time_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let env = folder.path().join("subnet.env");
        let why = |env: &Path| node(env, false).unwrap_err().to_string();
        let none = why(&env);
        assert!(
            none.contains("does not run on this node") || none.contains("runs on this node"),
            "{none}"
        );
        let path = api_socket::path(&env);
        std::fs::write(&path, "").unwrap();
        assert!(why(&env).contains("is no socket"), "{}", why(&env));
        std::fs::remove_file(&path).unwrap();
        let mut socket = api_socket::Socket::new(&env);
        let _listener = socket.put().unwrap().unwrap();
        let begun = Instant::now();
        // The socket exists, but no process accepts connections.
        assert!(why(&env).contains("does not respond"), "{}", why(&env));
        assert!(begun.elapsed() >= TIMEOUT);
    }
}
