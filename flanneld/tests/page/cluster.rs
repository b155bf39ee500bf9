//! Creates status documents of a node in made-up clusters, for tests of the status page.

use std::collections::BTreeMap;

use doctor::{Finding, Severity};
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use node_api::view::{Charts, Level, LogEvent};
use node_api::{
    File, FileState, Kernel, Lease, Node, NodeNetwork, Peer, Readiness, Rules, Store, Underlay,
};
use probing::view::{Ages, Cell, Mesh, Own, PeerOpinion, PeerView, Row};
use types::reachability::State;

/// `Cut` and `SmallMtu` number the nodes from 0, but `Pair` numbers them from 1, as in the nodes' names.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    None,
    /// No packet reaches this node.
    Cut(usize),
    /// Large packets get lost in both directions.
    SmallMtu(usize),
    /// The first node does not reach the second.
    Pair(usize, usize),
}

/// Maximum number of peers in a node's report.
const ROOM: usize = 140;

fn name(index: usize) -> String {
    format!("node-{}", index + 1)
}

fn subnet(index: usize) -> IpNet {
    let number = index + 1;
    format!("10.{}.{}.0/24", 244 + number / 256, number % 256).parse().unwrap()
}

fn address(index: usize) -> std::net::IpAddr {
    let number = index + 1;
    format!("192.0.{}.{}", 2 + number / 250, 1 + number % 250).parse().unwrap()
}

