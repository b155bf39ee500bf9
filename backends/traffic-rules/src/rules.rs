//! Traffic rules as data: which packets the kernel masquerades, accepts or drops. Pure, and the
//! same for iptables and nftables.

use super::ownership::{NetMatch, OtherDaemons, Owner};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use types::{Encapsulation, Family};

/// The tables of iptables in which flannel has chains.
pub(crate) const TABLES: [&str; 3] = ["nat", "filter", "raw"];
pub(crate) const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleOptions {
    /// `--ip-masq`: masquerade traffic that leaves the pod network.
    pub masquerade: bool,
    /// Masqueraded connections use random ports (off with `--ip-masq-fully-random-disable`).
    pub fully_random: bool,
    /// Also masquerade traffic from outside the pod network to pods of other nodes, so that replies
    /// return through this node.
    pub masquerade_inbound: bool,
    /// Destinations to which packets from pods keep the pod's source address.
    pub non_masquerade: Vec<IpNet>,
    /// `--iptables-forward-rules`: accept forwarded traffic of the pod network.
    pub forward: bool,
    /// The jump to flannel's forward rules is the first rule of the FORWARD chain, before rules
    /// that may reject packets.
    pub forward_insert: bool,
    pub guard: GuardOptions,
}

/// The guard of the encapsulation port. No guard rules exist by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardOptions {
    /// `--encap-notrack`: exclude encapsulated packets from connection tracking.
    pub notrack: bool,
    /// `--encap-peers`: what happens to encapsulated packets from unknown senders.
    pub unknown_senders: UnknownSenders,
    /// `--encap-bar-pods`: drop packets from pods to the encapsulation port.
    pub bar_pods: bool,
}

impl GuardOptions {
    /// At least one option is set.
    #[must_use]
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }
}

/// What happens to encapsulated packets from senders that are not peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownSenders {
    /// Accepted and not counted.
    #[default]
    Off,
    /// Counted and accepted.
    Count,
    /// Counted and dropped.
    Drop,
}

/// The rules of one IP family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    pub family: Family,
    /// Rules for packets that leave this host (chain FLANNEL-POSTRTG in iptables, postrtg in
    /// nftables). `None` if the chain should not exist.
    pub masquerade: Option<Vec<Rule>>,
    /// Rules for forwarded packets (chain FLANNEL-FWD in iptables, forward in nftables). `None` if
    /// the chain should not exist.
    pub forward: Option<Vec<Rule>>,
    /// The jump to flannel's forward rules is the first rule of the FORWARD chain.
    pub forward_insert: bool,
    /// The guard of the encapsulation port, which applies before all other rules.
    pub encap: Option<Encap>,
    /// The number in the names of this daemon's chains for the encapsulation port; 0 on a host with
    /// one daemon.
    pub guard_slot: u16,
    /// This daemon keeps their rules in the shared chains.
    pub others: OtherDaemons,
}

/// Match only encapsulated packets of one IP family (chain FLANNEL-ENCAP in iptables, encap-in and
/// encap-out in nftables).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encap {
    /// What identifies encapsulated packets: UDP ports or an IP protocol.
    pub encapsulation: Encapsulation,
    /// Rules for packets that arrive from other hosts or from this node's pods.
    pub incoming: Vec<Rule>,
    /// Rules for packets that this host sends.
    pub outgoing: Vec<Rule>,
    /// The known senders. Others match [`Match::UnknownSender`]. `None` if no rule depends on the
    /// senders.
    pub peers: Option<BTreeSet<IpAddr>>,
}

