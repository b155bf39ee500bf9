//! The first line of the status text, and the lines after it.

use super::*;
use node_api::{
    FailedPeer, File, FileState, Kernel, Lease, NodeNetwork, Notice, Peer, PodPath, Readiness,
    Reason, Rules, Store, Underlay, Wireguard,
};
use probing::pods::PodState;
use run_dir::exit_report::ExitReport;
use types::reachability::State;

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
        readiness: Readiness { ready: true, ..Readiness::default() },
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

/// Adds a finding of the doctor.
fn find(node: &mut Node, severity: Severity, check: &str, explained_by: Option<&str>) {
    let mut finding = Finding::new(check, severity, "", format!("{check} is wrong"), "why");
    finding.since = Some(at("2026-01-01T14:02:11Z"));
    finding.explained_by = explained_by.map(str::to_owned);
    node.findings.get_or_insert_default().push(finding);
}

/// Adds a verdict of the probes on a subnet of node-3.
fn judge(node: &mut Node, subnet: &str, state: State) {
    let text = serde_json::json!({
        "id": null, "name": "node-3", "subnet": subnet, "address": "192.0.2.3", "overlay": null, "state": state, "state_age_ms": 190_000,
        "ping_only": false, "rtt_us": null, "lost": 16, "asked": 16, "carries": null, "mtu": 1450, "asked_age_ms": 1, "answered_age_ms": null,
        "beside_age_ms": null, "hears_us_age_ms": null, "hears_us_beside_age_ms": null, "heard_age_ms": null, "heard_beside_age_ms": null,
        "clock_offset_ms": null, "answered_by": null, "others": [],
    });
    let mesh = node.mesh.get_or_insert_default();
    mesh.peers.push(serde_json::from_value(text).unwrap());
}

/// The first line, whether the status is broken, another part of the text, and a change of a healthy node.
type Case = (&'static str, bool, &'static str, fn(&mut Node));

const READY: &str = "node-1 is ready ";

fn findings_and_peers() -> [Case; 7] {
    use Severity::{Broken, Degraded, Risk};
    const ONE_BROKEN: &str = "node-1 is ready, and one thing is broken";
    [
        (READY, false, "  peers     2, not probed", |node| {
            node.findings = Some(Vec::new());
        }),
        (ONE_BROKEN, true, "\n  broken: mtu is wrong (for 3 min)\n", |node| {
            find(node, Broken, "mtu", None);
            find(node, Broken, "slow", Some("mtu"));
        }),
        (ONE_BROKEN, true, "  degraded: slow", |node| {
            find(node, Broken, "mtu", None);
            find(node, Degraded, "slow", None);
        }),
        ("node-1 is ready, and 2 things are degraded", false, "  degraded: slow", |node| {
            find(node, Degraded, "lossy", None);
            find(node, Degraded, "slow", None);
        }),
        (READY, false, "  risk: clock", |node| {
            find(node, Risk, "clock", None);
        }),
        (ONE_BROKEN, true, "  broken: node-3 (192.0.2.3) has been cut-off for 3 min", |node| {
            judge(node, "10.244.2.0/24", State::Well);
            judge(node, "10.244.3.0/24", State::CutOff);
        }),
        // Nodes are counted, although each has a verdict for both families.
        (READY, false, "  peers     1 of 3 well", |node| {
            node.peers.clear();
            for (number, in_v6) in (2..).zip([State::Well, State::Slow, State::Unknown]) {
                let v4 = if in_v6 == State::Slow { State::Well } else { in_v6 };
                let subnets = [format!("10.244.{number}.0/24"), format!("fd00:{number}::/64")];
                judge(node, &subnets[0], v4);
                judge(node, &subnets[1], in_v6);
                let subnets = subnets.map(|net| net.parse().unwrap()).to_vec();
                node.peers.push(Peer { subnets, ..Peer::default() });
            }
        }),
    ]
}

