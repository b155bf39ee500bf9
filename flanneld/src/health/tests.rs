//! Tests responses of the health server over HTTP, and errors when the server cannot listen.

use super::*;
use crate::api::health::Server;
use crate::network::ConstantStatus;
use backends::status::{EngineStatus, Status, Traffic};
use backends::wireguard::sessions::{Silent, TunnelPeers};
use netstate::names::LinkName;
use netstate::object::wireguard_peer::PublicKey;
use reconcile::progress::Snapshot;
use std::collections::BTreeSet;
use subnet_lease::admission::{AdmissionError, UnusedLeaseError};
use subnet_lease::feed::Reading;
use subnet_lease::manager::{Counters, Held, boot_time};
use subnet_lease::{Lease, LeaseAttrs, LeaseTable, Term};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use types::Subnets;

/// The result is the response.
async fn send(address: std::net::SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{head}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

async fn get(address: std::net::SocketAddr, method: &str, path: &str) -> (u16, String) {
    let text = send(address, &format!("{method} {path} HTTP/1.1\r\nHost: localhost")).await;
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, body.to_owned())
}

fn lease(subnet: &str) -> Lease {
    Lease {
        subnets: Subnets::V4(subnet.parse().unwrap()),
        attrs: LeaseAttrs::default(),
        term: Term::Leased,
        since: 1,
    }
}

fn refused(subnet: &str) -> AdmissionError {
    AdmissionError {
        subnets: Subnets::V4(subnet.parse().unwrap()),
        half: None,
        why: UnusedLeaseError::OverlapsOlder("10.5.0.0/16".parse().unwrap()),
    }
}

/// One of the five completes no handshake.
fn tunnels() -> TunnelPeers {
    let silent = Silent {
        link: LinkName::parse("flannel-wg").unwrap(),
        key: PublicKey([7; 32]),
        endpoint: None,
        handshake: None,
        silence: Duration::from_secs(30),
        initiates: false,
    };
    TunnelPeers { peers: 5, silent: vec![silent] }
}

#[test]
fn wireguard_peers_are_absent_with_other_backends() {
    let health = Health::new();
    health.serves(RunningNetwork::idle());
    assert!(
        !health.metrics().contains("wireguard")
            && health.status()["figures"].get("wireguard").is_none()
    );
    assert_eq!(health.document().kernel.and_then(|kernel| kernel.wireguard), None);
}

/// Listens on a free TCP port.
struct Served {
    health: Health,
    address: std::net::SocketAddr,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Served {
    async fn start() -> Self {
        let health = Health::new();
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), health.clone()).await.unwrap();
        let address = server.address().unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.serve(stop.clone()));
        Self { health, address, stop, task }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        get(self.address, "GET", path).await
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test]
async fn liveness_paths_answer_to_get_and_post() {
    let served = Served::start().await;
    for method in ["GET", "POST"] {
        for path in ["/healthz", "/livez"] {
            assert_eq!(
                get(served.address, method, path).await,
                (200, "flanneld is running".to_owned())
            );
        }
    }
    assert_eq!(served.get("/nosuch").await.0, 404);
    served.end().await;
}

#[tokio::test]
async fn readyz_lists_conditions_and_refused_leases() {
    let served = Served::start().await;
    let health = &served.health;
    health.fail(Condition::Lease, Problem::in_words("the pool is exhausted"));
    assert_eq!(
        served.get("/readyz").await,
        (
            503,
            "flanneld is not ready yet\nlease: the pool is exhausted\nstart: starting\n".to_owned()
        )
    );
    health.clear(Condition::Lease);
    health.clear(Condition::Start);
    assert_eq!(served.get("/readyz").await, (200, "flanneld is ready".to_owned()));
    let unused = |number: usize| Unused {
        lease: format!("10.5.{number}.0/24"),
        reason: "overlap",
        text: format!("10.5.{number}.0/24 overlaps"),
        address: None,
    };
    health.set_unused(Arc::new(vec![unused(3)]));
    assert_eq!(
        served.get("/readyz").await,
        (
            200,
            "flanneld is ready, but does not reach the pods of refused leases\nrefused: 10.5.3.0/24 overlaps\n".to_owned()
        )
    );
    health.set_unused(Arc::new((0..25).map(unused).collect()));
    let (code, text) = served.get("/readyz").await;
    assert!(
        code == 200
            && text.lines().count() == 22
            && text.ends_with("refused: 5 more, listed in /status\n"),
        "{code} {text}"
    );
    assert_eq!(health.status()["refused"].as_array().map(Vec::len), Some(25));
    health.fail(Condition::Lease, Problem::in_words("ends"));
    assert!(
        served
            .get("/readyz")
            .await
            .1
            .starts_with("flanneld is not ready yet\nlease: ends\nrefused: 10.5.0.0/24 overlaps\n")
    );
    health.clear(Condition::Lease);
    health.set_unused(Arc::default());
    assert_eq!(served.get("/readyz").await, (200, "flanneld is ready".to_owned()));
    served.end().await;
}

