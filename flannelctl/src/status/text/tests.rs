//! Tests of the first line of the status text, and of the lines after it.

use super::*;
use node_api::{
    FailedPeer, File, FileState, Kernel, Lease, NodeNetwork, Notice, Peer, PodPath, Readiness,
    Reason, Rules, Store, Underlay, Wireguard,
};
use probing::pods::PodState;
use run_dir::exit_report::ExitReport;

const NOW: &str = "2026-01-01T14:05:24Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn node() -> Node {
    let ips = |text: &str| vec![text.parse().unwrap()];
    Node {
        at: at(NOW),
        node: "node-1".to_owned(),
        version: "0.1.0".to_owned(),
        uptime_seconds: 3 * 86_400 + 4 * 3600,
        readiness: Readiness {
            ready: true,
            ..Readiness::default()
        },
        network: NodeNetwork {
            subnets: vec!["10.244.1.0/24".parse().unwrap()],
            lease: Some(Lease {
                until: Some(at("2026-01-02T14:04:46Z")),
                renewed: Some(at("2026-01-01T14:04:46Z")),
                trouble: None,
            }),
            underlay: Some(Underlay {
                interface: "eth1".to_owned(),
                addresses: ips("192.0.2.1"),
                public: ips("192.0.2.1"),
                mtu: 1500,
                why: "named by --iface=eth1".to_owned(),
            }),
            mtu: Some(1450),
            subnet_env: Some(File {
                path: "/run/flannel/subnet.env".into(),
                state: FileState::Right,
            }),
            ..NodeNetwork::default()
        },
        store: Some(Store {
            kind: None,
            what: "etcd at https://192.0.2.250:2379 under /x".to_owned(),
            heard: Some(at("2026-01-01T14:05:22Z")),
            trouble: None,
        }),
        kernel: Some(Kernel {
            in_sync: true,
            routes: 2,
            neighbours: 2,
            fdb: 1,
            put_back: 2,
            ..Kernel::default()
        }),
        rules: Some(Rules {
            with: "iptables (nf_tables)".to_owned(),
            what: vec!["masquerade".to_owned(), "forward".to_owned()],
            in_place: true,
            ..Rules::default()
        }),
        page: Some("http://127.0.0.1:8474/".to_owned()),
        peers: vec![Peer::default(), Peer::default()],
        ..Node::default()
    }
}

fn status(node: Option<Node>) -> Status {
    Status {
        schema: node_api::STATUS.to_owned(),
        host: "h2".to_owned(),
        daemon: DaemonState::Running,
        trouble: None,
        exit_report: None,
        node,
    }
}

fn rendered(status: &Status) -> String {
    text(status, at(NOW), Screen::plain())
}

#[test]
fn healthy_node_has_ten_lines() {
    let healthy = status(Some(node()));
    let want = "\
node-1 is ready                                                   flanneld 0.1.0, up 3 d 4 h
  subnet    10.244.1.0/24, leased for 23 h 59 min more, renewed 38 s ago
  address   192.0.2.1 on eth1 (MTU 1500): named by --iface=eth1
  pods      MTU 1450; /run/flannel/subnet.env is correct
  store     etcd at https://192.0.2.250:2379 under /x, last heard 2 s ago
  kernel    2 routes, 2 neighbours, 1 FDB entry, all in sync; 2 restored in the last hour
  rules     iptables (nf_tables): masquerade, forward; in place
  peers     2, not probed
  page      http://127.0.0.1:8474/   from another machine: ssh -L 8474:127.0.0.1:8474 node-1";
    assert_eq!(rendered(&healthy), want);
    assert!(!is_broken(&healthy));
}

fn finding(severity: Severity, check: &str, explained_by: Option<&str>) -> Finding {
    let mut finding = Finding::new(check, severity, "", format!("{check} is wrong"), "why");
    finding.since = Some(at("2026-01-01T14:02:11Z"));
    finding.explained_by = explained_by.map(str::to_owned);
    finding
}

