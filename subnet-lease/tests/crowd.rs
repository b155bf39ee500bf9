//! Many nodes that follow one API server. The nodes spread their requests at the start and after an interruption of the watches.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests say what is wrong by failing"
)]

use lab::{Answer, Call, FakeApi, Proxy};
use serde_json::json;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use subnet_lease::kube::annotations::Prefix;
use subnet_lease::kube::{Identity, KubeManager, KubeOptions};
use subnet_lease::manager::SubnetManager;

/// Number of nodes in the cluster.
const NODES: usize = 500;
/// Maximum number of Node lists that a server may receive within a second.
const A_SECOND: usize = 60;

/// Form in which a server lists Nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lists {
    /// As a stream.
    Streams,
    /// Only lists in pages, as from API servers before Kubernetes 1.34.
    Pages,
    /// Only lists in pages, with at most the given number of new lists per
    /// second. The server refuses further lists for a second, as overload protection does.
    Limited(usize),
}

/// A fake API server with a constant set of Nodes.
struct Server {
    proxy: Proxy,
    stalls: Stalls,
}

/// Periods in which the kernel did not schedule this process, as on a busy machine. Requests that are due in a period without scheduling arrive
/// all at once.
type Stalls = Arc<Mutex<Vec<(Instant, Instant)>>>;

