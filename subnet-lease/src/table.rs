//! Table of leases, which only this module updates from lease events, and the peers derived from it.

use crate::lease::{Lease, RawJson};
use ipnet::IpNet;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use types::Subnets;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// A watch delivers it at the start and after a gap.
    Reset {
        leases: Vec<Lease>,
        /// Subnets whose key exists but whose value is unreadable.
        unreadable: BTreeSet<Subnets>,
    },
    /// Creation or change.
    Put(Lease),
    /// The key exists, but its value is unreadable.
    Unreadable(Subnets),
    Delete(Subnets),
    /// The watch may miss changes from now on.
    Interrupted,
    /// The watch resumed at its last version, without missed changes.
    Resumed,
}

/// If a key becomes unreadable, the table keeps its last readable lease.
///
/// Tables share their leases, because the tables of raw, admitted and published leases mostly contain the same ones.
///
/// ```
/// use subnet_lease::{Kinds, Lease, LeaseAttrs, LeaseEvent, LeaseTable, Term};
/// use types::Subnets;
///
/// let own = Subnets::V4("10.244.1.0/24".parse()?);
/// let lease = Lease {
///     subnets: Subnets::V4("10.244.2.0/24".parse()?),
///     attrs: LeaseAttrs { public_ip: Some("192.0.2.2".parse()?), ..LeaseAttrs::default() },
///     term: Term::Leased,
///     since: 7,
/// };
/// let mut table = LeaseTable::default();
/// assert!(table.apply(LeaseEvent::Put(lease.clone())));
/// assert!(!table.apply(LeaseEvent::Put(lease)));
/// let peer = table.peers(&own, Kinds::Any).next().unwrap();
/// assert_eq!(peer.public_ip.to_string(), "192.0.2.2");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseTable {
    leases: BTreeMap<Subnets, Arc<Lease>>,
    unreadable: BTreeSet<Subnets>,
    barred: BTreeSet<Subnets>,
}

/// Selects leases by backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// By the backend's wire name.
    Only(&'static str),
    Any,
}

impl Kinds {
    #[must_use]
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
    pub subnet: IpNet,
    /// Of the same family as the subnet.
    pub public_ip: IpAddr,
    /// The backend's data for the peer's address family.
    pub data: Option<&'a RawJson>,
    /// With all its families.
    pub lease: &'a Lease,
}

impl LeaseTable {
    /// True if the table changed.
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

    /// The table's existing lease if it equals the new one.
    fn shared(&self, lease: Lease) -> Arc<Lease> {
        match self.leases.get(&lease.subnets) {
            Some(present) if **present == lease => present.clone(),
            _ => Arc::new(lease),
        }
    }

    /// Of two leases with the same subnets, keeps the later one.
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

    /// This node must send no packets to these subnets, because another node has the MAC or key of their leases.
    #[cfg(feature = "managers")]
    #[must_use]
    pub(crate) fn barring(self, barred: BTreeSet<Subnets>) -> Self {
        Self { barred, ..self }
    }

    /// In order of the subnets, as pairs of the former and the new lease.
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

    /// In order of their subnets.
    pub fn shared_leases(&self) -> impl Iterator<Item = &Arc<Lease>> {
        self.leases.values()
    }

    #[cfg(feature = "managers")]
    pub(crate) fn shared_lease(&self, subnets: &Subnets) -> Option<&Arc<Lease>> {
        self.leases.get(subnets)
    }

    /// `None` removes the lease.
    #[cfg(feature = "managers")]
    pub(crate) fn set(&mut self, subnets: &Subnets, lease: Option<&Arc<Lease>>) {
        match lease {
            Some(lease) => self.leases.insert(*subnets, lease.clone()),
            None => self.leases.remove(subnets),
        };
    }

    pub fn get(&self, subnets: &Subnets) -> Option<&Lease> {
        self.leases.get(subnets).map(Arc::as_ref)
    }

    /// In order of their subnets.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values().map(Arc::as_ref)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Subnets whose key exists but was never readable. flanneld keeps their kernel objects.
    #[must_use]
    pub fn unreadable(&self) -> &BTreeSet<Subnets> {
        &self.unreadable
    }

    /// This node must send no packets to them, not even by the default route.
    #[must_use]
    pub fn barred(&self) -> &BTreeSet<Subnets> {
        &self.barred
    }

    pub fn others(&self, own: &Subnets, kinds: Kinds) -> impl Iterator<Item = &Lease> {
        let own = *own;
        self.iter().filter(move |lease| lease.subnets != own && kinds.include(lease))
    }

    /// One entry per family. A family without a public address yields none.
    pub fn peers(&self, own: &Subnets, kinds: Kinds) -> impl Iterator<Item = Peer<'_>> {
        self.others(own, kinds).flat_map(Peer::of)
    }
}

impl<'a> Peer<'a> {
    /// One for each family of which the lease has a public address.
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

/// Ignores a subnet whose address family the networks lack.
#[must_use]
pub fn inside(subnets: &Subnets, networks: &Subnets) -> bool {
    let v4 = subnets.v4().zip(networks.v4()).map(|(subnet, network)| network.contains(subnet));
    let v6 = subnets.v6().zip(networks.v6()).map(|(subnet, network)| network.contains(subnet));
    v4.or(v6).is_some() && v4.unwrap_or(true) && v6.unwrap_or(true)
}