fn own_state() -> [Case; 9] {
    [
        ("node-1 is not ready", true, "  not ready store: etcd is\\nsilent", |node| {
            let [condition, code, text] = ["store", "", "etcd is\nsilent"].map(str::to_owned);
            node.readiness.ready = false;
            node.readiness.reasons = vec![Reason { condition, code, text }];
        }),
        ("flanneld hangs on node-1", true, "  hangs     no heartbeat", |node| {
            node.readiness.silent = Some("no heartbeat".to_owned());
        }),
        (READY, false, "  note      port-taken: 8474", |node| {
            let [name, text] = ["port-taken", "8474"].map(str::to_owned);
            node.readiness.notices = vec![Notice { name, text }];
        }),
        (READY, false, "  subnet    10.244.1.0/24, which does not expire; refused", |node| {
            let trouble = Some("refused".to_owned());
            node.network.lease = Some(Lease { trouble, ..Lease::default() });
        }),
        (READY, false, "1 FDB entry, not in sync: no;", |node| {
            let kernel = node.kernel.as_mut().unwrap();
            (kernel.in_sync, kernel.trouble) = (false, "no".to_owned());
        }),
        (
            READY,
            false,
            "  failed    flanneld cannot program 1 peer: 10.244.2.0/24 (node-2): EEXIST\n",
            |node| {
                fail_peers(node, 1);
            },
        ),
        (READY, false, "cannot program 3 peers: 10.244.2.0/24 (node-2)", |node| {
            fail_peers(node, 3);
        }),
        (READY, false, "  silent    2 of 5 WireGuard peers", |node| {
            node.kernel.as_mut().unwrap().wireguard = Some(Wireguard { peers: 5, silent: 2 });
        }),
        (
            READY,
            false,
            "2 routes, 2 neighbours, 1 FDB entry, 5 WireGuard peers, all in sync",
            |node| {
                node.kernel.as_mut().unwrap().wireguard = Some(Wireguard { peers: 5, silent: 0 });
            },
        ),
    ]
}

#[test]
fn first_line_is_the_whole_state() {
    let cases = findings_and_peers().into_iter().chain(own_state());
    for (first, broken, line, change) in cases {
        let mut node = node();
        change(&mut node);
        let status = status(Some(node));
        let text = rendered(&status);
        assert!(text.starts_with(first) && text.contains(line), "{first}, {line}: {text}");
        assert_eq!(is_broken(&status), broken, "{text}");
        assert_eq!(text.contains("cannot program"), line.contains("cannot program"), "{text}");
        assert_eq!(text.contains("\n  silent"), line.starts_with("  silent"), "{text}");
    }
}

fn fail_peers(node: &mut Node, count: u8) {
    let failed = |number: u8| FailedPeer {
        node: (number == 2).then(|| "node-2".to_owned()),
        subnet: format!("10.244.{number}.0/24").parse().unwrap(),
        address: [192, 0, 2, number].into(),
        text: "EEXIST".to_owned(),
    };
    node.kernel.as_mut().unwrap().failed_peers = (2..2 + count).map(failed).collect();
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
    let hanging =
        Status { daemon: DaemonState::Hanging, trouble: Some("silent".to_owned()), ..status(None) };
    assert!(rendered(&hanging).starts_with("flanneld hangs on h2\n    silent\n"));
    assert!(is_broken(&ended(None)) && is_broken(&hanging));
}

#[test]
fn starting_daemon_is_shown_without_gaps() {
    let fresh = Node {
        node: "node-1".to_owned(),
        readiness: Readiness {
            reasons: vec![Reason {
                condition: "start".to_owned(),
                code: String::new(),
                text: "starting".to_owned(),
            }],
            ..Readiness::default()
        },
        ..Node::default()
    };
    let text = rendered(&status(Some(fresh)));
    assert!(
        text.starts_with("node-1 is not ready ")
            && text.contains("  not ready start: starting\n  run flannelctl doctor for the remedy\n\n  peers     0, not probed"),
        "{text}"
    );
}

#[test]
fn lines_fit_into_60_columns() {
    let mut node = node();
    node.pod_paths = Some(vec![pod_path(PodState::All, None)]);
    node.readiness.notices = vec![Notice { name: "note".to_owned(), text: "word ".repeat(40) }];
    let shown = text(&status(Some(node)), at(NOW), Screen::of_width(60));
    for line in shown.lines() {
        let has_long_word = line.split(' ').any(|word| word.len() > 40);
        assert!(line.chars().count() <= 60 || has_long_word, "{line}");
    }
}

/// What the probes say of the path of pod packets in IPv4.
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

#[test]
fn path_of_pods_has_a_line_where_it_is_probed() {
    assert!(!rendered(&status(Some(node()))).contains("pods' packets"));
    for (state, obstacle, words) in [
        (PodState::Well, None, "from 10.244.1.254: pass"),
        (PodState::All, None, "are lost on this node"),
        (PodState::Unknown, Some("no-bridge"), "before the first pod"),
        (PodState::Unknown, Some("filtered"), "filters new packets"),
        (PodState::Unknown, Some("later-versions"), "not sent yet"),
    ] {
        let mut node = node();
        node.pod_paths = Some(vec![pod_path(state, obstacle)]);
        let text = rendered(&status(Some(node)));
        assert!(text.contains(words), "{text}");
    }
}