/// Makes a task's last heartbeat older than the limit.
fn fall_silent(health: &Health, task: &str) {
    let last = Instant::now().checked_sub(2 * SILENCE).unwrap();
    health.inner().run.heartbeats.insert(task.to_owned(), last);
}

#[tokio::test]
async fn healthz_fails_while_a_task_is_silent() {
    let served = Served::start().await;
    let health = &served.health;
    fall_silent(health, "network");
    let (code, text) = served.get("/healthz").await;
    assert!(code == 500 && text.contains("no heartbeat from network"), "{code} {text}");
    health.heartbeat("network");
    assert_eq!(served.get("/healthz").await.0, 200);
    served.end().await;
}

fn engine() -> EngineStatus {
    EngineStatus {
        device: "flannel0".to_owned(),
        mode: "offload (TSO; 1 queues)".to_owned(),
        sent: Traffic { packets: 64, units: 2, ..Traffic::default() },
        received: Traffic { dropped: vec![("unknown_peer", 5)], ..Traffic::default() },
        icmp_errors: 4,
        unsegmented_sends: 0,
        budgets_spent: 6,
        handshakes: Some([
            ("initiated", 3),
            ("answered", 2),
            ("completed", 4),
            ("failed", 1),
            ("cookies", 0),
        ]),
    }
}

/// Makes the node ready, with seven peers, two refused leases, an unreadable key and a packet engine.
fn serve_network(health: &Health) {
    health.clear(Condition::Start);
    health.node(|node| node.network.subnets = vec!["10.5.72.0/24".parse().unwrap()]);
    let counters = Counters::default();
    counters.call("txn");
    counters.call("txn");
    let unreadable = subnet_lease::wire::parse_value(br#"{"PublicIP":7}"#).unwrap_err();
    counters.unreadable("10.5.1.0-24", unreadable);
    health.stores(Arc::new(counters));
    let refused = (3..5).map(|number| refused(&format!("10.5.{number}.0/24")));
    let unused = refused.clone().map(|refused| Unused {
        lease: refused.subnets.to_string(),
        reason: refused.reason().label(),
        text: refused.to_string(),
        address: None,
    });
    health.set_unused(Arc::new(unused.collect()));
    let peers = (10..17).map(|number| lease(&format!("10.5.{number}.0/24")));
    let status = Status {
        kernel: Snapshot { repairs: 3, ..Snapshot::default() },
        tunnels: tunnels(),
        engines: vec![engine()],
    };
    health.serves(RunningNetwork {
        observer: Arc::new(ConstantStatus(status)),
        leases: watch::channel(Arc::new(LeaseTable::of(peers, BTreeSet::new()))).1,
        readings: watch::channel(Reading {
            refused: Arc::new(refused.collect()),
            ..Reading::default()
        })
        .1,
        held: watch::channel(Held {
            until: Some(boot_time() + Duration::from_secs(86_400)),
            ..Held::default()
        })
        .1,
        ..RunningNetwork::idle()
    });
}

/// A read of a value that a thread already reads waits for a waiting writer, and the writer waits for the first read.
#[test]
fn metrics_and_changes_of_the_lease_do_not_block_each_other() {
    let health = Health::new();
    let (held, receiver) = watch::channel(Held::default());
    health.serves(RunningNetwork { held: receiver, ..RunningNetwork::idle() });
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..2_000 {
            health.metrics();
        }
        let _ = done.send(());
    });
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            held.send_modify(|held| held.until = Some(boot_time()));
        }
    });
    finished
        .recv_timeout(wait::Wait::start().left())
        .expect("/metrics waits for a change of the lease, and the change waits for /metrics");
    drop(stop);
}

