//! Decides at the start which lease belongs to this node, from the listed keys and the data about this host.

use super::error::{address_in_use, identity_in_use, reservation_outside_network};
use super::view::{Item, View};
use crate::config::NetworkConfig;
use crate::manager::Claim;
use crate::{alloc, table};
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Dual, Problem, Subnets};

/// Time after the last renewal during which other nodes treat the holder as alive. Holders renew their leases every 60 s.
pub const SILENCE: Duration = Duration::from_secs(180);

/// Time since each holder's last renewal, by key; `None` if the store does not know it.
pub type LastSeen = BTreeMap<String, Option<Duration>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The decision needs the time since the last renewal by the holder of this key.
    AskLastSeen(String),
    /// A key belongs to this node, which must write its attributes to it.
    Keep(Keep),
    /// The families of this node's key have changed. The node must move the lease from this key to these subnets.
    Reshape(String, Subnets),
    /// No key belongs to this node. It tries these subnets first.
    Allocate(Vec<Subnets>),
    /// E.g. because another live node has this node's address.
    Refuse(Problem),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    pub key: String,
    /// Whether the key's data (MAC, keys) also belongs to this node. It does not after a takeover from a node that is gone.
    pub ours: bool,
    /// Another instance had to defend the key. This instance waits to see whether the other one renews the lease.
    pub contested: bool,
}

#[must_use]
pub fn decide(
    claim: &Claim,
    config: &NetworkConfig,
    view: &View,
    last_seen: &LastSeen,
) -> Decision {
    match owner(claim, view, last_seen) {
        Owner::AskLastSeen(key) => Decision::AskLastSeen(key),
        Owner::Refuse(why) => Decision::Refuse(why),
        Owner::Nobody => Decision::Allocate(wishes(claim, config, view)),
        Owner::Ours(item, ours) => fate(claim, config, view, item, ours),
    }
}

enum Owner<'a> {
    Ours(&'a Item, bool),
    AskLastSeen(String),
    Refuse(Problem),
    Nobody,
}

fn owner<'a>(claim: &Claim, view: &'a View, last_seen: &LastSeen) -> Owner<'a> {
    let has_our_id = |item: &&Item| item.node().is_some_and(|node| node.id == claim.node.id);
    // A copy of the node's id moves nobody: one elsewhere comes after our address, and one without a time to live after our own lease.
    let by_id = view.items.iter().filter(has_our_id).min_by_key(|item| {
        (
            !named_here(claim, &item.subnets),
            !item.publishes(&claim.public),
            item.reserved(),
            item.entry.created,
        )
    });
    if let Some(item) = by_id {
        if evidence(claim, item) || item.publishes(&claim.public) {
            return Owner::Ours(item, true);
        }
        return match seen_lately(item, last_seen) {
            None => Owner::AskLastSeen(item.entry.key.clone()),
            Some(false) => Owner::Ours(item, true),
            Some(true) => Owner::Refuse(identity_in_use(claim, item)),
        };
    }
    if let Some(item) = named_but_unreadable(claim, view) {
        return Owner::Ours(item, true);
    }
    if claim.host.shared_address {
        return by_evidence(claim, view, last_seen);
    }
    // Whoever took a lease back is alive, at whatever address.
    let is_elsewhere =
        |item: &Item| claim.host.alone_at_address && item.node().is_some_and(|node| node.contested);
    let candidates =
        view.items.iter().filter(|item| item.publishes(&claim.public) && !is_elsewhere(item));
    let Some(item) = best(claim, candidates) else {
        return Owner::Nobody;
    };
    if evidence(claim, item) {
        return Owner::Ours(item, true);
    }
    if item.node().is_some() {
        return match seen_lately(item, last_seen) {
            _ if claim.host.alone_at_address => Owner::Ours(item, false),
            None => Owner::AskLastSeen(item.entry.key.clone()),
            Some(false) => Owner::Ours(item, false),
            Some(true) => Owner::Refuse(address_in_use(claim, item)),
        };
    }
    // Go flannel or an operator wrote the lease. It is ours if nodes really reach each other at this address.
    let leads_to = |address| {
        let queries = claim.host.queries.as_ref();
        queries.is_some_and(|host| host.via_underlay(address))
    };
    let reached = || {
        claim.host.named
            || claim.host.alone_at_address
            || claim.host.store_via_underlay
            || view
                .items
                .iter()
                .filter(|other| other.entry.key != item.entry.key)
                .flat_map(Item::addresses)
                .any(|address| !is_own(claim, address) && leads_to(address))
    };
    if reached() { Owner::Ours(item, true) } else { Owner::Refuse(address_in_use(claim, item)) }
}

/// For hosts that may share an address with other nodes. Evidence is the backend's identity of the host (a MAC, a key), or subnet.env together with
/// the host's address. The node id is not sufficient: a lease of Go flannel has none, and a host may have had another one. A clone has the same
/// backend identity as the original node, so it is checked whether the lease's holder is alive.
fn by_evidence<'a>(claim: &Claim, view: &'a View, last_seen: &LastSeen) -> Owner<'a> {
    let named = |item: &Item| named_here(claim, &item.subnets) && item.publishes(&claim.public);
    let signs = |item: &&Item| named(item) || identified(claim, item);
    let Some(item) = best(claim, view.items.iter().filter(signs)) else {
        return Owner::Nobody;
    };
    if named(item) || item.node().is_none() && item.publishes(&claim.public) {
        return Owner::Ours(item, true);
    }
    match seen_lately(item, last_seen) {
        None => Owner::AskLastSeen(item.entry.key.clone()),
        Some(false) => Owner::Ours(item, true),
        Some(true) => Owner::Nobody,
    }
}

