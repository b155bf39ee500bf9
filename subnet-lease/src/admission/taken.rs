//! What leases in force hold: subnets, the addresses of nodes, MACs and keys; for fast look-ups of who else does.

use crate::dual::{Subnets, nets_overlap};
use crate::json::Object;
use crate::lease::{Lease, RawJson};
use ipnet::IpNet;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Subnets that are let and overlap nobody.
#[derive(Debug, Default)]
pub(crate) struct Ground(BTreeMap<IpAddr, IpNet>);

impl Ground {
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

    /// Lets these.
    pub(crate) fn take(&mut self, subnets: &Subnets) {
        for net in subnets.nets() {
            self.0.insert(net.network(), net);
        }
    }

    /// They are free again.
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

/// MACs and keys in use: one forwarding entry holds one destination.
#[derive(Debug, Default)]
pub(super) struct Hardware(HashMap<(bool, String), User>);

/// Who uses a MAC or a key.
#[derive(Clone, Copy, Debug)]
enum User {
    /// This node.
    Ours,
    /// The node at that address, in so many leases.
    Node(IpAddr, u32),
}

impl Hardware {
    pub(super) fn of(own: Option<&Lease>) -> Self {
        let mut known = HashMap::new();
        for (ipv6, data) in own.into_iter().flat_map(|own| [(false, &own.attrs.data), (true, &own.attrs.v6_data)]) {
            if let Some(id) = data.as_ref().and_then(hardware_id) {
                known.insert((ipv6, id), User::Ours);
            }
        }
        Self(known)
    }

    pub(super) fn take(&mut self, lease: &Lease) -> Result<(), String> {
        let ids: Vec<_> = ids(lease).collect();
        for (id, public) in &ids {
            match self.0.get(id) {
                None => {}
                Some(User::Node(known, _)) if Some(*known) == *public => {}
                Some(User::Node(known, _)) => return Err(format!("{} is used by the node at {known} already", id.1)),
                Some(User::Ours) => return Err(format!("{} is this node's own", id.1)),
            }
        }
        for (id, public) in ids {
            if let Some(public) = public
                && let User::Node(_, times) = self.0.entry(id).or_insert(User::Node(public, 0))
            {
                *times += 1;
            }
        }
        Ok(())
    }

    /// What a lease took is free again.
    pub(super) fn free(&mut self, lease: &Lease) {
        for (id, _) in ids(lease).filter(|(_, public)| public.is_some()) {
            if let Some(User::Node(_, times)) = self.0.get_mut(&id) {
                *times = times.saturating_sub(1);
                if *times == 0 {
                    self.0.remove(&id);
                }
            }
        }
    }
}

/// The MACs or keys of a lease, by family, each with the address of its node in that family.
fn ids(lease: &Lease) -> impl Iterator<Item = ((bool, String), Option<IpAddr>)> {
    let halves = [(false, &lease.attrs.data), (true, &lease.attrs.v6_data)];
    halves.into_iter().filter_map(|(ipv6, data)| Some(((ipv6, hardware_id(data.as_ref()?)?), lease.attrs.public_for(ipv6))))
}

fn hardware_id(data: &RawJson) -> Option<String> {
    // As everybody writes it; ten thousand are looked at for every change.
    const MAC: &str = "\"VtepMAC\":\"";
    if let Some(at) = data.as_str().find(MAC)
        && let Some(mac) = data.as_str().get(at + MAC.len()..at + MAC.len() + 17)
        && mac.bytes().all(|byte| byte == b':' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    {
        return Some(mac.to_owned());
    }
    let object = Object::parse(data.as_str()).ok()?;
    let text = ["VtepMAC", "PublicKey"].iter().find_map(|name| object.read::<String>(name).ok().flatten())?;
    Some(if text.contains([':', '-']) { text.to_ascii_lowercase().replace('-', ":") } else { text })
}