#[tokio::test]
async fn metrics_show_the_running_network() {
    let served = Served::start().await;
    serve_network(&served.health);
    let (_, metrics) = served.get("/metrics").await;
    for line in [
        "flannel_ready 1",
        "flannel_peers 7",
        "flannel_mtu_bytes 1450",
        "flannel_leases_refused{reason=\"overlaps-older\"} 2",
        "flannel_store_requests_total{kind=\"txn\"} 2",
        "flannel_leases_unreadable 1",
        "flannel_kernel_repairs_total 3",
        "flannel_wireguard_peers{state=\"working\"} 4",
        "flannel_wireguard_peers{state=\"silent\"} 1",
        "flannel_datapath_packets_total{device=\"flannel0\",direction=\"sent\"} 64",
        "flannel_datapath_bytes_total{device=\"flannel0\",direction=\"received\"} 0",
        "flannel_datapath_batches_total{device=\"flannel0\",direction=\"sent\"} 0",
        "flannel_datapath_units_total{device=\"flannel0\",direction=\"sent\"} 2",
        "flannel_datapath_read_errors_total{device=\"flannel0\",direction=\"received\"} 0",
        "flannel_datapath_dropped_packets_total{device=\"flannel0\",direction=\"received\",reason=\"unknown_peer\"} 5",
        "flannel_datapath_icmp_errors_total{device=\"flannel0\"} 4",
        "flannel_datapath_unsegmented_sends_total{device=\"flannel0\"} 0",
        "flannel_datapath_budgets_spent_total{device=\"flannel0\"} 6",
        "flannel_datapath_handshakes_total{device=\"flannel0\",event=\"completed\"} 4",
        "flannel_datapath_info{device=\"flannel0\",mode=\"offload (TSO; 1 queues)\"} 1",
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line} in\n{metrics}");
    }
    assert!(metrics.contains("flannel_build_info{version="), "{metrics}");
    assert!(metrics.contains("flannel_lease_expiry_seconds 86"), "{metrics}");
    served.end().await;
}

#[tokio::test]
async fn metrics_are_in_openmetrics_only_if_it_is_accepted() {
    let served = Served::start().await;
    serve_network(&served.health);
    let requested = async |accept: &str| {
        let head = format!("GET /metrics HTTP/1.1\r\nHost: localhost{accept}");
        send(served.address, &head).await.to_lowercase()
    };
    // What Prometheus 2 and 3 send.
    let accepting = "\r\nAccept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    let text = requested(accepting).await;
    assert!(text.contains("content-type: application/openmetrics-text; version=1.0.0"), "{text}");
    assert!(text.contains("# type flannel_kernel_repairs counter\n"), "{text}");
    assert!(text.ends_with("# eof\n"), "{text}");
    for other in [
        "",
        "\r\nAccept: */*",
        "\r\nAccept: text/plain;version=0.0.4",
        "\r\nAccept: application/openmetrics-text;Q=0.000, text/plain",
    ] {
        let text = requested(other).await;
        assert!(text.contains("content-type: text/plain; version=0.0.4"), "{other}: {text}");
        assert!(
            text.contains(
                "# type flannel_kernel_repairs_total counter\nflannel_kernel_repairs_total 3\n"
            ),
            "{other}: {text}"
        );
        assert!(!text.contains("# eof"), "{other}: {text}");
    }
    served.end().await;
}

#[tokio::test]
async fn status_shows_the_running_network() {
    let served = Served::start().await;
    serve_network(&served.health);
    let (_, text) = served.get("/status").await;
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["ready"], true);
    assert_eq!(status["subnet"], "10.5.72.0/24");
    assert_eq!(status["figures"]["kernel"]["repairs"], 3);
    assert_eq!(status["figures"]["wireguard"], serde_json::json!({ "peers": 5, "silent": 1 }));
    assert_eq!(
        served.health.document().kernel.and_then(|kernel| kernel.wireguard),
        Some(node_api::Wireguard { peers: 5, silent: 1 })
    );
    let engine = &status["figures"]["datapath"]["flannel0"];
    assert_eq!(
        (&engine["sent"]["packets"], &engine["received"]["dropped"]["unknown_peer"]),
        (&64.into(), &5.into())
    );
    served.end().await;
}

