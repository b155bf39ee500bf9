//! The known Nodes, and the leases that they publish. Pure.
//!
//! Nodes are stored by name, because two may have the same podCIDR. Of those that claim a subnet, the oldest holds it.

use super::annotations;
use super::claims::Claims;
use super::holders::{Claim, Holders};
use super::node::{Node, Report};
use crate::lease::{Lease, LeaseAttrs, NodeId, Term};
use crate::manager::Claimant;
use crate::table::{LeaseEvent, inside};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use types::{Dual, Problem, Subnets};

/// A lease stays in force for this time without the annotation `kube-subnet-manager`, because an operator may be replacing the annotations.
pub(crate) const WITHDRAWAL: Duration = Duration::from_secs(60);

/// A Node, reduced to the parts that affect other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    uid: String,
    version: u64,
    created: i64,
    /// All podCIDRs. The network, which may change, determines which are in use.
    subnets: Option<Subnets>,
    claims: Claims,
    lease: Published,
    /// A change of it affects no lease.
    report: Option<Report>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Published {
    /// Flannel does not run on the Node, or it has no podCIDR.
    Nothing,
    /// The Node's last readable lease, if any, stays in force.
    Unreadable(Box<Problem>, Option<Arc<Lease>>),
    /// With all podCIDRs of the Node.
    Lease(Arc<Lease>),
    /// The Node lost the annotation `kube-subnet-manager` at this time. The lease stays in force for `WITHDRAWAL`.
    Withdrawn(Arc<Lease>, Duration),
}

/// By name.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    known: BTreeMap<String, Known>,
    /// From the configuration. podCIDRs of a family without a network are ignored.
    networks: Option<Subnets>,
    /// This node's name. Its own lease is left out.
    own: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    pub readable: BTreeMap<Subnets, Arc<Lease>>,
    /// Subnets of Nodes with unreadable annotations, with the Nodes' names.
    pub unreadable: BTreeMap<Subnets, String>,
    /// Nodes that flanneld does not use.
    pub left_out: BTreeMap<String, Problem>,
}

impl Nodes {
    /// Empty; `own` is the name of the daemon's own Node.
    #[must_use]
    pub fn new(own: &str) -> Self {
        Self { known: BTreeMap::new(), networks: None, own: own.to_owned() }
    }

    /// True if the networks changed, because that may affect all leases.
    pub fn serve(&mut self, networks: Subnets) -> bool {
        self.networks.replace(networks) != Some(networks)
    }

    /// True if a Node changed in a part that affects other nodes.
    pub fn replace(&mut self, nodes: Vec<Node>, now: Duration) -> bool {
        let names: BTreeSet<String> = nodes.iter().map(|node| node.name.clone()).collect();
        let before = self.known.len();
        self.known.retain(|name, _| names.contains(name));
        let gone = before != self.known.len();
        nodes.into_iter().fold(gone, |changed, node| self.put(node, now) || changed)
    }

    /// True if the Node changed in a part that affects other nodes, as a heartbeat of the kubelet does not.
    pub fn put(&mut self, node: Node, now: Duration) -> bool {
        let before = self.known.get(&node.name);
        let name = node.name.clone();
        let known = Known::of(node, before, now);
        let changed = before.is_none_or(|before| !before.matters_as(&known));
        self.known.insert(name, known);
        changed
    }

    /// True if the Node was known.
    pub fn remove(&mut self, name: &str) -> bool {
        self.known.remove(name).is_some()
    }

    /// The Node with the highest version: name, uid, version.
    #[must_use]
    pub fn newest(&self) -> Option<(&str, &str, u64)> {
        self.known
            .iter()
            .max_by_key(|(_, known)| known.version)
            .map(|(name, known)| (name.as_str(), known.uid.as_str(), known.version))
    }

    /// A Node whose name differs only in case or in the domain after the host name.
    pub(crate) fn similar(&self, name: &str) -> Option<&str> {
        let host = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
        self.known
            .keys()
            .find(|other| other.as_str() != name && host(other) == host(name))
            .map(String::as_str)
    }

    /// What the other Nodes claim, except for those with this machine's boot id.
    #[must_use]
    pub fn taken(&self, boot: Option<&str>) -> BTreeMap<IpAddr, Claimant> {
        let mut out = BTreeMap::new();
        self.known
            .iter()
            .filter(|(name, _)| **name != self.own)
            .for_each(|(name, known)| known.claims.add(name, boot, &mut out));
        out
    }

