use super::*;
use crate::{NodeNetwork, Readiness, Underlay};
use doctor::Finding;
use probing::view::{Ages, Cell, Own};

fn subnet(number: usize) -> IpNet {
    format!("10.{}.{}.0/24", 244 + number / 256, number % 256).parse().unwrap()
}

pub(crate) fn finding(severity: Severity, check: &str) -> Finding {
    Finding::new(check, severity, "", format!("what of {check}"), format!("why of {check}"))
}

/// A verdict on node `number`.
pub(crate) fn peer_in(state: State, number: usize) -> PeerView {
    PeerView {
        id: Some(format!("id-{number}").into()),
        name: Some(format!("node-{number}").into()),
        subnet: subnet(number),
        address: format!("192.0.{}.{}", number / 256, number % 256).parse().unwrap(),
        overlay: None,
        state,
        state_age_ms: 61_000,
        ping_only: false,
        inferred: false,
        refuses: false,
        rtt_us: Some(490),
        lost: 0,
        asked: 16,
        losses: (0, 16),
        carries: Some(1450),
        mtu: 1450,
        ages: Ages { asked_age_ms: Some(900), ..Ages::default() },
        clock_offset_ms: None,
        answered_by: None,
        others: Vec::new(),
    }
}

fn cell(number: usize, state: State) -> Cell {
    Cell {
        subnet: subnet(number),
        state,
        ping_only: false,
        rtt_us: Some(400),
        lost: 0,
        asked_age_ms: Some(100),
    }
}

/// The data of node-1 in a healthy cluster of `count` nodes. Each node's report has room for 140 peers.
pub(crate) fn cluster(count: usize) -> Node {
    let others = 2..=count;
    let row = |number: usize| Row {
        id: None,
        name: Some(format!("node-{number}").into()),
        subnet: subnet(number),
        asked_age_ms: 1000,
        answered_age_ms: Some(900 + u64::try_from(number).unwrap()),
        own: Some(Own { ready: true, ..Own::default() }),
        counts: BTreeMap::from([(State::Well, u32::try_from(count - 1).unwrap())]),
        rtt_us: Some(400),
        peers: (1..=count)
            .filter(|other| *other != number)
            .take(140)
            .map(|other| cell(other, State::Well))
            .collect(),
    };
    Node {
        node: "node-1".into(),
        readiness: Readiness { ready: true, ..Readiness::default() },
        network: NodeNetwork {
            subnets: vec![subnet(1)],
            underlay: Some(Underlay {
                public: vec!["192.0.0.1".parse().unwrap()],
                ..Underlay::default()
            }),
            ..NodeNetwork::default()
        },
        peers: others
            .clone()
            .map(|number| Peer {
                node: Some(format!("node-{number}")),
                subnets: vec![subnet(number)],
                addresses: vec![peer_in(State::Well, number).address],
            })
            .collect(),
        mesh: Some(Mesh {
            cycle_ms: 5000,
            peers: others.clone().map(|number| peer_in(State::Well, number)).collect(),
            rows: others.map(row).collect(),
            ..Mesh::default()
        }),
        ..Node::default()
    }
}

fn mesh_of(node: &Node) -> MeshView {
    View::of(node, Charts::default(), Vec::new()).mesh.unwrap()
}

/// As the status page shows it; `None` if unknown.
fn shown(mesh: &MeshView, from: usize, to: usize) -> Option<State> {
    let row = mesh.rows.iter().find(|row| row.from == from)?;
    let cell = row.cells.iter().find(|cell| cell.0 == to);
    cell.map(|cell| cell.1).or(row.rest).map(State::of_number)
}

#[test]
fn small_cluster_has_a_cell_for_every_pair() {
    let node = cluster(3);
    let mesh = mesh_of(&node);
    assert_eq!((mesh.own, mesh.reported, mesh.oldest_report_ms), (0, 3, Some(903)));
    let names: Vec<&str> = mesh.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["node-1", "node-2", "node-3"]);
    assert_eq!(mesh.nodes[0].address, "192.0.0.1");
    for row in &mesh.rows {
        assert_eq!(row.cells.len(), 2, "{row:?}");
    }
}

