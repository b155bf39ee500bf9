//! Chains that the daemons of several networks on one host share: whose a rule is, and what one daemon may change there; pure.
//!
//! A rule belongs to the network that it names, as Go flannel writes it. A daemon replaces its own rules as one block and leaves the
//! others' where they are. The rule about kube-proxy's mark names no network: it heads the chain, once, for all.

use ipnet::IpNet;
use std::collections::BTreeSet;

/// Whose rules stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// This daemon's networks, those of its predecessor included: their rules are its own to replace.
    pub own: BTreeSet<IpNet>,
    /// Networks that other daemons serve.
    pub served: BTreeSet<IpNet>,
    /// Rules of networks of which it is not known whether somebody serves them stay, too.
    pub unknown: bool,
    /// The places of other daemons' guards of encapsulation ports.
    pub guards: BTreeSet<u16>,
}

/// A network that a rule names, and whether the rule is about what lies in it or outside.
pub type Named = Option<(bool, IpNet)>;

/// Whose a rule in one of our chains is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This daemon's, or nobody's any more: to be replaced.
    Ours,
    /// Another daemon's: it stays.
    Theirs,
    /// It heads the chain for all.
    Head,
}

impl Others {
    /// Whether what another network has stays.
    pub fn keep(&self, network: &IpNet) -> bool {
        !self.own.contains(network) && (self.unknown || self.served.contains(network))
    }

    /// Whether the guard in a place stays. One that goes too soon loses no packet, and its daemon puts it back; one that stays too long
    /// may drop a new node's.
    pub fn keep_guard(&self, place: u16) -> bool {
        self.guards.contains(&place)
    }

    /// The network to which a rule with this source and destination belongs.
    ///
    /// A rule about two networks is the source's (`-s NET -d PODS`, `! -s NET -d NET`) unless that is a node's subnet in the destination
    /// (`-s PODS -d NET`).
    pub fn network(&self, source: Named, destination: Named) -> Option<IpNet> {
        let known = |named: Named| named.filter(|(_, net)| self.own.contains(net) || self.served.contains(net)).map(|(_, net)| net);
        match (source, destination) {
            (Some((is, from)), Some((_, to))) => {
                let inside = from != to && to.contains(&from);
                // An exception of another network may name ours.
                let destination = known(destination).filter(|_| !is || inside);
                Some(known(source).or(destination).unwrap_or(if is && inside { to } else { from }))
            }
            (one, other) => one.or(other).map(|(_, net)| net),
        }
    }

    /// Whose a rule is.
    pub fn owner(&self, source: Named, destination: Named) -> Owner {
        match self.network(source, destination) {
            Some(network) if self.keep(&network) => Owner::Theirs,
            _ => Owner::Ours,
        }
    }
}

/// What has to happen to a chain in which others have rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<T> {
    /// The places of the rules that go.
    pub remove: Vec<usize>,
    /// The rule that heads the chain, to be put there.
    pub head: Option<T>,
    /// Our block, to be put at the end.
    pub block: Vec<T>,
}

impl<T> Change<T> {
    /// Whether all is as it should be.
    pub fn is_nothing(&self) -> bool {
        self.remove.is_empty() && self.head.is_none() && self.block.is_empty()
    }
}

/// The change from a chain's rules to one that holds `wanted` beside the others' rules, in which `is_head` tells the rule that heads it.
pub fn change<T: Clone + PartialEq>(present: &[(Owner, Option<T>)], wanted: &[T], is_head: impl Fn(&T) -> bool) -> Change<T> {
    let places = |owner: Owner| present.iter().enumerate().filter(move |(_, (found, _))| *found == owner).map(|(at, _)| at);
    let (head, block) = match wanted.split_first() {
        Some((first, rest)) if is_head(first) => (Some(first), rest),
        _ => (None, wanted),
    };
    let mut change = Change { remove: Vec::new(), head: None, block: Vec::new() };
    let heads: Vec<usize> = places(Owner::Head).collect();
    if head.is_some() && heads != [0] {
        change.remove.extend(heads);
        change.head = head.cloned();
    }
    let ours = present.iter().filter(|(owner, _)| *owner == Owner::Ours).map(|(_, rule)| rule.as_ref());
    if !ours.eq(block.iter().map(Some)) {
        change.remove.extend(places(Owner::Ours));
        change.block = block.to_vec();
    }
    change
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(own: &[&str], served: &[&str], unknown: bool) -> Others {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Others { own: nets(own), served: nets(served), unknown, guards: BTreeSet::new() }
    }

    #[test]
    fn each_rule_of_go_flannel_has_an_owner() {
        let named = |text: &str| -> Named {
            let (is, net) = text.strip_prefix('!').map_or((true, text), |net| (false, net));
            (!net.is_empty()).then(|| (is, net.parse().unwrap()))
        };
        for known in [others(&["10.5.0.0/16"], &[], false), others(&[], &["10.5.0.0/16"], false), others(&["10.9.0.0/16"], &[], true)] {
            for (source, destination) in [
                ("10.5.0.0/16", ""),
                ("", "10.5.0.0/16"),
                ("10.5.7.0/24", "10.5.0.0/16"),
                ("10.5.0.0/16", "10.5.7.0/24"),
                ("!10.5.0.0/16", "10.5.7.0/24"),
                ("10.5.0.0/16", "!224.0.0.0/4"),
                ("!10.5.0.0/16", "10.5.0.0/16"),
                // An exception, about another daemon's network too.
                ("10.5.0.0/16", "172.16.0.0/12"),
                ("10.5.0.0/16", "10.9.0.0/16"),
            ] {
                let network = known.network(named(source), named(destination));
                assert_eq!(network, Some("10.5.0.0/16".parse().unwrap()), "{source} {destination} {known:?}");
            }
        }
        // A wider exception; the fourth rule of Go flannel in nftables.
        let ours = others(&["10.5.0.0/16"], &["10.9.0.0/16"], false);
        assert_eq!(ours.network(named("10.5.0.0/16"), named("10.0.0.0/8")), Some("10.5.0.0/16".parse().unwrap()));
        assert_eq!(ours.network(named("!10.5.7.0/24"), named("10.5.0.0/16")), Some("10.5.0.0/16".parse().unwrap()));
        assert_eq!(ours.network(None, None), None);
    }

    #[test]
    fn what_nobody_serves_goes_once_that_is_known() {
        let (one, two) = ("10.5.0.0/16".parse().unwrap(), "10.6.0.0/16".parse().unwrap());
        assert!(!others(&["10.5.0.0/16"], &[], true).keep(&one), "ours is replaced, whoever is said to serve it");
        assert!(others(&["10.5.0.0/16"], &[], true).keep(&two));
        assert!(others(&["10.5.0.0/16"], &["10.6.0.0/16"], false).keep(&two));
        assert!(!others(&["10.5.0.0/16"], &[], false).keep(&two));
    }
}
