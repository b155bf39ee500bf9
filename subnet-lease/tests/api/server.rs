//! An API server with one Node. The server replies as a test specifies, and records the requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Number of the connection, in the order of opening.
    pub connection: usize,
    pub method: String,
    pub path: String,
    pub authorization: Option<String>,
    pub at: Instant,
}

impl Asked {
    pub(crate) fn is_watch(&self) -> bool {
        self.path.contains("watch=1")
    }

    /// Returns whether the request lists or watches all Nodes.
    pub(crate) fn is_of_all(&self) -> bool {
        self.path.starts_with("/api/v1/nodes?") && !self.path.contains("fieldSelector")
    }

    pub(crate) fn is_event(&self) -> bool {
        self.path.ends_with("/events")
    }
}

/// Reply to a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// The normal reply of an API server that has the Node n1.
    Pass,
    /// A reply with the given HTTP status.
    Status(u16),
    /// The complete list, followed by an error that ends the watch.
    ListThenExpired,
    /// A reply with the given body.
    Body(String),
}

type Judge = dyn Fn(&Asked) -> Reply + Send + Sync;

pub(crate) struct Server {
    pub address: SocketAddr,
    judge: Mutex<Arc<Judge>>,
    asked: Mutex<Vec<Asked>>,
    connections: AtomicUsize,
}

const NODE: &str = r#"{"metadata":{"name":"n1","uid":"u1","resourceVersion":"7","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"podCIDR":"10.244.1.0/24"},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}"#;

impl Server {
    pub(crate) async fn start(
        judge: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    ) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            judge: Mutex::new(Arc::new(judge)),
            asked: Mutex::default(),
            connections: AtomicUsize::new(0),
        });
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (server, number) = (
                    accepting.clone(),
                    accepting.connections.fetch_add(1, Relaxed),
                );
                tokio::spawn(async move { server.serve(stream, number).await });
            }
        });
        server
    }

    /// Sets the function that determines the reply to each further request.
    pub(crate) fn on(&self, judge: impl Fn(&Asked) -> Reply + Send + Sync + 'static) {
        *self.judge.lock().unwrap() = Arc::new(judge);
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn forget(&self) {
        self.asked.lock().unwrap().clear();
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    async fn serve(&self, stream: TcpStream, connection: usize) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let Some(asked) = read(&mut stream, connection).await? else {
                return Ok(());
            };
            self.asked.lock().unwrap().push(asked.clone());
            let judge = self.judge.lock().unwrap().clone();
            let list = format!(
                "{{\"type\":\"ADDED\",\"object\":{NODE}}}\n{}\n",
                bookmark("7")
            );
            match judge(&asked) {
                Reply::Status(code) => {
                    let body = format!(r#"{{"kind":"Status","message":"the test says {code}"}}"#);
                    whole(&mut stream, &format!("{code} Test"), &body).await?;
                }
                Reply::Body(body) => whole(&mut stream, "200 OK", &body).await?,
                Reply::ListThenExpired => {
                    let expired = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version"}}"#;
                    let list = if asked.path.contains("sendInitialEvents") {
                        list
                    } else {
                        String::new()
                    };
                    whole(&mut stream, "200 OK", &format!("{list}{expired}\n")).await?;
                }
                Reply::Pass if asked.is_watch() => {
                    let text = if asked.path.contains("sendInitialEvents") {
                        list
                    } else {
                        format!("{}\n", bookmark("7"))
                    };
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                    stream
                        .write_all(format!("{head}{:x}\r\n{text}\r\n", text.len()).as_bytes())
                        .await?;
                    // Keep the watch open until the client closes the connection.
                    let mut rest = [0; 64];
                    while stream.read(&mut rest).await? > 0 {}
                    return Ok(());
                }
                Reply::Pass if asked.method == "GET" => {
                    whole(
                        &mut stream,
                        "200 OK",
                        &format!(r#"{{"metadata":{{"resourceVersion":"7"}},"items":[{NODE}]}}"#),
                    )
                    .await?;
                }
                Reply::Pass => whole(&mut stream, "200 OK", NODE).await?,
            }
        }
    }
}

fn bookmark(version: &str) -> String {
    format!(
        r#"{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}}}"#
    )
}

async fn whole(stream: &mut BufReader<TcpStream>, status: &str, body: &str) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await
}

/// Reads the next request; `None` if the client closed the connection.
async fn read(
    stream: &mut BufReader<TcpStream>,
    connection: usize,
) -> std::io::Result<Option<Asked>> {
    let mut first = String::new();
    if stream.read_line(&mut first).await? == 0 {
        return Ok(None);
    }
    let (mut length, mut authorization) = (0, None);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim().split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "authorization" => authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    Ok(Some(Asked {
        connection,
        method,
        path,
        authorization,
        at: Instant::now(),
    }))
}
