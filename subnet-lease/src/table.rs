//! Table of leases, which only this module updates from lease events, and the peers derived from the table.

use crate::lease::{Lease, RawJson};
use ipnet::IpNet;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use types::Subnets;

/// A change in the set of leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// Complete list of leases, which a watch delivers at the start and after a gap.
    Reset {
        /// Every readable lease.
        leases: Vec<Lease>,
        /// Subnets whose key exists but whose value is unreadable.
        unreadable: BTreeSet<Subnets>,
    },
    /// Creation or change of a lease.
    Put(Lease),
    /// Key that exists but has an unreadable value.
    Unreadable(Subnets),
    /// Lease that no longer exists.
    Delete(Subnets),
    /// Interruption of the watch, which may miss changes.
    Interrupted,
    /// Resumption of the watch at its last version, without missed changes.
    Resumed,
}

/// All leases by subnet. If a key becomes unreadable, the table keeps the last readable lease of the key.
///
/// Tables share their leases, because the tables of raw, admitted and published leases mostly contain the same leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseTable {
    leases: BTreeMap<Subnets, Arc<Lease>>,
    unreadable: BTreeSet<Subnets>,
    barred: BTreeSet<Subnets>,
}

/// Selects leases by backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Only the leases of the backend with the given wire name.
    Only(&'static str),
    /// The leases of all backends.
    Any,
}

impl Kinds {
    /// Returns whether the selection includes the given lease.
    pub fn include(self, lease: &Lease) -> bool {
        match self {
            Kinds::Only(kind) => lease.attrs.backend == kind,
            Kinds::Any => true,
        }
    }
}

/// One address family of another node's lease. A dual-stack lease yields two peers.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// The peer's subnet.
    pub subnet: IpNet,
    /// Public address of the peer, of the same family as the subnet.
    pub public_ip: IpAddr,
    /// The backend's data for the peer's address family.
    pub data: Option<&'a RawJson>,
    /// The whole lease.
    pub lease: &'a Lease,
}

