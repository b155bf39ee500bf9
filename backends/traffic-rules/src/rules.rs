//! Traffic rules as data: which packets are masqueraded and which are let through; pure, the same for both appliers.

use super::shared::{Named, Others, Owner};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What the operator chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices {
    /// `--ip-masq`.
    pub masquerade: bool,
    /// Ports of masqueraded connections are chosen at random (not with `--ip-masq-fully-random-disable`).
    pub fully_random: bool,
    /// Traffic from outside to pods of other nodes is masqueraded too, so that answers come back through this node.
    pub masquerade_inbound: bool,
    /// Destinations to which pods keep their address.
    pub non_masquerade: Vec<IpNet>,
    /// `--iptables-forward-rules`.
    pub forward: bool,
    /// The jump to our forward rules goes first, before what may reject.
    pub forward_insert: bool,
    /// What guards the encapsulation port.
    pub guard: Guard,
}

/// What was chosen about the encapsulation port: nothing, unless somebody asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// `--encap-notrack`: encapsulated packets are not tracked.
    pub notrack: bool,
    /// `--encap-peers`: what happens to encapsulated packets of others than peers.
    pub strangers: Strangers,
    /// `--encap-bar-pods`: pods cannot send to it.
    pub bar_pods: bool,
}

impl Guard {
    /// Whether anything was chosen.
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }
}

/// What happens to packets that no peer sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strangers {
    /// They come in.
    #[default]
    Off,
    /// They are counted and come in.
    Count,
    /// They are counted and dropped.
    Drop,
}

/// The rules of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    /// Whether they are for IPv6.
    pub ipv6: bool,
    /// What happens to packets that leave (chain FLANNEL-POSTRTG, postrtg); none: nothing of ours is there.
    pub masquerade: Option<Vec<Rule>>,
    /// What happens to packets that pass through (chain FLANNEL-FWD, forward).
    pub forward: Option<Vec<Rule>>,
    /// The jump to the forward rules goes first.
    pub forward_insert: bool,
    /// What happens to packets of the encapsulation port before anything else sees them.
    pub encap: Option<Encap>,
    /// Which of the places for guards is this daemon's: 0 on a host with one.
    pub place: u16,
    /// What other daemons have in the same chains, and keep.
    pub others: Others,
}

/// The rules of the encapsulation port of one family (chain FLANNEL-ENCAP, encap-in and encap-out). They see its packets only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encap {
    /// The UDP port.
    pub port: u16,
    /// For packets that come in, from the network or from pods.
    pub incoming: Vec<Rule>,
    /// For packets that this host sends.
    pub outgoing: Vec<Rule>,
    /// Who is no [`Match::Stranger`]; none where nobody asks.
    pub peers: Option<BTreeSet<IpAddr>>,
}

impl Ruleset {
    /// A family of which there are no rules.
    pub fn nothing(ipv6: bool) -> Self {
        Self { ipv6, masquerade: None, forward: None, forward_insert: false, encap: None, place: 0, others: Others::default() }
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.masquerade.is_none() && self.forward.is_none() && self.encap.is_none()
    }

    /// Whether packets of others than peers are counted.
    pub fn counts_strangers(&self) -> bool {
        self.encap.as_ref().is_some_and(|encap| encap.peers.is_some())
    }

    /// The same without random ports, for kernels and programs that know none.
    pub fn plain(&self) -> Self {
        let mut plain = self.clone();
        for rule in plain.masquerade.iter_mut().flatten() {
            if let Verdict::Masquerade(random) = &mut rule.verdict {
                *random = false;
            }
        }
        plain
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// All must hold.
    pub matches: Vec<Match>,
    /// What is done then.
    pub verdict: Verdict,
}

impl Rule {
    /// Whether it heads a chain, for the networks of all daemons: what kube-proxy masquerades is its own business.
    pub fn is_head(&self) -> bool {
        *self == head()
    }

    /// Whose it is.
    pub fn owner(&self, others: &Others) -> Owner {
        let (source, destination) = self.named();
        if self.is_head() { Owner::Head } else { others.owner(source, destination) }
    }

    /// The network to which it belongs.
    pub fn network(&self, others: &Others) -> Option<IpNet> {
        let (source, destination) = self.named();
        others.network(source, destination)
    }

    fn named(&self) -> (Named, Named) {
        let named = |of: fn(&Match) -> Named| self.matches.iter().find_map(of);
        (
            named(|condition| if let Match::Source(is, net) = condition { Some((*is, *net)) } else { None }),
            named(|condition| if let Match::Destination(is, net) = condition { Some((*is, *net)) } else { None }),
        )
    }
}

/// The rule that heads the masquerade.
pub fn head() -> Rule {
    rule([Match::Mark(KUBE_MARK)], Verdict::Return)
}

/// A condition on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// These bits of the mark are set.
    Mark(u32),
    /// Its source lies in the network, or does not.
    Source(bool, IpNet),
    /// Its destination lies in the network, or does not.
    Destination(bool, IpNet),
    /// Its source is an address of this host.
    LocalSource,
    /// Its destination is an address of this host.
    LocalDestination,
    /// Its source is not among the peers.
    Stranger,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing; the rest of the chain is skipped.
    Return,
    /// It passes.
    Accept,
    /// It leaves under this host's address; with ports at random.
    Masquerade(bool),
    /// It is not tracked, and the next rule sees it.
    Notrack,
    /// It is gone.
    Drop,
    /// It is counted, and the next rule sees it.
    Count,
}

