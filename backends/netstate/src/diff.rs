//! The operations that convert one kernel state into another state: additions in order of dependency, then deletions in reverse order.

use crate::encrypted::Encrypted;
use crate::names::LinkName;
use crate::object::fit::Fit;
use crate::object::link::{LinkKind, LinkSpec};
use crate::object::{KernelState, Key, Op, Value};
use ipnet::IpNet;
use std::collections::BTreeSet;
use types::Subnets;

/// The operations reach `want` in one pass.
///
/// ```
/// use netstate::diff::diff;
/// use netstate::names::LinkName;
/// use netstate::object::{KernelState, Key, Op, Value};
/// use netstate::report::protocols::FLANNEL;
/// use netstate::object::route::RouteSpec;
///
/// let eth0 = LinkName::parse("eth0").unwrap();
/// let route = |via: &str| Value::Route(RouteSpec::forwarding(via.parse().ok(), eth0, FLANNEL));
/// let key = Key::Route("10.244.2.0/24".parse()?, 0);
/// let (mut want, mut have) = (KernelState::default(), KernelState::default());
/// want.set(key, route("192.0.2.3"));
/// assert_eq!(diff(&want, &have), [Op::Add(key, route("192.0.2.3"))]);
/// have.set(key, route("192.0.2.2"));
/// assert_eq!(diff(&want, &have), [Op::Replace(key, route("192.0.2.3"))]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn diff(want: &KernelState, have: &KernelState) -> Vec<Op> {
    let mut links = Links::default();
    let mut ops = link_ops(want, have, &mut links);
    let lost = |key: &Key, value: &Value| links.removed_with_link(key, value);
    let undone = |key: &Key, value: &Value| {
        lost(key, value)
            || links.will_be_removed_with_link(key, value)
            || goes_with_its_peer(key, value, want, have)
    };
    // Both sequences are sorted, so they are merged without lookups.
    let mut theirs = have.0.iter().filter(|(key, _)| !matches!(key, Key::Link(_))).peekable();
    let mut deletes = Vec::new();
    for (key, value) in want.0.iter().filter(|(key, _)| !matches!(key, Key::Link(_))) {
        while let Some((extra, old)) = theirs.next_if(|(other, _)| *other < key) {
            if !undone(extra, old) {
                deletes.push(Op::Delete(*extra, old.clone()));
            }
        }
        match theirs.next_if(|(other, _)| *other == key) {
            Some((_, old)) if !lost(key, old) => {
                if old != value {
                    if must_delete_first(old, value) {
                        ops.extend([Op::Delete(*key, old.clone()), Op::Add(*key, value.clone())]);
                    } else {
                        ops.push(Op::Replace(*key, value.clone()));
                    }
                }
            }
            _ if links.on_refused_link(key, value) => {}
            _ => ops.push(Op::Add(*key, value.clone())),
        }
    }
    for (extra, old) in theirs {
        if !undone(extra, old) {
            deletes.push(Op::Delete(*extra, old.clone()));
        }
    }
    ops.extend(deletes.into_iter().rev());
    let unwanted = |key: &Key| matches!(key, Key::Link(name) if links.unwanted.contains(name));
    ops.extend(
        have.0
            .iter()
            .filter(|(key, _)| unwanted(key))
            .map(|(key, old)| Op::Delete(*key, old.clone())),
    );
    ops
}

/// True for a route that must be deleted before it is added again. When a program adds an IPv6
/// route, the kernel looks up the route's onlink gateway. It refuses the route while the old one
/// leads to the same gateway through another interface (net/ipv6/route.c,
/// ip6_route_check_nh_onlink). flanneld sends the deletion and the addition in one datagram.
fn must_delete_first(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Route(old), Value::Route(new)) => {
            new.onlink && new.via.is_some_and(|via| via.is_ipv6()) && old.dev != new.dev
        }
        _ => false,
    }
}

/// True for an allowed IP of a peer that flanneld deletes. The kernel removes it with the peer.
fn goes_with_its_peer(key: &Key, value: &Value, want: &KernelState, have: &KernelState) -> bool {
    match (key, value) {
        (Key::AllowedIp(name, _), Value::AllowedIp(peer)) => {
            let peer = Key::WireguardPeer(*name, *peer);
            have.0.contains_key(&peer) && !want.0.contains_key(&peer)
        }
        _ => false,
    }
}

/// Links whose changes also affect the objects on the links.
#[derive(Default)]
struct Links {
    /// Deleted and created again before other changes. The deletion removes all objects on the
    /// link.
    rebuilt: BTreeSet<LinkName>,
    /// Deleted last, after the routes on them have been replaced in place.
    unwanted: BTreeSet<LinkName>,
    /// Links with a new MAC. The kernel flushes their neighbours, even permanent ones
    /// (neigh_changeaddr).
    readdressed: BTreeSet<LinkName>,
    /// Not flannel's, so flanneld adds no objects on them.
    refused: BTreeSet<LinkName>,
}