impl Ruleset {
    #[must_use]
    pub fn empty(family: Family) -> Self {
        Self {
            family,
            masquerade: None,
            forward: None,
            forward_insert: false,
            encap: None,
            guard_slot: 0,
            others: OtherDaemons::default(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.masquerade.is_none() && self.forward.is_none() && self.encap.is_none()
    }

    /// A rule counts encapsulated packets from unknown senders.
    #[must_use]
    pub fn counts_unknown_senders(&self) -> bool {
        self.encap.as_ref().is_some_and(|encap| encap.peers.is_some())
    }

    /// Serves kernels and programs without support for random ports.
    pub(crate) fn without_random_ports(&self) -> Self {
        let mut plain = self.clone();
        for rule in plain.masquerade.iter_mut().flatten() {
            if let Verdict::Masquerade(random) = &mut rule.verdict {
                *random = false;
            }
        }
        plain
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// A packet must fulfil all of them.
    pub matches: Vec<Match>,
    pub verdict: Verdict,
}

impl Rule {
    /// The first rule of the masquerade chain, which all daemons share. It exempts packets that
    /// kube-proxy masquerades.
    pub(crate) fn is_head(&self) -> bool {
        *self == head()
    }

    #[must_use]
    pub fn owner(&self, others: &OtherDaemons) -> Owner {
        let (source, destination) = self.named();
        if self.is_head() { Owner::Head } else { others.owner(source, destination) }
    }

    /// `None` if the rule matches no network.
    #[must_use]
    pub fn network(&self, others: &OtherDaemons) -> Option<IpNet> {
        let (source, destination) = self.named();
        others.network(source, destination)
    }

    fn named(&self) -> (NetMatch, NetMatch) {
        let named = |of: fn(&Match) -> NetMatch| self.matches.iter().find_map(of);
        (
            named(
                |condition| {
                    if let Match::Source(is, net) = condition { Some((*is, *net)) } else { None }
                },
            ),
            named(|condition| {
                if let Match::Destination(is, net) = condition { Some((*is, *net)) } else { None }
            }),
        )
    }
}

/// The first rule of the masquerade chain, which exempts packets that kube-proxy masquerades.
#[must_use]
pub fn head() -> Rule {
    rule([Match::Mark(KUBE_MARK)], Verdict::Return)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// All given bits are set in the packet mark.
    Mark(u32),
    /// The address is in the network, or outside of it if the flag is false.
    Source(bool, IpNet),
    /// The address is in the network, or outside of it if the flag is false.
    Destination(bool, IpNet),
    /// The source address belongs to this host.
    LocalSource,
    /// The destination address belongs to this host.
    LocalDestination,
    /// The source address is not in the set of peers.
    UnknownSender,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Skips the remaining rules of the chain.
    Return,
    Accept,
    /// Uses random ports if the flag is true.
    Masquerade(bool),
    /// Excludes the packet from connection tracking, and continues with the next rule.
    Notrack,
    Drop,
    /// Counts the packet as one from an unknown sender, and continues with the next rule.
    Count,
}

/// kube-proxy sets it on packets that it masquerades.
const KUBE_MARK: u32 = 0x4000;

/// Masquerade and forward rules, for the whole pod network and this node's subnet.
///
/// ```
/// use ipnet::IpNet;
/// use traffic_rules::rules::{GuardOptions, Match, RuleOptions, Verdict, ruleset};
///
/// let options = RuleOptions {
///     masquerade: true,
///     fully_random: false,
///     masquerade_inbound: false,
///     non_masquerade: Vec::new(),
///     forward: false,
///     forward_insert: false,
///     guard: GuardOptions::default(),
/// };
/// let network: IpNet = "10.244.0.0/16".parse()?;
/// let rules = ruleset(network, "10.244.1.0/24".parse()?, &options);
/// let last = rules.masquerade.unwrap().pop().unwrap();
/// assert_eq!(last.verdict, Verdict::Masquerade(false));
/// assert_eq!(last.matches[0], Match::Source(true, network));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn ruleset(network: IpNet, own: IpNet, options: &RuleOptions) -> Ruleset {
    let family = Family::from(network);
    Ruleset {
        family,
        masquerade: options.masquerade.then(|| masquerade(network, own, options)),
        forward: options.forward.then(|| {
            vec![
                rule([Match::Source(true, network)], Verdict::Accept),
                rule([Match::Destination(true, network)], Verdict::Accept),
            ]
        }),
        forward_insert: options.forward_insert,
        ..Ruleset::empty(family)
    }
}

/// Both ends of the tunnels of one IP family.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a> {
    /// What identifies encapsulated packets.
    pub encapsulation: Encapsulation,
    /// The pod network and this node's subnet; `None` if the cluster has no pods of this IP family.
    pub pods: Option<(IpNet, IpNet)>,
    /// This host's addresses on the node network.
    pub hosts: &'a BTreeSet<IpAddr>,
    /// The public addresses of the other nodes, and of nodes of other pod networks that send to the
    /// same port.
    pub peers: &'a BTreeSet<IpAddr>,
}

/// Ignores addresses of the other IP family. `None` if no option is set, or if the IP family does
/// not use the encapsulation.
#[must_use]
pub fn guard(family: Family, ends: Ends<'_>, guard: GuardOptions) -> Option<Encap> {
    if ends.encapsulation.is_none() || family.is_v6() && ends.encapsulation == Encapsulation::Ipip {
        return None;
    }
    let of_family = |addresses: &BTreeSet<IpAddr>| -> BTreeSet<IpAddr> {
        addresses.iter().filter(|ip| Family::from(*ip) == family).copied().collect()
    };
    let hosts = of_family(ends.hosts);
    // If the node network lies inside the pod network, nodes must not be mistaken for pods.
    let within = ends.pods.is_some_and(|(network, _)| hosts.iter().any(|ip| network.contains(ip)));
    let (mut incoming, mut outgoing) = (Vec::new(), Vec::new());
    if guard.notrack {
        incoming.push(rule([Match::LocalDestination], Verdict::Notrack));
        outgoing.push(match ends.pods {
            Some((network, _)) if !within => {
                rule([Match::Destination(false, network), Match::LocalSource], Verdict::Notrack)
            }
            _ => rule([Match::LocalSource], Verdict::Notrack),
        });
    }
    if guard.bar_pods
        && let Some((network, own)) = ends.pods
    {
        let from = Match::Source(true, if within { own } else { network });
        incoming.push(rule([from, Match::Destination(false, network)], Verdict::Drop));
        // A node's bridge address lies inside the network, and sockets also listen on it.
        incoming.push(rule([from, Match::LocalDestination], Verdict::Drop));
    }
    let verdict = match guard.unknown_senders {
        UnknownSenders::Off => None,
        UnknownSenders::Count => Some(Verdict::Count),
        UnknownSenders::Drop => Some(Verdict::Drop),
    };
    incoming.extend(
        verdict.map(|verdict| rule([Match::LocalDestination, Match::UnknownSender], verdict)),
    );
    // This host's own address is no peer: any user here can send packets with it.
    let peers = verdict.map(|_| of_family(ends.peers));
    (!incoming.is_empty() || !outgoing.is_empty()).then_some(Encap {
        encapsulation: ends.encapsulation,
        incoming,
        outgoing,
        peers,
    })
}

fn masquerade(network: IpNet, own: IpNet, options: &RuleOptions) -> Vec<Rule> {
    let (from, to) = (|net| Match::Source(true, net), |net| Match::Destination(true, net));
    let (not_from, not_to) =
        (|net| Match::Source(false, net), |net| Match::Destination(false, net));
    let masquerade = Verdict::Masquerade(options.fully_random);
    let mut rules = vec![
        head(),
        // Pods reach pods under their own addresses,
        rule([from(own), to(network)], Verdict::Return),
        rule([from(network), to(own)], Verdict::Return),
        // and clients from outside reach this node's pods under theirs.
        rule([not_from(network), to(own)], Verdict::Return),
    ];
    let same_family = |net: &&IpNet| {
        matches!((net, &network), (IpNet::V4(_), IpNet::V4(_)) | (IpNet::V6(_), IpNet::V6(_)))
    };
    rules.extend(
        options
            .non_masquerade
            .iter()
            .filter(same_family)
            .map(|net| rule([from(network), to(*net)], Verdict::Return)),
    );
    rules.push(rule([from(network), not_to(multicast(network))], masquerade));
    if options.masquerade_inbound {
        rules.push(rule([not_from(network), to(network)], masquerade));
    }
    rules
}

fn rule<const N: usize>(matches: [Match; N], verdict: Verdict) -> Rule {
    Rule { matches: matches.to_vec(), verdict }
}

fn multicast(like: IpNet) -> IpNet {
    match like {
        IpNet::V4(_) => IpNet::V4(ipnet::Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)),
        IpNet::V6(_) => {
            IpNet::V6(ipnet::Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8))
        }
    }
}
