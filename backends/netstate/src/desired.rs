//! The desired kernel state, computed from all leases or from a change of some leases. The computation from
//! all leases and the computation from a change give the same state.

use crate::kernel::Facts;
use crate::object::{KernelState, Key, Value};
use crate::peers::{Eligible, peers};
use crate::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use subnet_lease::{LeaseTable, Peer};

/// The kernel state that a plan requires, with the keys of the objects that several peers need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The objects that the kernel should have.
    pub state: KernelState,
    /// Keys of the objects that more than one peer needs, and that therefore depend on several leases.
    shared: BTreeSet<Key>,
}

/// A change of the desired state that follows from changed leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The affected objects before the change.
    pub before: KernelState,
    /// The affected objects after the change.
    pub after: KernelState,
}

impl Desired {
    /// Computes the desired kernel state from all leases. If peers need different content for the same object, the oldest
    /// lease takes precedence. flanneld skips the other peers.
    pub fn whole<P: Plan + ?Sized>(plan: &P, leases: &LeaseTable, facts: &Facts) -> Self {
        let mut all: Vec<Peer<'_>> = peers(plan, leases, &facts.underlay).collect();
        all.sort_by_key(|peer| (peer.lease.since, peer.lease.subnets, peer.subnet));
        match undisputed(plan, &all, facts) {
            Some(state) => Self {
                state,
                shared: BTreeSet::new(),
            },
            None => Self::by_age(plan, &all, facts),
        }
    }

