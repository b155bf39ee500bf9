//! The tables that `flannelctl peers` prints.

use super::*;
use node_api::Peer;
use probing::view::Own;

fn known(number: u8) -> Peer {
    Peer {
        node: Some(format!("node-{number}")),
        subnets: vec![format!("10.244.{number}.0/24").parse().unwrap()],
        addresses: vec![format!("192.0.2.{number}").parse().unwrap()],
    }
}

fn verdict(number: u8, state: State) -> view::PeerView {
    view::PeerView {
        id: None,
        name: None,
        subnet: format!("10.244.{number}.0/24").parse().unwrap(),
        address: format!("192.0.2.{number}").parse().unwrap(),
        overlay: None,
        state,
        state_age_ms: 190_000,
        ping_only: false,
        inferred: false,
        refuses: false,
        rtt_us: Some(490),
        lost: 0,
        asked: 16,
        losses: (0, 16),
        carries: Some(1450),
        mtu: 1450,
        ages: view::Ages {
            asked_age_ms: Some(1000),
            hears_us_age_ms: Some(2000),
            ..view::Ages::default()
        },
        clock_offset_ms: None,
        answered_by: None,
        others: Vec::new(),
    }
}

fn peers(states: &[(u8, State)]) -> Peers {
    let probed = states
        .iter()
        .map(|(number, state)| Probed {
            peer: known(*number),
            verdicts: vec![verdict(*number, *state)],
        })
        .collect();
    Peers {
        schema: node_api::PEERS.to_owned(),
        node: "node-1".to_owned(),
        probed: true,
        peers: probed,
        rows: Vec::new(),
        answering: 0,
        missing: 0,
    }
}

#[test]
fn peers_have_a_line_each() {
    let mut three = peers(&[(2, State::Well), (3, State::CutOff), (4, State::Well)]);
    let cut = &mut three.peers[1].verdicts[0];
    (cut.rtt_us, cut.lost, cut.carries, cut.ages.hears_us_age_ms) = (None, 16, None, None);
    three.peers[2].verdicts[0].ping_only = true;
    let want = "\
NODE    SUBNET         ADDRESS    STATE    RTT      LOST   CARRIES  HEARS US  ASKED
node-3  10.244.3.0/24  192.0.2.3  cut-off  -        16/16  -        -         1 s ago  for 3 min
node-2  10.244.2.0/24  192.0.2.2  well     0.49 ms  0/16   1450     2 s ago   1 s ago
node-4  10.244.4.0/24  192.0.2.4  well     0.49 ms  0/16   1450     2 s ago   1 s ago  ping only: Go flannel
2 of 3 well";
    assert_eq!(text(&three, false, false, Screen::plain()), want);
}

#[test]
fn unprobed_peers_are_neither_well_nor_broken() {
    let mut two = peers(&[(2, State::Unknown), (3, State::SmallMtu)]);
    two.peers.push(Probed { peer: known(4), verdicts: Vec::new() });
    let shown = text(&two, false, false, Screen::plain());
    assert!(
        shown.contains("192.0.2.4  not probed\n") && shown.contains("should carry 1450"),
        "{shown}"
    );
    assert!(shown.ends_with("\n0 of 2 well, 1 unknown"), "{shown}");
    two.probed = false;
    let shown = text(&two, false, false, Screen::plain());
    assert!(
        shown.starts_with("NODE    SUBNET         ADDRESS\n")
            && shown.ends_with("\n3 peers, not probed"),
        "{shown}"
    );
    two.peers.clear();
    assert_eq!(
        text(&two, false, false, Screen::plain()),
        "no other node has a lease that is active on this node"
    );
}

#[test]
fn opinions_of_other_nodes_are_shown() {
    let mut one = peers(&[(2, State::Well)]);
    let own = Own {
        ready: false,
        broken: 1,
        degraded: 0,
        risks: 2,
        gravest: Some("ip-forward".to_owned()),
        checks: vec!["ip-forward".to_owned()],
    };
    let row = |number: u8, own: Option<Own>| Row {
        id: None,
        name: Some(format!("node-{number}\u{1b}[2J").into()),
        subnet: format!("10.244.{number}.0/24").parse().unwrap(),
        asked_age_ms: 1,
        answered_age_ms: own.is_some().then_some(3000),
        own,
        counts: [(State::Well, 2), (State::CutOff, 1)].into(),
        rtt_us: None,
        peers: Vec::new(),
    };
    assert!(
        text(&one, true, false, Screen::plain()).ends_with("\n\nno other node has sent a report")
    );
    one.rows = vec![row(2, Some(own)), row(3, None)];
    let shown = text(&one, true, false, Screen::plain());
    assert!(
        shown.contains(
            "10.244.2.0/24  not ready  1 broken, 2 risk: ip-forward  2 of 3 well  -    3 s ago\n"
        ),
        "{shown}"
    );
    assert!(shown.contains("10.244.3.0/24  not known  -") && !shown.contains('\u{1b}'), "{shown}");
    assert!(!text(&one, false, false, Screen::plain()).contains("FINDINGS"));
}

#[test]
fn lines_fit_into_60_columns() {
    let mut three = peers(&[(2, State::Well), (3, State::CutOff), (4, State::SmallMtu)]);
    three.peers[2].verdicts[0].ping_only = true;
    let shown = text(&three, true, false, Screen::of_width(60));
    assert!(shown.lines().all(|line| line.chars().count() <= 60), "{shown}");
    assert!(
        shown.starts_with("NODE    SUBNET         ADDRESS    STATE      RTT      LOST\n")
            && shown.contains("\n  for 3 min; ping only: Go flannel; should carry 1450\n"),
        "{shown}"
    );
}
