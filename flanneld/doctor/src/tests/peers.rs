//! Checks that compare peers: with a single peer, with all peers but one gone, and with faults of several peers at once.

use super::cases::{Spoil, all, dropped, faults, inside, named, one, paths, spoiled, unrouted};
use super::healthy::{healthy, interface, path, peer};
use super::{causes, only, report};
use crate::fact::Fact;
use crate::facts::Facts;
use crate::facts::argument::on_command_line;
use crate::facts::host::{FLANNELD, Interface, Neighbour};
use crate::facts::mesh::{Path, State};
use crate::facts::pods::{CniFile, LostPackets};
use crate::finding::Severity::{self, Broken, Degraded, Risk};
use crate::firewalls::Carried;
use netstate::names::Mac;
use types::Family;

/// Their cases need several peers.
const OF_SEVERAL: &[&str] = &["isolated", "duplicate-address"];

/// The doctor finds each fault although `change` leaves a single peer. Without a rule of this host, nobody can tell a firewall from wrong routes of
/// the peer.
fn are_found(change: fn(&mut Path), gone: Option<u64>) {
    for (check, mut facts) in faults() {
        if let Fact::Known(mesh) = &mut facts.mesh {
            mesh.faults.clear();
            mesh.paths.iter_mut().skip(1).for_each(change);
            mesh.paths.retain(|path| path.since.is_some());
        }
        if let Fact::Known(peers) = &mut facts.leases.peers {
            peers.iter_mut().skip(1).for_each(|peer| peer.silent = gone);
            peers.truncate(if gone.is_some() { 9 } else { 1 });
        }
        let found = report(&facts).findings;
        let is = |id: &str| found.iter().any(|finding| finding.check == id);
        let told = ["one-way", "overlay-cut", "slow", "lossy", "silent-node"];
        let is_other =
            matches!(check, "encap-blocked" | "slow" | "lossy") && told.into_iter().any(is);
        assert!(is(check) || is_other || OF_SEVERAL.contains(&check), "{check}: {found:#?}");
    }
}

#[test]
fn fault_is_found_with_a_single_peer() {
    are_found(|path| path.since = None, None);
}

#[test]
fn fault_is_found_with_all_peers_but_one_gone() {
    let cut = |path: &mut Path| (path.verdict.state, path.underlay) = (State::CutOff, false);
    are_found(cut, Some(900));
}

fn lone(facts: &mut Facts, state: State) {
    paths(facts).truncate(1);
    one(facts, state, true);
}

/// Adds a third peer, which does not respond, and sets the hardware addresses of all. The first peer does not respond either.
fn third(facts: &mut Facts, macs: [&str; 3]) {
    paths(facts).push(path("node-4", "10.244.4.0/24", "192.0.2.4"));
    inside(&mut facts.leases.peers).push(peer("node-4", 4));
    for number in [0, 2] {
        let path = &mut paths(facts)[number];
        (path.verdict.state, path.underlay) = (State::CutOff, false);
    }
    let of =
        |(number, mac)| Neighbour { address: [192, 0, 2, number].into(), mac: Mac::parse(mac) };
    facts.host.underlay_neighbours = Fact::Known((2..).zip(macs).map(of).collect());
}

const MACS: [&str; 3] = ["02:00:00:00:00:22", "02:00:00:00:00:33", "02:00:00:00:00:44"];
const CLONES: [&str; 3] = [MACS[1], MACS[1], MACS[2]];

fn rival(facts: &mut Facts) {
    third(facts, MACS);
    facts.host.rival = Fact::of(Mac::parse(CLONES[0]));
}

fn wrong_address(facts: &mut Facts) {
    lone(facts, State::OneWay);
    inside(&mut facts.leases.own).published = vec!["192.0.2.99".parse().unwrap()];
}

