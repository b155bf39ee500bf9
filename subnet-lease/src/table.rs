//! The only fold of lease events into state, and the peers that are read out of it.

use crate::lease::{Lease, RawJson};
use ipnet::IpNet;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use types::Subnets;

/// A change of the set of leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// A complete list, at the start and after a discontinuity.
    Reset {
        /// Every readable lease.
        leases: Vec<Lease>,
        /// Subnets whose key exists, but whose value cannot be read.
        unreadable: BTreeSet<Subnets>,
    },
    /// A lease was created or changed.
    Put(Lease),
    /// A key exists, but its value cannot be read.
    Unreadable(Subnets),
    /// A lease is gone.
    Delete(Subnets),
    /// The watch is interrupted; changes are not seen.
    Interrupted,
    /// The watch has resumed where it stopped; nothing was missed.
    Resumed,
}

/// All leases, by subnet. A key that became unreadable keeps its last good value.
///
/// Leases are shared between tables: the raw ones, those in force and those published are mostly the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseTable {
    leases: BTreeMap<Subnets, Arc<Lease>>,
    unreadable: BTreeSet<Subnets>,
}

/// Which backends' leases count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Those of one backend, by its wire name.
    Only(&'static str),
    /// All.
    Any,
}

impl Kinds {
    /// Returns whether a lease of this backend is included.
    pub fn include(self, lease: &Lease) -> bool {
        match self {
            Kinds::Only(kind) => lease.attrs.backend == kind,
            Kinds::Any => true,
        }
    }
}

/// One family of one other node. A dual-stack lease yields two.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// The peer's subnet.
    pub subnet: IpNet,
    /// Public address of the peer, of the subnet's family.
    pub public_ip: IpAddr,
    /// The backend's data for this family.
    pub data: Option<&'a RawJson>,
    /// The whole lease.
    pub lease: &'a Lease,
}

impl LeaseTable {
    /// Applies one event; true when the table changed.
    pub fn apply(&mut self, event: LeaseEvent) -> bool {
        match event {
            LeaseEvent::Reset { leases, unreadable } => {
                let mut next: BTreeMap<Subnets, Arc<Lease>> = leases
                    .into_iter()
                    .map(|lease| (lease.subnets, self.shared(lease)))
                    .collect();
                for subnets in &unreadable {
                    if let Some(last_good) = self.leases.get(subnets) {
                        next.entry(*subnets).or_insert_with(|| last_good.clone());
                    }
                }
                let blank = unreadable
                    .into_iter()
                    .filter(|subnets| !next.contains_key(subnets))
                    .collect();
                let changed = next != self.leases || blank != self.unreadable;
                self.leases = next;
                self.unreadable = blank;
                changed
            }
            LeaseEvent::Put(lease) => {
                let was_blank = self.unreadable.remove(&lease.subnets);
                let same = self.get(&lease.subnets) == Some(&lease);
                if !same {
                    self.leases.insert(lease.subnets, Arc::new(lease));
                }
                was_blank || !same
            }
            LeaseEvent::Unreadable(subnets) => {
                !self.leases.contains_key(&subnets) && self.unreadable.insert(subnets)
            }
            LeaseEvent::Delete(subnets) => {
                let had = self.leases.remove(&subnets).is_some();
                self.unreadable.remove(&subnets) || had
            }
            LeaseEvent::Interrupted | LeaseEvent::Resumed => false,
        }
    }

    /// The lease that is there already, when it is the same.
    fn shared(&self, lease: Lease) -> Arc<Lease> {
        match self.leases.get(&lease.subnets) {
            Some(present) if **present == lease => present.clone(),
            _ => Arc::new(lease),
        }
    }

    /// A table of these leases; of two with one identity the later counts.
    pub fn of<L: Into<Arc<Lease>>>(
        leases: impl IntoIterator<Item = L>,
        unreadable: BTreeSet<Subnets>,
    ) -> Self {
        let leases: BTreeMap<Subnets, Arc<Lease>> = leases
            .into_iter()
            .map(Into::into)
            .map(|lease| (lease.subnets, lease))
            .collect();
        let unreadable = unreadable
            .into_iter()
            .filter(|subnets| !leases.contains_key(subnets))
            .collect();
        Self { leases, unreadable }
    }