/// From 0 to 1; depends only on the pair of nodes and differs between most pairs.
fn scatter(from: usize, to: usize) -> f64 {
    let mixed = (from * 7919 + to * 104_729 + 13).wrapping_mul(2_654_435_761) % 1000;
    f64::from(u32::try_from(mixed).unwrap()) / 1000.0
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below a million")]
fn rtt(from: usize, to: usize) -> u32 {
    (300.0 + 400.0 * scatter(from, to)) as u32
}

/// The verdict of node `from` on node `to`.
fn state(fault: Fault, from: usize, to: usize) -> State {
    match fault {
        Fault::Cut(node) if [from, to].contains(&node) => State::CutOff,
        Fault::SmallMtu(node) if [from, to].contains(&node) => State::SmallMtu,
        Fault::Pair(a, b) if (from + 1, to + 1) == (a, b) => State::CutOff,
        _ => State::Well,
    }
}

fn peer_view(fault: Fault, to: usize, count: usize) -> PeerView {
    let state = state(fault, 0, to);
    let replies = state != State::CutOff;
    let others = (1..count).filter(|other| *other != to && !replies).take(16);
    PeerView {
        id: Some(format!("id-{to}").into()),
        name: Some(name(to).into()),
        subnet: subnet(to),
        address: address(to),
        overlay: None,
        state,
        state_age_ms: 193_000,
        ping_only: false,
        inferred: false,
        refuses: false,
        rtt_us: replies.then(|| rtt(0, to)),
        lost: if replies { 0 } else { 16 },
        asked: 16,
        losses: (0, 16),
        carries: match state {
            State::SmallMtu => Some(1372),
            State::CutOff => None,
            _ => Some(1450),
        },
        mtu: 1450,
        ages: Ages {
            asked_age_ms: Some(1200),
            hears_us_age_ms: replies.then_some(2000),
            underlay_age_ms: replies.then_some(900),
            ..Ages::default()
        },
        clock_offset_ms: None,
        answered_by: None,
        others: others
            .map(|other| PeerOpinion { by: name(other), state: State::CutOff, age_ms: 4000 })
            .collect(),
    }
}

/// Peers with a fault come first.
fn row(fault: Fault, from: usize, count: usize) -> Row {
    let mut cells: Vec<Cell> = (0..count)
        .filter(|to| *to != from)
        .map(|to| {
            let state = state(fault, from, to);
            Cell {
                subnet: subnet(to),
                state,
                ping_only: false,
                rtt_us: (state != State::CutOff).then(|| rtt(from, to)),
                lost: if state == State::CutOff { 16 } else { 0 },
                asked_age_ms: Some(3000),
            }
        })
        .collect();
    let mut counts = BTreeMap::new();
    for cell in &cells {
        *counts.entry(cell.state).or_default() += 1;
    }
    cells.sort_by_key(|cell| std::cmp::Reverse(cell.state));
    cells.truncate(ROOM);
    let is_cut = matches!(fault, Fault::Cut(node) if node == from);
    Row {
        id: None,
        name: Some(name(from).into()),
        subnet: subnet(from),
        asked_age_ms: 4100,
        answered_age_ms: (!is_cut).then_some(4000),
        own: (!is_cut).then(|| Own { ready: true, ..Own::default() }),
        counts,
        rtt_us: Some(500),
        peers: cells,
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn findings(fault: Fault) -> Vec<Finding> {
    let mut finding = match fault {
        Fault::None | Fault::Pair(..) => return Vec::new(),
        Fault::Cut(node) => {
            let what =
                format!("{} ({}) does not respond, not even to ping", name(node), address(node));
            let mut finding = Finding::new(
                "peer-cut",
                Severity::Broken,
                name(node),
                what,
                "the node is off, or a firewall or the network between the nodes drops all packets to it",
            )
            .seen("0 of the last 16 probes got a reply, over the overlay and over the underlay", "probes")
            .seen("other nodes report the same", "reports of other nodes")
            .seen("the store heard its daemon 12 s ago", "store");
            finding.peers = vec![name(node)];
            finding.remedy.commands = vec![format!("ssh {} flannelctl doctor", name(node))];
            finding
        }
        Fault::SmallMtu(node) => {
            let mut finding = Finding::new(
                "mtu",
                Severity::Broken,
                name(node),
                format!("the path to {} carries 1372 bytes, pods send up to 1450", name(node)),
                "a link between the nodes has a smaller MTU than eth1, and drops larger packets: connections open and then hang",
            )
            .seen("1450 bytes: 0 of 6 probes got a reply; 1372 bytes: 6 of 6", "probes");
            finding.peers = vec![name(node)];
            finding.remedy.commands = vec![
                r#"etcdctl put /coreos.com/network/config '{"Network":"10.244.0.0/14","Backend":{"Type":"vxlan","MTU":1422}}'"#.to_owned(),
            ];
            finding
        }
    };
    finding.since = Some(at("2026-01-01T14:02:11Z"));
    vec![finding]
}

/// The status document of the first node in a cluster of `count` nodes.
pub(crate) fn cluster(count: usize, fault: Fault) -> Node {
    let now = at("2026-01-01T14:05:24Z");
    let ago = |seconds: i64| now.checked_sub(SignedDuration::from_secs(seconds)).unwrap();
    let peers = u64::try_from(count - 1).unwrap();
    Node {
        at: now,
        node: name(0),
        version: "0.1.0".to_owned(),
        uptime_seconds: 273_600,
        readiness: Readiness { ready: true, ..Readiness::default() },
        network: NodeNetwork {
            networks: vec!["10.244.0.0/14".parse().unwrap()],
            backend: Some("vxlan".to_owned()),
            subnets: vec![subnet(0)],
            lease: Some(Lease {
                until: Some(now.checked_add(SignedDuration::from_hours(24)).unwrap()),
                renewed: Some(ago(38)),
                trouble: None,
            }),
            underlay: Some(Underlay {
                interface: "eth1".to_owned(),
                addresses: vec![address(0)],
                public: vec![address(0)],
                mtu: 1500,
                why: "named by --iface=eth1".to_owned(),
            }),
            mtu: Some(1450),
            subnet_env: Some(File {
                path: "/run/flannel/subnet.env".into(),
                state: FileState::Right,
            }),
        },
        store: Some(Store {
            what: "etcd at https://192.0.2.250:2379 under /coreos.com/network".to_owned(),
            heard: Some(ago(2)),
            ..Store::default()
        }),
        kernel: Some(Kernel {
            in_sync: true,
            routes: peers,
            neighbours: peers,
            fdb: peers,
            put_back: 2,
            ..Kernel::default()
        }),
        rules: Some(Rules {
            with: "iptables (nf_tables)".to_owned(),
            what: vec!["masquerade".to_owned(), "forward".to_owned()],
            in_place: true,
            ..Rules::default()
        }),
        findings: Some(findings(fault)),
        peers: (1..count)
            .map(|index| Peer {
                node: Some(name(index)),
                subnets: vec![subnet(index)],
                addresses: vec![address(index)],
            })
            .collect(),
        mesh: Some(Mesh {
            cycle_ms: if count > 200 { 480_000 } else { 5000 },
            peers: (1..count).map(|to| peer_view(fault, to, count)).collect(),
            rows: (1..count).map(|from| row(fault, from, count)).collect(),
            ..Mesh::default()
        }),
        ..Node::default()
    }
}

pub(crate) fn rename(node: &mut Node, index: usize, name: &str) {
    if let Some(peer) = node.peers.get_mut(index - 1) {
        peer.node = Some(name.to_owned());
    }
    let mesh = node.mesh.iter_mut();
    for view in mesh.flat_map(|mesh| &mut mesh.peers) {
        if view.subnet == subnet(index) {
            view.name = Some(name.into());
        }
    }
}

/// Made-up traffic of five minutes.
pub(crate) fn charts() -> Charts {
    let wave = |base: f64, height: f64, step: usize| -> Vec<Option<f64>> {
        let value = |at: usize| {
            let phase =
                f64::from(u32::try_from(at).unwrap()) / f64::from(u32::try_from(step).unwrap());
            Some((base + height * phase.sin() + height * scatter(at, step) / 2.0).round())
        };
        (0..60).map(value).collect()
    };
    let repaired = (0..60).map(|at| Some(if at == 41 { 2.0 } else { 0.0 }));
    Charts {
        step_ms: 5000,
        series: [
            ("received_bytes", wave(40e6, 9e6, 5)),
            ("sent_bytes", wave(22e6, 6e6, 4)),
            ("dropped", vec![Some(0.0); 60]),
            ("rtt_us", wave(480.0, 40.0, 3)),
            ("repaired", repaired.collect()),
        ]
        .map(|(name, values)| (name.to_owned(), values))
        .into(),
    }
}

pub(crate) fn events() -> Vec<LogEvent> {
    let event = |time: &str, level, text: &str, fields: &str| LogEvent {
        at: at(time),
        level,
        text: text.to_owned(),
        fields: fields.to_owned(),
        count: 1,
    };
    vec![
        event(
            "2026-01-01T14:01:49Z",
            Level::Warn,
            "repaired changes made by another program",
            "objects=add 2 route (route to 10.244.2.0/24)",
        ),
        event(
            "2026-01-01T13:40:02Z",
            Level::Info,
            "kernel state updated",
            "added=1 changed=0 removed=0 other=2 routes=2",
        ),
        event(
            "2026-01-01T13:39:57Z",
            Level::Info,
            "this node has a subnet",
            "subnet=10.244.1.0/24 source=lease",
        ),
    ]
}
