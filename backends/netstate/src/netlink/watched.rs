//! Selects the kernel's notifications that concern flannel's objects, the underlay or the results of on-link queries.

use super::decode::{PlainRoute, decode_plain_route};
use crate::names::{LinkName, Mac};
use crate::object::{KernelState, Key, Value};
use crate::route::RouteSpec;
use crate::scope::Scope;
use netlink::Received;
use netlink::address::Address;
use netlink::link::Link;
use netlink::neighbor::Neighbor;
use netlink::uapi::*;
use std::collections::BTreeSet;
use std::net::IpAddr;

pub(super) struct Watched<'a> {
    pub links: &'a [(LinkName, u32)],
    pub underlay: (u32, LinkName),
    pub asking: bool,
    /// Lookups found them on-link.
    pub on_link: &'a BTreeSet<IpAddr>,
    pub scope: &'a Scope,
    /// Flannel's objects in the kernel; `None` if the reconciler does not know them.
    pub known: Option<&'a KernelState>,
}

impl Watched<'_> {
    pub(super) fn concerns(&self, message: &Received<'_>) -> bool {
        match message.kind {
            RTM_NEWLINK | RTM_DELLINK => Link::decode(message).is_some_and(|link| {
                link.index == self.underlay.0
                    || self.is_ours(link.index)
                    || self.scope.links.iter().any(|name| name.as_str() == link.name)
            }),
            RTM_NEWADDR | RTM_DELADDR => Address::decode(message).is_some_and(|address| {
                address.index == self.underlay.0 || self.is_ours(address.index)
            }),
            // Neighbours of pods are on other links. Learned FDB entries are neither permanent nor inside our networks.
            RTM_NEWNEIGH | RTM_DELNEIGH => Neighbor::decode(message).is_some_and(|seen| {
                self.is_ours(seen.index)
                    && (seen.is_permanent()
                        || self.replaces(&seen)
                        || seen.family != AF_BRIDGE
                            && seen.destination.is_some_and(|ip| self.scope.covers_ip(&ip)))
                    && !self.is_known_neighbor(&seen, message.kind == RTM_NEWNEIGH)
            }),
            RTM_NEWROUTE | RTM_DELROUTE => decode_plain_route(message).is_some_and(|seen| {
                // Routes to single pods come and go with the pods.
                let pod = seen.net.prefix_len() == seen.net.max_prefix_len();
                let ours = seen.spec.protocol == self.scope.protocol || self.is_ours(seen.index);
                let covered = seen.spec.protocol != RTPROT_KERNEL
                    && self.scope.covers(&seen.net)
                    && (ours || !pod);
                // A route outside our networks may change an on-link result. So may one inside them, if it covers addresses of nodes.
                covered && !self.is_known_route(&seen, message.kind == RTM_NEWROUTE)
                    || self.asking
                        && (!self.scope.covers(&seen.net)
                            || !ours && self.on_link.iter().any(|ip| seen.net.contains(ip)))
            }),
            _ => false,
        }
    }

    /// True if a learned FDB entry has replaced one of flannel's.
    fn replaces(&self, seen: &Neighbor) -> bool {
        let ours = self
            .links
            .iter()
            .find(|(_, index)| *index == seen.index)
            .zip(seen.mac)
            .map(|((name, _), mac)| Key::Fdb(*name, Mac(mac)));
        seen.family == AF_BRIDGE
            && self.known.zip(ours).is_some_and(|(known, key)| known.0.contains_key(&key))
    }

    fn is_known_neighbor(&self, seen: &Neighbor, added: bool) -> bool {
        let Some((name, _)) = self.links.iter().find(|(_, index)| *index == seen.index) else {
            return false;
        };
        // An entry that is not permanent is not ours.
        let added = added && seen.is_permanent();
        match (seen.family, seen.mac.map(Mac), seen.destination) {
            (AF_BRIDGE, Some(mac), dst) => {
                self.is_known(&Key::Fdb(*name, mac), dst.map(Value::Fdb).as_ref(), added)
            }
            (_, mac, Some(ip)) => {
                self.is_known(&Key::Neighbor(*name, ip), mac.map(Value::Neighbor).as_ref(), added)
            }
            _ => false,
        }
    }

    fn is_known_route(&self, seen: &PlainRoute, added: bool) -> bool {
        let names = self.links.iter().map(|(name, index)| (*index, *name)).chain([self.underlay]);
        let dev = names.filter(|_| !seen.spec.kind.drops()).find(|(index, _)| *index == seen.index);
        let route = RouteSpec { dev: dev.map(|(_, name)| name).unwrap_or_default(), ..seen.spec };
        self.is_known(&Key::Route(seen.net, seen.metric), Some(&Value::Route(route)), added)
    }

    fn is_known(&self, key: &Key, value: Option<&Value>, added: bool) -> bool {
        self.known.is_some_and(|known| {
            if added {
                value.is_some() && known.0.get(key) == value
            } else {
                !known.0.contains_key(key)
            }
        })
    }

    fn is_ours(&self, index: u32) -> bool {
        self.links.iter().any(|(_, ours)| *ours == index)
    }
}
