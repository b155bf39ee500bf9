//! Tests the server with clients that are slow, send nothing, or open many connections.

use super::*;
use axum::routing::get;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Deadline for each wait of the tests: more than ten times the expected time.
const LONG: Duration = Duration::from_secs(60);

struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

async fn start() -> Server {
    start_with(Times::default()).await
}

async fn start_with(times: Times) -> Server {
    let big = axum::body::Bytes::from(vec![b'x'; 32 << 20]);
    let router = Router::new()
        .route("/", get(async || "well"))
        .route("/never", get(async || std::future::pending::<()>().await))
        // More than the buffers of a client take, and less than the kernel would buffer by default.
        .route("/some", get(async || "x".repeat(100_000)))
        .route("/big", get(move || std::future::ready(big.clone())));
    let listener = super::super::listen::tcp("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let served = stop.clone();
    let task = tokio::spawn(async move {
        serve(
            Listener::Tcp(listener),
            router,
            "the test's server",
            times,
            served,
        )
        .await;
    });
    Server {
        address,
        stop,
        task,
    }
}

async fn send(address: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// Reads until the server closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    // A reset also ends the response.
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut text))
        .await
        .expect("the server closes the connection");
    String::from_utf8_lossy(&text).into_owned()
}

async fn ask(address: SocketAddr) -> String {
    rest(send(address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await).await
}

impl Server {
    async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(LONG, self.task)
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn each_connection_gets_one_answer() {
    let server = start().await;
    let answer = ask(server.address).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nwell"),
        "{answer}"
    );
    // Two requests at once get one response, with `connection: close`.
    let twice = rest(
        send(
            server.address,
            &"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2),
        )
        .await,
    )
    .await;
    assert_eq!(twice.matches("HTTP/1.1 200").count(), 1, "{twice}");
    assert!(
        twice.to_lowercase().contains("connection: close"),
        "{twice}"
    );
    // A client that closes its half first gets a response.
    let mut half = send(server.address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    half.shutdown().await.unwrap();
    assert!(rest(half).await.ends_with("well"));
    server.end().await;
}

#[tokio::test]
async fn long_head_is_refused() {
    let server = start().await;
    let long = format!(
        "GET / HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n",
        "x".repeat(2 * HEAD)
    );
    let answer = rest(send(server.address, &long).await).await;
    assert!(!answer.contains("200 OK"), "{answer}");
    let fits = format!(
        "GET / HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n",
        "x".repeat(HEAD / 2)
    );
    assert!(
        rest(send(server.address, &fits).await)
            .await
            .ends_with("well")
    );
    server.end().await;
}

#[tokio::test]
async fn silent_clients_do_not_block_others() {
    let server = start().await;
    let mut silent = Vec::new();
    for number in 0..300 {
        silent.push(
            send(
                server.address,
                if number % 2 == 0 { "" } else { "GET / HT" },
            )
            .await,
        );
    }
    assert!(ask(server.address).await.ends_with("well"));
    // The oldest connection was displaced. The newest one can send the rest of its request.
    assert_eq!(rest(silent.remove(0)).await, "");
    let mut newest = silent.pop().unwrap();
    newest
        .write_all(b"TP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(rest(newest).await.ends_with("well"));
    server.end().await;
}

#[tokio::test]
async fn clients_that_do_not_read_do_not_block_others() {
    let server = start().await;
    let mut slow = Vec::new();
    for number in 0..100 {
        slow.push(
            send(
                server.address,
                &format!(
                    "GET /{} HTTP/1.1\r\nHost: x\r\n\r\n",
                    if number % 2 == 0 { "big" } else { "never" }
                ),
            )
            .await,
        );
    }
    assert!(
        tokio::time::timeout(LONG, ask(server.address))
            .await
            .unwrap()
            .ends_with("well")
    );
    server.end().await;
}

#[tokio::test]
async fn head_and_answer_have_time_limits() {
    let times = Times {
        head: Duration::from_millis(100),
        answer: Duration::from_millis(300),
    };
    let server = start_with(times).await;
    for (text, limit) in [
        ("GET /", times.head),
        ("GET /never HTTP/1.1\r\nHost: x\r\n\r\n", times.answer),
    ] {
        let begun = Instant::now();
        let stream = send(server.address, text).await;
        assert!(!rest(stream).await.contains("200"));
        assert!(begun.elapsed() >= limit, "{:?}", begun.elapsed());
    }
    server.end().await;
}

#[tokio::test]
async fn stop_closes_half_open_connections_and_finishes_answers() {
    let server = start().await;
    let half = send(server.address, "GET").await;
    let big = send(server.address, "GET /big HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut first = [0; 1];
    big.readable().await.unwrap();
    assert_eq!(big.try_read(&mut first).unwrap(), 1);
    server.stop.cancel();
    let (half, big) = tokio::join!(rest(half), rest(big));
    assert_eq!(
        (half.len(), big.len() > 32 << 20),
        (0, true),
        "{}",
        big.len()
    );
    server.end().await;
}

/// A client of a flood.
#[derive(Clone, Copy)]
enum Client {
    /// Reads the response.
    Reads,
    /// Reads nothing, and keeps the connection until the server displaces it.
    Keeps,
}

impl Client {
    /// Sends the same request again whenever a connection ends.
    async fn come_back(self, address: SocketAddr, path: &str) {
        loop {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            let Ok(mut client) = socket.connect(address).await else {
                continue;
            };
            let _ = client
                .write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())
                .await;
            match self {
                Self::Reads => {
                    let _ = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
                }
                Self::Keeps => {
                    while !client
                        .ready(tokio::io::Interest::READABLE)
                        .await
                        .is_ok_and(|ready| ready.is_read_closed())
                    {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            }
        }
    }
}

/// Returns the time until ten probes have succeeded, while three hundred clients request `path`.
///
/// On a busy machine, the server may displace a probe's connection before the test sends the request. Kubernetes restarts a pod
/// only after three failed probes in sequence, so at most two probes in sequence may fail.
async fn ten_probes_during_flood(
    address: SocketAddr,
    (client, path): (Client, &'static str),
    (probe, end): (&str, &str),
) -> Duration {
    let mut flood = JoinSet::new();
    (0..300).for_each(|_| drop(flood.spawn(client.come_back(address, path))));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = Instant::now();
    let (mut answered, mut failed) = (0, 0);
    while answered < 10 {
        assert!(failed < 3, "{path}: three probes failed in sequence");
        failed += 1;
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may have displaced the connection already.
        let request = format!("GET {probe} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        if stream.write_all(request.as_bytes()).await.is_err() {
            continue;
        }
        let answer = rest(stream).await;
        if answer.is_empty() {
            continue;
        }
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with(end),
            "{answer}"
        );
        (answered, failed) = (answered + 1, 0);
    }
    begun.elapsed()
}

/// Clients that read no responses delay probes only a little more than clients that read all responses.
#[tokio::test]
async fn probes_are_answered_while_300_clients_do_not_read() {
    let server = start().await;
    let health = super::super::health::Server::bind(
        "127.0.0.1:0".parse().unwrap(),
        crate::health::Health::new(),
    )
    .await
    .unwrap();
    let (address, stop) = (health.address().unwrap(), CancellationToken::new());
    let served = tokio::spawn(health.serve(stop.clone()));
    for (address, path, probe) in [
        (server.address, "/some", ("/", "well")),
        (address, "/status", ("/livez", "flanneld is running")),
    ] {
        // On a busy machine, one of the two measurements may take long. If clients keep their slots, all comparisons fail.
        let mut compared = Vec::new();
        loop {
            let usual = ten_probes_during_flood(address, (Client::Reads, path), probe).await;
            let took = ten_probes_during_flood(address, (Client::Keeps, path), probe).await;
            // The probes took 20 s when clients kept their slots for a second. Now they take a third of a second.
            if took < Duration::from_secs(5) + usual * 10 {
                break;
            }
            compared.push((usual, took));
            assert!(compared.len() < 3, "{path}: {compared:?}");
        }
    }
    stop.cancel();
    server.end().await;
    served.await.unwrap();
}

/// Returns the number of bytes in the send queues of a port of 127.0.0.1, and the number of orphaned connections that still hold bytes.
fn kept(port: u16) -> (usize, usize) {
    let local = format!("0100007F:{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours: Vec<(usize, bool)> = lines
        .filter(|columns| {
            columns.get(1) == Some(&local.as_str()) && columns[3] != "0A" && columns[3] != "06"
        })
        .map(|columns| {
            (
                usize::from_str_radix(columns[4].split(':').next().unwrap(), 16).unwrap(),
                columns[9] == "0",
            )
        })
        .collect();
    (
        ours.iter().map(|(bytes, _)| bytes).sum(),
        ours.iter()
            .filter(|(bytes, orphan)| *orphan && *bytes > 0)
            .count(),
    )
}

/// Unread responses to three hundred clients use little memory, and the kernel discards these responses after the time limit.
#[tokio::test]
async fn unread_answers_use_little_memory_and_expire() {
    const KEPT: usize = 16 << 20;
    let server = start_with(Times {
        answer: Duration::from_secs(2),
        ..Times::default()
    })
    .await;
    let port = server.address.port();
    let mut clients = Vec::new();
    let mut most = 0;
    for number in 0..300 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // Bytes in a client's own buffers do not count against the server.
        socket.set_recv_buffer_size(4096).unwrap();
        let mut client = socket.connect(server.address).await.unwrap();
        client
            .write_all(
                format!(
                    "GET /{} HTTP/1.1\r\nHost: x\r\n\r\n",
                    ["big", "some"][number % 2]
                )
                .as_bytes(),
            )
            .await
            .unwrap();
        if number % 3 == 0 {
            client.shutdown().await.unwrap();
        }
        clients.push(client);
        most = most.max(kept(port).0);
    }
    assert!(
        tokio::time::timeout(LONG, ask(server.address))
            .await
            .unwrap()
            .ends_with("well")
    );
    most = most.max(kept(port).0);
    // The kernel needs as much again for its own structures.
    assert!(most > 0 && 2 * most < KEPT, "{most}");
    let deadline = Instant::now() + LONG;
    while kept(port).0 > 0 {
        assert!(Instant::now() < deadline, "{:?}", kept(port));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(clients);
    server.end().await;
}
