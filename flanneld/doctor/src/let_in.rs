//! Firewall commands that accept packets of other nodes, but not of other hosts.

use crate::encapsulation::iptables;
use crate::facts::host::Interface;
use crate::facts::leases::Peer;
use crate::facts::{Facts, Network};
use crate::firewalls::Firewalls;
use crate::persist;
use crate::shell::word;
use ipnet::IpNet;
use std::net::IpAddr;
use types::{Encapsulation, Family};

/// With more, `few` makes fewer, wider prefixes.
const MAX_PREFIXES: usize = 32;
/// The most separate firewall commands, one for each source network; for more, there is one shell loop.
const MAX_COMMANDS: usize = 4;

/// Makes firewalld apply its permanent configuration.
pub(crate) const RELOAD: &str = "firewall-cmd --reload";

/// What manages a host's firewall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Through ufw's own commands.
    Ufw,
    /// Through firewalld's own commands.
    Firewalld,
    /// Plain rules, without a managing program.
    Iptables,
}

pub(crate) fn program(firewalls: Option<&Firewalls>) -> Program {
    match firewalls {
        Some(firewalls) if firewalls.firewalld.is_some() => Program::Firewalld,
        Some(firewalls) if firewalls.tables.iter().any(|table| table.ufw) => Program::Ufw,
        _ => Program::Iptables,
    }
}

/// Where other nodes' packets of one family come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// `None` for commands that run on every node, because the interface's name may differ between nodes.
    pub interface: Option<String>,
    /// The networks that contain the addresses of other nodes.
    pub sources: Vec<IpNet>,
    pub family: Family,
}

impl Origin {
    /// The underlay networks with nodes, and prefixes for nodes in other networks.
    ///
    /// Without sources if the underlay's addresses and the other nodes are unknown: any command would be wrong.
    pub(crate) fn of(facts: &Facts, family: Family) -> Self {
        let interface = facts.underlay_name().map(str::to_owned);
        let near = near(facts, family);
        let peers = facts.peers().flat_map(Peer::addresses);
        let peers: Vec<IpAddr> = peers.filter(|address| Family::from(*address) == family).collect();
        let mut sources = near.clone();
        if !peers.is_empty() {
            sources.retain(|net| peers.iter().any(|peer| net.contains(peer)));
        }
        let far = peers
            .iter()
            .filter(|peer| !near.iter().any(|net| net.contains(*peer)))
            .map(|peer| IpNet::from(*peer));
        sources.extend(few(&far.collect()));
        Self { interface, sources: IpNet::aggregate(&sources), family }
    }

    /// The commands run on every node. Probes over the underlay come from the nodes' own addresses, those over the overlay from the first addresses
    /// of their subnets.
    #[must_use]
    pub(crate) fn of_probes(self, facts: &Facts, network: &Network) -> Self {
        // The commands run on every node, and there this node is also a sender.
        let own = facts
            .daemon
            .choice
            .known()
            .into_iter()
            .flat_map(|choice| &choice.addresses)
            .map(|address| IpNet::from(*address));
        let own = own.filter(|own| !self.sources.iter().any(|net| net.contains(own)));
        let inside =
            network.networks.nets().chain(own).filter(|net| Family::from(net) == self.family);
        let sources = if self.sources.is_empty() {
            Vec::new()
        } else {
            self.sources.iter().copied().chain(inside).collect()
        };
        Self { interface: None, sources, ..self }
    }

    /// Matches packets from the origin's nodes.
    fn iptables(&self, kind: Encapsulation) -> String {
        self.by_iptables(kind, false)
    }

    /// Matches packets from the origin's nodes or, with `out`, to them.
    pub(crate) fn by_iptables(&self, kind: Encapsulation, out: bool) -> String {
        let (by, end) = if out { ("-o", "-d") } else { ("-i", "-s") };
        let interface =
            self.interface.as_ref().map(|name| format!("{by} {} ", word(name))).unwrap_or_default();
        let nodes: Vec<String> = self.sources.iter().map(IpNet::to_string).collect();
        format!("{interface}{end} {} {}", nodes.join(","), iptables(kind))
    }

    /// Matches packets from the origin's nodes or, with `out`, to them.
    pub(crate) fn by_nft(&self, kind: Encapsulation, out: bool) -> String {
        let ip = self.family.pick("ip", "ip6");
        let end = if out { "daddr" } else { "saddr" };
        let nodes: Vec<String> = self.sources.iter().map(IpNet::to_string).collect();
        let nodes = match nodes.as_slice() {
            [one] => one.clone(),
            several => format!("'{{ {} }}'", several.join(", ")),
        };
        let what = match kind.port() {
            Some(port) => format!("udp dport {port}"),
            None => format!("meta l4proto {}", kind.protocol().unwrap_or_default()),
        };
        format!("{ip} {end} {nodes} {what}")
    }
}

