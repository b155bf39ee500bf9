//! Traffic rules as data: which packets the kernel masquerades, accepts or drops. Pure, and the
//! same for iptables and nftables.

use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use types::{Encapsulation, Family, Subnets};

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The networks of the cluster.
    pub networks: Subnets,
    /// This node's.
    pub own: Subnets,
    pub options: RuleOptions,
    /// The daemon uses nftables instead of iptables.
    pub nftables: bool,
    /// The interval at which the daemon checks the iptables rules.
    pub resync: Duration,
    /// The encapsulation of pod packets, if other senders can forge them. With
    /// `Encapsulation::None`, no guard is necessary.
    pub encapsulation: Encapsulation,
    /// This host's public addresses, and its addresses on the underlay.
    pub hosts: BTreeSet<IpAddr>,
    /// The public addresses of the other nodes, and of nodes of other pod networks that send to the
    /// same port.
    pub peers: BTreeSet<IpAddr>,
    /// The number in the names of this daemon's chains and tables.
    pub slot: u16,
    pub others: OtherDaemons,
}

impl Wanted {
    /// The rules depend on the addresses of the other nodes.
    #[must_use]
    pub fn follows_peers(&self) -> bool {
        !self.encapsulation.is_none() && self.options.guard.is_some()
    }

    /// The rules of each IP family that needs some.
    ///
    /// ```
    /// use std::time::Duration;
    /// use traffic_rules::Wanted;
    /// use traffic_rules::rules::{GuardOptions, Match, OtherDaemons, RuleOptions, Verdict};
    /// use types::{Encapsulation, Subnets};
    ///
    /// let wanted = Wanted {
    ///     networks: Subnets::V4("10.244.0.0/16".parse()?),
    ///     own: Subnets::V4("10.244.1.0/24".parse()?),
    ///     options: RuleOptions {
    ///         masquerade: true,
    ///         fully_random: false,
    ///         masquerade_inbound: false,
    ///         non_masquerade: Vec::new(),
    ///         forward: false,
    ///         forward_insert: false,
    ///         guard: GuardOptions::default(),
    ///     },
    ///     nftables: false,
    ///     resync: Duration::from_secs(5),
    ///     encapsulation: Encapsulation::None,
    ///     hosts: Default::default(),
    ///     peers: Default::default(),
    ///     slot: 0,
    ///     others: OtherDaemons::default(),
    /// };
    /// let rules = wanted.rulesets().pop().unwrap();
    /// let last = rules.masquerade.unwrap().pop().unwrap();
    /// assert_eq!(last.verdict, Verdict::Masquerade(false));
    /// assert_eq!(last.matches[0], Match::Source(true, "10.244.0.0/16".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn rulesets(&self) -> Vec<Ruleset> {
        let mut others = self.others.clone();
        others.own.extend(self.networks.nets());
        let ruleset = |family| {
            let pods = self.networks.of(family).zip(self.own.of(family));
            let rules = Ruleset {
                family,
                masquerade: pods
                    .filter(|_| self.options.masquerade)
                    .map(|(network, own)| masquerade(network, own, &self.options)),
                forward: pods.filter(|_| self.options.forward).map(|(network, _)| {
                    vec![
                        rule([Match::Source(true, network)], Verdict::Accept),
                        rule([Match::Destination(true, network)], Verdict::Accept),
                    ]
                }),
                forward_insert: self.options.forward_insert,
                encap: self.guard(family, pods),
                slot: self.slot,
                others: others.clone(),
            };
            (pods.is_some() || rules.encap.is_some()).then_some(rules)
        };
        Family::ALL.into_iter().filter_map(ruleset).collect()
    }

    /// `pods` are the pod network and this node's subnet; `None` if the cluster has no pods of this
    /// IP family. The result is `None` if no option is set, or if the IP family does not use the
    /// encapsulation.
    fn guard(&self, family: Family, pods: Option<(IpNet, IpNet)>) -> Option<Encap> {
        let (encapsulation, guard) = (self.encapsulation, self.options.guard);
        let of_family = |addresses: &BTreeSet<IpAddr>| -> BTreeSet<IpAddr> {
            addresses.iter().filter(|ip| Family::from(*ip) == family).copied().collect()
        };
        let hosts = of_family(&self.hosts);
        // Packets of one family may be encapsulated in the other.
        let has_ends = pods.is_some() || !hosts.is_empty();
        let is_other_family = family.is_v6() && encapsulation == Encapsulation::Ipip;
        if encapsulation.is_none() || is_other_family || !has_ends {
            return None;
        }
        // If the node network lies inside the pod network, nodes must not be mistaken for pods.
        let within = pods.is_some_and(|(network, _)| hosts.iter().any(|ip| network.contains(ip)));
        let (mut incoming, mut outgoing) = (Vec::new(), Vec::new());
        if guard.notrack {
            incoming.push(rule([Match::LocalDestination], Verdict::Notrack));
            outgoing.push(match pods {
                Some((network, _)) if !within => {
                    rule([Match::Destination(false, network), Match::LocalSource], Verdict::Notrack)
                }
                _ => rule([Match::LocalSource], Verdict::Notrack),
            });
        }
        if guard.bar_pods
            && let Some((network, own)) = pods
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
        if let Some(verdict) = verdict {
            incoming.push(rule([Match::LocalDestination, Match::UnknownSender], verdict));
        }
        // This host's own address is no peer: any user here can send packets with it.
        let peers = verdict.map(|_| of_family(&self.peers));
        (!incoming.is_empty() || !outgoing.is_empty()).then_some(Encap {
            encapsulation,
            incoming,
            outgoing,
            peers,
        })
    }
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

