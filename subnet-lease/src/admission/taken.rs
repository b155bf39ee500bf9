//! Subnets, node addresses and backend identities that leases in force use, indexed for fast look-ups of conflicts.

use super::error::UnusedLeaseError;
use super::terms::Terms;
use crate::json::excerpt;
use crate::lease::{Lease, PeerRules};
use crate::table::LeaseTable;
use ipnet::IpNet;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use types::{Addresses, Family, Subnets, nets_overlap};

/// Subnets in use, without overlaps.
#[derive(Debug, Default)]
pub(crate) struct UsedSubnets(BTreeMap<IpAddr, IpNet>);

impl UsedSubnets {
    /// A subnet in use that overlaps one of the given subnets.
    pub(crate) fn taken(&self, subnets: &Subnets) -> Option<IpNet> {
        subnets.nets().find_map(|net| {
            let before = self.0.range(..=net.network()).next_back();
            let after = self.0.range(net.network()..).next();
            before
                .into_iter()
                .chain(after)
                .map(|(_, taken)| *taken)
                .find(|taken| nets_overlap(taken, &net))
        })
    }

    pub(super) fn holds(&self, address: IpAddr) -> Option<IpNet> {
        self.0
            .range(..=address)
            .next_back()
            .map(|(_, net)| *net)
            .filter(|net| net.contains(&address))
    }

    pub(crate) fn take(&mut self, subnets: &Subnets) {
        for net in subnets.nets() {
            self.0.insert(net.network(), net);
        }
    }

    /// Rebuilds the map to save memory, because the tree nodes of a map that grew by single insertions are half empty.
    pub(super) fn pack(&mut self) {
        self.0 = std::mem::take(&mut self.0).into_iter().collect();
    }

    pub(super) fn free(&mut self, subnets: &Subnets) {
        for net in subnets.nets() {
            self.0.remove(&net.network());
        }
    }
}

/// Each has the number of leases that publish it, and one of these leases.
#[derive(Debug, Default)]
pub(super) struct Nodes(BTreeMap<IpAddr, (Arc<Lease>, u32)>);

impl Nodes {
    pub(super) fn take(&mut self, lease: &Arc<Lease>) {
        for address in lease.attrs.addresses() {
            let (last, times) = self.0.entry(address).or_insert_with(|| (lease.clone(), 0));
            (*last, *times) = (lease.clone(), *times + 1);
        }
    }

    /// See [`UsedSubnets::pack`].
    pub(super) fn pack(&mut self) {
        self.0 = std::mem::take(&mut self.0).into_iter().collect();
    }

    pub(super) fn free(&mut self, lease: &Lease) {
        for address in lease.attrs.addresses() {
            if let Entry::Occupied(mut entry) = self.0.entry(address) {
                let (_, times) = entry.get_mut();
                *times = times.saturating_sub(1);
                if *times == 0 {
                    entry.remove();
                }
            }
        }
    }

    /// A node's address that lies in one of the subnets, and the subnets of the node's lease.
    pub(super) fn inside(&self, subnets: &Subnets) -> Option<(IpAddr, Subnets)> {
        subnets.nets().find_map(|net| {
            self.0
                .range(net.network()..=net.broadcast())
                .next()
                .map(|(address, (lease, _))| (*address, lease.subnets))
        })
    }
}

/// MACs or keys of both address families, by which the backend identifies nodes. Two nodes must not use the same one.
pub(super) struct Identities {
    rules: Arc<dyn PeerRules>,
    used: HashMap<Box<str>, User>,
}

/// A MAC or a key that is in use.
#[derive(Clone, Debug)]
pub(super) struct TakenError {
    identity: String,
    by: User,
}

impl TakenError {
    pub(super) fn why(&self, lease: &Lease, terms: &Terms) -> UnusedLeaseError {
        let identity = excerpt(&self.identity);
        match &self.by {
            User::Node(other, _) => {
                UnusedLeaseError::SameIdentity { identity, at: other.attrs.addresses().next() }
            }
            User::Ours => {
                // A lease that this node had before does not belong to another node.
                let other = |own: &Lease| {
                    Place::of(own).node != Place::of(lease).node || Place::of(own).node.is_none()
                };
                let older = terms.own.as_ref().is_some_and(|own| {
                    other(own) && (lease.since, lease.subnets) < (own.since, own.subnets)
                });
                UnusedLeaseError::OwnIdentity { identity, older }
            }
        }
    }
}

