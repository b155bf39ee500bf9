//! Finds rules that drop flannel's packets in `raw` and `mangle`, on bridges and devices, and in the output of this host. Uses only the listed rules
//! and has no side effects.

use crate::facts::Network;
use crate::firewalls::{Carried, Drop};
use crate::passage::{self, FIREWALLD};
use crate::policies::holds_policies;
use crate::surroundings::Surroundings;
use ipnet::IpNet;
use std::collections::BTreeSet;
use traffic_rules::programs::Variant;
use traffic_rules::reader::model::{Base, Program, Table};
use traffic_rules::reader::walk::Missing;
use traffic_rules::reader::{
    Device, Fate, Hook, HookPath, Layer, Packet, Ranges, Rules, Walk, state,
};
use types::Family;

/// Names of the iptables commands.
pub(crate) type Commands = Vec<(Family, Variant, String)>;

/// The most peers whose tunnel packets the doctor traces through firewall rules. The limit saves time: rules may contain sets of thousands of addresses.
const MAX_PEERS: usize = 64;

/// False for NAT chains, flannel's own tables, and chains that another check covers.
fn is_looked_at(carried: Carried, table: &Table, base: &Base) -> bool {
    if base.nat || table.name.starts_with("flannel") {
        return false;
    }
    match (table.program, base.hook) {
        (Program::Nft, _) if table.name == FIREWALLD => false,
        // The check of nftables barriers judges forward chains of the families ip, ip6 and inet.
        (Program::Nft, Hook::Forward) if carried == Carried::Pods => table.layer == Layer::Bridge,
        (Program::Iptables(_), Hook::Forward | Hook::Input) => table.name != "filter",
        _ => true,
    }
}

/// The packets that the doctor traces through firewall rules.
fn packets(network: &Network, around: &Surroundings) -> Vec<(Carried, Family, Packet)> {
    let mut all = Vec::new();
    for net in network.networks.nets() {
        let pods = passage::of_pods(&net, network, around)
            .into_iter()
            .chain(passage::of_connections(&net, network, around));
        all.extend(pods.map(|packet| (Carried::Pods, Family::from(net.addr()), packet)));
    }
    let pods: Vec<IpNet> = network.networks.nets().collect();
    let around = &Surroundings {
        peers: around.peers.iter().take(MAX_PEERS).copied().collect(),
        ..around.clone()
    };
    for family in Family::ALL.into_iter().filter(|family| network.travels_in(*family)) {
        let tunnel = passage::of_tunnel(network.tunnel(), family, around, &pods);
        for packet in tunnel {
            // The source port depends on the backend, and a drop has to affect first packets as well as later ones.
            let packet = Packet {
                source_port: Ranges::span(1_u32, u32::from(u16::MAX)),
                state: Ranges::union(&[Ranges::one(state::NEW), Ranges::one(state::ESTABLISHED)]),
                ..packet
            };
            let sent = Packet {
                path: HookPath::Output,
                incoming: Device::none(),
                outgoing: packet.incoming.clone(),
                source: Ranges::every_address(family),
                destination: packet.source.clone(),
                ..packet.clone()
            };
            all.push((Carried::TunnelIn, family, packet));
            all.push((Carried::TunnelOut, family, sent));
        }
    }
    all
}

/// What certainly drops flannel's packets: the first rule or policy for each kind of packet.
pub(crate) fn drops(
    rules: &Rules,
    commands: &Commands,
    network: &Network,
    around: &Surroundings,
) -> Vec<Drop> {
    let mut found: Vec<Drop> = Vec::new();
    for (carried, family, packet) in packets(network, around) {
        let only = |table: &Table, _: &str, base: &Base| is_looked_at(carried, table, base);
        let Fate::No(stop) = Walk::through(rules).only(&only).fate(&packet) else {
            continue;
        };
        let is_own = stop.chain.starts_with("FLANNEL");
        let is_known = found.iter().any(|known| known.carried == carried && known.stop == stop);
        if is_own || is_known || holds_policies(&stop.chain) {
            continue;
        }
        let command = match stop.program {
            Program::Nft => None,
            Program::Iptables(variant) => commands
                .iter()
                .find(|(of, by, _)| (*of, *by) == (family, variant))
                .map(|(.., command)| command.clone()),
        };
        let chain = rules
            .tables
            .iter()
            .filter(|table| {
                (table.program, table.layer.name(), table.name.as_str())
                    == (stop.program, stop.layer, stop.table.as_str())
            })
            .find_map(|table| table.chains.get(&stop.base));
        let Some(hook) = chain.and_then(|chain| chain.base.as_ref().map(|base| base.hook)) else {
            continue;
        };
        let listed = chain.and_then(|chain| chain.rules.as_ref());
        // A policy has no number: it applies after all rules of the chain, so no network policies can follow it.
        let before_policies = stop.number.is_some_and(|number| {
            listed.into_iter().flatten().skip(number).flat_map(passage::onward).any(holds_policies)
        });
        found.push(Drop { carried, family, stop, hook, command, before_policies });
    }
    found
}

