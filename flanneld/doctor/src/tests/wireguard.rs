//! Tests of findings about WireGuard peers that complete no handshake: likely causes, findings that explain the missing handshakes, and
//! findings that the missing handshakes explain.

use super::cases::{block, silent, table, tunnels};
use super::healthy::healthy;
use super::{causes, only, report};
use crate::fact::Fact;
use crate::facts::Facts;
use crate::facts::mesh::State;
use crate::facts::wireguard::{Silent, Wireguard};
use crate::finding::{Finding, code_or_text};
use crate::firewalls::Table;
use crate::ledger::Ledger;

/// Returns the facts of a node with the silent WireGuard peers `peers` and with the paths to both peers in the states `states`.
fn node(peers: Vec<Silent>, states: [State; 2]) -> Facts {
    let mut facts = healthy();
    tunnels(&mut facts, peers);
    let Fact::Known(mesh) = &mut facts.mesh else {
        panic!("no mesh")
    };
    for (path, state) in mesh.paths.iter_mut().zip(states) {
        path.underlay = state != State::CutOff;
        path.verdict.state = state;
    }
    facts
}

fn seen(finding: &Finding) -> String {
    finding
        .evidence
        .iter()
        .map(|seen| format!("{}\n", seen.text))
        .collect()
}

fn change(facts: &mut Facts, change: impl Fn(&mut Wireguard)) {
    let Fact::Known(known) = &mut facts.wireguard else {
        panic!("another backend")
    };
    change(known);
}

#[test]
fn silent_peer_is_reported_with_its_evidence() {
    let finding = only(
        &node(vec![silent("node-2", 2)], [State::OverlayCut, State::Well]),
        "wireguard-silent",
    );
    assert_eq!(
        (finding.about.as_str(), finding.remedy.on.as_str()),
        (
            "node-2 10.244.2.0/24 and fd10:244:0:2::/64",
            "this node and node-2"
        )
    );
    let text = seen(&finding);
    for part in [
        "flannel-wg (UDP port 51820) has sent packets to 192.0.2.2:51821 for 40 s",
        "this node and the peer have never completed a handshake",
        "8zW86T16o0QhEmGDr8pSAZ++CK9d74PZLGvnUE5aHSM=",
    ] {
        assert!(
            text.contains(&code_or_text("wireguard-silent", part)),
            "{part}: {text}"
        );
    }
    assert!(
        finding.why.starts_with(&code_or_text(
            "wireguard-silent",
            "a firewall filters UDP port 51821, "
        )),
        "{}",
        finding.why
    );
    let commands = [
        "wg show flannel-wg",
        "wg show flannel-wg preshared-keys | cut -f2 | sort -u | sha256sum",
        "ss -uln sport = :51820",
        "tcpdump -c 5 -ni eth0 udp port 51821 and host 192.0.2.2",
        "timedatectl",
        "flannelctl doctor",
    ];
    assert_eq!(finding.remedy.commands, commands);
    let mut facts = node(
        vec![Silent {
            handshake: Some(400),
            ..silent("node-2", 2)
        }],
        [State::OverlayCut, State::Well],
    );
    change(&mut facts, |known| known.has_tool = false);
    let finding = only(&facts, "wireguard-silent");
    assert!(seen(&finding).contains(&code_or_text(
        "wireguard-silent",
        "the last handshake was completed 6 min ago"
    )));
    assert_eq!(
        finding.remedy.commands,
        commands[2..],
        "no command of a program that is not there"
    );
}

#[test]
fn likely_causes_follow_from_what_is_known() {
    let why = |facts: &Facts| only(facts, "wireguard-silent").why;
    let initiates = Silent {
        initiates: true,
        ..silent("node-2", 2)
    };
    assert!(
        why(&node(vec![initiates], [State::OverlayCut, State::Well]))
            .starts_with("the preshared keys differ")
    );
    assert!(
        why(&node(
            vec![silent("node-2", 2)],
            [State::CutOff, State::Well]
        ))
        .starts_with("the peer may be off")
    );
    let mut facts = node(vec![silent("node-2", 2)], [State::OverlayCut, State::Well]);
    change(&mut facts, |known| known.clock_behind = Some(900));
    assert!(why(&facts).contains(
        "clock was set back: peers refuse this node's handshakes as replays until 15 min have passed"
    ));
    assert!(
        seen(&only(&facts, "wireguard-silent"))
            .contains("the clock of this node was set back by 15 min")
    );
}

