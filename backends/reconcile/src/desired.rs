//! The desired kernel state, computed from all leases or from a change of some leases. Both give
//! the same state.

use crate::plan::Plan;
use crate::plan::{Eligible, peers};
use netstate::kernel::Facts;
use netstate::object::{KernelState, Key, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use subnet_lease::{LeaseTable, Peer};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    pub state: KernelState,
    /// Keys of the objects that more than one peer needs, and that therefore depend on several
    /// leases.
    shared: BTreeSet<Key>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The affected objects before the change.
    pub before: KernelState,
    /// The affected objects after the change.
    pub after: KernelState,
}

impl Desired {
    /// If peers need different content for the same object, the oldest lease takes precedence, and
    /// the other peers are skipped.
    pub fn whole(plan: &dyn Plan, leases: &LeaseTable, facts: &Facts) -> Self {
        let mut all: Vec<Peer<'_>> = peers(plan, leases, &facts.underlay).collect();
        all.sort_by_key(|peer| (peer.lease.since, peer.lease.subnets, peer.subnet));
        match undisputed(plan, &all, facts) {
            Some(state) => Self { state, shared: BTreeSet::new() },
            None => Self::by_age(plan, &all, facts),
        }
    }

    /// `all` begins with the peers of the oldest lease.
    fn by_age(plan: &dyn Plan, all: &[Peer<'_>], facts: &Facts) -> Self {
        let mut desired = Self { state: plan.base(facts), shared: BTreeSet::new() };
        // Both families of a lease may need the same object. They are adjacent in `all`.
        let mut last: (Option<&Peer<'_>>, Vec<Key>) = (None, Vec::new());
        for peer in all {
            let objects = plan.of_peer(peer, facts);
            let keys: Vec<Key> = objects.iter().map(|(key, _)| *key).collect();
            let halves = last.0.is_some_and(|last| std::ptr::eq(last.lease, peer.lease));
            desired.add(objects, if halves { &last.1 } else { &[] });
            last = (Some(peer), keys);
        }
        desired
    }

    /// Adds nothing if the state already has different content for the key of one object. `own` are
    /// the keys that the lease's other address family needs.
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

    /// `None` if the change also depends on unchanged leases.
    pub fn change(
        &self,
        plan: &dyn Plan,
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

    /// `change` must come from [`Desired::change`] of this state.
    pub fn take(&mut self, change: Change) {
        for key in change.before.0.keys() {
            self.state.0.remove(key);
        }
        self.state.0.extend(change.after.0);
    }
}

/// The usual case, in which no two leases need the same object; `None` otherwise.
///
/// Builds the map in a single insertion. Separate insertions leave half-empty B-tree nodes, which
/// waste megabytes with thousands of peers.
fn undisputed(plan: &dyn Plan, all: &[Peer<'_>], facts: &Facts) -> Option<KernelState> {
    let mut objects: Vec<(Key, Value)> = plan.base(facts).0.into_iter().collect();
    objects.reserve_exact(3 * all.len());
    // Both families of a lease may need the same object. They are adjacent in `all`.
    let mut last: (Option<&Peer<'_>>, usize) = (None, 0);
    for peer in all {
        let other_half = if last.0.is_some_and(|last| std::ptr::eq(last.lease, peer.lease)) {
            last.1
        } else {
            objects.len()
        };
        last = (Some(peer), objects.len());
        for object in plan.of_peer(peer, facts) {
            if !objects.iter().skip(other_half).any(|present| *present == object) {
                objects.push(object);
            }
        }
    }
    objects.sort_unstable_by_key(|(key, _)| *key);
    objects
        .is_sorted_by(|(one, _), (next, _)| one < next)
        .then(|| KernelState(objects.into_iter().collect()))
}

/// The peers' public addresses, if the plan needs to know which of them are on-link.
pub fn on_link_queries(plan: &dyn Plan, leases: &LeaseTable) -> Vec<IpAddr> {
    if !plan.needs_on_link() {
        return Vec::new();
    }
    let queries: BTreeSet<IpAddr> =
        leases.peers(&plan.scope().own, plan.kinds()).map(|peer| peer.public_ip).collect();
    queries.into_iter().collect()
}

/// Like [`on_link_queries`], for changed leases alone.
pub fn new_on_link_queries(
    plan: &dyn Plan,
    before: &LeaseTable,
    after: &LeaseTable,
) -> Vec<IpAddr> {
    if !plan.needs_on_link() {
        return Vec::new();
    }
    let new =
        before.changes(after).filter_map(|(_, is)| is).filter(|lease| plan.kinds().include(lease));
    let queries: BTreeSet<IpAddr> =
        new.flat_map(|lease| Peer::of(lease)).map(|peer| peer.public_ip).collect();
    queries.into_iter().collect()
}