/// Each with the unexplained findings.
const CAUSES: &[(Spoil, &[&str])] = &[
    (|facts| third(facts, CLONES), &["duplicate-mac", "peer-cut"]),
    // Peers are the gateways of flannel's routes, if the backend has no tunnel.
    (
        |facts| {
            third(facts, CLONES);
            let routes = inside(&mut facts.host.routes).iter_mut();
            let ours = routes.filter(|route| route.protocol == FLANNELD);
            ours.for_each(|route| route.via = Some([192, 0, 2, 3].into()));
        },
        &["duplicate-mac", "peer-cut"],
    ),
    (
        |facts| {
            third(facts, MACS);
            unrouted(facts);
        },
        &["peer-unrouted", "peer-cut"],
    ),
    // The route to one of them is not why all are silent.
    (
        |facts| {
            unrouted(facts);
            all(facts, &State::CutOff, false);
        },
        &["peer-unrouted", "isolated"],
    ),
    (rival, &["address-conflict"]),
    // Other nodes miss this peer too.
    (
        |facts| {
            rival(facts);
            paths(facts)[2].others = Some((0, 2));
        },
        &["address-conflict", "peer-cut"],
    ),
    // A lease repeats the address of another peer.
    (
        |facts| {
            third(facts, MACS);
            paths(facts)[2].address = [192, 0, 2, 3].into();
        },
        &["peer-cut", "peer-cut"],
    ),
    // A risk explains no loss.
    (
        |facts| {
            inside(&mut facts.host.name_servers).push("10.244.99.53".parse().unwrap());
            inside(&mut facts.pods.paths)[0].lost =
                vec![("node-2".to_owned(), LostPackets::Everything)];
        },
        &["pods-lost", "network-overlap"],
    ),
    (|facts| lone(facts, State::OverlayCut), &["encap-blocked"]),
    // A host without flannel has the peer's address, and rejects its probes.
    (
        |facts| {
            lone(facts, State::OverlayCut);
            paths(facts)[0].refuses = true;
        },
        &["overlay-cut"],
    ),
    (wrong_address, &["public-ip"]),
    // A rule against IPv6 does not explain a fault of IPv4.
    (
        |facts| {
            third(facts, MACS);
            let mut drop = dropped(Carried::TunnelIn);
            drop.family = Family::V6;
            inside(&mut facts.host.firewalls).drops = vec![drop];
            let path = &mut paths(facts)[1];
            path.address = "2001:db8::3".parse().unwrap();
            path.verdict.state = State::OverlayCut;
            paths(facts)[0].underlay = true;
            paths(facts)[0].verdict.state = State::OverlayCut;
        },
        &["encap-blocked", "peer-cut", "overlay-cut"],
    ),
    (
        |facts| {
            wrong_address(facts);
            facts.host.firewalls = spoiled("encap-blocked").host.firewalls;
        },
        &["encap-blocked"],
    ),
];

#[test]
fn finding_explains_only_what_is_in_its_scope() {
    for (number, (spoil, wanted)) in CAUSES.iter().enumerate() {
        let mut facts = healthy();
        spoil(&mut facts);
        assert_eq!(causes(&facts), *wanted, "{number}");
    }
}

fn detach(facts: &mut Facts) {
    named(facts, "veth1").master = None;
}

fn deaf(facts: &mut Facts) {
    all(facts, &State::CutOff, false);
    facts.host.tunnel_receives = true;
    inside(&mut facts.mesh).hears = false;
}

fn alone(facts: &mut Facts, check: &str) {
    *facts = spoiled(check);
    paths(facts).clear();
    inside(&mut facts.leases.peers).clear();
}

fn unknown_plugin(facts: &mut Facts) {
    inside(&mut facts.pods.cni).files[0] =
        CniFile { name: "00-own.conf".to_owned(), flannel: None };
}

/// Fills the subnet with the addresses of this many pods; `gone` of them are gone.
fn full(facts: &mut Facts, prefix: u8, pods: usize, gone: usize) {
    *facts = spoiled("ipam-full");
    inside(&mut facts.network).own =
        types::Subnets::V4(format!("10.244.1.0/{prefix}").parse().unwrap());
    let ipam = &mut inside(&mut facts.pods.ipam)[0];
    ipam.kept.truncate(pods);
    ipam.ports = Some(pods - gone);
    (0..).zip(&mut ipam.kept).for_each(|(number, kept)| kept.gone = Some(number < gone));
}

