//! Traffic rules as data: which packets the kernel masquerades and which packets it accepts. The functions
//! are pure, and the rules are the same for iptables and nftables.

use super::ownership::{NetMatch, OtherDaemons, Owner};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use types::{Encapsulation, Family};

/// The operator's options for the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleOptions {
    /// `--ip-masq`: whether the kernel masquerades traffic that leaves the pod network.
    pub masquerade: bool,
    /// Whether masqueraded connections use random ports (off with `--ip-masq-fully-random-disable`).
    pub fully_random: bool,
    /// Whether the kernel also masquerades traffic from outside to pods of other nodes, so that replies return through this node.
    pub masquerade_inbound: bool,
    /// Destinations for which packets from pods keep the pod's source address.
    pub non_masquerade: Vec<IpNet>,
    /// `--iptables-forward-rules`: whether the rules accept forwarded traffic of the pod network.
    pub forward: bool,
    /// Whether the jump to the forward rules is at the head of the chain, before rules that may reject packets.
    pub forward_insert: bool,
    /// The options of the guard of the encapsulation port.
    pub guard: GuardOptions,
}

/// The options for the encapsulation port. By default, no guard exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardOptions {
    /// `--encap-notrack`: whether the kernel excludes encapsulated packets from tracking.
    pub notrack: bool,
    /// `--encap-peers`: treatment of encapsulated packets from unknown senders.
    pub unknown_senders: UnknownSenders,
    /// `--encap-bar-pods`: whether the rules prevent pods from sending to the port.
    pub bar_pods: bool,
}

impl GuardOptions {
    /// Returns whether any option is set.
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }
}

/// Treatment of encapsulated packets that do not come from a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownSenders {
    /// Accept their packets.
    #[default]
    Off,
    /// Counts and accepts the packets.
    Count,
    /// Counts and drops the packets.
    Drop,
}

/// The rules of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    /// The address family.
    pub family: Family,
    /// The rules for packets that leave this host (chain FLANNEL-POSTRTG, postrtg). The field is `None` if the chain should not exist.
    pub masquerade: Option<Vec<Rule>>,
    /// The rules for forwarded packets (chain FLANNEL-FWD, forward). The field is `None` if the chain should not exist.
    pub forward: Option<Vec<Rule>>,
    /// Whether the jump to the forward rules is the first rule.
    pub forward_insert: bool,
    /// The rules for packets of the encapsulation port, which apply before all other rules.
    pub encap: Option<Encap>,
    /// The guard slot that this daemon holds. A host with one daemon uses slot 0.
    pub guard_slot: u16,
    /// The rules that other daemons keep in the same chains.
    pub others: OtherDaemons,
}

/// The rules for encapsulated packets of one family (chain FLANNEL-ENCAP, encap-in and encap-out). Only encapsulated packets reach the guard's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encap {
    /// The encapsulation by which the rules recognise the packets.
    pub encapsulation: Encapsulation,
    /// The rules for incoming packets, from the network or from pods.
    pub incoming: Vec<Rule>,
    /// The rules for packets that this host sends.
    pub outgoing: Vec<Rule>,
    /// The known senders. Senders outside this set match [`Match::UnknownSender`]. The field is `None` if no rule uses the peers.
    pub peers: Option<BTreeSet<IpAddr>>,
}

impl Ruleset {
    /// Returns the ruleset of a family without rules.
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

    /// Returns whether the set contains no rules.
    pub fn is_empty(&self) -> bool {
        self.masquerade.is_none() && self.forward.is_none() && self.encap.is_none()
    }

    /// Returns whether a rule counts packets from unknown senders.
    pub fn counts_unknown_senders(&self) -> bool {
        self.encap
            .as_ref()
            .is_some_and(|encap| encap.peers.is_some())
    }

    /// Returns the same rules without random ports, for kernels and programs that do not support random ports.
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

/// A rule of a chain: its conditions and its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The conditions, all of which must hold.
    pub matches: Vec<Match>,
    /// The action on packets that fulfil all conditions.
    pub verdict: Verdict,
}

impl Rule {
    /// Returns whether this is the rule at the head of the chain, which all daemons share. The rule exempts packets that kube-proxy masquerades.
    pub(crate) fn is_head(&self) -> bool {
        *self == head()
    }

    /// Returns the owner of the rule.
    pub fn owner(&self, others: &OtherDaemons) -> Owner {
        let (source, destination) = self.named();
        if self.is_head() {
            Owner::Head
        } else {
            others.owner(source, destination)
        }
    }

    /// Returns the network to which the rule belongs.
    pub fn network(&self, others: &OtherDaemons) -> Option<IpNet> {
        let (source, destination) = self.named();
        others.network(source, destination)
    }

    fn named(&self) -> (NetMatch, NetMatch) {
        let named = |of: fn(&Match) -> NetMatch| self.matches.iter().find_map(of);
        (
            named(|condition| {
                if let Match::Source(is, net) = condition {
                    Some((*is, *net))
                } else {
                    None
                }
            }),
            named(|condition| {
                if let Match::Destination(is, net) = condition {
                    Some((*is, *net))
                } else {
                    None
                }
            }),
        )
    }
}