#[test]
fn large_cluster_has_only_the_cells_that_differ() {
    let mut node = cluster(300);
    let mesh = node.mesh.as_mut().unwrap();
    mesh.peers[5].state = State::CutOff;
    // node-10 reports 140 of its 299 peers, one of them as slow.
    mesh.rows[8].peers[0].state = State::Slow;
    mesh.rows[8].counts = BTreeMap::from([(State::Well, 298), (State::Slow, 1)]);
    // The peers of node-11 that its report leaves out have two states.
    mesh.rows[9].counts = BTreeMap::from([(State::Well, 200), (State::Unknown, 99)]);
    // node-12 knows too few peers.
    mesh.rows[10].counts = BTreeMap::from([(State::Well, 298)]);
    mesh.rows[11].answered_age_ms = None;
    let mesh = mesh_of(&node);
    assert_eq!(mesh.rows.iter().map(|row| row.cells.len()).sum::<usize>(), 2 + 2 * 140);
    assert_eq!(shown(&mesh, 0, 6), Some(State::CutOff));
    assert_eq!(shown(&mesh, 0, 7), Some(State::Well));
    assert_eq!(shown(&mesh, 9, 0), Some(State::Slow));
    assert_eq!(shown(&mesh, 9, 299), Some(State::Well), "by the counts");
    assert_eq!(shown(&mesh, 10, 299), None, "two states are left");
    assert_eq!(shown(&mesh, 10, 3), Some(State::Well));
    assert_eq!(shown(&mesh, 11, 299), None, "one peer is missing");
    assert_eq!(shown(&mesh, 12, 3), None, "it has not reported");
    assert_eq!(mesh.reported, 299);
    let size = serde_json::to_string(&mesh).unwrap().len();
    assert!(size < 80_000, "{size}");
}

#[test]
fn worse_family_decides() {
    let mut node = cluster(3);
    let v6: Vec<IpNet> = (1..=3).map(|n| format!("fd00:{n}::/64").parse().unwrap()).collect();
    node.network.subnets.push(v6[0]);
    for (peer, subnet) in node.peers.iter_mut().zip(&v6[1..]) {
        peer.subnets.push(*subnet);
    }
    let mesh = node.mesh.as_mut().unwrap();
    for number in 2..=3 {
        let mut view = peer_in(if number == 2 { State::OneWay } else { State::Well }, number);
        view.subnet = v6[number - 1];
        mesh.peers.push(view);
    }
    let mesh = mesh_of(&node);
    assert_eq!((mesh.nodes.len(), mesh.rows[0].cells.len()), (3, 2));
    assert_eq!((shown(&mesh, 0, 1), shown(&mesh, 0, 2)), (Some(State::OneWay), Some(State::Well)));
}

#[test]
fn findings_of_every_node_are_in_its_row() {
    let mut node = cluster(3);
    node.findings = Some(vec![
        finding(Severity::Broken, "ip-forward"),
        Finding {
            explained_by: Some("ip-forward".into()),
            ..finding(Severity::Broken, "pods-lost")
        },
    ]);
    node.mesh.as_mut().unwrap().rows[1].own = Some(Own {
        ready: true,
        broken: 1,
        gravest: Some("isolated".into()),
        checks: vec!["peer-cut".into(), "isolated".into()],
        ..Own::default()
    });
    let view = View::of(&node, Charts::default(), Vec::new());
    assert_eq!(view.findings.len(), 1);
    assert_eq!((view.findings[0].check.as_str(), view.findings[0].explains), ("ip-forward", 1));
    let mesh = view.mesh.unwrap();
    let checks: Vec<_> =
        mesh.nodes.iter().map(|node| (node.broken, node.checks.join(" "))).collect();
    assert_eq!(
        checks,
        [(1, "ip-forward".to_owned()), (0, String::new()), (1, "isolated".to_owned())]
    );
}

#[test]
fn row_details_are_those_of_the_node() {
    let node = cluster(3);
    let own = RowDetails::of(&node, subnet(1)).unwrap();
    assert_eq!((own.age_ms, own.cells.len(), own.cells[0].mtu), (None, 2, Some(1450)));
    let other = RowDetails::of(&node, subnet(2)).unwrap();
    assert_eq!((other.age_ms, other.cells[0].asked, other.cells[0].mtu), (Some(902), None, None));
    assert_eq!(RowDetails::of(&node, subnet(9)), None);
}
