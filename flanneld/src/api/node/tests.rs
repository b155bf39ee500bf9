//! Tests the node document over the status API's port and over the Unix socket.

use super::*;
use crate::api::listeners;
use crate::health::condition::Condition;
use crate::network::RunningNetwork;
use run_dir::subnet_env::SubnetEnv;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use subnet_lease::{Lease, LeaseAttrs, NodeId, Term};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wait::until_async;

/// The status code and the body.
fn split(answer: &str) -> (u16, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn converse(mut stream: impl Read + Write, request: &str) -> (u16, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    split(&answer)
}

async fn ask_status_port(address: SocketAddr, request: String) -> (u16, String) {
    tokio::task::spawn_blocking(move || {
        converse(std::net::TcpStream::connect(address).unwrap(), &request)
    })
    .await
    .unwrap()
}

async fn ask_socket(path: &Path, request: &str) -> (u16, String) {
    let (path, request) = (path.to_owned(), request.to_owned());
    tokio::task::spawn_blocking(move || {
        converse(run_dir::api_socket::connect_to(&path).unwrap(), &request)
    })
    .await
    .unwrap()
}

fn lease(subnet: &str, address: &str, name: &str) -> Lease {
    let node = NodeId { name: name.into(), ..NodeId::default() };
    let attrs =
        LeaseAttrs { public_ip: address.parse().ok(), node: Some(node), ..LeaseAttrs::default() };
    Lease { subnets: Subnets::V4(subnet.parse().unwrap()), attrs, term: Term::Leased, since: 1 }
}

/// A node with two peers.
fn described(folder: &Path) -> (StatusSource, Health) {
    let health = Health::new();
    health.process(|node| {
        node.node = "node-1".to_owned();
        node.store = Some(node_api::Store {
            what: "etcd at http://a:2379".to_owned(),
            ..node_api::Store::default()
        });
    });
    let status_source = StatusSource::new(health.clone(), folder.join("subnet.env"));
    let (own, second, third) = (
        lease("10.5.1.0/24", "192.0.2.1", "node-1"),
        lease("10.5.9.0/24", "192.0.2.9", "\u{1b}[31m<b>"),
        lease("10.5.2.0/24", "192.0.2.2", "node-2"),
    );
    let held = Held {
        until: Some(boot_time() + Duration::from_secs(3600)),
        renewed: Some(boot_time()),
        ..Held::default()
    };
    let table = LeaseTable::of([own, second, third], Default::default());
    let running = RunningNetwork {
        held: watch::channel(held).1,
        leases: watch::channel(Arc::new(table)).1,
        ..RunningNetwork::idle()
    };
    health.serves(running);
    (status_source, health)
}

#[tokio::test]
async fn document_holds_lease_peers_and_subnet_file() {
    let folder = tempfile::tempdir().unwrap();
    let empty = StatusSource::new(Health::new(), folder.path().join("subnet.env")).node();
    assert_eq!(
        (empty.schema.as_str(), empty.readiness.ready, empty.peers.len(), empty.network.lease),
        ("flannel.node/1", false, 0, None)
    );

    let (status_source, health) = described(folder.path());
    health.clear(Condition::Start);
    let node = status_source.node();
    assert!(node.readiness.ready && node.readiness.reasons.is_empty());
    let titles: Vec<String> = node.peers.iter().map(Peer::title).collect();
    assert_eq!(titles, ["node-2", "\u{1b}[31m<b>"], "by subnet, this node left out");
    let lease = node.network.lease.clone().unwrap();
    let left = lease.until.unwrap().duration_since(node.at).as_secs();
    assert!((3590..=3600).contains(&left), "{left}");
    assert_eq!(
        (node.network.mtu, node.network.subnet_env.clone().unwrap().state),
        (Some(1450), FileState::Missing)
    );
    assert_eq!(node.network.underlay.clone().unwrap().why, "named by --iface=eth1");
    std::fs::write(folder.path().join("subnet.env"), "FLANNEL_MTU=1\n").unwrap();
    assert_eq!(status_source.node().network.subnet_env.unwrap().state, FileState::Different);
    let env = SubnetEnv {
        networks: Subnets::V4("10.5.0.0/16".parse().unwrap()),
        subnets: Subnets::V4("10.5.1.0/24".parse().unwrap()),
        mtu: 1450,
        ip_masq: true,
        range_ends: Vec::new(),
    };
    subnet_env::write(&folder.path().join("subnet.env"), &env).unwrap();
    assert_eq!(status_source.node().network.subnet_env.unwrap().state, FileState::Right);
    // The text is safe for a terminal, and parses to the same document.
    let text = status_source.text(true).unwrap();
    assert!(text.chars().all(printable::is_printable), "{text}");
    let read: Node = serde_json::from_str(&text).unwrap();
    assert_eq!(read.peers, status_source.node().peers);
    // A restarted network begins without state.
    health.node(|node| node.network.subnets = vec!["10.5.1.0/24".parse().unwrap()]);
    health.start_over(&Problem::in_words("the subnet moved"));
    let node = status_source.node();
    assert_eq!(
        (node.network.subnets.len(), node.peers.len(), node.node.as_str()),
        (0, 0, "node-1")
    );
}

/// Starts the status API on a port that another socket uses, and closes that socket once flanneld reports the
/// problem.
async fn serve_after_port_is_freed(
    status_source: &StatusSource,
    health: &Health,
    stop: &CancellationToken,
) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let task = tokio::spawn(listeners::status_port(
        address,
        status_source.clone(),
        health.clone(),
        stop.clone(),
    ));
    until_async("the taken port is reported", || {
        !status_source.node().readiness.notices.is_empty()
    })
    .await
    .unwrap();
    let notice = status_source.node().readiness.notices.remove(0);
    assert!(
        notice.name == "port-taken"
            && notice.text.contains("--status-port")
            && notice.text.contains("in use"),
        "{notice:?}"
    );
    drop(taken);
    until_async("the port is free", || status_source.node().readiness.notices.is_empty())
        .await
        .unwrap();
    assert_eq!(status_source.node().page, Some(format!("http://{address}/")));
    (address, task)
}

