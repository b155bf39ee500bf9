//! Classifies the kernel's refusals of operations by their errnos.

use super::socket::Answer;
use crate::error::{RefusalError, RequestError};
use crate::kernel::{FailureKind, OpError};
use crate::link::{LinkKind, ipip, vxlan};
use crate::names::LinkName;
use crate::object::{Key, Op, Value};
use crate::route::RouteSpec;
use ipnet::IpNet;
use types::Errno;

pub(super) fn failed(op: &Op, kind: FailureKind, why: RequestError) -> OpError {
    OpError { verb: op.verb(), key: *op.key(), kind, why }
}

/// `None` if the object now has the requested state.
pub(super) fn op_error(op: &Op, answer: &Answer) -> Option<OpError> {
    let (code, words) = match answer {
        Answer::Done => return None,
        Answer::Lost => return Some(failed(op, FailureKind::Other, RequestError::Unanswered)),
        Answer::Refused(code, words) => (*code, words.trim()),
    };
    if is_already_done(op, code) {
        return None;
    }
    let (kind, cause) = match (op.key(), code) {
        (_, libc::EPERM) => (FailureKind::Unsupported, RefusalError::Forbidden),
        (Key::Address(name, IpNet::V6(_)), libc::EACCES) => {
            (FailureKind::Unsupported, RefusalError::Ipv6Disabled(*name))
        }
        (Key::Link(name), _) => of_link(op, *name, code),
        (Key::Route(net, _), _) => of_route(op, net, code),
        (Key::Fdb(..) | Key::Neighbor(..) | Key::WireguardPeer(..) | Key::AllowedIp(..), _)
            if is_about_one_peer(code) =>
        {
            (FailureKind::Conflict, RefusalError::Unknown)
        }
        _ => (FailureKind::Other, RefusalError::Unknown),
    };
    Some(failed(
        op,
        kind,
        RequestError::Refused { errno: Errno(code), words: words.to_owned(), cause },
    ))
}

/// The operation would have no effect: the object to delete does not exist, or the address to add
/// exists.
fn is_already_done(op: &Op, code: i32) -> bool {
    match (op, op.key()) {
        (Op::Delete(..), _) => matches!(
            code,
            libc::ESRCH | libc::ENOENT | libc::ENODEV | libc::EADDRNOTAVAIL | libc::ENXIO
        ),
        (Op::Add(..), Key::Address(..)) => code == libc::EEXIST,
        _ => false,
    }
}

/// True for an errno that concerns one peer's address. Faults of the host, such as a missing device
/// or no memory, have other errnos.
fn is_about_one_peer(code: i32) -> bool {
    matches!(
        code,
        libc::EEXIST
            | libc::EINVAL
            | libc::EADDRNOTAVAIL
            | libc::EAFNOSUPPORT
            | libc::ENETUNREACH
            | libc::EHOSTUNREACH
    )
}

fn of_route(op: &Op, net: &IpNet, code: i32) -> (FailureKind, RefusalError) {
    match (op, code) {
        (Op::Add(..), libc::EEXIST) => (FailureKind::Conflict, RefusalError::RouteExists(*net)),
        (_, libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL) => {
            (FailureKind::Conflict, of_gateway(op))
        }
        _ if is_about_one_peer(code) => (FailureKind::Conflict, RefusalError::Unknown),
        _ => (FailureKind::Other, RefusalError::Unknown),
    }
}

fn of_link(op: &Op, link: LinkName, code: i32) -> (FailureKind, RefusalError) {
    let kind = match op {
        Op::Add(_, Value::Link(spec)) | Op::Replace(_, Value::Link(spec)) => Some(&spec.kind),
        _ => None,
    };
    match (code, kind) {
        (libc::EOPNOTSUPP, _) => (
            FailureKind::Unsupported,
            RefusalError::ModuleMissing { link, module: module(op).to_owned() },
        ),
        // The kernel identifies tunnels by their addresses (net/ipv4/ip_tunnel.c, `ip_tunnel_find`).
        (libc::EEXIST, Some(kind)) if kind.name() == ipip::KIND => {
            (FailureKind::Conflict, RefusalError::SameEnds(link))
        }
        (libc::EADDRINUSE, Some(LinkKind::Wireguard(spec))) => {
            (FailureKind::Conflict, RefusalError::WireguardPortTaken { link, port: spec.port })
        }
        (libc::EADDRINUSE, Some(LinkKind::Vxlan(spec))) => {
            (FailureKind::Conflict, RefusalError::PortTaken { link, port: spec.port })
        }
        (libc::EEXIST | libc::EADDRINUSE, _) => {
            (FailureKind::Conflict, RefusalError::TunnelExists(link))
        }
        _ => (FailureKind::Other, RefusalError::Unknown),
    }
}

