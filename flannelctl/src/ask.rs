//! Asks the daemon of this node by its socket.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use console::rights;
use doctor::Report;
use node_api::routes::{self, Routes};
use node_api::{Node, Probe};
use run_dir::{api_socket, instance, status_file};
use serde::de::DeserializeOwned;
use types::Coded;

/// How long the daemon may take, from the first word to the last.
const TIMEOUT: Duration = Duration::from_millis(2900);
/// How long it may take for a probe, which waits for others and for answers.
const PROBE: Duration = Duration::from_secs(11);
/// How long it may have no socket while its process is there: it has none yet when it starts, and none any more when it ends.
const NO_SOCKET: Duration = Duration::from_secs(1);
/// What it answers at once.
const ALIVE: &str = "/livez";
/// The pause before another attempt.
const RETRY: Duration = Duration::from_millis(20);
/// A longer answer is not a daemon's.
const LIMIT: usize = 64 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Silence {
    /// No daemon runs.
    Stopped(PathBuf),
    /// Something runs that has no socket.
    Foreign {
        /// The socket.
        path: PathBuf,
        /// Descriptions of the processes.
        who: Vec<String>,
    },
    /// The socket may not be used.
    Denied(PathBuf),
    /// It does not answer in time.
    Hangs(PathBuf, Duration),
    /// It answers that it cannot, in its words.
    Refused(String),
    /// The answer is none.
    Strange {
        /// The socket.
        path: PathBuf,
        /// What came instead.
        what: Strange,
    },
}

/// What came instead of an answer.
#[derive(Debug)]
pub(crate) enum Strange {
    /// No HTTP.
    NoHttp,
    /// Another code than 200.
    Code {
        /// The code.
        code: String,
        /// The first line that came with it.
        line: String,
    },
    /// No document.
    NoDocument(serde_json::Error),
    /// A document of another schema.
    Schema {
        /// Its schema.
        theirs: String,
        /// The one that this program reads.
        ours: String,
    },
    /// An error of the system.
    System(io::Error),
}

impl Coded for Silence {
    fn code(&self) -> &'static str {
        match self {
            Self::Stopped(_) => "daemon-stopped",
            Self::Foreign { .. } => "daemon-foreign",
            Self::Denied(_) => "daemon-denied",
            Self::Hangs(..) => "daemon-hangs",
            Self::Refused(_) => "daemon-refused",
            Self::Strange { what, .. } => what.code(),
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        types::problem::text(f, self, |f| match self {
            Self::Stopped(path) => write!(
                f,
                "flanneld does not run here: nobody listens on {}; start it (systemctl start flanneld), or name its --subnet-file",
                path.display()
            ),
            Self::Foreign { path, who } => write!(
                f,
                "flanneld ({}) runs here and has no socket {}: it is Go flannel, an older version, or one with another --subnet-file",
                who.join("; "),
                path.display()
            ),
            Self::Denied(path) => write!(
                f,
                "only root may ask flanneld: permission denied on {}; use sudo",
                path.display()
            ),
            Self::Hangs(path, patience) => write!(
                f,
                "flanneld is there and does not answer on {} within {patience:?}: it hangs, or has more clients than it serves",
                path.display()
            ),
            Self::Refused(words) => f.write_str(words),
            Self::Strange { path, what } => {
                write!(
                    f,
                    "flanneld answers something else on {}: {what}; are flannelctl and flanneld of one version?",
                    path.display()
                )
            }
        })
    }
}

impl std::error::Error for Silence {}

impl Coded for Strange {
    fn code(&self) -> &'static str {
        match self {
            Self::NoHttp => "answer-no-http",
            Self::Code { .. } => "answer-code",
            Self::NoDocument(_) => "answer-no-document",
            Self::Schema { .. } => "answer-schema",
            Self::System(_) => "answer-unreadable",
        }
    }
}

