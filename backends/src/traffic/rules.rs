//! Traffic rules as data: which packets are masqueraded and which are let through; pure, the same for both appliers.

use ipnet::IpNet;
use std::net::{Ipv4Addr, Ipv6Addr};

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
}

impl Ruleset {
    /// A family of which there are no rules.
    pub fn nothing(ipv6: bool) -> Self {
        Self { ipv6, masquerade: None, forward: None, forward_insert: false }
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.masquerade.is_none() && self.forward.is_none()
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

/// A condition on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// These bits of the mark are set.
    Mark(u32),
    /// Its source lies in the network, or does not.
    Source(bool, IpNet),
    /// Its destination lies in the network, or does not.
    Destination(bool, IpNet),
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
    }
}

fn masquerade(network: IpNet, own: IpNet, choices: &Choices) -> Vec<Rule> {
    let (from, to) = (|net| Match::Source(true, net), |net| Match::Destination(true, net));
    let (not_from, not_to) = (|net| Match::Source(false, net), |net| Match::Destination(false, net));
    let masquerade = Verdict::Masquerade(choices.fully_random);
    let mut rules = vec![
        rule([Match::Mark(KUBE_MARK)], Verdict::Return),
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
