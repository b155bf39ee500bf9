//! The kinds of kernel objects, each with a file for all that is particular to it. A new kind is a
//! file here, a variant of [`Key`] and of [`Value`], and a place in the functions of this file.

mod address;
mod link;
mod neighbor;
pub(crate) mod route;

use crate::kernel::{ExistingState, FailureKind};
use crate::netlink::NetlinkKernel;
use crate::netlink::watched::Watched;
use crate::object::{Key, Op, Value};
use crate::report::survey::{Origin, Seen};
use crate::report::text::Words;
use crate::scope::Scope;
use netlink::{KernelError, Message, Received};
use types::Problem;
use types::kernel_object::ObjectKind;

/// Flannel's objects in the kernel, in order of dependency. The kernel lists WireGuard peers with
/// their interface.
pub(crate) fn read_existing(
    kernel: &mut NetlinkKernel,
    scope: &Scope,
) -> Result<ExistingState, KernelError> {
    let mut found = ExistingState::default();
    link::read_links(kernel, scope, &mut found)?;
    address::read_addresses(kernel, scope, &mut found)?;
    neighbor::read_neighbors(kernel, scope, &mut found)?;
    for family in scope.family_numbers() {
        route::read_routes(kernel, scope, family, &mut found)?;
    }
    Ok(found)
}

/// The objects of any program in flannel's networks and on flannel's devices.
pub(crate) fn survey_objects(
    kernel: &mut NetlinkKernel,
    scope: &Scope,
) -> Result<Vec<Seen>, KernelError> {
    let mut found = neighbor::survey_neighbors(kernel, scope)?;
    for family in scope.family_numbers() {
        found.extend(route::survey_routes(kernel, scope, family)?);
    }
    Ok(found)
}

/// True if the notification is about an object that matters to flannel, and the reconciler does not
/// know it yet. The kernel announces no changes of WireGuard peers.
pub(crate) fn concerns_flannel(message: &Received<'_>, watched: &Watched<'_>) -> bool {
    link::concerns_links(message, watched)
        || address::concerns_addresses(message, watched)
        || neighbor::concerns_neighbors(message, watched)
        || route::concerns_routes(message, watched)
}

/// `index` is that of the link, or 0 for a route without one. `None` if the operation needs other
/// requests: several about the link, or some about the WireGuard interface.
pub(crate) fn encode_request(op: &Op, index: u32) -> Option<Message> {
    match (op.key(), op.value()) {
        (Key::Address(_, net), Value::Address) => Some(address::encode_request(op, index, net)),
        (Key::Fdb(_, mac), Value::Fdb(ip)) => {
            Some(neighbor::encode_fdb_entry(op, index, *mac, *ip))
        }
        (Key::Neighbor(_, ip), Value::Neighbor(mac)) => {
            Some(neighbor::encode_neighbor(op, index, *ip, *mac))
        }
        (Key::Route(net, metric), Value::Route(route)) => {
            Some(route::encode_request(op, index, net, *metric, route))
        }
        _ => None,
    }
}

/// What a refusal of an operation means. The text of the problem continues the kernel's.
pub(crate) fn explain_refusal(op: &Op, errno: i32) -> (FailureKind, Problem) {
    let known = match (op.key(), op.value()) {
        (Key::Link(name), Value::Link(spec)) => link::explain_refusal(*name, spec, errno),
        (Key::Address(name, net), _) => address::explain_refusal(*name, net, errno),
        (Key::Route(net, _), Value::Route(route)) => route::explain_refusal(op, net, route, errno),
        _ => None,
    };
    known.unwrap_or_else(|| (failure_kind(op.key(), errno), Problem::new("kernel-refused", "")))
}

/// A conflict concerns one peer's address. Faults of the host, such as a missing device or no
/// memory, have other errnos.
fn failure_kind(key: &Key, errno: i32) -> FailureKind {
    match (key, errno) {
        (Key::Link(_) | Key::Address(..), _) => FailureKind::Other,
        (
            _,
            libc::EEXIST
            | libc::EINVAL
            | libc::EADDRNOTAVAIL
            | libc::EAFNOSUPPORT
            | libc::ENETUNREACH
            | libc::EHOSTUNREACH,
        ) => FailureKind::Conflict,
        _ => FailureKind::Other,
    }
}

/// An object of any origin, as `ip`, `bridge` or `wg` prints it.
#[must_use]
pub fn describe_object(key: &Key, value: &Value, origin: Origin, words: &Words) -> String {
    let state = match origin {
        Origin::Set => "permanent",
        Origin::ExternLearn => "extern_learn",
        Origin::Learned | Origin::Protocol(_) => "",
    };
    let text = match (key, value) {
        (Key::Link(name), Value::Link(spec)) => spec.text(*name, words),
        (Key::Address(name, net), Value::Address) => format!("{net} dev {name}"),
        (Key::Fdb(name, mac), Value::Fdb(ip)) => format!("{mac} dev {name} dst {ip} self {state}"),
        (Key::Neighbor(name, ip), Value::Neighbor(mac)) => {
            format!("{ip} dev {name} lladdr {mac} {}", state.to_uppercase())
        }
        (Key::WireguardPeer(name, key), Value::WireguardPeer(peer)) => peer.text(*name, key),
        (Key::AllowedIp(name, net), Value::AllowedIp(peer)) => {
            format!("{name} peer {peer} allowed-ips {net}")
        }
        (Key::Route(net, metric), Value::Route(route)) => route.text(net, *metric, words),
        _ => key.to_string(),
    };
    text.trim_end().to_owned()
}

/// In reports about the kernel state.
pub(crate) fn object_kind(key: &Key, value: &Value) -> ObjectKind {
    match (key, value) {
        (Key::Link(_), _) => ObjectKind::Link,
        (Key::Address(..), _) => ObjectKind::Address,
        (Key::Fdb(..), _) => ObjectKind::Fdb,
        (Key::Neighbor(..), _) => ObjectKind::Neighbour,
        (Key::WireguardPeer(..), _) => ObjectKind::WireguardPeer,
        (Key::AllowedIp(..), _) => ObjectKind::AllowedIp,
        (Key::Route(..), Value::Route(route)) if route.kind.drops() => ObjectKind::Blackhole,
        (Key::Route(..), _) => ObjectKind::Route,
    }
}
