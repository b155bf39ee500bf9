//! The desired kernel state, computed from all leases or from a change of some. Both lead to the same state.

use crate::kernel::Facts;
use crate::object::{KernelState, Key, Value};
use crate::peers::{Eligible, peers};
use crate::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use subnet_lease::{LeaseTable, Peer};

/// The desired kernel state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The objects.
    pub state: KernelState,
    /// Objects that more than one peer needs. They do not follow from one lease alone.
    shared: BTreeSet<Key>,
}

/// A change of the desired state that follows from changed leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The previous objects.
    pub before: KernelState,
    /// The new objects.
    pub after: KernelState,
}

impl Desired {
    /// Computes the state from all leases. If peers need different content for the same object, the oldest lease wins and the others are skipped.
    pub fn whole<P: Plan + ?Sized>(plan: &P, leases: &LeaseTable, facts: &Facts) -> Self {
        let mut desired = Self { state: plan.base(facts), shared: BTreeSet::new() };
        let mut all: Vec<Peer<'_>> = peers(plan, leases, &facts.underlay).collect();
        all.sort_by_key(|peer| (peer.lease.since, peer.lease.subnets, peer.subnet));
        // Both families of a lease may need the same object. They follow each other.
        let mut last: (Option<&Peer<'_>>, Vec<Key>) = (None, Vec::new());
        for peer in &all {
            let objects = plan.of_peer(peer, facts);
            let keys: Vec<Key> = objects.iter().map(|(key, _)| *key).collect();
            let halves = last.0.is_some_and(|last| std::ptr::eq(last.lease, peer.lease));
            desired.add(objects, if halves { &last.1 } else { &[] });
            last = (Some(peer), keys);
        }
        drop(all);
        desired.state.pack();
        desired
    }

    /// Adds the objects of a peer. `own` are those of the same lease's other family.
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

    /// Computes the change that follows from changed leases alone. None if other leases affect it.
    pub fn change<P: Plan + ?Sized>(&self, plan: &P, before: &LeaseTable, after: &LeaseTable, facts: &Facts) -> Option<Change> {
        let eligible = Eligible::new(plan, &facts.underlay);
        let mut change = Change::default();
        let mut wanted = BTreeMap::new();
        for (was, is) in before.changes(after) {
            for (lease, objects) in [(was, &mut change.before.0), (is, &mut wanted)] {
                let counts = lease.filter(|lease| lease.subnets != *plan.own() && plan.kinds().include(lease));
                let mut own = Vec::new();
                for peer in counts.into_iter().flat_map(|lease| Peer::of(lease)).filter(|peer| eligible.admits(peer)) {
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
        let alone = change.before.0.iter().all(|(key, value)| !self.shared.contains(key) && self.state.0.get(key) == Some(value));
        let free = wanted.keys().all(|key| change.before.0.contains_key(key) || !self.state.0.contains_key(key));
        change.after = KernelState(wanted);
        (alone && free).then_some(change)
    }

    /// Applies a change.
    pub fn take(&mut self, change: Change) {
        for key in change.before.0.keys() {
            self.state.0.remove(key);
        }
        self.state.0.extend(change.after.0);
    }
}

/// The addresses for which the plan needs to know whether they are on-link.
pub fn on_link_queries<P: Plan + ?Sized>(plan: &P, leases: &LeaseTable) -> Vec<IpAddr> {
    if !plan.needs_on_link() {
        return Vec::new();
    }
    let queries: BTreeSet<IpAddr> = leases.peers(plan.own(), plan.kinds()).map(|peer| peer.public_ip).collect();
    queries.into_iter().collect()
}

/// The addresses of changed leases for which the plan needs to know whether they are on-link.
pub fn new_on_link_queries<P: Plan + ?Sized>(plan: &P, before: &LeaseTable, after: &LeaseTable) -> Vec<IpAddr> {
    if !plan.needs_on_link() {
        return Vec::new();
    }
    let new = before.changes(after).filter_map(|(_, is)| is).filter(|lease| plan.kinds().include(lease));
    let queries: BTreeSet<IpAddr> = new.flat_map(|lease| Peer::of(lease)).map(|peer| peer.public_ip).collect();
    queries.into_iter().collect()
}