impl Server {
    fn start(mode: Lists, folder: &Path) -> Self {
        let api = FakeApi::default();
        if mode != Lists::Streams {
            api.refuse_streams();
        }
        // The Nodes are older than a boot of the hosts. They are small, because every client parses all of them.
        let node = |number: usize| {
            let (name, cidr) = (
                format!("n{number}"),
                format!("10.{}.{}.0/24", 64 + number / 250, number % 250),
            );
            let node = json!({
                "metadata": { "name": name, "uid": name, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": { "podCIDR": cidr },
            });
            (("nodes", "", name), node)
        };
        let nodes: Vec<_> = (0..NODES).map(node).collect();
        let snapshot = folder.join("nodes");
        std::fs::write(&snapshot, json!([NODES, nodes]).to_string()).unwrap();
        api.restore(&snapshot).unwrap();
        let proxy = api.on_loopback().unwrap();
        if let Lists::Limited(most) = mode {
            proxy.on(limited(most));
        }
        let stalls = Stalls::default();
        tokio::spawn(notice_stalls(stalls.clone()));
        Self { proxy, stalls }
    }

    async fn wait(&self, what: &str, is_so: impl Fn(&[Call]) -> bool) {
        let begun = Instant::now();
        while !is_so(&self.proxy.calls()) {
            assert!(
                begun.elapsed() < Duration::from_secs(400),
                "not yet: {what}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn times(&self, counts: impl Fn(&Call) -> bool) -> Vec<Instant> {
        let calls = self.proxy.calls().into_iter();
        calls.filter(counts).map(|call| call.at).collect()
    }
}

fn is_of_one(call: &Call) -> bool {
    call.path.contains("fieldSelector")
}

/// Returns whether the request opens a watch that the server serves.
fn is_served_watch(call: &Call) -> bool {
    call.is_watch() && call.status == 200
}

/// Returns whether the request lists a single Node.
fn is_look(call: &Call) -> bool {
    !call.is_watch() && is_of_one(call)
}

/// Returns whether the request is for the first page of all Nodes.
fn is_first_page(call: &Call) -> bool {
    call.is_of_nodes() && !call.is_watch() && !is_of_one(call) && !call.path.contains("continue=")
}

/// Returns a handler that serves at most the given number of new lists per second.
fn limited(most: usize) -> impl Fn(&Call) -> Answer {
    let served = Mutex::new(Vec::<Instant>::new());
    move |call| {
        let mut served = served.lock().unwrap();
        let lately = |at: &&Instant| call.at.duration_since(**at) < Duration::from_secs(1);
        if !is_first_page(call) {
            return Answer::Pass;
        }
        if served.iter().filter(lately).count() >= most {
            let wait = vec![("Retry-After".to_owned(), "1".to_owned())];
            return Answer::Reply(429, wait, r#"{"kind":"Status"}"#.to_owned());
        }
        served.push(call.at);
        Answer::Pass
    }
}

async fn notice_stalls(stalls: Stalls) {
    const BEAT: Duration = Duration::from_millis(20);
    loop {
        let before = Instant::now();
        tokio::time::sleep(BEAT).await;
        if before.elapsed() > BEAT * 2 {
            stalls.lock().unwrap().push((before, Instant::now()));
        }
    }
}

/// Writes a kubeconfig. The kubeconfig names a test CA, so that the clients do not load all CAs of this machine.
fn kubeconfig(server: SocketAddr, sibling: &Path) -> std::path::PathBuf {
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

fn options(server: SocketAddr, number: usize, net_conf: &Path) -> KubeOptions {
    KubeOptions {
        urls: Vec::new(),
        kubeconfig: Some(kubeconfig(server, net_conf)),
        prefix: Prefix::parse("flannel.alpha.coreos.com").unwrap(),
        net_conf: net_conf.to_owned(),
        clear_condition: true,
        identity: Identity::Node(format!("n{number}")),
        user_agent: format!("n{number}/1"),
        up: Duration::from_secs(86_400),
    }
}

/// Lock that serialises the tests of this file.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Starts many clients at the same time, on hosts with the given uptime. All clients know all Nodes when the function returns.
async fn stagger(mode: Lists, up: Duration) -> (Server, Vec<KubeManager>, tempfile::TempDir) {
    // Each client has three connections, and both ends are in this process. The usual limit is 1024 files.
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
    let server = Server::start(mode, folder.path());
    let address = server.proxy.address();
    let start = |number: usize| {
        let options = KubeOptions {
            up,
            ..options(address, number, &net_conf)
        };
        tokio::spawn(async move {
            let manager = KubeManager::open(options).await.unwrap();
            let config = manager.network_config().await.unwrap();
            // Begins to follow all Nodes. The reply does not matter.
            let _ = manager.node_info(&config).await;
            manager
        })
    };
    let starting: Vec<_> = (0..NODES).map(start).collect();
    let mut managers = Vec::new();
    for manager in starting {
        managers.push(manager.await.unwrap());
    }
    let follows = |call: &&Call| is_served_watch(call) && !is_of_one(call);
    server
        .wait("all clients watch all Nodes", |calls| {
            let clients: BTreeSet<&str> = calls
                .iter()
                .filter(follows)
                .map(|call| &*call.agent)
                .collect();
            clients.len() == NODES
        })
        .await;
    (server, managers, folder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_are_switched_on_together_list_one_after_the_other() {
    let _turn = TURN.lock().await;
    let begun = Instant::now();
    let (server, _managers, _folder) = stagger(Lists::Pages, Duration::from_secs(30)).await;
    let lists = server.times(is_first_page);
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
    let lists = server.times(is_first_page);
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
    let served = server.times(|call| is_first_page(call) && call.status == 200);
    assert_eq!(served.len(), NODES);
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
    let watches = server.times(is_served_watch).len();
    assert!(
        (2 * CLIENTS..=2 * CLIENTS + FEW).contains(&watches),
        "{watches} watches"
    );
    let early = server.times(is_look).len();
    assert!(early <= FEW, "{early} lists");

    // The server restarts: all connections break at once.
    server.proxy.forget();
    server.proxy.disconnect();
    let begun = Instant::now();
    server
        .wait("all clients watch again", |calls| {
            let count =
                |counts: fn(&Call) -> bool| calls.iter().filter(|call| counts(call)).count();
            count(is_served_watch) >= 2 * CLIENTS && count(is_look) >= CLIENTS
        })
        .await;
    let lists = server.times(is_look);
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
