//! What firewall rules do to pod packets and tunnel packets. Uses only the listed rules and has no side effects.
//!
//! The doctor assumes that a rule with unknown conditions lets packets pass.

use crate::facts::Network;
use crate::firewalls::{Barrier, Block, Firewalld, Table};
use crate::policies::holds_policies;
use crate::surroundings::Surroundings;
use ipnet::IpNet;
use traffic_rules::nftables_text::slot_of_table;
use traffic_rules::reader::model::{Base, Program, Rule, Step, Table as Listed, Verdict};
use traffic_rules::reader::packet::Mark;
use traffic_rules::reader::{
    Device, Fate, Hook, HookPath, Layer, Packet, Ranges, Rules, Walk, state,
};
use types::{Encapsulation, Family};

/// The mark that kube-proxy sets on packets of Services, but not on those from pod to pod.
const KUBE_PROXY: u32 = 0x4000;
/// The default name of the pods' bridge.
const BRIDGE: &str = "cni0";
/// Prefixes of interfaces that pod packets never use: the loopback, and bridges of virtual machines and of containers outside Kubernetes.
const OTHERS: &[&str] = &["lo", "docker", "br-", "virbr", "lxdbr", "lxcbr", "incusbr", "podman"];
/// IP protocol number.
const TCP: u32 = 6;
const UDP: u32 = 17;
/// The shortest and the longest first packet of a connection, in bytes.
const FIRST: (u32, u32) = (40, 100);
/// In bytes. Encapsulated, a packet of this length fits a link with an MTU of 1500.
const LARGE: u32 = 1280;
/// firewalld's nftables table.
pub(crate) const FIREWALLD: &str = "firewalld";

/// What drops pod packets of one family or tunnel packets in the iptables table `filter`.
pub fn table(
    rules: &Rules,
    net: &IpNet,
    network: &Network,
    around: &Surroundings,
    command: &str,
) -> Table {
    let mut seen = Table::empty(net, command);
    let Some(filter) = rules.tables.iter().find(|table| table.name == "filter") else {
        return seen;
    };
    for (number, to) in jumps(filter, "FORWARD") {
        seen.jump |= to.starts_with("FLANNEL-FWD");
        seen.ufw |= to.starts_with("ufw");
        if holds_policies(to) {
            seen.policies = Some(number);
        }
    }
    seen.ufw |= jumps(filter, "INPUT").any(|(_, to)| to.starts_with("ufw"));
    seen.docker = ["DOCKER", "DOCKER-USER"].iter().any(|chain| filter.chains.contains_key(*chain));
    let only = |table: &Listed, _: &str, _: &Base| table.name == "filter";
    let walk = Walk::through(rules).only(&only);
    seen.forward = forwarded(&walk, net, network, around);
    let family = Family::from(net.addr());
    let blocks =
        of_tunnel(network.tunnel(), family, around, &network.networks.nets().collect::<Vec<_>>());
    seen.input = blocks.iter().find_map(|packet| first_block(&walk, packet));
    seen
}

/// The chains to which the rules jump, each with the number of the rule.
fn jumps<'a>(table: &'a Listed, chain: &str) -> impl Iterator<Item = (usize, &'a str)> {
    let rules =
        table.chains.get(chain).and_then(|chain| chain.rules.as_ref()).into_iter().flatten();
    (1..).zip(rules).flat_map(|(number, rule)| onward(rule).map(move |to| (number, to)))
}

/// The targets of the rule's jumps and gotos, without those in verdict maps.
pub(crate) fn onward(rule: &Rule) -> impl Iterator<Item = &str> {
    rule.steps.iter().filter_map(|step| match step {
        Step::Verdict(Verdict::Jump(to) | Verdict::Goto(to)) => Some(to.as_str()),
        _ => None,
    })
}

/// Packets in both directions. `kinds` lists their protocols, connection states and lengths.
fn between_pods(
    net: &IpNet,
    network: &Network,
    around: &Surroundings,
    kinds: &[(u32, u32, Ranges)],
) -> Vec<Packet> {
    let family = Family::from(net.addr());
    let outside = match network.device(family).or_else(|| around.underlay.clone()) {
        Some(name) => Device::named(name),
        None => Device::UnknownBut(OTHERS),
    };
    let bridge = Device::named(around.bridge.as_deref().unwrap_or(BRIDGE));
    let port = Some(Device::UnknownBut(&[]));
    let own = Ranges::nets(network.own.nets().filter(|own| Family::from(own.addr()) == family));
    let own = if own.is_empty() { Ranges::net(net) } else { own };
    let others = Ranges::net(net).and(&own.inverted());
    let mut all = Vec::new();
    for out in [true, false] {
        for (protocol, connection, length) in kinds {
            let (incoming, outgoing) = if out {
                (bridge.clone(), outside.clone())
            } else {
                (outside.clone(), bridge.clone())
            };
            let plain = Packet::new(HookPath::Forward, family, incoming, outgoing);
            let (source, destination) =
                if out { (own.clone(), others.clone()) } else { (others.clone(), own.clone()) };
            all.push(Packet {
                source,
                destination,
                port_in: port.clone().filter(|_| out),
                port_out: port.clone().filter(|_| !out),
                protocol: Ranges::one(*protocol),
                state: Ranges::one(*connection),
                length: length.clone(),
                mark: Mark { value: 0, known: KUBE_PROXY },
                ..plain
            });
        }
    }
    all
}