/// What flannel's packets traverse, but the doctor has not listed yet.
pub(crate) fn missing(
    rules: &Rules,
    network: &Network,
    around: &Surroundings,
) -> BTreeSet<Missing> {
    let mut all = BTreeSet::new();
    for (carried, _, packet) in packets(network, around) {
        let only = |table: &Table, _: &str, base: &Base| is_looked_at(carried, table, base);
        all.extend(Walk::through(rules).only(&only).missing(&packet));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::network;
    use traffic_rules::reader::iptables::read;

    /// The kind of dropped packets, the packet counter of the rule, and whether network policies follow it.
    fn found(table: &str, lines: &str) -> Vec<(Carried, Option<u64>, bool)> {
        let chains = ":PREROUTING ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]";
        let saved = format!("*{table}\n{chains}\n{lines}\nCOMMIT\n");
        let around = Surroundings {
            underlay: Some("eth0".to_owned()),
            peers: vec!["192.0.2.2".parse().unwrap(), "192.0.2.3".parse().unwrap()],
            ..Surroundings::default()
        };
        let commands = vec![(Family::V4, Variant::Nft, "iptables".to_owned())];
        let rules = read(&saved, Family::V4, Variant::Nft);
        drops(&rules, &commands, &network(), &around)
            .into_iter()
            .map(|drop| {
                assert_eq!(drop.command.as_deref(), Some("iptables"));
                (drop.carried, drop.stop.packets, drop.before_policies)
            })
            .collect()
    }

    #[test]
    fn rule_that_drops_is_found_with_its_counter() {
        let pods = "-s 10.244.0.0/16 -j DROP";
        assert_eq!(
            found("mangle", &format!("[7:420] -A FORWARD {pods}")),
            [(Carried::Pods, Some(7), false)]
        );
        assert_eq!(
            found("raw", "-A PREROUTING -p udp -m udp --dport 8472 -j DROP"),
            [(Carried::TunnelIn, None, false)]
        );
        assert_eq!(
            found("raw", "-A OUTPUT -p udp -m udp --dport 8472 -j DROP"),
            [(Carried::TunnelOut, None, false)]
        );
        assert_eq!(
            found("mangle", "-A FORWARD -m length --length 1000:65535 -j DROP").len(),
            1,
            "large packets alone"
        );
        let policies =
            format!(":cali-FORWARD - [0:0]\n-A FORWARD {pods}\n-A FORWARD -j cali-FORWARD");
        assert_eq!(found("mangle", &policies), [(Carried::Pods, None, true)]);
    }

    #[test]
    fn packets_that_may_pass_are_no_drop() {
        for lines in [
            "",
            "-A FORWARD -s 198.51.100.0/24 -j DROP",
            "-A FORWARD -m mark --mark 7 -j DROP",
            "-A FORWARD -s 10.244.0.0/16 -j ACCEPT\n-A FORWARD -d 10.244.0.0/16 -j ACCEPT\n-A FORWARD -j DROP",
            "-A OUTPUT -p udp -m udp --sport 8472 --dport 8472 -m conntrack --ctstate NEW -j DROP",
        ] {
            assert_eq!(found("mangle", lines), [], "{lines}");
        }
        // FORWARD and INPUT of the table filter have checks of their own.
        assert_eq!(found("filter", "-A FORWARD -s 10.244.0.0/16 -j DROP"), []);
    }
}
