//! Tests the server with clients that are slow, send nothing, or open many connections.

use super::*;
use axum::routing::get;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpSocket, TcpStream};

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
const SOME: &str = "GET /some HTTP/1.1\r\nHost: x\r\n\r\n";
/// Limits that never end in a test.
const ENDLESS: Times = Times { head: Duration::from_secs(3600), answer: Duration::from_secs(3600) };

struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    async fn start(times: Times) -> Self {
        let router = Router::new()
            .route("/", get(async || "well"))
            .route("/never", get(async || std::future::pending::<()>().await))
            // More than the buffers of a client take, and less than the kernel would buffer by default.
            .route("/some", get(async || "x".repeat(100_000) + "end"));
        let listener = super::super::listen::tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (listener, stopped) = (Listener::Tcp(listener), stop.clone());
        let served =
            async move { serve(listener, router, "the test's server", times, stopped).await };
        Self { address, stop, task: tokio::spawn(served) }
    }

    /// The new connection's own buffer takes few bytes of the response.
    async fn send(&self, text: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn ask(&self, text: &str) -> String {
        rest(self.send(text).await).await
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// Reads until the server closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // A reset also ends the response.
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn each_connection_gets_one_answer() {
    let server = Server::start(ENDLESS).await;
    // Two requests at once get one response, with `connection: close`.
    let answer = server.ask(&REQUEST.repeat(2)).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nwell"),
        "{answer}"
    );
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    // A client that closes its half first gets a response.
    let mut half = server.send(REQUEST).await;
    half.shutdown().await.unwrap();
    assert!(rest(half).await.ends_with("well"));
    server.end().await;
}

#[tokio::test]
async fn long_head_is_refused() {
    let server = Server::start(ENDLESS).await;
    for (length, fits) in [(HEAD / 2, true), (2 * HEAD, false)] {
        let long = "x".repeat(length);
        let answer =
            server.ask(&format!("GET / HTTP/1.1\r\nHost: x\r\nX-Long: {long}\r\n\r\n")).await;
        assert_eq!(answer.ends_with("well"), fits, "{answer}");
    }
    server.end().await;
}

/// More clients than slots send nothing more, or do not read their responses. One more client gets its response, and
/// every client beyond the slots loses its connection.
#[tokio::test]
async fn new_client_displaces_one_that_sends_or_reads_nothing() {
    for (sent, later) in [("", REQUEST), (&REQUEST[..8], &REQUEST[8..]), (SOME, "")] {
        let server = Server::start(ENDLESS).await;
        let mut clients = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            let client = server.send(sent).await;
            if later.is_empty() {
                // The response begins, so the server has the request.
                client.ready(Interest::READABLE).await.unwrap();
            }
            clients.push(client);
        }
        assert!(server.ask(REQUEST).await.ends_with("well"), "{sent:?}");
        let mut answered = 0;
        for mut client in clients {
            let _ = client.write_all(later.as_bytes()).await;
            let answer = rest(client).await;
            answered += usize::from(answer.ends_with("well") || answer.ends_with("end"));
        }
        assert_eq!(answered, CONNECTIONS - 1, "{sent:?}");
        server.end().await;
    }
}

#[tokio::test]
async fn head_and_answer_have_time_limits() {
    let limit = Duration::from_millis(100);
    for (text, times) in [
        ("GET /", Times { head: limit, ..ENDLESS }),
        ("GET /never HTTP/1.1\r\nHost: x\r\n\r\n", Times { answer: limit, ..ENDLESS }),
    ] {
        let server = Server::start(times).await;
        assert!(!server.ask(text).await.contains("200"), "{text}");
        server.end().await;
    }
}

#[tokio::test]
async fn stop_closes_half_open_connections_and_finishes_answers() {
    let server = Server::start(ENDLESS).await;
    let half = server.send("GET").await;
    let some = server.send(SOME).await;
    some.ready(Interest::READABLE).await.unwrap();
    server.stop.cancel();
    let (half, some) = tokio::join!(rest(half), rest(some));
    assert_eq!((half.as_str(), some.ends_with("end")), ("", true));
    server.end().await;
}

/// The bytes in the send queues of a port of 127.0.0.1.
fn count_kept_bytes(port: u16) -> usize {
    let local = format!("0100007F:{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // A listening socket and one in TIME_WAIT have other numbers in the column.
    lines
        .filter(|columns| columns[1] == local && !["0A", "06"].contains(&columns[3]))
        .map(|columns| usize::from_str_radix(&columns[4][..8], 16).unwrap())
        .sum()
}

/// Unread responses to three hundred clients use little memory, and the kernel discards them after the time limit.
#[tokio::test]
async fn unread_answers_use_little_memory_and_expire() {
    const KEPT: usize = 16 << 20;
    let server = Server::start(Times { answer: Duration::from_secs(2), ..ENDLESS }).await;
    let port = server.address.port();
    let (mut clients, mut most) = (Vec::new(), 0);
    for number in 0..300 {
        let mut client = server.send(SOME).await;
        if number % 3 == 0 {
            client.shutdown().await.unwrap();
        }
        clients.push(client);
        most = most.max(count_kept_bytes(port));
    }
    // The kernel needs as much again for its own structures.
    assert!(most > 0 && 2 * most < KEPT, "{most}");
    while count_kept_bytes(port) > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(clients);
    server.end().await;
}