/// Sample packets that begin a connection between pods of this node and of other nodes, in both directions.
pub fn of_pods(net: &IpNet, network: &Network, around: &Surroundings) -> Vec<Packet> {
    let length = || Ranges::span(FIRST.0, FIRST.1);
    let kinds = [TCP, UDP].map(|protocol| (protocol, state::NEW, length()));
    between_pods(net, network, around, &kinds)
}

/// Sample packets of established connections between pods of this node and of other nodes, in both directions.
pub(crate) fn of_connections(net: &IpNet, network: &Network, around: &Surroundings) -> Vec<Packet> {
    let kinds = [FIRST.0, LARGE].map(|length| (TCP, state::ESTABLISHED, Ranges::one(length)));
    between_pods(net, network, around, &kinds)
}

/// Sample packets from other nodes to this node, one for each UDP port or protocol of the encapsulation.
pub(crate) fn of_tunnel(
    tunnel: Option<Encapsulation>,
    family: Family,
    around: &Surroundings,
    pods: &[IpNet],
) -> Vec<Packet> {
    let of_family = |nets: &mut dyn Iterator<Item = IpNet>| {
        Ranges::nets(nets.filter(|net| Family::from(*net) == family))
    };
    let peers = of_family(&mut around.peers.iter().copied().map(IpNet::from));
    let near = of_family(&mut around.near.iter().copied());
    let source = if !peers.is_empty() {
        peers
    } else if !near.is_empty() {
        near
    } else {
        // The sender may have any address except a pod's.
        let pods = of_family(&mut pods.iter().copied());
        Ranges::every_address(family).and(&pods.inverted())
    };
    let incoming = around.underlay.clone().map_or(Device::UnknownBut(&["lo"]), Device::named);
    let packet = Packet {
        source,
        mark: Mark { value: 0, known: 0 },
        ..Packet::new(HookPath::Input, family, incoming, Device::none())
    };
    let kinds = tunnel.map(|tunnel| tunnel.each(family)).unwrap_or_default();
    let of_kind = |kind: Encapsulation| {
        let protocol = Ranges::one(u32::from(kind.protocol()?));
        let plain = Packet { protocol, ..packet.clone() };
        Some(match kind.port() {
            Some(port) => Packet { destination_port: Ranges::one(port), ..plain },
            None => plain,
        })
    };
    kinds.into_iter().filter_map(of_kind).collect()
}

/// The rules and policies that drop pod packets.
///
/// An accept rule for first packets of pods' connections, by interface or address, shows that the administrator configured the firewall for pods.
/// Drops without an interface or address then do not count. A rule that drops first packets by interface or address takes precedence over other
/// drops. A rule that drops later packets counts only if it matches them by interface or address.
fn forwarded(walk: &Walk<'_>, net: &IpNet, network: &Network, around: &Surroundings) -> Vec<Block> {
    let first = of_pods(net, network, around);
    let found = first_refused(walk, &first);
    if !found.is_empty() {
        return found;
    }
    let later = of_connections(net, network, around);
    let refused = later.iter().find(|packet| {
        matches!(walk.fate(packet), Fate::No(stop) if stop.named && !holds_policies(&stop.chain))
    });
    refused.map(|packet| blocks(walk, packet)).unwrap_or_default()
}

fn first_refused(walk: &Walk<'_>, packets: &[Packet]) -> Vec<Block> {
    let fates: Vec<(Fate, &Packet)> =
        packets.iter().map(|packet| (walk.fate(packet), packet)).collect();
    let aimed = fates
        .iter()
        .find(|(fate, _)| matches!(fate, Fate::No(stop) if stop.named && !stop.is_policy()));
    if aimed.is_none() && fates.iter().any(|(fate, _)| matches!(fate, Fate::Yes { named: true })) {
        return Vec::new();
    }
    let certain = || fates.iter().find(|(fate, _)| matches!(fate, Fate::No(_)));
    let doubted = || fates.iter().find(|(fate, _)| fate.stop().is_some());
    let Some((fate, packet)) = aimed.or_else(certain).or_else(doubted) else {
        return Vec::new();
    };
    // A drop in a chain of network policies is intended.
    if fate.stop().is_some_and(|stop| holds_policies(&stop.chain)) {
        return Vec::new();
    }
    blocks(walk, packet)
}

