//! Many nodes that follow one API server: after a disturbance they come back one after the other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests say what is wrong by failing")]

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use subnet_lease::kube::annotations::Prefix;
use subnet_lease::kube::{Identity, KubeManager, KubeOptions};
use subnet_lease::manager::SubnetManager;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The nodes of the cluster. In larger ones they take longer, at the same rate.
const NODES: usize = 200;

/// What an API server answers that has these Nodes and no news; and when it was asked for a list.
struct Server {
    lists: Mutex<Vec<Instant>>,
    watches: Mutex<usize>,
    everybody: String,
    /// Raised, it drops every connection.
    dropped: watch::Sender<u64>,
}

fn node(number: usize) -> String {
    format!(
        r#"{{"metadata":{{"name":"n{number}","uid":"u{number}","resourceVersion":"{}","creationTimestamp":"2026-01-01T00:00:00Z","annotations":{{
        "flannel.alpha.coreos.com/kube-subnet-manager":"true","flannel.alpha.coreos.com/backend-type":"host-gw",
        "flannel.alpha.coreos.com/public-ip":"10.1.{}.{}"}}}},"spec":{{"podCIDR":"10.{}.{}.0/24"}}}}"#,
        number + 1,
        number / 250,
        number % 250,
        64 + number / 250,
        number % 250
    )
    .replace('\n', "")
}

impl Server {
    fn new() -> Self {
        let mut everybody = String::new();
        for number in 0..NODES {
            // Each client reads them all: what counts is how many there are.
            let _ = writeln!(
                everybody,
                r#"{{"type":"ADDED","object":{{"metadata":{{"name":"n{number}","uid":"u{number}","resourceVersion":"{}"}}}}}}"#,
                number + 1
            );
        }
        Self { lists: Mutex::default(), watches: Mutex::default(), everybody, dropped: watch::Sender::new(0) }
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let server = self.clone();
            tokio::spawn(async move {
                let mut dropped = server.dropped.subscribe();
                tokio::select! {
                    _ = server.clone().answer(stream) => {}
                    _ = dropped.changed() => {}
                }
            });
        }
    }

    /// Answers the requests of one connection.
    async fn answer(self: Arc<Self>, stream: TcpStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let mut request = String::new();
            if stream.read_line(&mut request).await? == 0 {
                return Ok(());
            }
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).await?;
                if line.trim().is_empty() {
                    break;
                }
            }
            let only = request.split("metadata.name%3D").nth(1).and_then(|rest| rest.split([' ', '&']).next()).map(str::to_owned);
            let one = only.as_deref().and_then(|name| name.strip_prefix('n')?.parse().ok()).map(node);
            if request.contains("watch=1") {
                *self.watches.lock().unwrap() += 1;
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await?;
                if request.contains("sendInitialEvents") {
                    let nodes = match &one {
                        Some(node) => format!("{{\"type\":\"ADDED\",\"object\":{node}}}\n"),
                        None => self.everybody.clone(),
                    };
                    let end =
                        r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"900","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
                    let text = format!("{nodes}{end}\n");
                    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await?;
                }
                std::future::pending::<()>().await;
            }
            self.lists.lock().unwrap().push(Instant::now());
            let body = format!(r#"{{"metadata":{{"resourceVersion":"900"}},"items":[{}]}}"#, one.unwrap_or_default());
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).await?;
        }
    }
}

fn options(server: SocketAddr, number: usize, net_conf: &std::path::Path) -> KubeOptions {
    KubeOptions {
        urls: vec![format!("http://{server}")],
        kubeconfig: None,
        prefix: Prefix::parse("flannel.alpha.coreos.com").unwrap(),
        net_conf: net_conf.to_owned(),
        clear_condition: true,
        identity: Identity::Node(format!("n{number}")),
        user_agent: "test/1".to_owned(),
    }
}

/// The most lists within any second.
fn peak(lists: &[Instant]) -> usize {
    let within = |start: &Instant| lists.iter().filter(|at| **at >= *start && **at < *start + Duration::from_secs(1)).count();
    lists.iter().map(within).max().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_comes_back_one_after_the_other() {
    /// As many as clusters of this size have; a tenth would not be a crowd.
    const CLIENTS: usize = NODES;
    let folder = tempfile::tempdir().unwrap();
    let net_conf = folder.path().join("net-conf.json");
    std::fs::write(&net_conf, r#"{"Network":"10.0.0.0/8","Backend":{"Type":"host-gw"}}"#).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Arc::new(Server::new());
    tokio::spawn(server.clone().serve(listener));
    let mut managers = Vec::new();
    for number in 0..CLIENTS {
        let manager = KubeManager::open(options(address, number, &net_conf)).await.unwrap();
        let config = manager.network_config().await.unwrap();
        managers.push((manager, config));
    }
    for (manager, config) in &managers {
        while manager.node_info(config).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    // One request each for the own Node, and for all of them: no list by pages.
    assert_eq!((server.lists.lock().unwrap().len(), *server.watches.lock().unwrap()), (0, 2 * CLIENTS));

    // The server restarts: every connection breaks at once.
    server.dropped.send_modify(|times| *times += 1);
    let begun = Instant::now();
    while *server.watches.lock().unwrap() < 4 * CLIENTS {
        assert!(begun.elapsed() < Duration::from_secs(150), "{} watches", server.watches.lock().unwrap());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let lists = server.lists.lock().unwrap().clone();
    assert_eq!(lists.len(), CLIENTS, "each looks once whether the server continues where it stopped");
    // 40 a second on average, at random.
    println!("{} lists within a second at most, {CLIENTS} within {:?}", peak(&lists), begun.elapsed());
    assert!(peak(&lists) <= 80, "{} lists within a second, of {CLIENTS} in {:?}", peak(&lists), begun.elapsed());
}