/// Each with a check, its severity, and a text in its finding; without a text, the finding has no command.
const FINDINGS: &[(Spoil, &str, Severity, &str)] = &[
    (
        |facts| {
            lone(facts, State::OneWay);
            facts.host.name = "node-2".to_owned();
        },
        "one-way",
        Broken,
        "node-2 (192.0.2.2)",
    ),
    (
        |facts| {
            one(facts, State::OneWay, true);
            paths(facts)[1].node = "node-2".into();
        },
        "one-way",
        Broken,
        "node-2 (192.0.2.2)",
    ),
    (
        |facts| named(facts, "cni0").addresses.truncate(2),
        "pod-bridge",
        Broken,
        "ip -6 address add fd10:244:0:1::1/64 dev cni0",
    ),
    (detach, "pod-bridge", Broken, "ip link set dev veth1 master cni0"),
    (
        |facts| {
            detach(facts);
            inside(&mut facts.host.interfaces).retain(|known| known.name != "cni0");
        },
        "pod-bridge",
        Broken,
        "ip address add 10.244.1.1/24 dev cni0",
    ),
    (
        |facts| {
            one(facts, State::LosesSome, true);
            paths(facts)[0].losses = (7, 37);
        },
        "lossy",
        Degraded,
        "7 of the last 37 probes",
    ),
    (deaf, "isolated", Risk, ""),
    (
        |facts| {
            deaf(facts);
            inside(&mut facts.mesh).hears = true;
        },
        "isolated",
        Broken,
        "ping -c 3",
    ),
    (|facts| alone(facts, "other-store"), "other-store", Broken, "flannelctl leases --long"),
    (|facts| alone(facts, "lease-refused"), "lease-refused", Broken, ""),
    (
        |facts| {
            *facts = spoiled("public-ip");
            facts.daemon.arguments = on_command_line(["--public-ip=192.0.2.99".to_owned()]);
        },
        "public-ip",
        Broken,
        "|--public-ip=192.0.2.1|",
    ),
    (
        |facts| *facts = spoiled("not-running"),
        "not-running",
        Broken,
        "journalctl -u flanneld -n 50",
    ),
    (
        |facts| {
            facts.daemon.running = Fact::Known(false);
        },
        "not-running",
        Broken,
        "systemctl start flanneld",
    ),
    // A device for all VNIs has the tunnel's port.
    (
        |facts| {
            facts.host.ports = spoiled("port-taken").host.ports;
            inside(&mut facts.host.ports).truncate(1);
            let device = Interface {
                kind: "vxlan".to_owned(),
                vxlan: Some((0, 8472)),
                ..interface(9, "antrea0", &[])
            };
            inside(&mut facts.host.interfaces).push(device);
        },
        "port-taken",
        Broken,
        "ip -details link show dev antrea0",
    ),
    (unknown_plugin, "cni-config", Risk, ""),
    (
        |facts| {
            unknown_plugin(facts);
            inside(&mut facts.pods.cni).files.truncate(1);
        },
        "cni-config",
        Risk,
        "",
    ),
    (|facts| full(facts, 28, 13, 6), "ipam-full", Broken, "rm "),
    (|facts| full(facts, 28, 13, 0), "ipam-full", Degraded, ""),
    (|facts| full(facts, 24, 245, 0), "ipam-full", Risk, ""),
];

#[test]
fn finding_has_its_severity_and_command() {
    for (spoil, check, severity, text) in FINDINGS {
        let mut facts = healthy();
        spoil(&mut facts);
        let found = only(&facts, check);
        assert_eq!(found.severity, *severity, "{found:#?}");
        let shown = format!("{} {:?}", found.what, found.remedy);
        let is_text = shown.contains(text);
        assert_eq!(
            (is_text, found.remedy.commands.is_empty()),
            (true, text.is_empty()),
            "{found:#?}"
        );
    }
}