fn is_own(claim: &Claim, address: std::net::IpAddr) -> bool {
    match address {
        std::net::IpAddr::V4(v4) => claim.public.v4() == Some(&v4),
        std::net::IpAddr::V6(v6) => claim.public.v6() == Some(&v6),
    }
}

/// Of several leases without this node's id, prefers the one in subnet.env, then a reservation, then one with this node's address, then the oldest.
fn best<'a>(claim: &Claim, items: impl Iterator<Item = &'a Item>) -> Option<&'a Item> {
    items.min_by_key(|item| {
        (
            !named_here(claim, &item.subnets),
            !item.reserved(),
            !item.publishes(&claim.public),
            item.entry.created,
        )
    })
}

/// True if subnet.env, the MAC of a device or the key of the backend shows that this host held the lease.
#[must_use]
pub fn evidence(claim: &Claim, item: &Item) -> bool {
    let carried = |mac: &String| {
        let data = item.attrs.iter().flat_map(|attrs| [&attrs.data, &attrs.v6_data]).flatten();
        data.into_iter().any(|data| data.as_str().to_ascii_lowercase().contains(mac.as_str()))
    };
    named_here(claim, &item.subnets)
        || claim.host.macs.iter().any(carried)
        || identified(claim, item)
}

/// By the MAC or key with which the backend identifies this host.
fn identified(claim: &Claim, item: &Item) -> bool {
    let both = item.attrs.as_ref().zip(claim.host.queries.as_ref());
    both.is_some_and(|(attrs, host)| host.is_own(attrs))
}

/// By subnet.env. Equal subnets of one family are sufficient, because the configuration may have added or dropped the other family.
fn named_here(claim: &Claim, subnets: &Subnets) -> bool {
    let Some(previous) = &claim.host.previous else {
        return false;
    };
    match (previous.v4(), subnets.v4()) {
        (Some(a), Some(b)) => a == b,
        (None, None) => previous.v6() == subnets.v6(),
        _ => previous.v6().is_some() && previous.v6() == subnets.v6(),
    }
}

fn named_but_unreadable<'a>(claim: &Claim, view: &'a View) -> Option<&'a Item> {
    view.items.iter().find(|item| item.attrs.is_none() && named_here(claim, &item.subnets))
}

/// `None` if the node has not requested the time of the last renewal yet.
pub(crate) fn seen_lately(item: &Item, last_seen: &LastSeen) -> Option<bool> {
    last_seen.get(&item.entry.key).map(|seen| seen.is_some_and(|ago| ago < SILENCE))
}

/// Decides how to handle a key that belongs to this node.
fn fate(claim: &Claim, config: &NetworkConfig, view: &View, item: &Item, ours: bool) -> Decision {
    let contested =
        item.node().is_some_and(|node| node.contested && node.instance != claim.node.instance);
    let keep = Decision::Keep(Keep { key: item.entry.key.clone(), ours, contested });
    if config.fits(&item.subnets) {
        return keep;
    }
    if item.reserved()
        && item.subnets.same_families(&config.pools)
        && config.contains(&item.subnets)
    {
        return keep;
    }
    if let Some(reshaped) = reshaped(claim, config, view, &item.subnets) {
        return Decision::Reshape(item.entry.key.clone(), reshaped);
    }
    // In a directory no lease expires. Only a reservation made by an operator must not be dropped.
    let made_by_operator = item.reserved() && item.node().is_none_or(|node| node.lease.is_some());
    if made_by_operator && !table::inside(&item.subnets, &config.networks) {
        return Decision::Refuse(reservation_outside_network(config, item));
    }
    Decision::Allocate(wishes(claim, config, view))
}

/// Adds or drops an address family, and keeps the subnet of each remaining one. `None` if the families are already those of the configuration, or if
/// the resulting subnets do not fit it.
fn reshaped(claim: &Claim, config: &NetworkConfig, view: &View, have: &Subnets) -> Option<Subnets> {
    if have.same_families(&config.pools) {
        return None;
    }
    let wanted = match (&config.pools, have) {
        (Dual::V4(_), Dual::Both(v4, _)) => Dual::V4(*v4),
        (Dual::V6(_), Dual::Both(_, v6)) => Dual::V6(*v6),
        (Dual::Both(..), Dual::V4(_)) => alloc::free_v6(config, &view.taken(claim), have)?,
        _ => return None,
    };
    config.fits(&wanted).then_some(wanted)
}

/// The subnets in subnet.env, if they are free and fit the configuration. The node tries them first.
fn wishes(claim: &Claim, config: &NetworkConfig, view: &View) -> Vec<Subnets> {
    let Some(previous) = &claim.host.previous else {
        return Vec::new();
    };
    let taken = view.taken(claim);
    let wanted = match (&config.pools, previous) {
        (Dual::V4(_), Dual::Both(v4, _)) => Some(Dual::V4(*v4)),
        (Dual::V6(_), Dual::Both(_, v6)) => Some(Dual::V6(*v6)),
        (Dual::Both(..), Dual::V4(_)) => alloc::free_v6(config, &taken, previous),
        _ => Some(*previous),
    };
    wanted
        .filter(|wanted| config.fits(wanted) && !taken.iter().any(|taken| taken.overlaps(wanted)))
        .into_iter()
        .collect()
}