    /// The older Node that holds a Node's subnets, or a part of them.
    pub(crate) fn senior(&self, node: &Node) -> Option<&str> {
        let subnets = node.subnets.clone().ok().flatten()?;
        let subnets = self.served(subnets)?;
        let own = Claim { created: node.created, name: &node.name, subnets };
        let older = |claim: &Claim<'_>| claim.name != own.name && *claim < own;
        // Avoids sorting thousands of Nodes if none conflicts.
        if !self.claims().any(|claim| older(&claim) && claim.subnets.overlaps(&subnets)) {
            return None;
        }
        let holder = Holders::among(self.claims().filter(older).collect()).holder(&subnets)?;
        self.known.get_key_value(holder).map(|(name, _)| name.as_str())
    }

    /// Another Node that would hold the given subnets, or a part of them, if this node's Node did not exist.
    #[must_use]
    pub fn holder(&self, subnets: &Subnets) -> Option<&str> {
        let others = || self.claims().filter(|claim| claim.name != self.own);
        if !others().any(|claim| claim.subnets.overlaps(subnets)) {
            return None;
        }
        let holder = Holders::among(others().collect()).holder(subnets)?;
        self.known.get_key_value(holder).map(|(name, _)| name.as_str())
    }

    /// Of the Node that holds the given subnets.
    pub(crate) fn report(&self, subnets: &Subnets) -> Option<Report> {
        self.known.get(self.holder(subnets)?)?.report
    }

    /// Leaves out podCIDRs that are not inside the network.
    fn claims(&self) -> impl Iterator<Item = Claim<'_>> {
        self.known.iter().filter_map(|(name, known)| {
            let subnets = self.served(known.subnets?).filter(|subnets| self.is_inside(subnets))?;
            Some(Claim { created: known.created, name, subnets })
        })
    }

    /// Leaves out the families that the network does not have.
    fn served(&self, subnets: Subnets) -> Option<Subnets> {
        self.networks.as_ref().map_or(Some(subnets), |networks| trimmed(&subnets, networks))
    }

    fn is_inside(&self, subnets: &Subnets) -> bool {
        self.networks.as_ref().is_none_or(|networks| inside(subnets, networks))
    }

    /// The leases of the other Nodes, and the time at which the caller must call again if no Node changes.
    #[must_use]
    pub fn leases(&self, now: Duration) -> (Leases, Option<Duration>) {
        let mut out = Leases::default();
        let mut due: Option<Duration> = None;
        let mut by_age = Vec::with_capacity(self.known.len());
        for (name, known) in &self.known {
            match (known.subnets.and_then(|subnets| self.served(subnets)), &known.lease) {
                (Some(subnets), _) if self.is_inside(&subnets) => {
                    by_age.push((Claim { created: known.created, name, subnets }, known));
                }
                (
                    Some(subnets),
                    Published::Lease(_) | Published::Unreadable(..) | Published::Withdrawn(..),
                ) if *name != self.own => {
                    let text = format!("the podCIDR {subnets} is not inside the network");
                    let why = Problem::new("node-podcidr-outside-network", text);
                    out.left_out.insert(name.clone(), why);
                }
                (None, Published::Unreadable(why, _)) if *name != self.own => {
                    drop(out.left_out.insert(name.clone(), Problem::clone(why)));
                }
                _ => {}
            }
        }
        by_age.sort_unstable_by_key(|(claim, _)| *claim);
        // This node's own Node is included, so that younger Nodes do not get its subnets.
        let mut holders = Holders::default();
        for (claim, known) in by_age {
            let (name, subnets) = (claim.name, claim.subnets);
            let taken = holders.take(&claim);
            if *name == self.own {
                continue;
            }
            if let Err(holder) = taken {
                if !matches!(known.lease, Published::Nothing) {
                    let text = format!(
                        "the podCIDR {subnets} overlaps the podCIDR of the older Node {holder}"
                    );
                    let why = Problem::new("node-podcidr-overlaps", text);
                    out.left_out.insert(name.to_owned(), why);
                }
                continue;
            }
            match &known.lease {
                Published::Nothing => {}
                Published::Unreadable(why, _) => {
                    out.unreadable.insert(subnets, name.to_owned());
                    out.left_out.insert(name.to_owned(), Problem::clone(why));
                }
                Published::Lease(lease) => {
                    drop(out.readable.insert(subnets, with_subnets(lease, subnets)));
                }
                Published::Withdrawn(lease, since) => {
                    let end = *since + WITHDRAWAL;
                    if now < end {
                        out.readable.insert(subnets, with_subnets(lease, subnets));
                        due = Some(due.map_or(end, |due| due.min(end)));
                    }
                }
            }
        }
        (out, due)
    }
}

