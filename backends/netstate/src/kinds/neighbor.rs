//! Neighbours of flannel's links, which are the MACs of the peers' VTEPs, and FDB entries, which are
//! the VTEPs' underlay addresses. For netlink, FDB entries are neighbours of the family AF_BRIDGE.

use crate::kernel::ExistingState;
use crate::names::{LinkName, Mac};
use crate::netlink::NetlinkKernel;
use crate::netlink::watched::Watched;
use crate::object::link::LinkKind;
use crate::object::{Key, Op, Value};
use crate::report::survey::{Origin, Seen};
use crate::scope::Scope;
use ipnet::IpNet;
use netlink::header::neighbor_header;
use netlink::neighbor::{Neighbor, dump_neighbors};
use netlink::uapi::*;
use netlink::{KernelError, Message, Received, family_number};
use std::net::IpAddr;

pub(super) fn read_neighbors(
    kernel: &mut NetlinkKernel,
    scope: &Scope,
    found: &mut ExistingState,
) -> Result<(), KernelError> {
    for (name, index) in kernel.links.clone() {
        if found.ours.link(name).is_some_and(|spec| matches!(spec.kind, LinkKind::Vxlan(_))) {
            let list = dump_entries(kernel, name, index, AF_BRIDGE, Neighbor::is_permanent)?;
            found.ours.add(list.into_iter().map(|seen| (seen.key, seen.value)));
        }
    }
    for (name, index, family) in kernel.links_by_family(scope) {
        let list = dump_entries(kernel, name, index, family, Neighbor::is_permanent)?;
        let is_ours = |ip| scope.covers_ip(&ip) || scope.covered(&IpNet::from(ip));
        found.ours.add(
            list.into_iter()
                .map(|seen| (seen.key, seen.value))
                .filter(|(key, _)| matches!(key, Key::Neighbor(_, ip) if is_ours(*ip))),
        );
    }
    Ok(())
}

pub(super) fn survey_neighbors(
    kernel: &mut NetlinkKernel,
    scope: &Scope,
) -> Result<Vec<Seen>, KernelError> {
    let mut lists: Vec<(LinkName, u32, u8)> =
        kernel.links.iter().map(|(name, index)| (*name, *index, AF_BRIDGE)).collect();
    lists.extend(kernel.links_by_family(scope));
    let mut found = Vec::new();
    for (name, index, family) in lists {
        found.extend(dump_entries(kernel, name, index, family, Neighbor::is_resolved)?);
    }
    Ok(found)
}

/// Those that `keep` selects on one link, with all their properties.
fn dump_entries(
    kernel: &mut NetlinkKernel,
    name: LinkName,
    index: u32,
    family: u8,
    keep: impl Fn(&Neighbor) -> bool,
) -> Result<Vec<Seen>, KernelError> {
    dump_neighbors(&mut kernel.client, index, family, |seen| {
        let (key, value) = object_of(name, seen).filter(|_| keep(seen))?;
        Some(Seen { key, value: value?, origin: Origin::of(seen) })
    })
}

/// The value is `None` if the kernel does not know it.
fn object_of(name: LinkName, seen: &Neighbor) -> Option<(Key, Option<Value>)> {
    let mac = seen.mac.map(Mac);
    Some(match seen.family {
        AF_BRIDGE => (Key::Fdb(name, mac?), seen.destination.map(Value::Fdb)),
        _ => (Key::Neighbor(name, seen.destination?), mac.map(Value::Neighbor)),
    })
}

pub(super) fn concerns_neighbors(message: &Received<'_>, watched: &Watched<'_>) -> bool {
    Neighbor::decode(message).is_some_and(|seen| {
        // Neighbours of pods are on other links.
        let object = watched.name_of(seen.index).and_then(|name| object_of(name, &seen));
        object.is_some_and(|(key, value)| {
            let matters = match key {
                Key::Neighbor(_, ip) => watched.scope.covers_ip(&ip),
                // A learned FDB entry matters only if it has replaced one of flannel's.
                _ => watched.has(&key),
            };
            // An entry that is not permanent is not ours.
            let is_added = message.kind == RTM_NEWNEIGH && seen.is_permanent();
            (seen.is_permanent() || matters) && !watched.is_known(&key, value.as_ref(), is_added)
        })
    })
}

pub(super) fn encode_neighbor(op: &Op, index: u32, ip: IpAddr, mac: Mac) -> Message {
    let header = neighbor_header(family_number(ip), index, NUD_PERMANENT, 0);
    let message = begin_message(op, &header).ip(NDA_DST, ip);
    if op.is_deletion() { message } else { message.attr(NDA_LLADDR, &mac.0) }
}

pub(super) fn encode_fdb_entry(op: &Op, index: u32, mac: Mac, ip: IpAddr) -> Message {
    let header = neighbor_header(AF_BRIDGE, index, NUD_PERMANENT, NTF_SELF);
    begin_message(op, &header).attr(NDA_LLADDR, &mac.0).ip(NDA_DST, ip)
}

/// A learned or failed entry on our own link may conflict. It has no owner and is overwritten.
fn begin_message(op: &Op, header: &[u8]) -> Message {
    match op.is_deletion() {
        true => Message::new(RTM_DELNEIGH, 0, header),
        false => Message::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, header),
    }
}