impl fmt::Display for Strange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        types::problem::text(f, self, |f| match self {
            Self::NoHttp => f.write_str("it is no HTTP"),
            Self::Code { code, line } => write!(f, "code {code}: {line}"),
            Self::NoDocument(error) => write!(f, "{error}"),
            Self::Schema { theirs, ours } => write!(f, "the schema {theirs}, not {ours}"),
            Self::System(error) => write!(f, "{error}"),
        })
    }
}

/// The daemon's document; with `rows` it asks other nodes for what they know.
///
/// # Errors
/// Says why there is none.
pub(crate) fn node(subnet_file: &Path, rows: bool) -> Result<Node, Silence> {
    let path = api_socket::path(subnet_file);
    let target = if rows {
        format!("{}?rows", node_api::NODE)
    } else {
        node_api::NODE.to_owned()
    };
    let answer = get(subnet_file, &path, &target, TIMEOUT)?;
    let named = |node: &Node| node.schema.clone();
    document(&answer, node_api::SCHEMA, named).map_err(|what| Silence::Strange { path, what })
}

/// What the daemon's doctor found.
///
/// # Errors
/// Says why there is no report.
pub(crate) fn findings(subnet_file: &Path) -> Result<Report, Silence> {
    let path = api_socket::path(subnet_file);
    let answer = get(subnet_file, &path, node_api::FINDINGS, TIMEOUT)?;
    let named = |report: &Report| report.schema.clone();
    document(&answer, doctor::finding::SCHEMA, named)
        .map_err(|what| Silence::Strange { path, what })
}

/// What the kernel has beside what the daemon wants.
///
/// # Errors
/// Says why there is no comparison.
pub(crate) fn routes(subnet_file: &Path) -> Result<Routes, Silence> {
    let path = api_socket::path(subnet_file);
    let answer = get(subnet_file, &path, node_api::ROUTES, TIMEOUT)?;
    refused(&answer)?;
    let named = |routes: &Routes| routes.schema.clone();
    document(&answer, routes::SCHEMA, named).map_err(|what| Silence::Strange { path, what })
}

/// What comes of asking a peer or a pod at once.
///
/// # Errors
/// Says why there is nothing: nobody is meant, it cannot be asked now, or the daemon does not answer.
pub(crate) fn probe(subnet_file: &Path, peer: &str) -> Result<Probe, Silence> {
    let path = api_socket::path(subnet_file);
    // A daemon that hangs is noticed at once.
    get(subnet_file, &path, ALIVE, TIMEOUT)?;
    let answer = get(subnet_file, &path, &node_api::probe::request(peer), PROBE)?;
    refused(&answer)?;
    let named = |probe: &Probe| probe.schema.clone();
    document(&answer, node_api::PROBE, named).map_err(|what| Silence::Strange { path, what })
}

/// What the daemon answers to a request, whatever it says.
///
/// # Errors
/// Says why there is no answer.
pub(crate) fn text(subnet_file: &Path, target: &str) -> Result<String, Silence> {
    let path = api_socket::path(subnet_file);
    let answer = get(subnet_file, &path, target, TIMEOUT)?;
    match split(&answer) {
        Ok((_, body)) => Ok(String::from_utf8_lossy(body).into_owned()),
        Err(what) => Err(Silence::Strange { path, what }),
    }
}

fn get(
    subnet_file: &Path,
    path: &Path,
    target: &str,
    patience: Duration,
) -> Result<Vec<u8>, Silence> {
    let begun = Instant::now();
    let end = begun + patience;
    loop {
        let error = match attempt(path, target, end) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => match absent(subnet_file, path) {
                Silence::Foreign { .. } | Silence::Hangs(..) if begun.elapsed() < NO_SOCKET => {
                    std::thread::sleep(RETRY);
                }
                silence => return Err(silence),
            },
            ErrorKind::PermissionDenied => return Err(Silence::Denied(path.to_owned())),
            // Too many clients at once: the next attempt may be luckier.
            ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof => {
                if Instant::now() + RETRY >= end {
                    return Err(Silence::Hangs(path.to_owned(), patience));
                }
                std::thread::sleep(RETRY);
            }
            _ => {
                return Err(Silence::Strange {
                    path: path.to_owned(),
                    what: Strange::System(error),
                });
            }
        }
    }
}

