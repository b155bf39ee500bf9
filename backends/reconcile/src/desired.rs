//! The desired kernel state, computed from all leases or from a change of some leases. Both give
//! the same state.

use crate::plan::{Plan, admits_peer, peers_by_age};
use netstate::{Facts, KernelState, Key, Value};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use subnet_lease::{Lease, LeaseTable, Peer};

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
        let all = peers_by_age(plan, leases, facts);
        match undisputed(plan, &all, facts) {
            Some(state) => Self { state, shared: BTreeSet::new() },
            None => Self::by_age(plan, &all, facts),
        }
    }

    /// `all` begins with the peers of the oldest lease.
    fn by_age(plan: &dyn Plan, all: &[Peer<'_>], facts: &Facts) -> Self {
        let mut desired = Self { state: plan.base(facts), shared: BTreeSet::new() };
        for peers in all.chunk_by(have_same_lease) {
            // Both families of a lease may need the same object.
            let mut own = Vec::new();
            for peer in peers {
                let objects = plan.of_peer(peer, facts);
                let keys = objects.iter().map(|(key, _)| *key).collect();
                desired.add(objects, &own);
                own = keys;
            }
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
        let mut change = Change::default();
        for (was, is) in before.changes(after) {
            for (lease, objects) in [(was, &mut change.before.0), (is, &mut change.after.0)] {
                let peers: Vec<Peer<'_>> = peers_of_lease(plan, lease)
                    .filter(|peer| admits_peer(plan, &facts.underlay, peer))
                    .collect();
                let mut own = Vec::new();
                add_objects(&mut own, plan, &peers, facts);
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
        let free = change
            .after
            .0
            .keys()
            .all(|key| change.before.0.contains_key(key) || !self.state.0.contains_key(key));
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
    for peers in all.chunk_by(have_same_lease) {
        add_objects(&mut objects, plan, peers, facts);
    }
    objects.sort_unstable_by_key(|(key, _)| *key);
    objects
        .is_sorted_by(|(one, _), (next, _)| one < next)
        .then(|| KernelState(objects.into_iter().collect()))
}

fn have_same_lease(one: &Peer<'_>, other: &Peer<'_>) -> bool {
    std::ptr::eq(one.lease, other.lease)
}

/// Adds the objects of the peers of one lease. Both families may need the same object.
fn add_objects(
    objects: &mut Vec<(Key, Value)>,
    plan: &dyn Plan,
    peers: &[Peer<'_>],
    facts: &Facts,
) {
    let first = objects.len();
    for object in peers.iter().flat_map(|peer| plan.of_peer(peer, facts)) {
        if !objects.iter().skip(first).any(|present| *present == object) {
            objects.push(object);
        }
    }
}

/// Empty if the lease is this node's or of another kind.
fn peers_of_lease<'a>(
    plan: &dyn Plan,
    lease: Option<&'a Arc<Lease>>,
) -> impl Iterator<Item = Peer<'a>> + use<'a> {
    let (own, kinds) = (plan.scope().own, plan.kinds());
    lease
        .filter(|lease| lease.subnets != own && kinds.include(lease))
        .into_iter()
        .flat_map(|lease| Peer::of(lease))
}

/// The public addresses of peers with changed leases, if the plan needs to know which of them are
/// on-link.
pub fn on_link_queries(plan: &dyn Plan, before: &LeaseTable, after: &LeaseTable) -> Vec<IpAddr> {
    if !plan.needs_on_link() {
        return Vec::new();
    }
    let queries: BTreeSet<IpAddr> = before
        .changes(after)
        .flat_map(|(_, is)| peers_of_lease(plan, is))
        .map(|peer| peer.public_ip)
        .collect();
    queries.into_iter().collect()
}
