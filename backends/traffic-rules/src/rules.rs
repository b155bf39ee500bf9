//! Traffic rules as data: which packets the kernel masquerades, accepts or drops. Pure, and the
//! same for iptables and nftables.

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
    /// The number in the names of this daemon's chains and tables; 0 on a host with one daemon.
    pub slot: u16,
    pub others: OtherDaemons,
}

/// What this daemon knows of the other daemons on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherDaemons {
    /// This daemon's networks, including those of the daemon that ran before it.
    pub own: BTreeSet<IpNet>,
    /// The pod networks that other daemons have served since this daemon's start.
    pub served: BTreeSet<IpNet>,
    /// Further daemons may start again, so the rules of all networks stay.
    pub unknown: bool,
    /// The slots of the other running daemons.
    pub slots: BTreeSet<u16>,
}

/// The network, and whether the rule matches addresses inside (true) or outside of it (false).
type NetMatch = Option<(bool, IpNet)>;

/// The source and the destination that a rule matches.
pub(crate) type Named = (NetMatch, NetMatch);

/// Daemons without slots (Go flannel, and flannel-rs before the slots) write the rules of several
/// networks into the chains of slot 0.
impl OtherDaemons {
    /// Rules of other daemons may stay.
    #[must_use]
    pub fn keep_any(&self) -> bool {
        self.unknown || !self.served.is_empty() || !self.slots.is_empty()
    }

    /// The rule belongs to one of this daemon's networks.
    pub(crate) fn is_own(&self, (source, destination): Named) -> bool {
        let is_own = |named: NetMatch| named.is_some_and(|(_, net)| self.own.contains(&net));
        // An exception of another network may name ours as its destination.
        let is_inside = || match (source, destination) {
            (Some((_, from)), Some((_, to))) => to.contains(&from),
            _ => true,
        };
        is_own(source) || is_own(destination) && is_inside()
    }

    /// The rule belongs to a network that is not this daemon's.
    pub(crate) fn is_foreign(&self, named: Named) -> bool {
        named.0.or(named.1).is_some() && !self.is_own(named)
    }

    /// The rule belongs to a network that another daemon serves, or may serve.
    pub(crate) fn keeps(&self, named: Named) -> bool {
        let is_served = |named: NetMatch| named.is_some_and(|(_, net)| self.served.contains(&net));
        self.is_foreign(named) && (self.unknown || is_served(named.0) || is_served(named.1))
    }

    /// The rule belongs to no network that a daemon serves outside the chains of the slot in use.
    pub(crate) fn is_left(&self, named: Named, in_use: bool) -> bool {
        named.0.or(named.1).is_some() && !self.keeps(named) && !(in_use && self.is_own(named))
    }
}

/// The name of a daemon's chain or table. Those of slot 0 have Go flannel's names.
pub(crate) fn slot_name(name: &str, slot: u16) -> String {
    if slot == 0 { name.to_owned() } else { format!("{name}-{slot}") }
}

/// The slot in the name of a chain or table; `None` for another name.
pub(crate) fn slot_of(name: &str, plain: &str) -> Option<u16> {
    let slot = match name.strip_prefix(plain)? {
        "" => 0,
        rest => rest.strip_prefix('-')?.parse().ok()?,
    };
    (slot_name(plain, slot) == name).then_some(slot)
}

/// Matches only encapsulated packets of one IP family (chain FLANNEL-ENCAP in iptables, encap-in and
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
            slot: 0,
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
    pub(crate) fn named(&self) -> Named {
        let (mut source, mut destination) = (None, None);
        for condition in &self.matches {
            match condition {
                Match::Source(is, net) => source = Some((*is, *net)),
                Match::Destination(is, net) => destination = Some((*is, *net)),
                _ => {}
            }
        }
        (source, destination)
    }
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
        others: OtherDaemons { own: [network].into(), ..OtherDaemons::default() },
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
        // kube-proxy masquerades these packets.
        rule([Match::Mark(KUBE_MARK)], Verdict::Return),
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