/// Returns the rule at the head of the masquerade chain.
pub fn head() -> Rule {
    rule([Match::Mark(KUBE_MARK)], Verdict::Return)
}

/// A condition on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// Mark in which all these bits are set.
    Mark(u32),
    /// Source in the network, or outside the network if the flag is false.
    Source(bool, IpNet),
    /// Destination in the network, or outside the network if the flag is false.
    Destination(bool, IpNet),
    /// Source that is an address of this host.
    LocalSource,
    /// Destination that is an address of this host.
    LocalDestination,
    /// Source that is not a peer.
    UnknownSender,
}

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Skips the rest of the chain.
    Return,
    /// Accept the packet.
    Accept,
    /// Masquerades the packet, with random ports if the flag is true.
    Masquerade(bool),
    /// Excludes the packet from tracking, and continues with the next rule.
    Notrack,
    /// Drop the packet.
    Drop,
    /// Counts the packet, and continues with the next rule.
    Count,
}

/// kube-proxy's mark on packets that it masquerades itself.
const KUBE_MARK: u32 = 0x4000;

/// Returns the rules of one family, for the whole network and this node's subnet.
pub fn ruleset(network: IpNet, own: IpNet, options: &RuleOptions) -> Ruleset {
    let family = Family::from(network);
    Ruleset {
        family,
        masquerade: options
            .masquerade
            .then(|| masquerade(network, own, options)),
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

/// The endpoints of the tunnels of one family.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a> {
    /// The encapsulation by which the guard recognises packets.
    pub encapsulation: Encapsulation,
    /// The pods' network and this node's subnet. The field is `None` if the cluster has no pods of this family.
    pub pods: Option<(IpNet, IpNet)>,
    /// This host's addresses on the node network.
    pub hosts: &'a BTreeSet<IpAddr>,
    /// The other nodes' addresses.
    pub peers: &'a BTreeSet<IpAddr>,
}

/// Returns the rules that guard the tunnels. Ignores addresses of the other family. Returns `None` if no option is
/// set, or if the family does not use the encapsulation.
pub fn guard(family: Family, ends: Ends<'_>, guard: GuardOptions) -> Option<Encap> {
    if ends.encapsulation.is_none() || family.is_v6() && ends.encapsulation == Encapsulation::Ipip {
        return None;
    }
    let of_family = |addresses: &BTreeSet<IpAddr>| -> BTreeSet<IpAddr> {
        addresses
            .iter()
            .filter(|ip| Family::from(*ip) == family)
            .copied()
            .collect()
    };
    let hosts = of_family(ends.hosts);
    // If the node network lies inside the pod network, nodes must not be mistaken for pods.
    let within = ends
        .pods
        .is_some_and(|(network, _)| hosts.iter().any(|ip| network.contains(ip)));
    let (mut incoming, mut outgoing) = (Vec::new(), Vec::new());
    if guard.notrack {
        incoming.push(rule([Match::LocalDestination], Verdict::Notrack));
        outgoing.push(match ends.pods {
            Some((network, _)) if !within => rule(
                [Match::Destination(false, network), Match::LocalSource],
                Verdict::Notrack,
            ),
            _ => rule([Match::LocalSource], Verdict::Notrack),
        });
    }
    if guard.bar_pods
        && let Some((network, own)) = ends.pods
    {
        let from = Match::Source(true, if within { own } else { network });
        incoming.push(rule(
            [from, Match::Destination(false, network)],
            Verdict::Drop,
        ));
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
    let peers = verdict.map(|_| of_family(ends.peers).into_iter().chain(hosts).collect());
    (!incoming.is_empty() || !outgoing.is_empty()).then_some(Encap {
        encapsulation: ends.encapsulation,
        incoming,
        outgoing,
        peers,
    })
}

fn masquerade(network: IpNet, own: IpNet, options: &RuleOptions) -> Vec<Rule> {
    let (from, to) = (
        |net| Match::Source(true, net),
        |net| Match::Destination(true, net),
    );
    let (not_from, not_to) = (
        |net| Match::Source(false, net),
        |net| Match::Destination(false, net),
    );
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
        matches!(
            (net, &network),
            (IpNet::V4(_), IpNet::V4(_)) | (IpNet::V6(_), IpNet::V6(_))
        )
    };
    rules.extend(
        options
            .non_masquerade
            .iter()
            .filter(same_family)
            .map(|net| rule([from(network), to(*net)], Verdict::Return)),
    );
    rules.push(rule(
        [from(network), not_to(multicast(network))],
        masquerade,
    ));
    if options.masquerade_inbound {
        rules.push(rule([not_from(network), to(network)], masquerade));
    }
    rules
}

fn rule<const N: usize>(matches: [Match; N], verdict: Verdict) -> Rule {
    Rule {
        matches: matches.to_vec(),
        verdict,
    }
}

fn multicast(like: IpNet) -> IpNet {
    match like {
        IpNet::V4(_) => IpNet::V4(ipnet::Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)),
        IpNet::V6(_) => IpNet::V6(ipnet::Ipv6Net::new_assert(
            Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0),
            8,
        )),
    }
}