impl TakenError {
    /// True for a lease that this node had before and that has not expired yet.
    pub(super) fn is_former(&self, lease: &Lease, terms: &Terms) -> bool {
        let own = terms.own.as_ref().and_then(|own| Place::of(own).node);
        matches!(self.by, User::Ours) && own.is_some() && own == Place::of(lease).node
    }
}

/// Who uses a MAC or a key.
#[derive(Clone, Debug)]
enum User {
    Ours,
    /// One of the node's leases, and the number of its leases that contain the MAC or the key.
    Node(Arc<Lease>, u32),
}

/// Addresses of a node, and the hash of its id, if its lease contains one.
#[derive(Clone, Copy, Debug)]
struct Place {
    node: Option<NonZeroU64>,
    addresses: Option<Addresses>,
}

impl Place {
    fn of(lease: &Lease) -> Self {
        let number = |id: &str| {
            NonZeroU64::new(BuildHasherDefault::<DefaultHasher>::default().hash_one(id))
                .unwrap_or(NonZeroU64::MIN)
        };
        Self {
            node: lease.attrs.node.as_ref().map(|node| number(&node.id)),
            addresses: lease.attrs.public(),
        }
    }

    /// One node's leases share a family and publish equal addresses in every common family. If both have a node id, the ids are equal.
    fn is(self, other: Self) -> bool {
        let both = self.addresses.zip(other.addresses);
        let pairs = || {
            both.iter().flat_map(|(a, b)| {
                Family::ALL.into_iter().filter_map(|family| a.of(family).zip(b.of(family)))
            })
        };
        let differs = self.node.zip(other.node).is_some_and(|(a, b)| a != b);
        !differs && pairs().next().is_some() && pairs().all(|(a, b)| a == b)
    }
}

impl Identities {
    /// Begins with this node's own identities.
    pub(super) fn of(terms: &Terms) -> Self {
        let mut ours = Self { rules: terms.rules.clone(), used: HashMap::new() };
        let used = terms
            .own
            .iter()
            .flat_map(|own| identities(&*ours.rules, own))
            .map(|(identity, _)| (identity.into(), User::Ours));
        ours.used = used.collect();
        ours
    }

    /// Gives each identity to one of the leases that claim it. `claims` begins with the oldest lease, and has the subnets for which the node uses
    /// each lease. A lease that loses one of its identities has no other either.
    pub(super) fn assign(
        &mut self,
        claims: &[(&Arc<Lease>, Subnets)],
        before: &LeaseTable,
        terms: &Terms,
    ) {
        let mut rest: Vec<Claimant> = claims
            .iter()
            .enumerate()
            .map(|(age, (lease, subnets))| self.claimant(age, lease, subnets, before, terms))
            .collect();
        /// Rounds of the decision. Only leases that somebody made for it need more, and would cost a round for each lease.
        const ROUNDS: usize = 8;
        for round in 0.. {
            let mut best: HashMap<&str, &Claimant> = HashMap::new();
            for (one, (identity, claim)) in
                rest.iter().flat_map(|one| one.claims.iter().map(move |claim| (one, claim)))
            {
                let first = best.entry(identity).or_insert(one);
                if first.claim(identity).is_some_and(|first| claim < first) {
                    *first = one;
                }
            }
            // A rival is another lease with a better claim; `None` is this node.
            let rivals = |one: &Claimant| -> Vec<Option<&Claimant>> {
                let rival = |(identity, _): &(String, Claim)| {
                    if self.used.contains_key(identity.as_str()) {
                        return Some(None);
                    }
                    let first = *best.get(identity.as_str())?;
                    (!first.place.is(one.place)).then_some(Some(first))
                };
                one.claims.iter().filter_map(rival).collect()
            };
            // Who loses only to leases that lose themselves may still win.
            let is_beaten = |one: &Claimant| {
                let wins = |rival: &Claimant| rivals(rival).is_empty();
                rivals(one).into_iter().any(|rival| rival.is_none_or(wins))
            };
            let beaten: Vec<bool> = rest.iter().map(is_beaten).collect();
            if round == ROUNDS || !beaten.contains(&true) {
                let owned: Vec<(Box<str>, User)> = best
                    .into_iter()
                    .map(|(identity, one)| (identity.into(), User::Node(one.lease.clone(), 1)))
                    .collect();
                for (identity, user) in owned {
                    self.used.entry(identity).or_insert(user);
                }
                return;
            }
            rest = rest
                .into_iter()
                .zip(beaten)
                .filter_map(|(one, beaten)| (!beaten).then_some(one))
                .collect();
        }
    }