#[tokio::test]
async fn status_api_answers_only_to_names_of_this_node() {
    let folder = tempfile::tempdir().unwrap();
    let (status_source, health) = described(folder.path());
    let stop = CancellationToken::new();
    let (address, task) = serve_after_port_is_freed(&status_source, &health, &stop).await;

    let get = |method: &str, path: &str, host: &str| {
        ask_status_port(address, format!("{method} {path} HTTP/1.1\r\n{host}\r\n"))
    };
    for (host, code) in [
        ("Host: localhost\r\n", 200),
        ("Host: 192.0.2.1\r\n", 200),
        ("Host: evil.example\r\n", 421),
        ("Host: \x7f\r\n", 400),
        ("", 421),
    ] {
        let (got, body) = get("GET", node_api::NODE, host).await;
        assert_eq!(got, code, "{host:?}: {body}");
        assert_eq!(body.contains("192.0.2.9"), code == 200, "{body}");
    }
    let absolute = get("GET", "http://evil.example/api/v1/node", "Host: localhost\r\n").await;
    assert!(absolute.0 == 421 && absolute.1.contains("evil.example"), "{absolute:?}");
    assert_eq!(get("HEAD", node_api::NODE, "Host: localhost\r\n").await, (200, String::new()));
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        assert_eq!(get(method, node_api::NODE, "Host: localhost\r\n").await.0, 405, "{method}");
    }
    for path in [node_api::ROUTES, "/status", "/metrics", "/healthz", "/api/v1/", "/api/v1/node/x"]
    {
        assert_eq!(get("GET", path, "Host: localhost\r\n").await.0, 404, "{path}");
    }
    stop.cancel();
    wait::complete("the server stops", task).await.unwrap().unwrap();
}

#[tokio::test]
async fn socket_serves_every_path_and_is_recreated() {
    let folder = tempfile::tempdir().unwrap();
    let (status_source, health) = described(folder.path());
    let env = folder.path().join("subnet.env");
    let path = run_dir::api_socket::path(&env);
    let stop = CancellationToken::new();
    let task = {
        let (env, stop) = (env.clone(), stop.clone());
        tokio::spawn(async move { listeners::socket(&env, status_source, health, stop).await })
    };
    for _ in 0..2 {
        until_async("the socket is there", || path.exists()).await.unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for (target, code) in [
            ("/api/v1/node", 200),
            (node_api::ROUTES, 503),
            ("/healthz", 200),
            ("/livez", 200),
            ("/readyz", 503),
            ("/metrics", 200),
            ("/status", 200),
            ("/", 200),
            (node_api::VIEW, 200),
            ("/api/v1/view?row=10.5.9.0%2F24", 404),
            ("/api/v1/view?row=x", 400),
            ("/api/v1/view?x", 404),
            ("/nothing", 404),
        ] {
            let (got, body) =
                ask_socket(&path, &format!("GET {target} HTTP/1.1\r\nHost: flanneld\r\n\r\n"))
                    .await;
            assert_eq!(got, code, "{target}: {body}");
        }
        assert_eq!(ask_socket(&path, "POST /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.0, 405);
        std::fs::remove_file(&path).unwrap();
    }
    until_async("the socket is recreated", || path.exists()).await.unwrap();
    stop.cancel();
    wait::complete("the server stops", task).await.unwrap().unwrap();
    assert!(!path.exists());
}
