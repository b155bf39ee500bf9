//! Decides which daemon owns a rule in a chain that the daemons of several networks on one host
//! share. Pure.
//!
//! A rule belongs to the pod network that it matches, as in Go flannel. A daemon replaces its own
//! rules as one block and does not change the rules of others. The rule that matches kube-proxy's
//! mark matches no network: it is the first rule of the chain, and all daemons share it.

use ipnet::IpNet;
use std::collections::BTreeSet;

/// This daemon keeps their rules on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherDaemons {
    /// This daemon's networks, including those of the daemon that ran before it. It may replace
    /// their rules.
    pub own: BTreeSet<IpNet>,
    /// The pod networks of other running daemons.
    pub served: BTreeSet<IpNet>,
    /// This daemon keeps the rules of a network that is not its own and that no known daemon
    /// serves.
    pub unknown: bool,
    /// The numbers of other daemons' chains for the encapsulation port.
    pub guards: BTreeSet<u16>,
}

/// The network, and whether the rule matches addresses inside (true) or outside of it (false).
pub(crate) type NetMatch = Option<(bool, IpNet)>;

/// Who owns a rule in a chain that flannel manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This daemon, or one that has ended. This daemon replaces or removes the rule.
    Ours,
    /// This daemon keeps the rule.
    Theirs,
    /// All daemons on the host, which share the first rule of the chain.
    Head,
}

impl OtherDaemons {
    #[must_use]
    pub fn keeps(&self, network: &IpNet) -> bool {
        !self.own.contains(network) && (self.unknown || self.served.contains(network))
    }

    /// Rules of other daemons may stay.
    #[must_use]
    pub fn keep_any(&self) -> bool {
        self.unknown || !self.served.is_empty() || !self.guards.is_empty()
    }

    /// `place` is the other daemon's number. If this daemon removes another's guard too early, the
    /// host loses no packets, and the other daemon restores it. A guard that remains after its
    /// daemon has ended may drop the packets of a new node.
    #[must_use]
    pub fn keeps_guard(&self, place: u16) -> bool {
        self.guards.contains(&place)
    }

    /// The pod network to which a rule with this source and destination belongs.
    ///
    /// A rule that matches two networks belongs to the source network (`-s NET -d PODS`, `! -s NET
    /// -d NET`). If the source is a node's subnet inside the destination network, the rule belongs
    /// to the destination network (`-s PODS -d NET`).
    #[must_use]
    pub fn network(&self, source: NetMatch, destination: NetMatch) -> Option<IpNet> {
        let known = |named: NetMatch| {
            named
                .filter(|(_, net)| self.own.contains(net) || self.served.contains(net))
                .map(|(_, net)| net)
        };
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

    #[must_use]
    pub fn owner(&self, source: NetMatch, destination: NetMatch) -> Owner {
        match self.network(source, destination) {
            Some(network) if self.keeps(&network) => Owner::Theirs,
            _ => Owner::Ours,
        }
    }
}

/// A change to a chain that several daemons share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<T> {
    /// Positions in the chain.
    pub remove: Vec<usize>,
    /// Inserted at the head of the chain.
    pub head: Option<T>,
    /// Appended to the chain.
    pub block: Vec<T>,
}

impl<T> Change<T> {
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.head.is_none() && self.block.is_empty()
    }
}

/// Leaves only the rules in `wanted` and those of other daemons in the chain. `is_head` is true for
/// the first rule of the chain, which all daemons share.
pub fn change<T: Clone + PartialEq>(
    present: &[(Owner, Option<T>)],
    wanted: &[T],
    is_head: impl Fn(&T) -> bool,
) -> Change<T> {
    let places = |owner: Owner| {
        present.iter().enumerate().filter(move |(_, (found, _))| *found == owner).map(|(at, _)| at)
    };
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
    let ours =
        present.iter().filter(|(owner, _)| *owner == Owner::Ours).map(|(_, rule)| rule.as_ref());
    if !ours.eq(block.iter().map(Some)) {
        change.remove.extend(places(Owner::Ours));
        change.block = block.to_vec();
    }
    change
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(own: &[&str], served: &[&str], unknown: bool) -> OtherDaemons {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        OtherDaemons { own: nets(own), served: nets(served), unknown, guards: BTreeSet::new() }
    }

    #[test]
    fn every_rule_of_go_flannel_has_an_owner() {
        let named = |text: &str| -> NetMatch {
            let (is, net) = text.strip_prefix('!').map_or((true, text), |net| (false, net));
            (!net.is_empty()).then(|| (is, net.parse().unwrap()))
        };
        for known in [
            others(&["10.5.0.0/16"], &[], false),
            others(&[], &["10.5.0.0/16"], false),
            others(&["10.9.0.0/16"], &[], true),
        ] {
            for (source, destination) in [
                ("10.5.0.0/16", ""),
                ("", "10.5.0.0/16"),
                ("10.5.7.0/24", "10.5.0.0/16"),
                ("10.5.0.0/16", "10.5.7.0/24"),
                ("!10.5.0.0/16", "10.5.7.0/24"),
                ("10.5.0.0/16", "!224.0.0.0/4"),
                ("!10.5.0.0/16", "10.5.0.0/16"),
                // An exception, also for the network of another daemon.
                ("10.5.0.0/16", "172.16.0.0/12"),
                ("10.5.0.0/16", "10.9.0.0/16"),
            ] {
                let network = known.network(named(source), named(destination));
                assert_eq!(
                    network,
                    Some("10.5.0.0/16".parse().unwrap()),
                    "{source} {destination} {known:?}"
                );
            }
        }
        // A wider exception; the fourth rule of Go flannel in nftables.
        let ours = others(&["10.5.0.0/16"], &["10.9.0.0/16"], false);
        assert_eq!(
            ours.network(named("10.5.0.0/16"), named("10.0.0.0/8")),
            Some("10.5.0.0/16".parse().unwrap())
        );
        assert_eq!(
            ours.network(named("!10.5.7.0/24"), named("10.5.0.0/16")),
            Some("10.5.0.0/16".parse().unwrap())
        );
        assert_eq!(ours.network(None, None), None);
    }

    #[test]
    fn unserved_rules_are_removed_once_that_is_known() {
        let (one, two) = ("10.5.0.0/16".parse().unwrap(), "10.6.0.0/16".parse().unwrap());
        assert!(
            !others(&["10.5.0.0/16"], &[], true).keeps(&one),
            "our own rules are always replaced"
        );
        assert!(others(&["10.5.0.0/16"], &[], true).keeps(&two));
        assert!(others(&["10.5.0.0/16"], &["10.6.0.0/16"], false).keeps(&two));
        assert!(!others(&["10.5.0.0/16"], &[], false).keeps(&two));
    }
}