impl LeaseTable {
    /// Applies one event. The function returns true if the table changed.
    pub fn apply(&mut self, event: LeaseEvent) -> bool {
        match event {
            LeaseEvent::Reset { leases, unreadable } => {
                let mut next: BTreeMap<Subnets, Arc<Lease>> =
                    leases.into_iter().map(|lease| (lease.subnets, self.shared(lease))).collect();
                for subnets in &unreadable {
                    if let Some(last_good) = self.leases.get(subnets) {
                        next.entry(*subnets).or_insert_with(|| last_good.clone());
                    }
                }
                let blank =
                    unreadable.into_iter().filter(|subnets| !next.contains_key(subnets)).collect();
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

    /// Returns the table's existing lease if the existing lease equals the new lease.
    fn shared(&self, lease: Lease) -> Arc<Lease> {
        match self.leases.get(&lease.subnets) {
            Some(present) if **present == lease => present.clone(),
            _ => Arc::new(lease),
        }
    }

    /// Creates a table of the given leases. If two leases have the same subnets, the table keeps the later lease.
    pub fn of<L: Into<Arc<Lease>>>(
        leases: impl IntoIterator<Item = L>,
        unreadable: BTreeSet<Subnets>,
    ) -> Self {
        let leases: BTreeMap<Subnets, Arc<Lease>> =
            leases.into_iter().map(Into::into).map(|lease| (lease.subnets, lease)).collect();
        let unreadable =
            unreadable.into_iter().filter(|subnets| !leases.contains_key(subnets)).collect();
        Self { leases, unreadable, barred: BTreeSet::new() }
    }

    /// Sets the subnets to which this node must send no packets, because another node has the MAC or key of their leases.
    #[cfg(feature = "managers")]
    #[must_use]
    pub(crate) fn barring(self, barred: BTreeSet<Subnets>) -> Self {
        Self { barred, ..self }
    }

    /// Returns the differences between this table and a later table, in order of the subnets, as pairs of the former and the new lease.
    pub fn changes<'a>(
        &'a self,
        later: &'a Self,
    ) -> impl Iterator<Item = (Option<&'a Arc<Lease>>, Option<&'a Arc<Lease>>)> {
        let (mut old, mut new) = (self.leases.iter().peekable(), later.leases.iter().peekable());
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
                // Successive tables share most of their leases.
                if !was.zip(is).is_some_and(|(was, is)| Arc::ptr_eq(was, is) || was == is) {
                    return Some((was, is));
                }
            }
        })
    }

    /// Returns the shared leases in order of their subnets.
    pub fn shared_leases(&self) -> impl Iterator<Item = &Arc<Lease>> {
        self.leases.values()
    }

    /// Returns the shared lease with the given subnets.
    #[cfg(feature = "managers")]
    pub(crate) fn shared_lease(&self, subnets: &Subnets) -> Option<&Arc<Lease>> {
        self.leases.get(subnets)
    }

    /// Replaces or removes the lease with the given subnets.
    #[cfg(feature = "managers")]
    pub(crate) fn set(&mut self, subnets: &Subnets, lease: Option<&Arc<Lease>>) {
        match lease {
            Some(lease) => self.leases.insert(*subnets, lease.clone()),
            None => self.leases.remove(subnets),
        };
    }

    /// Returns the lease with the given subnets.
    pub fn get(&self, subnets: &Subnets) -> Option<&Lease> {
        self.leases.get(subnets).map(Arc::as_ref)
    }

    /// Returns all leases in order of their subnets.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values().map(Arc::as_ref)
    }

    /// Returns the number of leases.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Returns whether the table contains no lease.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Returns the subnets whose key exists but was never readable. flanneld keeps the kernel objects of these subnets.
    pub fn unreadable(&self) -> &BTreeSet<Subnets> {
        &self.unreadable
    }

    /// Returns the subnets to which this node must send no packets, not even by the default route.
    pub fn barred(&self) -> &BTreeSet<Subnets> {
        &self.barred
    }

    /// Returns the leases of the other nodes that the selection `kinds` includes.
    pub fn others(&self, own: &Subnets, kinds: Kinds) -> impl Iterator<Item = &Lease> {
        let own = *own;
        self.iter().filter(move |lease| lease.subnets != own && kinds.include(lease))
    }

    /// Returns the other nodes' leases, one entry per family. A family without a public address yields no entry.
    pub fn peers(&self, own: &Subnets, kinds: Kinds) -> impl Iterator<Item = Peer<'_>> {
        self.others(own, kinds).flat_map(Peer::of)
    }
}

impl<'a> Peer<'a> {
    /// Returns one peer for each family of a lease that has a public address of that family.
    pub fn of(lease: &'a Lease) -> impl Iterator<Item = Peer<'a>> {
        let v4 = lease.subnets.v4().zip(lease.attrs.public_ip).map(|(subnet, public)| Peer {
            subnet: IpNet::V4(*subnet),
            public_ip: IpAddr::V4(public),
            data: lease.attrs.data.as_ref(),
            lease,
        });
        let v6 = lease.subnets.v6().zip(lease.attrs.public_ipv6).map(|(subnet, public)| Peer {
            subnet: IpNet::V6(*subnet),
            public_ip: IpAddr::V6(public),
            data: lease.attrs.v6_data.as_ref(),
            lease,
        });
        v4.into_iter().chain(v6)
    }
}

/// Returns whether the subnets lie in the given networks. The function ignores a subnet whose address family the networks lack.
pub fn inside(subnets: &Subnets, networks: &Subnets) -> bool {
    let v4 = subnets.v4().zip(networks.v4()).map(|(subnet, network)| network.contains(subnet));
    let v6 = subnets.v6().zip(networks.v6()).map(|(subnet, network)| network.contains(subnet));
    v4.or(v6).is_some() && v4.unwrap_or(true) && v6.unwrap_or(true)
}