fn verdict(state: types::reachability::State) -> probing::view::PeerView {
    let text = serde_json::json!({
        "id": null, "name": "node-3", "subnet": "10.244.3.0/24", "address": "192.0.2.3", "overlay": null, "state": state, "state_age_ms": 190_000,
        "ping_only": false, "rtt_us": null, "lost": 16, "asked": 16, "carries": null, "mtu": 1450, "asked_age_ms": 1, "answered_age_ms": null,
        "beside_age_ms": null, "hears_us_age_ms": null, "hears_us_beside_age_ms": null, "heard_age_ms": null, "heard_beside_age_ms": null,
        "clock_offset_ms": null, "answered_by": null, "others": [],
    });
    serde_json::from_value(text).unwrap()
}

/// A test case: a status, the first line of the status text, whether the status is broken, and another part of the text.
type Case = (Status, &'static str, bool, &'static str);

fn with(change: impl FnOnce(&mut Node)) -> Status {
    let mut node = node();
    change(&mut node);
    status(Some(node))
}

fn findings() -> [Case; 4] {
    [
        (
            with(|node| node.findings = Some(Vec::new())),
            "node-1 is ready ",
            false,
            "  peers     2, not probed",
        ),
        (
            with(|node| {
                node.findings = Some(vec![
                    finding(Severity::Broken, "mtu", None),
                    finding(Severity::Broken, "slow", Some("mtu")),
                ]);
            }),
            "node-1 is ready, and one thing is broken",
            true,
            "up 3 d 4 h\n  broken: mtu is wrong (for 3 min)\n  run flannelctl doctor for the remedy\n\n  subnet",
        ),
        (
            with(|node| {
                node.findings = Some(vec![
                    finding(Severity::Broken, "mtu", None),
                    finding(Severity::Degraded, "slow", None),
                ]);
            }),
            "node-1 is ready, and one thing is broken",
            true,
            "  degraded: slow is wrong",
        ),
        (
            with(|node| node.findings = Some(vec![finding(Severity::Risk, "clock", None)])),
            "node-1 is ready ",
            false,
            "  risk: clock is wrong",
        ),
    ]
}

fn probed_peers() -> [Case; 2] {
    use types::reachability::State;
    let mesh = |states: &[State]| {
        Some(probing::view::Mesh {
            peers: states.iter().map(|state| verdict(*state)).collect(),
            ..Default::default()
        })
    };
    [
        (
            with(|node| node.mesh = mesh(&[State::Well, State::CutOff])),
            "node-1 is ready, and one thing is broken",
            true,
            "  broken: node-3 (192.0.2.3) has been cut-off for 3 min",
        ),
        (
            // Nodes are counted, although each has a verdict for both families.
            with(|node| {
                let of = |number: usize, family: &str| -> ipnet::IpNet {
                    let net = match family {
                        "v4" => format!("10.244.{number}.0/24"),
                        _ => format!("fd00:{number}::/64"),
                    };
                    net.parse().unwrap()
                };
                let states = [
                    [State::Well, State::Well],
                    [State::Well, State::Slow],
                    [State::Well, State::Unknown],
                ];
                node.peers = (2..)
                    .zip(states)
                    .map(|(number, _)| Peer {
                        subnets: vec![of(number, "v4"), of(number, "v6")],
                        ..Peer::default()
                    })
                    .collect();
                node.mesh = mesh(&states.concat());
                let verdicts = &mut node.mesh.as_mut().unwrap().peers;
                for (at, verdict) in verdicts.iter_mut().enumerate() {
                    verdict.subnet = of(2 + at / 2, ["v4", "v6"][at % 2]);
                }
            }),
            "node-1 is ready ",
            false,
            "  peers     1 of 3 well",
        ),
    ]
}