impl Known {
    fn of(node: Node, before: Option<&Known>, now: Duration) -> Self {
        let managed = annotations::managed(&node.annotations);
        let claims = Claims::of(&node);
        let report = node.report;
        // On Kubernetes, the name is the identity.
        let name: Arc<str> = node.name.as_str().into();
        let id = NodeId {
            id: name.clone(),
            name,
            by_go: annotations::by_go(&node.annotations),
            ..NodeId::default()
        };
        let read = annotations::read(&node.annotations)
            .map(|attrs| LeaseAttrs { node: Some(id), ..attrs });
        let (subnets, odd) = match node.subnets {
            Ok(subnets) => (subnets, None),
            Err(why) => (None, Some(why)),
        };
        let lease = |attrs: LeaseAttrs, subnets: Subnets| {
            Arc::new(Lease { subnets, attrs, term: Term::Reserved, since: node.created })
        };
        let published = match (managed, odd, read, subnets) {
            (false, _, _, Some(subnets)) => before
                .filter(|before| before.uid == node.uid)
                .map_or(Published::Nothing, |before| before.withdrawn(subnets, now)),
            (false, _, _, None) => Published::Nothing,
            (true, Some(why), ..) | (true, None, Err(why), _) => {
                Published::Unreadable(Box::new(why), before.and_then(Known::last_good))
            }
            (true, None, Ok(_), None) => Published::Nothing,
            (true, None, Ok(attrs), Some(subnets)) => match before {
                // Share an unchanged lease, so that a comparison is cheap.
                Some(Known { lease: Published::Lease(same), .. })
                    if same.subnets == subnets
                        && same.attrs == attrs
                        && same.since == node.created =>
                {
                    Published::Lease(same.clone())
                }
                _ => Published::Lease(lease(attrs, subnets)),
            },
        };
        Self {
            uid: node.uid,
            version: node.version,
            created: node.created,
            subnets,
            claims,
            lease: published,
            report,
        }
    }

    /// After the Node lost the annotation `kube-subnet-manager`.
    fn withdrawn(&self, subnets: Subnets, now: Duration) -> Published {
        match &self.lease {
            Published::Lease(lease) | Published::Unreadable(_, Some(lease))
                if lease.subnets == subnets =>
            {
                Published::Withdrawn(lease.clone(), now)
            }
            Published::Withdrawn(lease, since) if lease.subnets == subnets => {
                Published::Withdrawn(lease.clone(), *since)
            }
            _ => Published::Nothing,
        }
    }

    /// The last readable lease.
    fn last_good(&self) -> Option<Arc<Lease>> {
        match &self.lease {
            Published::Lease(lease)
            | Published::Unreadable(_, Some(lease))
            | Published::Withdrawn(lease, _) => Some(lease.clone()),
            Published::Unreadable(_, None) | Published::Nothing => None,
        }
    }

    fn matters_as(&self, other: &Known) -> bool {
        (&self.uid, self.created, &self.subnets, &self.claims, &self.lease)
            == (&other.uid, other.created, &other.subnets, &other.claims, &other.lease)
    }
}

impl Leases {
    /// A `Delete` for each unreadable lease that belonged to another Node in `before`, then a `Reset` with all leases.
    pub fn reset(&self, before: &Leases) -> Vec<LeaseEvent> {
        let leases = self.readable.values().map(|lease| Lease::clone(lease)).collect();
        let reset =
            LeaseEvent::Reset { leases, unreadable: self.unreadable.keys().copied().collect() };
        self.inherited(before).map(LeaseEvent::Delete).chain([reset]).collect()
    }