    fn claimant<'a>(
        &self,
        age: usize,
        lease: &'a Arc<Lease>,
        subnets: &Subnets,
        before: &LeaseTable,
        terms: &Terms,
    ) -> Claimant<'a> {
        let rules = &*self.rules;
        let former = before.get(subnets).map(|former| identities(rules, former));
        let claim = |(identity, family): (String, Family)| {
            let derived = |node| rules.derived(node, family);
            let in_kernel = |net: IpNet| terms.history.kernel.get(&net) == Some(&identity);
            let claim = Claim {
                is_foreign: lease.attrs.node.as_ref().and_then(derived).as_ref() != Some(&identity),
                is_new: !former.iter().flatten().any(|(held, _)| *held == identity),
                is_new_in_kernel: !subnets.nets().any(in_kernel),
                age,
            };
            (identity, claim)
        };
        Claimant {
            lease,
            place: Place::of(lease),
            claims: identities(rules, lease).into_iter().map(claim).collect(),
        }
    }

    pub(super) fn check(&self, lease: &Lease) -> Result<(), TakenError> {
        let place = Place::of(lease);
        for (identity, _) in identities(&*self.rules, lease) {
            match self.used.get(identity.as_str()) {
                None => {}
                Some(User::Node(known, _)) if Place::of(known).is(place) => {}
                Some(user) => {
                    return Err(TakenError { identity, by: user.clone() });
                }
            }
        }
        Ok(())
    }

    /// False if one of them belongs to another node.
    pub(super) fn take(&mut self, lease: &Arc<Lease>) -> bool {
        if self.check(lease).is_err() {
            return false;
        }
        let user = || User::Node(lease.clone(), 0);
        for (identity, _) in identities(&*self.rules, lease) {
            if let User::Node(_, times) = self.used.entry(identity.into()).or_insert_with(user) {
                *times += 1;
            }
        }
        true
    }

    pub(super) fn free(&mut self, lease: &Lease) {
        for (identity, _) in identities(&*self.rules, lease) {
            if let Some(User::Node(_, times)) = self.used.get_mut(identity.as_str()) {
                *times = times.saturating_sub(1);
                if *times == 0 {
                    self.used.remove(identity.as_str());
                }
            }
        }
    }
}

struct Claimant<'a> {
    lease: &'a Arc<Lease>,
    place: Place,
    claims: Vec<(String, Claim)>,
}

impl Claimant<'_> {
    fn claim(&self, identity: &str) -> Option<&Claim> {
        let (_, claim) = self.claims.iter().find(|(own, _)| own == identity)?;
        Some(claim)
    }
}

/// How good a lease's claim to an identity is. The least claim wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    /// The id of the lease's node does not derive the identity.
    is_foreign: bool,
    /// The subnet did not have the identity in the leases in force before.
    is_new: bool,
    /// The subnet did not have the identity in the kernel when this run started.
    is_new_in_kernel: bool,
    /// Number of older leases.
    age: usize,
}

/// If both families have the same identity, the result contains it once.
pub(super) fn identities(rules: &dyn PeerRules, lease: &Lease) -> Vec<(String, Family)> {
    let mut identities: Vec<(String, Family)> = Family::ALL
        .into_iter()
        .filter_map(|family| Some((rules.identity(&lease.attrs, family)?, family)))
        .collect();
    identities.dedup_by(|a, b| a.0 == b.0);
    identities
}