    /// What differs between this table and a later one, in order of the subnets: the lease as it was, and as it is.
    pub fn changes<'a>(
        &'a self,
        later: &'a Self,
    ) -> impl Iterator<Item = (Option<&'a Arc<Lease>>, Option<&'a Arc<Lease>>)> {
        let (mut old, mut new) = (
            self.leases.iter().peekable(),
            later.leases.iter().peekable(),
        );
        std::iter::from_fn(move || {
            loop {
                let order = match (old.peek(), new.peek()) {
                    (None, None) => return None,
                    (Some(_), None) => Ordering::Less,
                    (None, Some(_)) => Ordering::Greater,
                    (Some((old, _)), Some((new, _))) => old.cmp(new),
                };
                let was = if order.is_le() { old.next() } else { None };
                let is = if order.is_ge() { new.next() } else { None };
                let (was, is) = (was.map(|(_, lease)| lease), is.map(|(_, lease)| lease));
                // Tables that follow each other share most of their leases.
                if !was
                    .zip(is)
                    .is_some_and(|(was, is)| Arc::ptr_eq(was, is) || was == is)
                {
                    return Some((was, is));
                }
            }
        })
    }

    /// The shared leases in order of their subnets.
    pub fn shared_leases(&self) -> impl Iterator<Item = &Arc<Lease>> {
        self.leases.values()
    }

    /// The shared lease of these subnets.
    #[cfg(feature = "managers")]
    pub(crate) fn shared_lease(&self, subnets: &Subnets) -> Option<&Arc<Lease>> {
        self.leases.get(subnets)
    }

    /// Puts another lease under these subnets, or none.
    #[cfg(feature = "managers")]
    pub(crate) fn set(&mut self, subnets: &Subnets, lease: Option<&Arc<Lease>>) {
        match lease {
            Some(lease) => self.leases.insert(*subnets, lease.clone()),
            None => self.leases.remove(subnets),
        };
    }

    /// The lease of these subnets.
    pub fn get(&self, subnets: &Subnets) -> Option<&Lease> {
        self.leases.get(subnets).map(Arc::as_ref)
    }

    /// All leases in order of their subnets.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values().map(Arc::as_ref)
    }

    /// How many leases there are.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there is no lease.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Subnets whose key exists and was never readable: their objects in the kernel stay.
    pub fn unreadable(&self) -> &BTreeSet<Subnets> {
        &self.unreadable
    }

    /// The other nodes' leases, a node at a time.
    pub fn others(&self, own: &Subnets, kinds: Kinds) -> impl Iterator<Item = &Lease> {
        let own = *own;
        self.iter()
            .filter(move |lease| lease.subnets != own && kinds.include(lease))
    }

    /// The other nodes' leases, a family at a time; a family without a public address yields nothing.
    pub fn peers(&self, own: &Subnets, kinds: Kinds) -> impl Iterator<Item = Peer<'_>> {
        self.others(own, kinds).flat_map(Peer::of)
    }
}

impl<'a> Peer<'a> {
    /// The families of a lease, each of which is reached at a public address of that family.
    pub fn of(lease: &'a Lease) -> impl Iterator<Item = Peer<'a>> {
        let v4 = lease
            .subnets
            .v4()
            .zip(lease.attrs.public_ip)
            .map(|(subnet, public)| Peer {
                subnet: IpNet::V4(*subnet),
                public_ip: IpAddr::V4(public),
                data: lease.attrs.data.as_ref(),
                lease,
            });
        let v6 = lease
            .subnets
            .v6()
            .zip(lease.attrs.public_ipv6)
            .map(|(subnet, public)| Peer {
                subnet: IpNet::V6(*subnet),
                public_ip: IpAddr::V6(public),
                data: lease.attrs.v6_data.as_ref(),
                lease,
            });
        v4.into_iter().chain(v6)
    }
}

/// Whether the subnets lie in the given networks; a half whose family the networks lack does not count.
pub fn inside(subnets: &Subnets, networks: &Subnets) -> bool {
    let v4 = subnets
        .v4()
        .zip(networks.v4())
        .map(|(subnet, network)| network.contains(subnet));
    let v6 = subnets
        .v6()
        .zip(networks.v6())
        .map(|(subnet, network)| network.contains(subnet));
    v4.or(v6).is_some() && v4.unwrap_or(true) && v6.unwrap_or(true)
}