    /// The events that change the leases `before` into these.
    pub fn since(&self, before: &Leases) -> Vec<LeaseEvent> {
        let gone = before
            .readable
            .keys()
            .chain(before.unreadable.keys())
            .copied()
            .filter(|subnets| self.owner(subnets).is_none());
        let same = |subnets: &Subnets, lease: &Arc<Lease>| {
            let was =
                before.readable.get(subnets).filter(|_| !before.unreadable.contains_key(subnets));
            was.is_some_and(|was| Arc::ptr_eq(was, lease) || was == lease)
        };
        let put = self
            .readable
            .iter()
            .filter(|(subnets, lease)| !same(subnets, lease))
            .map(|(_, lease)| LeaseEvent::Put(Lease::clone(lease)));
        let odd = self
            .unreadable
            .iter()
            .filter(|(subnets, name)| before.unreadable.get(subnets) != Some(name));
        let deleted = gone.chain(self.inherited(before)).map(LeaseEvent::Delete);
        deleted.chain(put).chain(odd.map(|(subnets, _)| LeaseEvent::Unreadable(*subnets))).collect()
    }

    /// Subnets that an unreadable Node now holds and another Node held before. The unreadable Node must not inherit that lease.
    fn inherited(&self, before: &Leases) -> impl Iterator<Item = Subnets> {
        let inherited = |(subnets, name): &(&Subnets, &String)| {
            before.owner(subnets).is_some_and(|was| was != name.as_str())
        };
        self.unreadable.iter().filter(inherited).map(|(subnets, _)| *subnets)
    }

    fn owner(&self, subnets: &Subnets) -> Option<&str> {
        let readable = || {
            self.readable
                .get(subnets)
                .and_then(|lease| lease.attrs.node.as_ref())
                .map(|node| &*node.id)
        };
        self.unreadable.get(subnets).map(String::as_str).or_else(readable)
    }
}

/// If the lease has exactly these subnets, the same `Arc` is kept, so that a comparison is fast.
fn with_subnets(lease: &Arc<Lease>, subnets: Subnets) -> Arc<Lease> {
    if lease.subnets == subnets {
        lease.clone()
    } else {
        Arc::new(Lease { subnets, ..Lease::clone(lease) })
    }
}

