//! Many nodes that follow one API server. The nodes spread their requests at the start and after an interruption of the watches.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests say what is wrong by failing"
)]

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

/// Number of nodes in the cluster.
const NODES: usize = 500;
/// Maximum number of Node lists that a server may receive within a second.
const A_SECOND: usize = 60;

/// Form in which a server lists Nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lists {
    /// As a stream.
    Streams,
    /// Only lists in pages, as from API servers before Kubernetes 1.32.
    Pages,
    /// Only lists in pages, with at most the given number of new lists per
    /// second. The server refuses further lists for a second, as overload protection does.
    Limited(usize),
}

/// An API server with a constant set of Nodes, which records the requests for lists.
struct Server {
    mode: Lists,
    lists: Mutex<Vec<Instant>>,
    /// Times of the requests for the first page of all Nodes, including refused requests.
    begun: Mutex<Vec<Instant>>,
    /// Times of the requests for the first page of all Nodes, without refused requests.
    served: Mutex<Vec<Instant>>,
    watches: Mutex<usize>,
    everybody: String,
    /// Periods in which the kernel did not schedule this process, as on a busy machine. Requests that are due in a period without scheduling arrive
    /// all at once.
    stalls: Mutex<Vec<(Instant, Instant)>>,
    /// Signals the server's tasks to drop every connection.
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
    fn new(mode: Lists) -> Self {
        let mut everybody = String::new();
        for number in 0..NODES {
            // Every client parses all of them. Only their number matters.
            let _ = writeln!(
                everybody,
                r#"{{"type":"ADDED","object":{{"metadata":{{"name":"n{number}","uid":"u{number}","resourceVersion":"{}"}}}}}}"#,
                number + 1
            );
        }
        Self {
            mode,
            lists: Mutex::default(),
            begun: Mutex::default(),
            served: Mutex::default(),
            watches: Mutex::default(),
            stalls: Mutex::default(),
            everybody,
            dropped: watch::Sender::new(0),
        }
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

    async fn notice_stalls(self: Arc<Self>) {
        const BEAT: Duration = Duration::from_millis(20);
        loop {
            let before = Instant::now();
            tokio::time::sleep(BEAT).await;
            if before.elapsed() > BEAT * 2 {
                self.stalls.lock().unwrap().push((before, Instant::now()));
            }
        }
    }

    /// Replies to the requests of one connection.
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
            let only = request
                .split("metadata.name%3D")
                .nth(1)
                .and_then(|rest| rest.split([' ', '&']).next())
                .map(str::to_owned);
            let one = only
                .as_deref()
                .and_then(|name| name.strip_prefix('n')?.parse().ok())
                .map(node);
            if self.mode != Lists::Streams && request.contains("sendInitialEvents") {
                refuse(&mut stream, "422 Unprocessable Entity", "").await?;
                continue;
            }
            if request.contains("watch=1") {
                *self.watches.lock().unwrap() += 1;
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await?;
                if request.contains("sendInitialEvents") {
                    let nodes = match &one {
                        Some(node) => format!("{{\"type\":\"ADDED\",\"object\":{node}}}\n"),
                        None => self.everybody.clone(),
                    };
                    let end = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"900","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
                    let text = format!("{nodes}{end}\n");
                    stream
                        .write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
                        .await?;
                }
                std::future::pending::<()>().await;
            }
            if only.is_none() {
                if !self.page(&mut stream, &request).await? {
                    refuse(&mut stream, "429 Too Many Requests", "retry-after: 1\r\n").await?;
                }
                continue;
            }
            self.lists.lock().unwrap().push(Instant::now());
            let body = format!(
                r#"{{"metadata":{{"resourceVersion":"900"}},"items":[{}]}}"#,
                one.unwrap_or_default()
            );
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all(format!("{head}{body}").as_bytes()).await?;
        }
    }
}

