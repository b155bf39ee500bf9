//! WireGuard peers that complete no handshake: likely causes, findings that explain the missing handshakes, and findings that these explain.

use super::cases::{block, inside, paths, silent, table, tunnels};
use super::healthy::healthy;
use super::{causes, commands_of, only, report};
use crate::facts::Facts;
use crate::facts::mesh::State;
use crate::facts::wireguard::Silent;
use crate::finding::Finding;
use crate::firewalls::Table;
use crate::ledger::Ledger;

/// `states` are those of the paths to both peers.
fn node(peers: Vec<Silent>, states: [State; 2]) -> Facts {
    let mut facts = healthy();
    tunnels(&mut facts, peers);
    for (path, state) in paths(&mut facts).iter_mut().zip(states) {
        path.underlay = state != State::CutOff;
        path.verdict.state = state;
    }
    facts
}

#[test]
fn silent_peer_has_commands_of_present_programs() {
    let of = |has_tool| {
        let mut facts = node(vec![silent("node-2", 2)], [State::OverlayCut, State::Well]);
        inside(&mut facts.wireguard).has_tool = has_tool;
        commands_of(&facts, "wireguard-silent")
    };
    let with = of(true);
    let (tools, others) = with.split_at(2);
    assert!(tools.iter().all(|command| command.starts_with("wg ")), "{tools:?}");
    assert_eq!(of(false), others);
}

#[test]
fn likely_causes_follow_from_what_is_known() {
    for (state, initiates, word) in [
        (State::OverlayCut, true, "preshared keys"),
        (State::CutOff, false, "off"),
        (State::OverlayCut, false, "firewall"),
    ] {
        let peer = Silent { initiates, ..silent("node-2", 2) };
        let facts = node(vec![peer], [state, State::Well]);
        let why = only(&facts, "wireguard-silent").why;
        assert!(why.contains(word), "{why}");
    }
}

#[test]
fn silent_peer_explains_only_its_own_findings() {
    let facts = node(vec![silent("node-2", 2)], [State::OverlayCut, State::OneWay]);
    assert_eq!(causes(&facts), ["wireguard-silent", "one-way"], "node-3 has another trouble");
    let facts = node(vec![silent("node-2", 2)], [State::CutOff, State::Well]);
    assert_eq!(causes(&facts), ["wireguard-silent"]);
    assert_eq!(only(&facts, "peer-cut").explained_by.as_deref(), Some("wireguard-silent"));
    // A node must not hide findings about another node by its choice of a name.
    let mut facts = node(vec![silent("10.244.3.0/24", 2)], [State::OverlayCut, State::OverlayCut]);
    paths(&mut facts)[1].verdict.ping_only = true;
    assert_eq!(causes(&facts), ["wireguard-silent", "overlay-cut"]);
}

#[test]
fn silent_peer_is_explained_by_a_firewall_here() {
    let mut facts = node(
        vec![silent("node-2", 2), silent("node-3", 3)],
        [State::OverlayCut, State::OverlayCut],
    );
    assert_eq!(causes(&facts), ["wireguard-silent", "wireguard-silent"], "all keys may be wrong");
    inside(&mut facts.host.firewalls)
        .tables
        .push(Table { input: Some(block("INPUT", None)), ..table("iptables") });
    assert_eq!(causes(&facts), ["encap-blocked"]);
    // After the port is open, the finding is no longer explained and is reported, although it existed before.
    let mut ledger = Ledger::default();
    assert!(
        ledger
            .enter(&mut report(&facts))
            .came
            .iter()
            .any(|finding| finding.check == "wireguard-silent" && finding.explained_by.is_some())
    );
    inside(&mut facts.host.firewalls).tables[0].input = None;
    let news = ledger.enter(&mut report(&facts));
    assert_eq!(news.came.iter().filter(|finding| finding.check == "wireguard-silent").count(), 2);
    assert_eq!(ledger.enter(&mut report(&facts)).came, []);
}

#[test]
fn gone_machine_has_a_finding_of_its_own() {
    let mut facts = node(vec![silent("node-2", 2)], [State::CutOff, State::Well]);
    inside(&mut facts.leases.peers)[0].silent = Some(900);
    paths(&mut facts)[1].subnet = "10.244.3.0/24".parse().unwrap();
    assert_eq!(causes(&facts), ["silent-node"]);
}

#[test]
fn silent_peers_beyond_sixteen_are_counted() {
    let peers = (10..30).map(|number| silent(&format!("node-{number}"), number)).collect();
    let facts = node(peers, [State::OverlayCut, State::Well]);
    let report = report(&facts);
    let shown: Vec<&Finding> =
        report.findings.iter().filter(|finding| finding.check == "wireguard-silent").collect();
    assert_eq!(shown.len(), 17);
    assert!(shown[16].what.starts_with("4 "));
    assert!(
        report.causes().all(|finding| finding.check == "wireguard-silent"),
        "a peer that is not told by name is among the others"
    );
}