/// The server refuses /status to requests with a foreign host name, because a website can resolve its own name to
/// this host. kubelet and Prometheus may use any name.
#[tokio::test]
async fn foreign_host_gets_the_probes_and_no_status() {
    let served = Served::start().await;
    for (path, code) in
        [("/healthz", 200), ("/livez", 200), ("/readyz", 503), ("/metrics", 200), ("/status", 421)]
    {
        let text =
            send(served.address, &format!("GET {path} HTTP/1.1\r\nHost: evil.example")).await;
        let status = format!("HTTP/1.1 {code} ");
        assert!(text.starts_with(&status), "{path}: {text}");
    }
    served.end().await;
}

#[tokio::test]
async fn taken_port_error_names_the_remedy() {
    let first = Server::bind("127.0.0.1:0".parse().unwrap(), Health::new()).await.unwrap();
    let address = first.address().unwrap();
    let error = Server::bind(address, Health::new()).await.unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("--healthz-port"), "{error}");
    let error =
        Server::bind("192.0.2.1:1".parse().unwrap(), Health::new()).await.unwrap_err().to_string();
    assert!(error.contains("--healthz-ip"), "{error}");
}

fn text() -> impl proptest::strategy::Strategy<Value = String> {
    use proptest::prelude::*;
    let piece = prop_oneof![
        any::<String>(),
        "[\\p{C}\\p{Z}\n\r]{0,6}",
        "\u{1b}\\[[0-9;]{0,4}[mJH]",
        "[ -~]{0,8}"
    ];
    prop::collection::vec(piece, 1..5).prop_map(|pieces| pieces.concat())
}

/// Reads the value as Prometheus does.
fn label_value(line: &str) -> String {
    let quoted = line.split_once("device=\"").unwrap().1;
    let (mut out, mut chars) = (String::new(), quoted.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some(c @ ('\\' | '"')) => out.push(c),
                other => panic!("the format knows no escape {other:?}: {line}"),
            },
            c => out.push(c),
        }
    }
    out
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Reasons and labels in responses may contain texts of other nodes. No response may contain a control sequence
    /// for a terminal.
    #[test]
    fn answers_are_printable(text in text()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let served = Served::start().await;
            let health = &served.health;
            health.fail(Condition::Lease, Problem::in_words(&text));
            health.node(|node| node.node_id = Some(text.clone()));
            fall_silent(health, &text);
            let engine = EngineStatus { device: text.clone(), mode: text.clone(), ..EngineStatus::default() };
            let trouble = Problem::in_words(&text);
            let status = Status { kernel: Snapshot { trouble: Some(trouble), ..Snapshot::default() }, engines: vec![engine], ..Status::default() };
            health.serves(RunningNetwork { observer: Arc::new(ConstantStatus(status)), ..RunningNetwork::idle() });
            for path in ["/healthz", "/readyz", "/metrics", "/status"] {
                let (_, body) = served.get(path).await;
                assert!(body.chars().all(|c| c == '\n' || types::printable::is_printable(c)), "{path}: {body:?}");
                match path {
                    "/readyz" => assert_eq!(body.lines().count(), 3, "{body:?}"),
                    "/metrics" => {
                        let line = body.lines().find(|line| line.starts_with("flannel_datapath_info{")).unwrap();
                        assert_eq!(label_value(line), types::printable::value(&text));
                    }
                    "/status" => {
                        let found: serde_json::Value = serde_json::from_str(&body).unwrap();
                        assert_eq!((&found["node_id"], &found["reasons"]["lease"]), (&text.clone().into(), &text.clone().into()));
                    }
                    _ => {}
                }
            }
            served.end().await;
        });
    }
}

#[tokio::test]
async fn unspecified_address_listens_on_both_families() {
    let server = Server::bind("0.0.0.0:0".parse().unwrap(), Health::new()).await.unwrap();
    let port = server.address().unwrap().port();
    let stop = CancellationToken::new();
    let task = tokio::spawn(server.serve(stop.clone()));
    for address in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
        assert_eq!(get(address.parse().unwrap(), "GET", "/healthz").await.0, 200, "{address}");
    }
    // The port is taken in both families.
    assert!(Server::bind(format!("0.0.0.0:{port}").parse().unwrap(), Health::new()).await.is_err());
    stop.cancel();
    task.await.unwrap();
}