/// Leaves out the families that the network does not have.
#[must_use]
pub fn trimmed(subnets: &Subnets, networks: &Subnets) -> Option<Subnets> {
    Dual::from_options(
        subnets.v4().copied().filter(|_| networks.v4().is_some()),
        subnets.v6().copied().filter(|_| networks.v6().is_some()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NetworkConfig;
    use crate::kube::annotations::Prefix;
    use crate::table::LeaseTable;
    use proptest::prelude::*;

    fn node(name: &str, created: i64, third: u8, annotations: &[(&str, &str)]) -> Node {
        let text = format!(
            r#"{{"metadata":{{"name":"{name}","uid":"{name}{created}"}},"spec":{{"podCIDR":"10.244.{third}.0/24"}}}}"#
        );
        let mut node =
            Node::read(&text, &Prefix::parse("flannel.alpha.coreos.com").unwrap()).unwrap();
        node.created = created;
        node.annotations = annotations
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        node
    }

    fn up(name: &str, created: i64, third: u8) -> Node {
        node(
            name,
            created,
            third,
            &[
                ("kube-subnet-manager", "true"),
                ("backend-type", "vxlan"),
                ("public-ip", &format!("10.0.0.{third}")),
            ],
        )
    }

    const NOW: Duration = Duration::from_secs(1000);

    fn names(nodes: &Nodes, now: Duration) -> Vec<String> {
        nodes.leases(now).0.readable.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn older_of_two_nodes_gets_the_shared_subnet() {
        let mut nodes = Nodes::new("me");
        nodes.replace(vec![up("b", 7, 1), up("a", 8, 1), up("me", 1, 9), up("c", 9, 3)], NOW);
        let (leases, _) = nodes.leases(NOW);
        assert_eq!(names(&nodes, NOW), ["10.244.1.0/24", "10.244.3.0/24"]);
        assert_eq!(leases.readable.values().next().unwrap().since, 7);
        assert!(leases.left_out["a"].to_string().contains("the older Node b"));
        assert_eq!((nodes.senior(&up("a", 8, 1)), nodes.senior(&up("b", 7, 1))), (Some("b"), None));
        // Within the same second, the name decides.
        nodes.put(up("a", 7, 1), NOW);
        assert!(nodes.leases(NOW).0.left_out["b"].to_string().contains("the older Node a"));
        // A Node that is gone holds no subnet.
        assert!(nodes.remove("a") && !nodes.remove("a"));
        assert!(nodes.leases(NOW).0.left_out.is_empty());
        // A Node without flannel is not reported, although it is younger than the holder.
        nodes.put(node("bare", 9, 1, &[]), NOW);
        assert!(nodes.leases(NOW).0.left_out.is_empty());
        // This node's own Node does not count.
        let holder = |third| nodes.holder(&up("x", 1, third).subnets.unwrap().unwrap());
        assert_eq!((holder(9), holder(1)), (None, Some("b")));
        // A Node that was created again is as young as its new object.
        nodes.put(up("b", 8, 1), NOW);
        assert_eq!(nodes.leases(NOW).0.readable.values().next().unwrap().since, 8);
        // A Node that is missing in a complete list is gone.
        assert!(nodes.replace(vec![up("c", 9, 3)], NOW));
        assert_eq!(names(&nodes, NOW), ["10.244.3.0/24"]);
    }

    #[test]
    fn heartbeats_do_not_matter_and_addresses_do() {
        let mut nodes = Nodes::new("me");
        assert!(nodes.put(up("a", 1, 1), NOW));
        let mut beat = up("a", 1, 1);
        beat.version = 99;
        assert!(!nodes.put(beat, NOW));
        assert_eq!(nodes.newest(), Some(("a", "a1", 99)));
        let mut moved = up("a", 1, 1);
        (moved.internal, moved.alive) = (vec![[10, 9, 9, 9].into()], true);
        assert!(nodes.put(moved.clone(), NOW));
        // This node's own Node does not claim addresses against it.
        nodes.put(
            Node { name: "me".to_owned(), internal: vec![[10, 9, 9, 8].into()], ..moved.clone() },
            NOW,
        );
        let claimed: Vec<IpAddr> = nodes.taken(None).into_keys().collect();
        assert_eq!(claimed, [IpAddr::from([10, 0, 0, 1]), [10, 9, 9, 9].into()]);
        // It matters if a kubelet stops reporting.
        moved.alive = false;
        assert!(nodes.put(moved, NOW));
        assert!(nodes.taken(None).is_empty());
    }

    #[test]
    fn a_mark_that_is_removed_counts_for_a_minute() {
        let mut nodes = Nodes::new("me");
        nodes.put(up("a", 1, 1), NOW);
        let bare = node("a", 1, 1, &[("public-ip", "10.0.0.1")]);
        assert!(nodes.put(bare.clone(), NOW));
        let (leases, due) = nodes.leases(NOW + Duration::from_secs(59));
        assert_eq!((leases.readable.len(), due), (1, Some(NOW + WITHDRAWAL)));
        // The Node's heartbeats do not extend it.
        nodes.put(bare.clone(), NOW + Duration::from_secs(30));
        assert!(names(&nodes, NOW + WITHDRAWAL).is_empty());
        assert!(nodes.put(up("a", 1, 1), NOW + WITHDRAWAL));
        assert_eq!(names(&nodes, NOW + WITHDRAWAL).len(), 1);
        // A Node that was created again never had the mark.
        nodes.put(node("a", 2, 1, &[]), NOW);
        assert!(names(&nodes, NOW).is_empty());
    }

    #[test]
    fn nodes_known_already_are_judged_by_another_network() {
        let networks = |text: &str| NetworkConfig::parse_assigned(text).unwrap().networks;
        let cidrs = |node: Node, cidrs: &str| {
            let text = format!(r#"{{"metadata":{{"name":"n"}},"spec":{{"podCIDRs":{cidrs}}}}}"#);
            Node {
                subnets: Node::read(&text, &Prefix::parse("a.b").unwrap()).unwrap().subnets,
                ..node
            }
        };
        let subnets = |nodes: &Nodes| {
            nodes.leases(NOW).0.readable.keys().map(ToString::to_string).collect::<Vec<_>>()
        };
        let mut nodes = Nodes::new("me");
        assert!(nodes.serve(networks(r#"{"Network":"10.42.0.0/16"}"#)));
        nodes.put(cidrs(up("both", 1, 1), r#"["10.244.1.0/24","fd10:244:0:1::/64"]"#), NOW);
        nodes.put(cidrs(up("v6", 1, 2), r#"["fd10:244:0:2::/64"]"#), NOW);
        assert!(
            subnets(&nodes).is_empty()
                && nodes.leases(NOW).0.left_out["both"]
                    .to_string()
                    .contains("not inside the network")
        );
        // First the Network is corrected, then a family is added, then one is removed.
        for (config, want) in [
            (r#"{"Network":"10.244.0.0/16"}"#, &["10.244.1.0/24"][..]),
            (
                r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48"}"#,
                &["fd10:244:0:2::/64", "10.244.1.0/24 and fd10:244:0:1::/64"],
            ),
            (
                r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10:244::/48"}"#,
                &["fd10:244:0:1::/64", "fd10:244:0:2::/64"],
            ),
        ] {
            assert!(nodes.serve(networks(config)), "{config}: a change");
            assert!(!nodes.serve(networks(config)), "{config}: no change");
            assert_eq!(subnets(&nodes), want, "{config}");
            let (leases, _) = nodes.leases(NOW);
            assert!(
                leases.readable.iter().all(|(subnets, lease)| lease.subnets == *subnets),
                "{config}"
            );
        }
    }

    #[test]
    fn unreadable_node_keeps_its_subnet() {
        let mut nodes = Nodes::new("me");
        nodes.put(up("a", 1, 1), NOW);
        let (good, _) = nodes.leases(NOW);
        let mut table = LeaseTable::default();
        for event in good.reset(&Leases::default()) {
            table.apply(event);
        }
        nodes.put(
            node("a", 1, 1, &[("kube-subnet-manager", "true"), ("public-ip", "hostname")]),
            NOW,
        );
        let (odd, _) = nodes.leases(NOW);
        assert!(odd.left_out["a"].to_string().contains("public-ip"));
        for event in odd.since(&good) {
            table.apply(event);
        }
        assert_eq!(table.len(), 1, "the last readable lease stays in force");
        // The mark is removed meanwhile. The lease stays in force for a minute, like one that can be read.
        let mut unmarked = nodes.clone();
        unmarked.put(node("a", 1, 1, &[("public-ip", "hostname")]), NOW);
        assert_eq!((names(&unmarked, NOW).len(), names(&unmarked, NOW + WITHDRAWAL).len()), (1, 0));
        // The subnet moves to another Node, which cannot be read either. The lease in force did not belong to that Node.
        let mut inherited = nodes.clone();
        inherited.put(
            node("0", 0, 1, &[("kube-subnet-manager", "true"), ("public-ip", "hostname")]),
            NOW,
        );
        for events in [inherited.leases(NOW).0.since(&odd), inherited.leases(NOW).0.reset(&odd)] {
            let mut table = table.clone();
            for event in events {
                table.apply(event);
            }
            assert_eq!((table.len(), table.unreadable().len()), (0, 1));
        }
        // The Node becomes readable again, with the same value.
        nodes.put(up("a", 1, 1), NOW);
        let again = nodes.leases(NOW).0.since(&odd);
        assert!(matches!(again.as_slice(), [LeaseEvent::Put(_)]), "{again:?}");
    }

    proptest! {
        /// The events lead to the same table as a complete list.
        #[test]
        fn changes_add_up(steps in proptest::collection::vec((0..5u8, 0..4i64, 1..4u8, 0..4u8), 1..40)) {
            let mut nodes = Nodes::new("n0");
            let mut before = Leases::default();
            let mut table = LeaseTable::default();
            for event in before.reset(&before) {
                table.apply(event);
            }
            for (at, (name, created, third, what)) in steps.into_iter().enumerate() {
                let now = NOW + Duration::from_secs(at as u64);
                let name = format!("n{name}");
                let _ = match what {
                    0 => nodes.remove(&name),
                    1 => nodes.put(node(&name, created, third, &[]), now),
                    2 => nodes.put(node(&name, created, third, &[("kube-subnet-manager", "true"), ("backend-data", "{")]), now),
                    _ => nodes.put(up(&name, created, third), now),
                };
                let (leases, _) = nodes.leases(now);
                prop_assert!(!leases.readable.keys().any(|subnets| leases.unreadable.contains_key(subnets)));
                for event in leases.since(&before) {
                    table.apply(event);
                }
                for (subnets, lease) in &leases.readable {
                    prop_assert_eq!(table.get(subnets), Some(&**lease));
                }
                let known: BTreeSet<Subnets> = table.iter().map(|lease| lease.subnets).chain(table.unreadable().iter().copied()).collect();
                let want: BTreeSet<Subnets> = leases.readable.keys().copied().chain(leases.unreadable.keys().copied()).collect();
                prop_assert_eq!(known, want);
                before = leases;
            }
        }
    }
}