/// The networks of the underlay interface's addresses, without link-local networks and single addresses.
pub(crate) fn near(facts: &Facts, family: Family) -> Vec<IpNet> {
    let of_hosts = |net: &IpNet| match net.addr() {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let nets = facts.underlay().into_iter().flat_map(Interface::nets);
    let nets = nets.filter(|net| {
        Family::from(net) == family
            && of_hosts(net)
            && (1..net.max_prefix_len()).contains(&net.prefix_len())
    });
    IpNet::aggregate(&nets.map(|net| net.trunc()).collect())
}

/// The smallest list of prefixes that contains exactly the addresses. If it is longer than [`MAX_PREFIXES`], the prefixes widen step by step, at most
/// to /16 or /48.
fn few(addresses: &Vec<IpNet>) -> Vec<IpNet> {
    let mut nets = IpNet::aggregate(addresses);
    for (v4, v6) in [(24, 64), (20, 56), (16, 48)] {
        if nets.len() <= MAX_PREFIXES {
            break;
        }
        let wider = |net: &IpNet| {
            IpNet::new(net.addr(), net.prefix_len().min(if net.addr().is_ipv6() { v6 } else { v4 }))
                .map(|net| net.trunc())
        };
        nets = IpNet::aggregate(&nets.iter().filter_map(|net| wider(net).ok()).collect());
    }
    nets
}

/// Accepts packets with the given encapsulations from the origin, now and after a reboot.
///
/// `before` contains the iptables commands, each with the number of the INPUT rule before which to insert the new rule. `unit` names the systemd unit
/// that inserts iptables rules at boot.
pub(crate) fn commands(
    program: Program,
    kinds: &[Encapsulation],
    origin: &Origin,
    before: &[(&str, Option<usize>)],
    unit: &str,
) -> Vec<String> {
    if origin.sources.is_empty() {
        return Vec::new();
    }
    match program {
        Program::Ufw => kinds.iter().flat_map(|kind| by_ufw(*kind, origin)).collect(),
        Program::Firewalld => kinds
            .iter()
            .flat_map(|kind| by_firewalld(*kind, origin))
            .chain([RELOAD.to_owned()])
            .collect(),
        Program::Iptables => {
            let rules = |number: &dyn Fn(Option<usize>) -> String| -> Vec<(String, String)> {
                let all = before.iter().flat_map(|(program, place)| {
                    kinds.iter().map(move |kind| (program, place, kind))
                });
                all.map(|(program, place, kind)| {
                    (
                        (*program).to_owned(),
                        format!("-I INPUT {}{} -j ACCEPT", number(*place), origin.iptables(*kind)),
                    )
                })
                .collect()
            };
            let now = rules(&|place| {
                place
                    .filter(|place| *place > 1)
                    .map(|place| format!("{place} "))
                    .unwrap_or_default()
            });
            persist::iptables(unit, &now, &rules(&|_| String::new()))
        }
    }
}

/// One command for each source network, or one shell loop over many.
fn each(sources: &[IpNet], command: impl Fn(&str) -> String) -> Vec<String> {
    if sources.len() <= MAX_COMMANDS {
        return sources.iter().map(|net| command(&net.to_string())).collect();
    }
    let all: Vec<String> = sources.iter().map(IpNet::to_string).collect();
    vec![format!("for net in {}; do {}; done", all.join(" "), command("$net"))]
}

fn by_ufw(kind: Encapsulation, origin: &Origin) -> Vec<String> {
    match kind.port() {
        Some(port) => {
            let on = origin
                .interface
                .as_ref()
                .map(|name| format!("in on {} ", word(name)))
                .unwrap_or_default();
            each(&origin.sources, |net| {
                format!("ufw allow {on}from {net} to any port {port} proto udp")
            })
        }
        // ufw's rule syntax does not know the protocol IPIP, so the rule goes to the end of the table filter in ufw's file.
        None => {
            let sources: Vec<String> = origin.sources.iter().map(IpNet::to_string).collect();
            let rule = format!("-A ufw-before-input -s {} -p 4 -j ACCEPT", sources.join(","));
            vec![
                format!(
                    r"sed -i '/^\*filter/,/^COMMIT/ s|^COMMIT$|{rule}\nCOMMIT|' /etc/ufw/before.rules"
                ),
                "ufw reload".to_owned(),
            ]
        }
    }
}

/// The rules go to the interface's zone, because firewalld applies no rules of other zones to it.
fn by_firewalld(kind: Encapsulation, origin: &Origin) -> Vec<String> {
    let zone = match &origin.interface {
        Some(name) => format!(
            "$(firewall-cmd --get-zone-of-interface={} || firewall-cmd --get-default-zone)",
            word(name)
        ),
        None => "$(firewall-cmd --get-default-zone)".to_owned(),
    };
    let family = origin.family.pick("ipv4", "ipv6");
    let what = match kind.port() {
        Some(port) => format!("port port={port} protocol=udp"),
        None => "protocol value=4".to_owned(),
    };
    each(&origin.sources, |net| {
        format!(
            "firewall-cmd --permanent --zone=\"{zone}\" --add-rich-rule=\"rule family={family} source address={net} {what} accept\""
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn many_addresses_become_few_prefixes_never_one_of_all() {
        assert_eq!(few(&nets(&["192.0.2.2/32", "192.0.2.3/32"])), nets(&["192.0.2.2/31"]));
        let scattered = |count: u32| {
            few(&(0..count)
                .map(|n| {
                    IpNet::new(IpAddr::from((0x0a00_0000 + n * 514).to_be_bytes()), 32).unwrap()
                })
                .collect())
        };
        assert_eq!(scattered(32).len(), 32, "32 single addresses remain single addresses");
        let many = scattered(5000);
        assert!(
            many.len() <= MAX_PREFIXES && many.iter().all(|net| net.prefix_len() >= 8),
            "{many:?}"
        );
    }
}