/// kube-proxy's mark on what it masquerades itself.
const KUBE_MARK: u32 = 0x4000;

/// The rules of one family: of the whole network, and of this node's subnet in it.
pub fn ruleset(network: IpNet, own: IpNet, choices: &Choices) -> Ruleset {
    let ipv6 = matches!(network, IpNet::V6(_));
    Ruleset {
        ipv6,
        masquerade: choices.masquerade.then(|| masquerade(network, own, choices)),
        forward: choices
            .forward
            .then(|| vec![rule([Match::Source(true, network)], Verdict::Accept), rule([Match::Destination(true, network)], Verdict::Accept)]),
        forward_insert: choices.forward_insert,
        ..Ruleset::nothing(ipv6)
    }
}

/// The encapsulation port of one family.
#[derive(Clone, Copy, Debug)]
pub struct Port<'a> {
    /// The UDP port.
    pub number: u16,
    /// The pods' network and this node's subnet in it; none where the cluster has no pods of this family.
    pub pods: Option<(IpNet, IpNet)>,
    /// This host's addresses on the network of the nodes.
    pub hosts: &'a BTreeSet<IpAddr>,
    /// The other nodes' addresses.
    pub peers: &'a BTreeSet<IpAddr>,
}

/// What guards the encapsulation port; addresses of the other family do not matter. None where nothing was chosen.
pub fn guard(ipv6: bool, port: Port<'_>, guard: Guard) -> Option<Encap> {
    let family = |addresses: &BTreeSet<IpAddr>| -> BTreeSet<IpAddr> { addresses.iter().filter(|ip| ip.is_ipv6() == ipv6).copied().collect() };
    let hosts = family(port.hosts);
    // Nodes whose own network lies inside the pods' network are not to be taken for pods.
    let within = port.pods.is_some_and(|(network, _)| hosts.iter().any(|ip| network.contains(ip)));
    let (mut incoming, mut outgoing) = (Vec::new(), Vec::new());
    if guard.notrack {
        incoming.push(rule([Match::LocalDestination], Verdict::Notrack));
        outgoing.push(match port.pods {
            Some((network, _)) if !within => rule([Match::Destination(false, network), Match::LocalSource], Verdict::Notrack),
            _ => rule([Match::LocalSource], Verdict::Notrack),
        });
    }
    if guard.bar_pods
        && let Some((network, own)) = port.pods
    {
        let from = Match::Source(true, if within { own } else { network });
        incoming.push(rule([from, Match::Destination(false, network)], Verdict::Drop));
        // A node's address on its bridge lies inside the network, and its sockets listen there too.
        incoming.push(rule([from, Match::LocalDestination], Verdict::Drop));
    }
    let verdict = match guard.strangers {
        Strangers::Off => None,
        Strangers::Count => Some(Verdict::Count),
        Strangers::Drop => Some(Verdict::Drop),
    };
    incoming.extend(verdict.map(|verdict| rule([Match::LocalDestination, Match::Stranger], verdict)));
    let peers = verdict.map(|_| family(port.peers).into_iter().chain(hosts).collect());
    (!incoming.is_empty() || !outgoing.is_empty()).then_some(Encap { port: port.number, incoming, outgoing, peers })
}

fn masquerade(network: IpNet, own: IpNet, choices: &Choices) -> Vec<Rule> {
    let (from, to) = (|net| Match::Source(true, net), |net| Match::Destination(true, net));
    let (not_from, not_to) = (|net| Match::Source(false, net), |net| Match::Destination(false, net));
    let masquerade = Verdict::Masquerade(choices.fully_random);
    let mut rules = vec![
        head(),
        // Pods reach pods under their own addresses,
        rule([from(own), to(network)], Verdict::Return),
        rule([from(network), to(own)], Verdict::Return),
        // and clients from outside reach this node's pods under theirs.
        rule([not_from(network), to(own)], Verdict::Return),
    ];
    let same_family = |net: &&IpNet| matches!((net, &network), (IpNet::V4(_), IpNet::V4(_)) | (IpNet::V6(_), IpNet::V6(_)));
    rules.extend(choices.non_masquerade.iter().filter(same_family).map(|net| rule([from(network), to(*net)], Verdict::Return)));
    rules.push(rule([from(network), not_to(multicast(network))], masquerade));
    if choices.masquerade_inbound {
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
        IpNet::V6(_) => IpNet::V6(ipnet::Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8)),
    }
}
