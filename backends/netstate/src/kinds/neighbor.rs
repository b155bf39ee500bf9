//! Neighbours of flannel's links, which are the MACs of the peers' VTEPs, and FDB entries, which are
//! the VTEPs' underlay addresses. For netlink, FDB entries are neighbours of the family AF_BRIDGE.

use super::kind::Kind;
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

pub(super) struct Neighbors;

impl Kind for Neighbors {
    fn read(
        &self,
        kernel: &mut NetlinkKernel,
        scope: &Scope,
        found: &mut ExistingState,
    ) -> Result<(), KernelError> {
        for (name, index, family) in kernel.links_by_family(scope) {
            let list = dump(kernel, name, index, family, Neighbor::is_permanent)?;
            let is_ours = |ip| scope.covers_ip(&ip) || scope.covered(&IpNet::from(ip));
            found.ours.add(
                list.into_iter()
                    .map(|seen| (seen.key, seen.value))
                    .filter(|(key, _)| matches!(key, Key::Neighbor(_, ip) if is_ours(*ip))),
            );
        }
        Ok(())
    }

    fn survey(
        &self,
        kernel: &mut NetlinkKernel,
        scope: &Scope,
        found: &mut Vec<Seen>,
    ) -> Result<(), KernelError> {
        for (name, index, family) in kernel.links_by_family(scope) {
            found.extend(dump(kernel, name, index, family, Neighbor::is_resolved)?);
        }
        Ok(())
    }

    /// Neighbours of pods are on other links.
    fn concerns(&self, message: &Received<'_>, watched: &Watched<'_>) -> bool {
        announced(message, watched).is_some_and(|(seen, key, value)| match key {
            Key::Neighbor(_, ip) => {
                (seen.is_permanent() || watched.scope.covers_ip(&ip))
                    && !watched.is_known(&key, value.as_ref(), is_added(message, &seen))
            }
            _ => false,
        })
    }

    fn message(&self, op: &Op, index: u32) -> Option<Message> {
        let (Key::Neighbor(_, ip), Value::Neighbor(mac)) = (op.key(), op.value()) else {
            return None;
        };
        let header = neighbor_header(family_number((*ip).into()), index, NUD_PERMANENT, 0);
        let message = begin_message(op, &header).ip(NDA_DST, *ip);
        Some(if op.is_deletion() { message } else { message.attr(NDA_LLADDR, &mac.0) })
    }
}

pub(super) struct FdbEntries;

impl Kind for FdbEntries {
    fn read(
        &self,
        kernel: &mut NetlinkKernel,
        _scope: &Scope,
        found: &mut ExistingState,
    ) -> Result<(), KernelError> {
        for (name, index) in kernel.links.clone() {
            if found.ours.link(name).is_some_and(|spec| matches!(spec.kind, LinkKind::Vxlan(_))) {
                let list = dump(kernel, name, index, AF_BRIDGE, Neighbor::is_permanent)?;
                found.ours.add(list.into_iter().map(|seen| (seen.key, seen.value)));
            }
        }
        Ok(())
    }

    fn survey(
        &self,
        kernel: &mut NetlinkKernel,
        _scope: &Scope,
        found: &mut Vec<Seen>,
    ) -> Result<(), KernelError> {
        for (name, index) in kernel.links.clone() {
            found.extend(dump(kernel, name, index, AF_BRIDGE, Neighbor::is_resolved)?);
        }
        Ok(())
    }

    /// A learned entry matters only if it has replaced one of flannel's.
    fn concerns(&self, message: &Received<'_>, watched: &Watched<'_>) -> bool {
        announced(message, watched).is_some_and(|(seen, key, value)| {
            matches!(key, Key::Fdb(..))
                && (seen.is_permanent() || watched.has(&key))
                && !watched.is_known(&key, value.as_ref(), is_added(message, &seen))
        })
    }

    fn message(&self, op: &Op, index: u32) -> Option<Message> {
        let (Key::Fdb(_, mac), Value::Fdb(ip)) = (op.key(), op.value()) else { return None };
        let header = neighbor_header(AF_BRIDGE, index, NUD_PERMANENT, NTF_SELF);
        Some(begin_message(op, &header).attr(NDA_LLADDR, &mac.0).ip(NDA_DST, *ip))
    }
}

/// Those that `keep` selects on one link, with all their properties.
fn dump(
    kernel: &mut NetlinkKernel,
    name: LinkName,
    index: u32,
    family: u8,
    keep: impl Fn(&Neighbor) -> bool,
) -> Result<Vec<Seen>, KernelError> {
    dump_neighbors(&mut kernel.client, index, family, |seen| {
        let (key, value) = object(name, seen).filter(|_| keep(seen))?;
        Some(Seen { key, value: value?, origin: Origin::of(seen) })
    })
}

/// The value is `None` if the kernel does not know it.
fn object(name: LinkName, seen: &Neighbor) -> Option<(Key, Option<Value>)> {
    let mac = seen.mac.map(Mac);
    Some(match seen.family {
        AF_BRIDGE => (Key::Fdb(name, mac?), seen.destination.map(Value::Fdb)),
        _ => (Key::Neighbor(name, seen.destination?), mac.map(Value::Neighbor)),
    })
}

/// An entry on a link of flannel's.
fn announced(
    message: &Received<'_>,
    watched: &Watched<'_>,
) -> Option<(Neighbor, Key, Option<Value>)> {
    let seen = Neighbor::decode(message)?;
    let (key, value) = object(watched.name_of(seen.index)?, &seen)?;
    Some((seen, key, value))
}

/// An entry that is not permanent is not ours.
fn is_added(message: &Received<'_>, seen: &Neighbor) -> bool {
    message.kind == RTM_NEWNEIGH && seen.is_permanent()
}

/// A learned or failed entry on our own link may conflict. It has no owner and is overwritten.
fn begin_message(op: &Op, header: &[u8]) -> Message {
    match op.is_deletion() {
        true => Message::new(RTM_DELNEIGH, 0, header),
        false => Message::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, header),
    }
}
