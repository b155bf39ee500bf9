//! Classifies the kernel's refusals of operations, by their numbers.

use super::socket::Answer;
use crate::failure::{Cause, Failure};
use crate::kernel::{FailureKind, OpError};
use crate::link::{LinkKind, ipip, vxlan};
use crate::object::{Key, Op, Value};
use crate::route::RouteSpec;
use ipnet::IpNet;
use types::Errno;

/// An operation's error.
pub(super) fn failed(op: &Op, kind: FailureKind, why: Failure) -> OpError {
    OpError {
        verb: op.verb(),
        key: *op.key(),
        kind,
        why,
    }
}

/// Turns the kernel's answer into an error. The complete errno policy.
pub(super) fn op_error(op: &Op, answer: &Answer) -> Option<OpError> {
    let (code, words) = match answer {
        Answer::Done => return None,
        Answer::Lost => return Some(failed(op, FailureKind::Other, Failure::Unanswered)),
        Answer::Refused(code, words) => (*code, words.trim()),
    };
    let (kind, cause) = match (op, op.key(), code) {
        // The object is already gone.
        (
            Op::Delete(..),
            _,
            libc::ESRCH | libc::ENOENT | libc::ENODEV | libc::EADDRNOTAVAIL | libc::ENXIO,
        ) => return None,
        (Op::Add(..), Key::Address(..), libc::EEXIST) => return None,
        (_, _, libc::EPERM) => (FailureKind::Unsupported, Cause::Forbidden),
        (_, Key::Address(name, IpNet::V6(_)), libc::EACCES) => {
            (FailureKind::Unsupported, Cause::Ipv6Disabled(*name))
        }
        (Op::Add(..), Key::Route(net, _), libc::EEXIST) => {
            (FailureKind::Conflict, Cause::RouteExists(*net))
        }
        (_, Key::Route(..), libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL) => {
            (FailureKind::Conflict, of_gateway(op))
        }
        // The address of one peer. Errors of the host (a missing device, no memory) have other numbers.
        (
            _,
            Key::Fdb(..)
            | Key::Neighbor(..)
            | Key::WireguardPeer(..)
            | Key::AllowedIp(..)
            | Key::Route(..),
            libc::EEXIST
            | libc::EINVAL
            | libc::EADDRNOTAVAIL
            | libc::EAFNOSUPPORT
            | libc::ENETUNREACH
            | libc::EHOSTUNREACH,
        ) => (FailureKind::Conflict, Cause::Unknown),
        (_, Key::Link(name), libc::EOPNOTSUPP) => (
            FailureKind::Unsupported,
            Cause::ModuleMissing {
                link: *name,
                module: module(op).to_owned(),
            },
        ),
        // The kernel tells tunnels apart by their ends (net/ipv4/ip_tunnel.c, `ip_tunnel_find`).
        (
            Op::Add(_, Value::Link(spec)) | Op::Replace(_, Value::Link(spec)),
            Key::Link(name),
            libc::EEXIST,
        ) if spec.kind.name() == ipip::KIND => (FailureKind::Conflict, Cause::SameEnds(*name)),
        (
            Op::Add(_, Value::Link(spec)) | Op::Replace(_, Value::Link(spec)),
            Key::Link(name),
            libc::EADDRINUSE,
        ) if let LinkKind::Wireguard(wireguard) = &spec.kind => (
            FailureKind::Conflict,
            Cause::PortTaken {
                link: *name,
                port: wireguard.port,
                wireguard: true,
            },
        ),
        (
            Op::Add(_, Value::Link(spec)) | Op::Replace(_, Value::Link(spec)),
            Key::Link(name),
            libc::EADDRINUSE,
        ) if let LinkKind::Vxlan(spec) = &spec.kind => (
            FailureKind::Conflict,
            Cause::PortTaken {
                link: *name,
                port: spec.port,
                wireguard: false,
            },
        ),
        (_, Key::Link(name), libc::EEXIST | libc::EADDRINUSE) => {
            (FailureKind::Conflict, Cause::TunnelExists(*name))
        }
        _ => (FailureKind::Other, Cause::Unknown),
    };
    Some(failed(
        op,
        kind,
        Failure::Refused {
            errno: Errno(code),
            words: words.to_owned(),
            cause,
        },
    ))
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

fn of_gateway(op: &Op) -> Cause {
    match op {
        Op::Add(
            _,
            Value::Route(RouteSpec {
                via: Some(via),
                dev,
                onlink,
                ..
            }),
        )
        | Op::Replace(
            _,
            Value::Route(RouteSpec {
                via: Some(via),
                dev,
                onlink,
                ..
            }),
        ) => match onlink {
            false => Cause::NotOnLink {
                via: *via,
                dev: *dev,
            },
            true => Cause::Unreachable {
                via: *via,
                dev: *dev,
            },
        },
        _ => Cause::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::vxlan::VxlanSpec;
    use crate::link::{LinkKind, LinkSpec};
    use crate::names::{LinkName, Mac};
    use crate::route::{RouteKind, RouteSpec};
    use std::net::IpAddr;

    #[test]
    fn errnos_map_to_kinds_and_remedies() {
        let name = LinkName::parse("flannel.1").unwrap();
        let net: IpNet = "10.244.2.0/24".parse().unwrap();
        let via: IpAddr = "192.168.56.2".parse().unwrap();
        let route = RouteSpec {
            via: Some(via),
            dev: LinkName::parse("eth0").unwrap(),
            onlink: false,
            kind: RouteKind::Unicast,
            scope: 0,
            protocol: 241,
        };
        let kind = LinkKind::Vxlan(VxlanSpec {
            vni: 1,
            port: 8472,
            local: None,
            lower: 2,
            learning: false,
            gbp: false,
        });
        let link = Value::Link(Box::new(LinkSpec {
            kind,
            mac: None,
            mtu: 1450,
            up: true,
            accept_ra: None,
            checksum_offload: None,
        }));
        let refused = |op: Op, code| op_error(&op, &Answer::Refused(code, "words".to_owned()));
        let key = Key::Route(net, 0);
        for code in [libc::ESRCH, libc::ENOENT, libc::ENODEV, libc::EADDRNOTAVAIL] {
            assert!(refused(Op::Delete(key, Value::Route(route)), code).is_none());
            assert!(refused(Op::Add(key, Value::Route(route)), code).is_some());
        }
        for (op, code, failure, part) in [
            (
                Op::Add(key, Value::Route(route)),
                libc::EEXIST,
                FailureKind::Conflict,
                "another route to 10.244.2.0/24 already exists",
            ),
            (
                Op::Add(key, Value::Route(route)),
                libc::ENETUNREACH,
                FailureKind::Conflict,
                "192.168.56.2 is not on the network of eth0",
            ),
            (
                Op::Add(Key::Link(name), link.clone()),
                libc::EOPNOTSUPP,
                FailureKind::Unsupported,
                "modprobe vxlan",
            ),
            (
                Op::Add(Key::Link(name), link.clone()),
                libc::EEXIST,
                FailureKind::Conflict,
                "VNI and UDP port of flannel.1",
            ),
            (
                Op::Replace(Key::Link(name), link),
                libc::EADDRINUSE,
                FailureKind::Conflict,
                "another program uses UDP port 8472, which flannel.1 needs",
            ),
            (
                Op::Add(Key::Fdb(name, Mac([2; 6])), Value::Fdb(via)),
                libc::EPERM,
                FailureKind::Unsupported,
                "CAP_NET_ADMIN",
            ),
            (
                Op::Add(Key::Fdb(name, Mac([2; 6])), Value::Fdb(via)),
                libc::ENOMEM,
                FailureKind::Other,
                "words",
            ),
            (
                Op::Add(Key::Fdb(name, Mac([2; 6])), Value::Fdb(via)),
                libc::EINVAL,
                FailureKind::Conflict,
                "words",
            ),
            (
                Op::Add(Key::Fdb(name, Mac([2; 6])), Value::Fdb(via)),
                libc::ENODEV,
                FailureKind::Other,
                "words",
            ),
            (
                Op::Add(key, Value::Route(route)),
                libc::ENETDOWN,
                FailureKind::Other,
                "words",
            ),
            (
                Op::Add(key, Value::Route(route)),
                libc::ENOBUFS,
                FailureKind::Other,
                "words",
            ),
            (
                Op::Add(key, Value::Route(route)),
                libc::EPERM,
                FailureKind::Unsupported,
                "CAP_NET_ADMIN",
            ),
            (
                Op::Replace(key, Value::Route(route)),
                libc::EAFNOSUPPORT,
                FailureKind::Conflict,
                "words",
            ),
            (
                Op::Add(
                    Key::Address(name, "fd00::/128".parse().unwrap()),
                    Value::Address,
                ),
                libc::EACCES,
                FailureKind::Unsupported,
                "disable_ipv6=0",
            ),
        ] {
            let error = refused(op, code).unwrap();
            assert!(
                error.kind == failure && error.to_string().contains(part),
                "{error}"
            );
        }
        assert!(op_error(&Op::Add(key, Value::Route(route)), &Answer::Lost).is_some());
    }
}