    /// Computes the desired kernel state peer by peer. `all` begins with the peers of the oldest lease.
    fn by_age<P: Plan + ?Sized>(plan: &P, all: &[Peer<'_>], facts: &Facts) -> Self {
        let mut desired = Self {
            state: plan.base(facts),
            shared: BTreeSet::new(),
        };
        // Both families of a lease may need the same object. They are adjacent in `all`.
        let mut last: (Option<&Peer<'_>>, Vec<Key>) = (None, Vec::new());
        for peer in all {
            let objects = plan.of_peer(peer, facts);
            let keys: Vec<Key> = objects.iter().map(|(key, _)| *key).collect();
            let halves = last
                .0
                .is_some_and(|last| std::ptr::eq(last.lease, peer.lease));
            desired.add(objects, if halves { &last.1 } else { &[] });
            last = (Some(peer), keys);
        }
        desired
    }

    /// Adds the objects of a peer, unless the desired state already has different content for the key of one object.
    /// `own` contains the keys that the lease's other address family needs.
    fn add(&mut self, objects: Vec<(Key, Value)>, own: &[Key]) {
        let mut conflict = false;
        for (key, value) in &objects {
            if let Some(present) = self.state.0.get(key) {
                let same = present == value;
                if !(same && own.contains(key)) {
                    self.shared.insert(*key);
                }
                conflict |= !same;
            }
        }
        if !conflict {
            self.state.0.extend(objects);
        }
    }

    /// Computes the change of the desired state that follows from the changed leases. Returns `None` if the change also depends on unchanged leases.
    pub fn change<P: Plan + ?Sized>(
        &self,
        plan: &P,
        before: &LeaseTable,
        after: &LeaseTable,
        facts: &Facts,
    ) -> Option<Change> {
        let eligible = Eligible::new(plan, &facts.underlay);
        let mut change = Change::default();
        let mut wanted = BTreeMap::new();
        for (was, is) in before.changes(after) {
            for (lease, objects) in [(was, &mut change.before.0), (is, &mut wanted)] {
                let counts = lease.filter(|lease| {
                    lease.subnets != plan.scope().own && plan.kinds().include(lease)
                });
                let mut own = Vec::new();
                for peer in counts
                    .into_iter()
                    .flat_map(|lease| Peer::of(lease))
                    .filter(|peer| eligible.admits(peer))
                {
                    for object in plan.of_peer(&peer, facts) {
                        // Both families of a lease may need the same object.
                        if !own.contains(&object) {
                            own.push(object);
                        }
                    }
                }
                for (key, value) in own {
                    if objects.insert(key, value).is_some() {
                        return None;
                    }
                }
            }
        }
        let alone =
            change.before.0.iter().all(|(key, value)| {
                !self.shared.contains(key) && self.state.0.get(key) == Some(value)
            });
        let free = wanted
            .keys()
            .all(|key| change.before.0.contains_key(key) || !self.state.0.contains_key(key));
        change.after = KernelState(wanted);
        (alone && free).then_some(change)
    }

    /// Updates the state by a change that [`Desired::change`] computed from this state.
    pub fn take(&mut self, change: Change) {
        for key in change.before.0.keys() {
            self.state.0.remove(key);
        }
        self.state.0.extend(change.after.0);
    }
}

/// Computes the desired kernel state in the usual case, in which no two leases need the same object. Returns `None` otherwise.
///
/// This function builds the map in a single insertion. Separate insertions leave half-empty B-tree nodes,
/// which waste megabytes with thousands of peers.
fn undisputed<P: Plan + ?Sized>(plan: &P, all: &[Peer<'_>], facts: &Facts) -> Option<KernelState> {
    let mut objects: Vec<(Key, Value)> = plan.base(facts).0.into_iter().collect();
    objects.reserve_exact(3 * all.len());
    // Both families of a lease may need the same object. They are adjacent in `all`.
    let mut last: (Option<&Peer<'_>>, usize) = (None, 0);
    for peer in all {
        let other_half = if last
            .0
            .is_some_and(|last| std::ptr::eq(last.lease, peer.lease))
        {
            last.1
        } else {
            objects.len()
        };
        last = (Some(peer), objects.len());
        for object in plan.of_peer(peer, facts) {
            if !objects
                .iter()
                .skip(other_half)
                .any(|present| *present == object)
            {
                objects.push(object);
            }
        }
    }
    objects.sort_unstable_by_key(|(key, _)| *key);
    objects
        .is_sorted_by(|(one, _), (next, _)| one < next)
        .then(|| KernelState(objects.into_iter().collect()))
}

/// Returns the public addresses of peers if the plan needs to know which of the addresses are on-link.
pub fn on_link_queries<P: Plan + ?Sized>(plan: &P, leases: &LeaseTable) -> Vec<IpAddr> {
    if !plan.needs_on_link() {
        return Vec::new();
    }
    let queries: BTreeSet<IpAddr> = leases
        .peers(&plan.scope().own, plan.kinds())
        .map(|peer| peer.public_ip)
        .collect();
    queries.into_iter().collect()
}

/// Returns the public addresses of changed leases if the plan needs to know which of the addresses are on-link.
pub fn new_on_link_queries<P: Plan + ?Sized>(
    plan: &P,
    before: &LeaseTable,
    after: &LeaseTable,
) -> Vec<IpAddr> {
    if !plan.needs_on_link() {
        return Vec::new();
    }
    let new = before
        .changes(after)
        .filter_map(|(_, is)| is)
        .filter(|lease| plan.kinds().include(lease));
    let queries: BTreeSet<IpAddr> = new
        .flat_map(|lease| Peer::of(lease))
        .map(|peer| peer.public_ip)
        .collect();
    queries.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{LinkName, Mac};
    use crate::plan::Announced;
    use crate::scope::Scope;
    use crate::underlay::Underlay;
    use proptest::prelude::*;
    use subnet_lease::{Kinds, Lease, LeaseAttrs, Term};
    use types::{Addresses, Dual};

    /// A plan in which each address family of a lease needs a separate neighbour, and both families need the FDB entry of the
    /// lease's MAC. The last byte of the MAC is the last byte of the public address.
    struct Halves(Scope);

    impl Plan for Halves {
        fn scope(&self) -> &Scope {
            &self.0
        }

        fn kinds(&self) -> Kinds {
            Kinds::Any
        }

        fn base(&self, _: &Facts) -> KernelState {
            KernelState(BTreeMap::from([(
                Key::Address(LinkName::default(), "10.244.1.0/32".parse().unwrap()),
                Value::Address,
            )]))
        }

        fn of_peer(&self, peer: &Peer<'_>, _: &Facts) -> Vec<(Key, Value)> {
            let [.., last] = peer.lease.attrs.public_ip.unwrap().octets();
            let mac = Mac([2, 0, 0, 0, 0, last]);
            let fdb = (
                Key::Fdb(LinkName::default(), mac),
                Value::Fdb([192, 0, 2, last].into()),
            );
            vec![
                fdb,
                (
                    Key::Neighbor(LinkName::default(), peer.subnet.network()),
                    Value::Neighbor(mac),
                ),
            ]
        }

        fn announced(&self, _: &Facts) -> Announced {
            Announced {
                backend: "x".into(),
                data: None,
                v6_data: None,
                mtu: 1450,
            }
        }
    }

    proptest! {
        #[test]
        fn state_in_one_go_is_the_state_peer_by_peer(peers in proptest::collection::btree_map(2u8..20, (2u8..40, 0i64..4, any::<bool>()), 0..12)) {
            let networks = Dual::Both("10.244.0.0/16".parse().unwrap(), "fd00::/48".parse().unwrap());
            let plan = Halves(Scope { links: Vec::new(), networks, own: networks, former: None, protocol: 241, checksum_offload: false });
            let lease = |(n, (mac, since, both)): (&u8, &(u8, i64, bool))| {
                let (v4, v6) = (format!("10.244.{n}.0/24").parse().unwrap(), format!("fd00:0:0:{n}::/64").parse().unwrap());
                let public_ipv6 = both.then(|| "2001:db8::1".parse().unwrap());
                let attrs = LeaseAttrs { public_ip: Some([192, 0, 2, *mac].into()), public_ipv6, ..LeaseAttrs::default() };
                Lease { subnets: if *both { Dual::Both(v4, v6) } else { Dual::V4(v4) }, attrs, term: Term::Leased, since: *since }
            };
            let leases: Vec<Lease> = peers.iter().map(lease).collect();
            let mut all: Vec<Peer<'_>> = leases.iter().flat_map(Peer::of).collect();
            all.sort_by_key(|peer| (peer.lease.since, peer.lease.subnets, peer.subnet));
            let addresses = Addresses::V4([192, 0, 2, 1].into());
            let underlay = Underlay { index: 2, name: "eth0".into(), mtu: 1500, addresses, public: addresses, local: Vec::new(), links: Vec::new() };
            let facts = Facts { underlay, on_link: BTreeSet::new(), accepted_macs: BTreeMap::new() };

            let by_age = Desired::by_age(&plan, &all, &facts);
            let macs: BTreeSet<_> = peers.values().map(|(mac, ..)| mac).collect();
            let at_once = undisputed(&plan, &all, &facts).map(|state| Desired { state, shared: BTreeSet::new() });
            prop_assert_eq!(at_once, (macs.len() == peers.len()).then_some(by_age));
        }
    }
}