impl Links {
    fn removed_with_link(&self, key: &Key, value: &Value) -> bool {
        let readdressed = matches!(key, Key::Neighbor(name, _) if self.readdressed.contains(name));
        readdressed || holder(key, value).is_some_and(|name| self.rebuilt.contains(&name))
    }

    fn will_be_removed_with_link(&self, key: &Key, value: &Value) -> bool {
        holder(key, value).is_some_and(|name| self.unwanted.contains(&name))
    }

    fn on_refused_link(&self, key: &Key, value: &Value) -> bool {
        holder(key, value).is_some_and(|name| self.refused.contains(&name))
    }
}

/// The link to which an object belongs; of a route, its device.
fn holder(key: &Key, value: &Value) -> Option<LinkName> {
    if let Value::Route(route) = value { Some(route.dev) } else { key.link() }
}

fn link_ops(want: &KernelState, have: &KernelState, links: &mut Links) -> Vec<Op> {
    let mut ops = Vec::new();
    for (name, spec) in specs(want) {
        let key = Key::Link(name);
        let value = Value::Link(Box::new(spec.clone()));
        let Some(found) = have.link(name) else {
            ops.push(Op::Add(key, value));
            continue;
        };
        match spec.fit(found) {
            Fit::Same => {}
            Fit::Change => {
                if spec.mac.is_some() && spec.mac != found.mac {
                    links.readdressed.insert(name);
                }
                ops.push(Op::Replace(key, value));
            }
            Fit::Rebuild => {
                links.rebuilt.insert(name);
                ops.push(Op::Delete(key, Value::Link(Box::new(found.clone()))));
                ops.push(Op::Add(key, value));
            }
            Fit::Refused => {
                links.refused.insert(name);
                ops.push(Op::Refuse(key, Value::Link(Box::new(found.clone()))));
            }
        }
    }
    // A link of another kind under our name is not ours.
    for (name, _) in specs(have).filter(|(name, spec)| {
        want.link(*name).is_none() && !matches!(spec.kind, LinkKind::Other(_))
    }) {
        links.unwanted.insert(name);
    }
    ops
}

fn specs(state: &KernelState) -> impl Iterator<Item = (LinkName, &LinkSpec)> {
    // Links come first in the order.
    state.0.iter().map_while(|(key, value)| match (key, value) {
        (Key::Link(name), Value::Link(spec)) => Some((*name, &**spec)),
        _ => None,
    })
}

/// Adds to `want` the objects that the kernel has for exactly the given subnets: a route with its
/// neighbour and the neighbour's FDB entry, or an allowed IP with its peer.
///
/// flanneld keeps the objects of a lease whose key exists but is unreadable. A route that bypasses
/// an encrypting device is not added.
pub fn preserve(want: &mut KernelState, have: &KernelState, subnets: &BTreeSet<Subnets>) {
    if subnets.is_empty() {
        return;
    }
    let kept: BTreeSet<IpNet> = subnets.iter().flat_map(Subnets::nets).collect();
    for (key, value) in &have.0 {
        let (Key::AllowedIp(name, net), Value::AllowedIp(peer)) = (key, value) else {
            continue;
        };
        let peer = Key::WireguardPeer(*name, *peer);
        if let Some(found) =
            have.0.get(&peer).filter(|_| kept.contains(net) && !want.0.contains_key(key))
        {
            keep(want, &peer, found);
            keep(want, key, value);
        }
    }
    let encrypted = Encrypted::by(want);
    for net in kept {
        let bypasses = |value: &Value| matches!(value, Value::Route(route) if encrypted.is_bypassed_by(&net, route));
        let place = |key: &Key| routes_to(want, &net).next().is_none() || want.0.contains_key(key);
        let routes: Vec<_> =
            routes_to(have, &net).filter(|(key, value)| place(key) && !bypasses(value)).collect();
        for (key, value) in routes {
            keep(want, key, value);
            let Value::Route(route) = value else { continue };
            let Some(via) = route.via else { continue };
            let neighbor = Key::Neighbor(route.dev, via);
            let Some(found @ Value::Neighbor(mac)) = have.0.get(&neighbor) else {
                continue;
            };
            keep(want, &neighbor, found);
            let fdb = Key::Fdb(route.dev, *mac);
            if let Some(found) = have.0.get(&fdb) {
                keep(want, &fdb, found);
            }
        }
    }
}

fn keep(want: &mut KernelState, key: &Key, value: &Value) {
    want.0.entry(*key).or_insert_with(|| value.clone());
}

fn routes_to<'a>(
    state: &'a KernelState,
    net: &IpNet,
) -> impl Iterator<Item = (&'a Key, &'a Value)> {
    state.0.range(Key::Route(*net, 0)..=Key::Route(*net, u32::MAX))
}

#[cfg(test)]
mod tests;