fn attempt(path: &Path, target: &str, end: Instant) -> io::Result<Vec<u8>> {
    let left = || {
        end.saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1))
    };
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
    if answer.is_empty() {
        Err(ErrorKind::UnexpectedEof.into())
    } else {
        Ok(answer)
    }
}

/// Nobody listens: no daemon, or another one.
fn absent(subnet_file: &Path, path: &Path) -> Silence {
    if status_file::lives(subnet_file) {
        return Silence::Hangs(path.to_owned(), NO_SOCKET);
    }
    // Who is not root cannot tell this host's daemon from those of others.
    match instance::running::running(subnet_file) {
        who if who.is_empty() || !rights::is_root() => Silence::Stopped(path.to_owned()),
        who => Silence::Foreign {
            path: path.to_owned(),
            who,
        },
    }
}

/// The head and the body of an answer.
fn split(answer: &[u8]) -> Result<(String, &[u8]), Strange> {
    let end = answer
        .windows(4)
        .position(|bytes| bytes == b"\r\n\r\n")
        .ok_or(Strange::NoHttp)?;
    let (head, body) = answer.split_at_checked(end + 4).ok_or(Strange::NoHttp)?;
    Ok((String::from_utf8_lossy(head).into_owned(), body))
}

/// Whether the daemon answers that it cannot, and why.
fn refused(answer: &[u8]) -> Result<(), Silence> {
    match split(answer) {
        Ok((head, body)) if matches!(code(&head), "422" | "503") => Err(Silence::Refused(
            String::from_utf8_lossy(body).trim_end().to_owned(),
        )),
        _ => Ok(()),
    }
}

/// The code in the head of an answer.
fn code(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

/// The document in an answer, of this schema.
fn document<T: DeserializeOwned>(
    answer: &[u8],
    schema: &str,
    named: impl FnOnce(&T) -> String,
) -> Result<T, Strange> {
    let (head, body) = split(answer)?;
    let code = code(&head);
    if code != "200" {
        let line = String::from_utf8_lossy(body)
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned();
        return Err(Strange::Code {
            code: code.to_owned(),
            line,
        });
    }
    let document: T = serde_json::from_slice(body).map_err(Strange::NoDocument)?;
    let theirs = named(&document);
    if theirs == schema {
        Ok(document)
    } else {
        Err(Strange::Schema {
            theirs,
            ours: schema.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: &[u8]) -> Result<Node, Strange> {
        document(answer, node_api::SCHEMA, |node: &Node| node.schema.clone())
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
    fn an_answer_is_a_document_or_an_error() {
        assert_eq!(
            read(format!("HTTP/1.0 200 OK\r\nx: y\r\n\r\n{}", good()).as_bytes())
                .unwrap()
                .node,
            "n"
        );
        for (wrong, why) in [
            (String::new(), "no HTTP"),
            ("HTTP/1.0 200 OK\r\n".to_owned(), "no HTTP"),
            (format!("HTTP/1.0 404 Not Found\r\n\r\n{}", good()), "404"),
            ("HTTP/1.0 200 OK\r\n\r\n{".to_owned(), "EOF"),
            ("HTTP/1.0 200 OK\r\n\r\n{}".to_owned(), "missing field"),
            (
                format!(
                    "HTTP/1.0 200 OK\r\n\r\n{}",
                    good().replace("node/1", "node/2")
                ),
                "flannel.node/2",
            ),
        ] {
            let error = read(wrong.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn silence_has_its_reason_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let env = folder.path().join("subnet.env");
        let why = |env: &Path| node(env, false).unwrap_err().to_string();
        let none = why(&env);
        assert!(
            none.contains("does not run here") || none.contains("runs here"),
            "{none}"
        );
        let mut socket = api_socket::Socket::new(&env);
        let _listener = socket.put().unwrap().unwrap();
        let begun = Instant::now();
        // It is listened to, and nobody accepts.
        assert!(why(&env).contains("does not answer"), "{}", why(&env));
        assert!(begun.elapsed() >= TIMEOUT);
    }
}