/// The kernel module that an operation on a link needs.
fn module(op: &Op) -> &str {
    match op {
        Op::Add(_, Value::Link(spec))
        | Op::Replace(_, Value::Link(spec))
        | Op::Refuse(_, Value::Link(spec)) => spec.kind.module(),
        _ => vxlan::KIND,
    }
}

fn of_gateway(op: &Op) -> RefusalError {
    match op {
        Op::Add(_, Value::Route(RouteSpec { via: Some(via), dev, onlink, .. }))
        | Op::Replace(_, Value::Route(RouteSpec { via: Some(via), dev, onlink, .. })) => {
            match onlink {
                false => RefusalError::NotOnLink { via: *via, dev: *dev },
                true => RefusalError::Unreachable { via: *via, dev: *dev },
            }
        }
        _ => RefusalError::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkSpec;
    use crate::link::vxlan::VxlanSpec;
    use crate::names::Mac;
    use crate::route::RouteKind;
    use std::net::IpAddr;

    fn name() -> LinkName {
        LinkName::parse("flannel.1").unwrap()
    }

    fn via() -> IpAddr {
        "192.168.56.2".parse().unwrap()
    }

    fn route() -> (Key, Value) {
        let route = RouteSpec {
            via: Some(via()),
            dev: LinkName::parse("eth0").unwrap(),
            onlink: false,
            kind: RouteKind::Unicast,
            scope: 0,
            protocol: 241,
        };
        (Key::Route("10.244.2.0/24".parse().unwrap(), 0), Value::Route(route))
    }

    fn link() -> (Key, Value) {
        let kind = LinkKind::Vxlan(VxlanSpec {
            vni: 1,
            port: 8472,
            local: None,
            lower: 2,
            learning: false,
            gbp: false,
        });
        let link = LinkSpec {
            kind,
            mac: None,
            mtu: 1450,
            up: true,
            accept_ra: None,
            checksum_offload: None,
        };
        (Key::Link(name()), Value::Link(Box::new(link)))
    }

    fn fdb() -> (Key, Value) {
        (Key::Fdb(name(), Mac([2; 6])), Value::Fdb(via()))
    }

    fn ipv6_address() -> (Key, Value) {
        (Key::Address(name(), "fd00::/128".parse().unwrap()), Value::Address)
    }

    fn add((key, value): (Key, Value)) -> Op {
        Op::Add(key, value)
    }

    fn replace((key, value): (Key, Value)) -> Op {
        Op::Replace(key, value)
    }

    fn delete((key, value): (Key, Value)) -> Op {
        Op::Delete(key, value)
    }

    fn refused(op: &Op, code: i32) -> Option<OpError> {
        op_error(op, &Answer::Refused(code, "words".to_owned()))
    }

    #[test]
    fn deletion_of_a_missing_object_is_no_error() {
        for code in [libc::ESRCH, libc::ENOENT, libc::ENODEV, libc::EADDRNOTAVAIL] {
            assert!(refused(&delete(route()), code).is_none());
            assert!(refused(&add(route()), code).is_some());
        }
    }

    /// Refused operations, each with the errno, the [`FailureKind`] and a part of the error's text.
    fn refusals() -> Vec<(Op, i32, FailureKind, &'static str)> {
        use FailureKind::{Conflict, Other, Unsupported};
        vec![
            (add(route()), libc::EEXIST, Conflict, "another route to 10.244.2.0/24 already exists"),
            (
                add(route()),
                libc::ENETUNREACH,
                Conflict,
                "192.168.56.2 is not on the network of eth0",
            ),
            (add(link()), libc::EOPNOTSUPP, Unsupported, "modprobe vxlan"),
            (add(link()), libc::EEXIST, Conflict, "VNI and UDP port of flannel.1"),
            (
                replace(link()),
                libc::EADDRINUSE,
                Conflict,
                "another program uses UDP port 8472, which flannel.1 needs",
            ),
            (add(fdb()), libc::EPERM, Unsupported, "CAP_NET_ADMIN"),
            (add(fdb()), libc::ENOMEM, Other, "words"),
            (add(fdb()), libc::EINVAL, Conflict, "words"),
            (add(fdb()), libc::ENODEV, Other, "words"),
            (add(route()), libc::ENETDOWN, Other, "words"),
            (add(route()), libc::ENOBUFS, Other, "words"),
            (add(route()), libc::EPERM, Unsupported, "CAP_NET_ADMIN"),
            (replace(route()), libc::EAFNOSUPPORT, Conflict, "words"),
            (add(ipv6_address()), libc::EACCES, Unsupported, "disable_ipv6=0"),
        ]
    }

    #[test]
    fn errnos_map_to_kinds_and_remedies() {
        for (op, code, failure, part) in refusals() {
            let error = refused(&op, code).unwrap();
            assert!(error.kind == failure && error.to_string().contains(part), "{error}");
        }
        assert!(op_error(&add(route()), &Answer::Lost).is_some());
    }
}