/// Serves the pages of all Nodes. The function `page` returns false if the caller must refuse the request.
impl Server {
    async fn page(
        &self,
        stream: &mut BufReader<TcpStream>,
        request: &str,
    ) -> std::io::Result<bool> {
        const PAGE: usize = 100;
        let from: usize = request
            .split("continue=")
            .nth(1)
            .and_then(|rest| rest.split([' ', '&']).next()?.parse().ok())
            .unwrap_or(0);
        if from == 0 {
            let now = Instant::now();
            self.begun.lock().unwrap().push(now);
            let mut served = self.served.lock().unwrap();
            let lately = served
                .iter()
                .filter(|at| now.duration_since(**at) < Duration::from_secs(1))
                .count();
            if matches!(self.mode, Lists::Limited(most) if lately >= most) {
                return Ok(false);
            }
            served.push(now);
        }
        let items = (from..NODES.min(from + PAGE)).map(|number| {
            format!(
                r#"{{"metadata":{{"name":"n{number}","uid":"u{number}","resourceVersion":"{}"}}}}"#,
                number + 1
            )
        });
        let rest = if from + PAGE < NODES {
            format!(r#","continue":"{}""#, from + PAGE)
        } else {
            String::new()
        };
        let body = format!(
            r#"{{"metadata":{{"resourceVersion":"900"{rest}}},"items":[{}]}}"#,
            items.collect::<Vec<_>>().join(",")
        );
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        Ok(true)
    }
}

async fn refuse(
    stream: &mut BufReader<TcpStream>,
    status: &str,
    headers: &str,
) -> std::io::Result<()> {
    let body = r#"{"kind":"Status","message":"not now, or not so"}"#;
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await
}

/// Writes a kubeconfig. The kubeconfig names a test CA, so that the clients do not load all CAs of this machine.
fn kubeconfig(server: SocketAddr, sibling: &std::path::Path) -> std::path::PathBuf {
    let (path, authority) = (
        sibling.with_file_name("kubeconfig"),
        sibling.with_file_name("ca.pem"),
    );
    if !path.exists() {
        let pem = rcgen::generate_simple_self_signed(Vec::new())
            .unwrap()
            .cert
            .pem();
        std::fs::write(&authority, pem).unwrap();
        let cluster = format!(
            r#"{{"server":"http://{server}","certificate-authority":"{}"}}"#,
            authority.display()
        );
        let rest = r#""users":[{"name":"t","user":{}}],"contexts":[{"name":"t","context":{"cluster":"t","user":"t"}}]"#;
        std::fs::write(&path, format!(r#"{{"current-context":"t","clusters":[{{"name":"t","cluster":{cluster}}}],{rest}}}"#)).unwrap();
    }
    path
}

fn options(server: SocketAddr, number: usize, net_conf: &std::path::Path) -> KubeOptions {
    KubeOptions {
        urls: Vec::new(),
        kubeconfig: Some(kubeconfig(server, net_conf)),
        prefix: Prefix::parse("flannel.alpha.coreos.com").unwrap(),
        net_conf: net_conf.to_owned(),
        clear_condition: true,
        identity: Identity::Node(format!("n{number}")),
        user_agent: "test/1".to_owned(),
        up: Duration::from_secs(86_400),
    }
}

/// Lock that serialises the tests of this file.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Starts many clients at the same time, on hosts with the given uptime. All clients know all Nodes when the function returns.
async fn stagger(mode: Lists, up: Duration) -> (Arc<Server>, Vec<KubeManager>, tempfile::TempDir) {
    // Each client has two connections, and both ends are in this process. The usual limit is 1024 files.
    let _ = std::process::Command::new("prlimit")
        .args(["--pid", &std::process::id().to_string(), "--nofile=8192:"])
        .status();
    let folder = tempfile::tempdir().unwrap();
    let net_conf = folder.path().join("net-conf.json");
    std::fs::write(
        &net_conf,
        r#"{"Network":"10.64.0.0/10","Backend":{"Type":"host-gw"}}"#,
    )
    .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Arc::new(Server::new(mode));
    tokio::spawn(server.clone().serve(listener));
    tokio::spawn(server.clone().notice_stalls());
    let start = |number: usize| {
        let options = KubeOptions {
            up,
            ..options(address, number, &net_conf)
        };
        tokio::spawn(async move {
            let manager = KubeManager::open(options).await.unwrap();
            let config = manager.network_config().await.unwrap();
            let begun = Instant::now();
            while let Err(why) = manager.node_info(&config).await {
                assert!(begun.elapsed() < Duration::from_secs(400), "{why}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            manager
        })
    };
    let starting: Vec<_> = (0..NODES).map(start).collect();
    let mut managers = Vec::new();
    for manager in starting {
        managers.push(manager.await.unwrap());
    }
    (server, managers, folder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_are_switched_on_together_list_one_after_the_other() {
    let _turn = TURN.lock().await;
    let begun = Instant::now();
    let (server, _managers, _folder) = stagger(Lists::Pages, Duration::from_secs(30)).await;
    let lists = server.begun.lock().unwrap().clone();
    println!(
        "{} first pages within a second at most, {NODES} within {:?}",
        peak(&server, &lists),
        begun.elapsed()
    );
    assert_eq!(lists.len(), NODES);
    assert!(
        peak(&server, &lists) <= A_SECOND,
        "{} first pages within a second, of {NODES}",
        peak(&server, &lists)
    );
}

/// At the start, the nodes do not know the number of Nodes in the cluster. The nodes learn the number of Nodes from the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_spread_after_a_server_asks_to_wait() {
    let _turn = TURN.lock().await;
    const MOST: usize = 40;
    let begun = Instant::now();
    let (server, _managers, _folder) =
        stagger(Lists::Limited(MOST), Duration::from_secs(86_400)).await;
    let lists = server.begun.lock().unwrap().clone();
    let first = *lists.iter().min().unwrap();
    let again: Vec<Instant> = lists
        .iter()
        .copied()
        .filter(|at| at.duration_since(first) > Duration::from_secs(1))
        .collect();
    println!(
        "{} first pages in the first second, {} in the worst later one, {} for {NODES} within {:?}",
        lists.len() - again.len(),
        peak(&server, &again),
        lists.len(),
        begun.elapsed()
    );
    assert_eq!(server.served.lock().unwrap().len(), NODES);
    // Without Retry-After, all remaining nodes would ask again each second.
    assert!(
        peak(&server, &again) <= A_SECOND,
        "{} first pages within a second",
        peak(&server, &again)
    );
    assert!(
        lists.len() <= 5 * NODES,
        "{} first pages for {NODES} nodes",
        lists.len()
    );
}

/// Returns the highest rate of lists per second within any three seconds. If the kernel did not schedule this process
/// during a period or shortly before the period, the function extends the period by the unscheduled time.
fn peak(server: &Server, lists: &[Instant]) -> usize {
    const SECOND: Duration = Duration::from_secs(1);
    // A busy machine executes in the next second what was due in this one.
    const WINDOW: Duration = Duration::from_secs(3);
    let stalls = server.stalls.lock().unwrap();
    let within = |start: &Instant| {
        let count = lists
            .iter()
            .filter(|at| **at >= *start && **at < *start + WINDOW)
            .count();
        let around = stalls
            .iter()
            .filter(|(from, to)| *to + SECOND * 5 >= *start && *from < *start + WINDOW);
        let still: Duration = around.map(|(from, to)| to.duration_since(*from)).sum();
        count * 1000 / usize::try_from((WINDOW + still).as_millis()).unwrap()
    };
    lists.iter().map(within).max().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_a_large_cluster_reconnect_one_after_the_other() {
    let _turn = TURN.lock().await;
    /// Number of clients, equal to the number of nodes in the cluster. A test with a tenth of the clients would not
    /// exercise the spreading of requests.
    const CLIENTS: usize = NODES;
    let (server, _managers, _folder) = stagger(Lists::Streams, Duration::from_secs(86_400)).await;
    // One request for the own Node and one for all Nodes, without a list in pages. On a busy machine, a few clients time out.
    const FEW: usize = CLIENTS / 5;
    let watches = *server.watches.lock().unwrap();
    assert!(
        (2 * CLIENTS..=2 * CLIENTS + FEW).contains(&watches),
        "{watches} watches"
    );
    let early = std::mem::take(&mut *server.lists.lock().unwrap()).len();
    assert!(early <= FEW, "{early} lists");

    // The server restarts: all connections break at once.
    server.dropped.send_modify(|times| *times += 1);
    let begun = Instant::now();
    while *server.watches.lock().unwrap() < watches + 2 * CLIENTS
        || server.lists.lock().unwrap().len() < CLIENTS
    {
        assert!(
            begun.elapsed() < Duration::from_secs(400),
            "{} watches",
            server.watches.lock().unwrap()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let lists = server.lists.lock().unwrap().clone();
    assert!(
        lists.len() <= CLIENTS + FEW,
        "{} lists: each looks once whether the server continues where it stopped",
        lists.len()
    );
    println!(
        "{} lists within a second at most, {CLIENTS} within {:?}",
        peak(&server, &lists),
        begun.elapsed()
    );
    assert!(
        peak(&server, &lists) <= A_SECOND,
        "{} lists within a second, of {CLIENTS} in {:?}",
        peak(&server, &lists),
        begun.elapsed()
    );
}
