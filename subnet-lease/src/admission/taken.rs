//! What leases in force use: subnets, the addresses of nodes, what identifies them to the backend; for fast look-ups of who else does.

use super::terms::{Identity, Reason, Terms};
use crate::dual::{Subnets, nets_overlap};
use crate::json::excerpt;
use crate::lease::Lease;
use ipnet::IpNet;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Subnets in use, which do not overlap.
#[derive(Debug, Default)]
pub(crate) struct UsedSubnets(BTreeMap<IpAddr, IpNet>);

impl UsedSubnets {
    /// A network that overlaps one of these.
    pub(crate) fn taken(&self, subnets: &Subnets) -> Option<IpNet> {
        subnets.nets().find_map(|net| {
            let before = self.0.range(..=net.network()).next_back();
            let after = self.0.range(net.network()..).next();
            before.into_iter().chain(after).map(|(_, taken)| *taken).find(|taken| nets_overlap(taken, &net))
        })
    }

    /// The one of these that holds an address.
    pub(super) fn holds(&self, address: IpAddr) -> Option<IpNet> {
        self.0.range(..=address).next_back().map(|(_, net)| *net).filter(|net| net.contains(&address))
    }

    /// Takes these.
    pub(crate) fn take(&mut self, subnets: &Subnets) {
        for net in subnets.nets() {
            self.0.insert(net.network(), net);
        }
    }

    /// Frees these.
    pub(super) fn free(&mut self, subnets: &Subnets) {
        for net in subnets.nets() {
            self.0.remove(&net.network());
        }
    }
}

/// The addresses of nodes, each with a lease that publishes it, and how many do.
#[derive(Debug, Default)]
pub(super) struct Nodes(BTreeMap<IpAddr, (Subnets, u32)>);

impl Nodes {
    pub(super) fn take(&mut self, lease: &Lease) {
        for address in addresses(lease) {
            let (last, times) = self.0.entry(address).or_insert((lease.subnets, 0));
            (*last, *times) = (lease.subnets, *times + 1);
        }
    }

    pub(super) fn free(&mut self, lease: &Lease) {
        for address in addresses(lease) {
            if let Entry::Occupied(mut entry) = self.0.entry(address) {
                let (_, times) = entry.get_mut();
                *times = times.saturating_sub(1);
                if *times == 0 {
                    entry.remove();
                }
            }
        }
    }

    /// A node whose address lies in one of these.
    pub(super) fn inside(&self, subnets: &Subnets) -> Option<(IpAddr, Subnets)> {
        subnets.nets().find_map(|net| self.0.range(net.network()..=net.broadcast()).next().map(|(address, (lease, _))| (*address, *lease)))
    }
}

/// The addresses at which a lease's node is reached.
pub(super) fn addresses(lease: &Lease) -> impl Iterator<Item = IpAddr> + use<> {
    [lease.attrs.public_for(false), lease.attrs.public_for(true)].into_iter().flatten()
}

/// What identifies nodes to the backend (MACs, keys), by family: each may be in use once.
pub(super) struct Identities {
    of: Identity,
    used: HashMap<(bool, String), User>,
}

/// A MAC or a key that is in use.
#[derive(Clone, Debug)]
pub(super) struct Used {
    identity: String,
    by: User,
}

impl Used {
    /// Why a lease with it is refused.
    pub(super) fn reason(&self, lease: &Lease, terms: &Terms) -> (Reason, String) {
        let identity = excerpt(&self.identity);
        match self.by {
            User::Node(known, _) => (Reason::SameIdentity, format!("{identity} is used by the node at {known} already")),
            User::Ours => {
                let older = terms.own.as_ref().is_some_and(|own| (lease.since, lease.subnets) < (own.since, own.subnets));
                let reason = if older { Reason::OurIdentity } else { Reason::SameIdentity };
                (reason, format!("{identity} is this node's own"))
            }
        }
    }
}

/// Who uses a MAC or a key.
#[derive(Clone, Copy, Debug)]
enum User {
    /// This node.
    Ours,
    /// The node at that address, in so many leases.
    Node(IpAddr, u32),
}

impl Identities {
    /// Ours alone are in use.
    pub(super) fn of(terms: &Terms) -> Self {
        let identity = |own: &Lease, ipv6| Some(((ipv6, (terms.identity)(&own.attrs, ipv6)?), User::Ours));
        let used = terms.own.iter().flat_map(|own| [identity(own, false), identity(own, true)]).flatten().collect();
        Self { of: terms.identity.clone(), used }
    }

    pub(super) fn take(&mut self, lease: &Lease) -> Result<(), Used> {
        let identities: Vec<_> = self.identities(lease).collect();
        for (identity, public) in &identities {
            match self.used.get(identity) {
                None => {}
                Some(User::Node(known, _)) if Some(*known) == *public => {}
                Some(user) => return Err(Used { identity: identity.1.clone(), by: *user }),
            }
        }
        for (identity, public) in identities {
            if let Some(public) = public
                && let User::Node(_, times) = self.used.entry(identity).or_insert(User::Node(public, 0))
            {
                *times += 1;
            }
        }
        Ok(())
    }

    /// Frees what a lease took.
    pub(super) fn free(&mut self, lease: &Lease) {
        let identities: Vec<_> = self.identities(lease).filter(|(_, public)| public.is_some()).collect();
        for (identity, _) in identities {
            if let Some(User::Node(_, times)) = self.used.get_mut(&identity) {
                *times = times.saturating_sub(1);
                if *times == 0 {
                    self.used.remove(&identity);
                }
            }
        }
    }

    /// Those of a lease, each with the address of its node in that family.
    fn identities<'a>(&'a self, lease: &'a Lease) -> impl Iterator<Item = ((bool, String), Option<IpAddr>)> + 'a {
        let half = |ipv6| Some(((ipv6, (self.of)(&lease.attrs, ipv6)?), lease.attrs.public_for(ipv6)));
        [false, true].into_iter().filter_map(half)
    }
}
