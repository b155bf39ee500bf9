//! The operations that convert one kernel state into another state: additions in order of dependency, then deletions in reverse order.

use crate::encrypted::Encrypted;
use crate::names::LinkName;
use crate::object::link::Fit;
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
    let (mut ops, links) = link_ops(want, have);
    let lost = |key: &Key, value: &Value| {
        is_on(&links.rebuilt, key, value)
            || matches!(key, Key::Neighbor(name, _) if links.readdressed.contains(name))
    };
    let mut deletes = Vec::new();
    let mut delete = |(key, old): (&Key, &Value)| {
        let goes_anyway = lost(key, old)
            || is_on(&links.unwanted, key, old)
            || goes_with_its_peer(key, old, want, have);
        deletes.extend((!goes_anyway).then(|| Op::Delete(*key, old.clone())));
    };
    // Both sequences are sorted, so they are merged without lookups.
    let mut theirs = not_links(have).peekable();
    for (key, value) in not_links(want) {
        while let Some(extra) = theirs.next_if(|(other, _)| *other < key) {
            delete(extra);
        }
        match theirs.next_if(|(other, _)| *other == key) {
            Some((_, old)) if !lost(key, old) => {
                if must_delete_first(old, value) {
                    ops.extend([Op::Delete(*key, old.clone()), Op::Add(*key, value.clone())]);
                } else if old != value {
                    ops.push(Op::Replace(*key, value.clone()));
                }
            }
            _ if is_on(&links.refused, key, value) => {}
            _ => ops.push(Op::Add(*key, value.clone())),
        }
    }
    theirs.for_each(delete);
    ops.extend(deletes.into_iter().rev());
    let unwanted = have
        .0
        .iter()
        .filter(|(key, old)| matches!(key, Key::Link(_)) && is_on(&links.unwanted, key, old));
    ops.extend(unwanted.map(|(key, old)| Op::Delete(*key, old.clone())));
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

fn is_on(links: &BTreeSet<LinkName>, key: &Key, value: &Value) -> bool {
    key.device(value).is_some_and(|name| links.contains(&name))
}

fn not_links(state: &KernelState) -> impl Iterator<Item = (&Key, &Value)> {
    state.0.iter().filter(|(key, _)| !matches!(key, Key::Link(_)))
}

fn link_ops(want: &KernelState, have: &KernelState) -> (Vec<Op>, Links) {
    let (mut ops, mut links) = (Vec::new(), Links::default());
    for (name, spec) in want.links() {
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
    let unwanted =
        have.links().filter(|(name, spec)| want.link(*name).is_none() && spec.kind.is_flannels());
    links.unwanted = unwanted.map(|(name, _)| name).collect();
    (ops, links)
}

/// Adds to `want` the objects that the kernel has for exactly the given subnets: a route with its
/// neighbour and the neighbour's FDB entry, or an allowed IP with its peer.
///
/// flanneld keeps the objects of a lease whose key exists but is unreadable. A route that bypasses
/// an encrypting device is not added.
pub fn preserve_objects(want: &mut KernelState, have: &KernelState, subnets: &BTreeSet<Subnets>) {
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
            keep_object(want, &peer, found);
            keep_object(want, key, value);
        }
    }
    let encrypted = Encrypted::by(want);
    for net in kept {
        let bypasses = |value: &Value| matches!(value, Value::Route(route) if encrypted.is_bypassed_by(&net, route));
        let place = |key: &Key| routes_to(want, &net).next().is_none() || want.0.contains_key(key);
        let routes: Vec<_> =
            routes_to(have, &net).filter(|(key, value)| place(key) && !bypasses(value)).collect();
        for (key, value) in routes {
            keep_object(want, key, value);
            let Value::Route(route) = value else { continue };
            let Some(via) = route.via else { continue };
            let neighbor = Key::Neighbor(route.dev, via);
            let Some(found @ Value::Neighbor(mac)) = have.0.get(&neighbor) else {
                continue;
            };
            keep_object(want, &neighbor, found);
            let fdb = Key::Fdb(route.dev, *mac);
            if let Some(found) = have.0.get(&fdb) {
                keep_object(want, &fdb, found);
            }
        }
    }
}

fn keep_object(want: &mut KernelState, key: &Key, value: &Value) {
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