/// The source and the destination network that a rule names, also if it matches the addresses outside
/// of it.
pub(crate) type Named = (Option<IpNet>, Option<IpNet>);

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
        // An exception of another network may name ours as its destination.
        let is_inside = || match (source, destination) {
            (Some(from), Some(to)) => to.contains(&from),
            _ => true,
        };
        is_among(source, &self.own) || is_among(destination, &self.own) && is_inside()
    }

    /// The rule belongs to a network that is not this daemon's.
    pub(crate) fn is_foreign(&self, named: Named) -> bool {
        named != (None, None) && !self.is_own(named)
    }

    /// The rule belongs to a network that another daemon serves, or may serve.
    pub(crate) fn keeps(&self, named: Named) -> bool {
        let is_served = |named| is_among(named, &self.served);
        self.is_foreign(named) && (self.unknown || is_served(named.0) || is_served(named.1))
    }

    /// The rule belongs to no network that a daemon serves outside the chains of the slot in use.
    pub(crate) fn is_left(&self, named: Named, in_use: bool) -> bool {
        named != (None, None) && !self.keeps(named) && !(in_use && self.is_own(named))
    }

    /// The rules to remove from a slot's chain that stays; `None` if the whole chain goes.
    pub(crate) fn left<T>(
        &self,
        slot: u16,
        in_use: bool,
        rules: impl Iterator<Item = T>,
        named: impl Fn(&T) -> Named,
    ) -> Option<Vec<T>> {
        let mut rules: Vec<T> = rules.collect();
        if !in_use
            && !self.slots.contains(&slot)
            && !rules.iter().any(|rule| self.keeps(named(rule)))
        {
            return None;
        }
        rules.retain(|rule| self.is_left(named(rule), in_use));
        Some(rules)
    }
}

fn is_among(named: Option<IpNet>, networks: &BTreeSet<IpNet>) -> bool {
    named.is_some_and(|net| networks.contains(&net))
}

pub(crate) fn join_values<T: ToString>(values: &BTreeSet<T>, separator: &str) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(separator)
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
    pub fn is_empty(&self) -> bool {
        self.masquerade.is_none() && self.forward.is_none() && self.encap.is_none()
    }

    /// The known senders of encapsulated packets, if rules count packets from others.
    pub(crate) fn peers(&self) -> Option<&BTreeSet<IpAddr>> {
        self.encap.as_ref()?.peers.as_ref()
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
    let family = Family::from(network);
    let exceptions = options.non_masquerade.iter().filter(|net| Family::from(*net) == family);
    rules.extend(exceptions.map(|net| rule([from(network), to(*net)], Verdict::Return)));
    let multicast = family.pick(
        IpNet::new_assert([224, 0, 0, 0].into(), 4),
        IpNet::new_assert([0xff00_u16, 0, 0, 0, 0, 0, 0, 0].into(), 8),
    );
    rules.push(rule([from(network), not_to(multicast)], masquerade));
    if options.masquerade_inbound {
        rules.push(rule([not_from(network), to(network)], masquerade));
    }
    rules
}

fn rule<const N: usize>(matches: [Match; N], verdict: Verdict) -> Rule {
    Rule { matches: matches.to_vec(), verdict }
}