fn own_state() -> [Case; 6] {
    [
        (
            with(|node| {
                let failed = |number: u8| FailedPeer {
                    node: Some(format!("node-{number}")),
                    subnet: format!("10.244.{number}.0/24").parse().unwrap(),
                    address: [192, 0, 2, number].into(),
                    text: "File exists".to_owned(),
                };
                let kernel = node.kernel.as_mut().unwrap();
                kernel.failed_peers = [2, 3].map(failed).to_vec();
            }),
            "node-1 is ready ",
            false,
            "2 peers: 10.244.2.0/24 (node-2)",
        ),
        (
            with(|node| {
                node.kernel = Some(Kernel {
                    wireguard: Some(Wireguard {
                        peers: 5,
                        silent: 2,
                    }),
                    ..Kernel::default()
                });
            }),
            "node-1 is ready ",
            false,
            "2 of 5 WireGuard peers",
        ),
        (
            with(|node| node.pod_paths = Some(vec![pod_path(PodState::Well, None)])),
            "node-1 is ready ",
            false,
            "from 10.244.1.254: pass",
        ),
        (
            with(|node| {
                node.readiness.ready = false;
                node.readiness.reasons = vec![Reason {
                    condition: "store".to_owned(),
                    code: String::new(),
                    text: "etcd is\nsilent".to_owned(),
                }];
            }),
            "node-1 is not ready",
            true,
            "  not ready store: etcd is\\nsilent",
        ),
        (
            with(|node| node.readiness.silent = Some("no heartbeat from network".to_owned())),
            "flanneld hangs on node-1",
            true,
            "  hangs     no heartbeat from network",
        ),
        (
            with(|node| {
                node.network.subnet_env.as_mut().unwrap().state = FileState::Missing;
                node.kernel.as_mut().unwrap().in_sync = false;
                node.kernel.as_mut().unwrap().trouble = "no".to_owned();
            }),
            "node-1 is ready ",
            false,
            "  kernel    2 routes, 2 neighbours, 1 FDB entry, not in sync: no",
        ),
    ]
}

#[test]
fn first_line_is_the_whole_state() {
    let cases = findings()
        .into_iter()
        .chain(probed_peers())
        .chain(own_state());
    for (status, first, broken, line) in cases {
        let text = rendered(&status);
        assert!(text.starts_with(first), "{first}: {text}");
        assert!(text.contains(line), "{line}: {text}");
        assert_eq!(is_broken(&status), broken, "{text}");
    }
}

#[test]
fn exit_report_is_shown_without_daemon() {
    let text = "the public address 10.0.2.15 of this node is already the address of node h1\nsecond\u{1b}[31m line";
    let report = |at: Timestamp| ExitReport {
        at,
        code: 1,
        text: text.to_owned(),
        version: "0.1.0".to_owned(),
        problem: None,
        choice: None,
    };
    let ended = |report: Option<ExitReport>| Status {
        daemon: DaemonState::Stopped,
        trouble: Some("nobody listens".to_owned()),
        exit_report: report,
        ..status(None)
    };
    let text = rendered(&ended(Some(report(at("2026-01-01T14:05:12Z")))));
    let want = "\
flanneld is not running on h2; it ended 12 s ago with exit code 1:
    the public address 10.0.2.15 of this node is already the address of node h1
    second\\u{1b}[31m line
  run flannelctl doctor for the remedy";
    assert_eq!(text, want);
    // A clock that was set back must not lead to a negative time.
    assert!(
        rendered(&ended(Some(report(at("2027-01-01T00:00:00Z")))))
            .contains("it ended at 2027-01-01T00:00:00Z with")
    );
    assert!(rendered(&ended(None)).starts_with(
        "flanneld is not running on h2; it left no exit report\n    nobody listens\n"
    ));
    let hanging = Status {
        daemon: DaemonState::Hanging,
        trouble: Some("silent".to_owned()),
        ..status(None)
    };
    assert!(rendered(&hanging).starts_with("flanneld hangs on h2\n    silent\n"));
    assert!(is_broken(&ended(None)) && is_broken(&hanging));
}

#[test]
fn lines_fit_into_60_columns() {
    let mut node = node();
    node.pod_paths = Some(vec![pod_path(PodState::All, None)]);
    node.readiness.notices = vec![Notice {
        name: "note".to_owned(),
        text: "word ".repeat(40),
    }];
    let shown = text(&status(Some(node)), at(NOW), Screen::of_width(60));
    for line in shown.lines() {
        let has_long_word = line.split(' ').any(|word| word.len() > 40);
        assert!(line.chars().count() <= 60 || has_long_word, "{line}");
    }
}

/// Returns results of the probes on the path of pod packets in IPv4.
fn pod_path(state: PodState, obstacle: Option<&str>) -> PodPath {
    PodPath {
        family: types::Family::V4,
        state,
        address: "10.244.1.254".parse().ok(),
        obstacle: obstacle.map(str::to_owned),
        detail: None,
        asked: 2,
        answered: 0,
        lost: Vec::new(),
    }
}