fn blocks(walk: &Walk<'_>, packet: &Packet) -> Vec<Block> {
    walk.stops(packet).into_iter().map(|(stop, doubt)| Block { stop, doubt }).collect()
}

fn first_block(walk: &Walk<'_>, packet: &Packet) -> Option<Block> {
    let fate = walk.fate(packet);
    let doubt = !matches!(fate, Fate::No(_));
    fate.stop().cloned().map(|stop| Block { stop, doubt })
}

/// A base chain of nftables: its family, table and name.
pub type Gate = (Layer, String, String);

/// The base chains on the forward hook in which pod packets may get lost. Without flannel's and firewalld's own, and without chains that iptables has
/// already listed.
pub(crate) fn gates(rules: &Rules, iptables: &[Family]) -> Vec<Gate> {
    let judged = |table: &Listed, chain: &str| match (table.layer, table.name.as_str(), chain) {
        (Layer::Ip, name, _) if slot_of_table(Family::V4, name).is_some() => false,
        (Layer::Ip6, name, _) if slot_of_table(Family::V6, name).is_some() => false,
        (Layer::Inet, FIREWALLD, _) => false,
        (Layer::Ip, "filter" | "mangle" | "security", "FORWARD") => !iptables.contains(&Family::V4),
        (Layer::Ip6, "filter" | "mangle" | "security", "FORWARD") => {
            !iptables.contains(&Family::V6)
        }
        (layer, ..) => matches!(layer, Layer::Ip | Layer::Ip6 | Layer::Inet),
    };
    let mut found = Vec::new();
    for table in &rules.tables {
        let called = table.chains.iter().filter(|(_, chain)| {
            chain.base.as_ref().is_some_and(|base| base.hook == Hook::Forward && !base.nat)
        });
        let called = called.filter(|(name, _)| judged(table, name));
        found.extend(called.map(|(name, _)| (table.layer, table.name.clone(), name.clone())));
    }
    found
}

pub(crate) fn is_gate(gate: &Gate, table: &Listed, chain: &str) -> bool {
    table.program == Program::Nft
        && (table.layer, table.name.as_str(), chain) == (gate.0, gate.1.as_str(), gate.2.as_str())
}

/// `None` if the chain drops no packets of the pod network.
pub fn barrier(
    rules: &Rules,
    gate: &Gate,
    net: &IpNet,
    network: &Network,
    around: &Surroundings,
) -> Option<Barrier> {
    let only = |table: &Listed, chain: &str, _: &Base| is_gate(gate, table, chain);
    let walk = Walk::through(rules).only(&only);
    let block = forwarded(&walk, net, network, around).into_iter().next()?;
    let (layer, table, chain) = gate;
    let own = rules
        .tables
        .iter()
        .find(|known| is_gate(gate, known, chain))
        .and_then(|table| table.chains.get(chain)?.rules.as_ref());
    let place = block.stop.number.unwrap_or_default();
    let policies = (1..)
        .zip(own.into_iter().flatten())
        .any(|(number, rule)| number >= place && onward(rule).any(holds_policies));
    Some(Barrier {
        family: layer.name().to_owned(),
        table: table.clone(),
        chain: chain.clone(),
        network: *net,
        by_rule: !block.stop.is_policy(),
        handle: block.stop.handle.filter(|_| !policies),
        doubt: block.doubt,
    })
}

/// What firewalld's table accepts.
pub fn firewalld(rules: &Rules, network: &Network, around: &Surroundings) -> Firewalld {
    let only = |table: &Listed, _: &str, _: &Base| {
        table.program == Program::Nft && table.name == FIREWALLD
    };
    let walk = Walk::through(rules).only(&only);
    let passes = |packet: &Packet| !matches!(walk.fate(packet), Fate::No(_));
    let pods: Vec<IpNet> = network.networks.nets().collect();
    let networks = pods
        .iter()
        .filter(|net| of_pods(net, network, around).iter().all(passes))
        .copied()
        .collect();
    let with_peers = |family: Family| around.peers.iter().any(|peer| Family::from(peer) == family);
    let families = Family::ALL.into_iter().filter(|family| network.travels_in(*family));
    let (known, unknown): (Vec<Family>, Vec<Family>) =
        families.partition(|family| with_peers(*family));
    let families = if known.is_empty() { unknown } else { known };
    let tunnel = families
        .into_iter()
        .flat_map(|family| of_tunnel(network.tunnel(), family, around, &pods))
        .all(|packet| passes(&packet));
    Firewalld { networks, tunnel }
}