#[test]
fn silent_peer_explains_only_its_own_findings() {
    let facts = node(
        vec![silent("node-2", 2)],
        [State::OverlayCut, State::OneWay],
    );
    assert_eq!(
        causes(&facts),
        ["wireguard-silent", "one-way"],
        "node-3 has another trouble"
    );
    let facts = node(vec![silent("node-2", 2)], [State::CutOff, State::Well]);
    assert_eq!(causes(&facts), ["wireguard-silent"]);
    assert_eq!(
        only(&facts, "peer-cut").explained_by.as_deref(),
        Some("wireguard-silent")
    );
    // A node must not hide findings about another node by its choice of a name.
    let mut facts = node(
        vec![silent("10.244.3.0/24", 2)],
        [State::OverlayCut, State::OverlayCut],
    );
    let Fact::Known(mesh) = &mut facts.mesh else {
        panic!("no mesh")
    };
    mesh.paths[1].verdict.ping_only = true;
    assert_eq!(causes(&facts), ["wireguard-silent", "overlay-cut"]);
}

#[test]
fn silent_peer_is_explained_by_a_firewall_here() {
    let mut facts = node(
        vec![silent("node-2", 2), silent("node-3", 3)],
        [State::OverlayCut, State::OverlayCut],
    );
    assert_eq!(
        causes(&facts),
        ["wireguard-silent", "wireguard-silent"],
        "all keys may be wrong"
    );
    let Fact::Known(firewalls) = &mut facts.host.firewalls else {
        panic!("no firewalls")
    };
    firewalls.tables.push(Table {
        input: Some(block("INPUT", None)),
        ..table("iptables")
    });
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
    let Fact::Known(firewalls) = &mut facts.host.firewalls else {
        panic!("no firewalls")
    };
    firewalls.tables[0].input = None;
    let news = ledger.enter(&mut report(&facts));
    assert_eq!(
        news.came
            .iter()
            .filter(|finding| finding.check == "wireguard-silent")
            .count(),
        2
    );
    assert_eq!(ledger.enter(&mut report(&facts)).came, []);
}

#[test]
fn gone_machine_has_a_finding_of_its_own() {
    let mut facts = node(vec![silent("node-2", 2)], [State::CutOff, State::Well]);
    let Fact::Known(peers) = &mut facts.leases.peers else {
        panic!("no peers")
    };
    peers[0].silent = Some(900);
    let Fact::Known(mesh) = &mut facts.mesh else {
        panic!("no mesh")
    };
    mesh.paths[1].subnet = "10.244.3.0/24".parse().unwrap();
    assert_eq!(causes(&facts), ["silent-node"]);
}

#[test]
fn silent_peers_beyond_sixteen_are_counted() {
    let peers = (10..30)
        .map(|number| silent(&format!("node-{number}"), number))
        .collect();
    let facts = node(peers, [State::OverlayCut, State::Well]);
    let report = report(&facts);
    let shown: Vec<&Finding> = report
        .findings
        .iter()
        .filter(|finding| finding.check == "wireguard-silent")
        .collect();
    assert_eq!(
        (shown.len(), shown[16].what.as_str()),
        (
            17,
            code_or_text(
                "wireguard-silent",
                "4 more peers complete no WireGuard handshake with this node"
            )
            .as_str()
        )
    );
    assert!(seen(shown[16]).contains(&code_or_text(
        "wireguard-silent",
        "20 of 40 peers complete no handshake"
    )));
    assert!(
        report
            .causes()
            .all(|finding| finding.check == "wireguard-silent"),
        "a peer that is not told by name is among the others"
    );
}

#[test]
fn other_backends_have_no_silent_peers() {
    assert_eq!(healthy().wireguard, Fact::Absent);
    assert_eq!(causes(&healthy()), Vec::<String>::new());
}
