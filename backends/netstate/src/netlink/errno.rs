//! Classifies the kernel's refusals of operations by their errnos.

use crate::kernel::{FailureKind, OpError};
use crate::link::{LinkKind, ipip, vxlan};
use crate::names::LinkName;
use crate::object::{Key, Op, Value};
use crate::route::RouteSpec;
use ipnet::IpNet;
use netlink::{Answer, RequestError};
use types::problem::PortPurpose;
use types::{Detail, Errno, Problem};

/// Well if the object now has the requested state.
pub(super) fn op_result(op: &Op, answer: Answer) -> Result<(), OpError> {
    let (code, words) = match answer {
        Ok(()) => return Ok(()),
        // It is not known whether the operation took effect.
        Err(RequestError::Lost) => {
            let text = "the kernel did not respond; the next pass checks the result";
            let why = Problem::new("kernel-silent", text);
            return Err(OpError::new(op, FailureKind::Other, why));
        }
        Err(RequestError::Refused { errno, words }) => (errno, words),
    };
    let words = words.trim();
    if is_already_done(op, code) {
        return Ok(());
    }
    let cause = likely_cause(op, code);
    let colon = if words.is_empty() { "" } else { ": " };
    let text = format!("{}{colon}{words}{cause}", Errno(code));
    Err(OpError::new(op, failure_kind(op, code), Problem { text, ..cause }))
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

fn failure_kind(op: &Op, code: i32) -> FailureKind {
    match (op.key(), code) {
        (_, libc::EPERM)
        | (Key::Address(_, IpNet::V6(_)), libc::EACCES)
        | (Key::Link(_), libc::EOPNOTSUPP) => FailureKind::Unsupported,
        (Key::Link(_), libc::EEXIST | libc::EADDRINUSE) => FailureKind::Conflict,
        (Key::Link(_) | Key::Address(..), _) => FailureKind::Other,
        _ if is_about_one_peer(code) => FailureKind::Conflict,
        _ => FailureKind::Other,
    }
}

/// Its text continues the kernel's.
fn likely_cause(op: &Op, code: i32) -> Problem {
    match (op, op.key(), code) {
        (_, _, libc::EPERM) => Problem::new(
            "kernel-forbidden",
            "; run this program with CAP_NET_ADMIN in this network namespace",
        ),
        (_, Key::Address(name, IpNet::V6(_)), libc::EACCES) => Problem::new(
            "ipv6-disabled",
            format!(
                "; IPv6 is disabled on {name}; run sysctl -w net.ipv6.conf.{name}.disable_ipv6=0, and the same command for default"
            ),
        ),
        (_, Key::Link(name), _) => likely_link_cause(op, *name, code),
        (Op::Add(..), Key::Route(net, _), libc::EEXIST) => Problem::new(
            "route-exists",
            format!(
                "; another route to {net} already exists; find the route with `ip route show {net}` and remove it (an address of cni0 causes a route through cni0: remove the address with `ip address del`, and restart the pods of its subnet)"
            ),
        ),
        (
            Op::Add(_, Value::Route(RouteSpec { via: Some(via), dev, onlink, .. }))
            | Op::Replace(_, Value::Route(RouteSpec { via: Some(via), dev, onlink, .. })),
            Key::Route(..),
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL,
        ) => match onlink {
            // The interface is the underlay's.
            false => Problem::new(
                "peer-not-on-link",
                format!(
                    "; the peer's address {via} is not on the network of {dev}: host-gw and DirectRouting need a direct link; other peers are not affected"
                ),
            ),
            true => Problem::new(
                "gateway-unreachable",
                format!(
                    "; {via} must be reachable over {dev}; check that the interface is up and that no other route to {via} takes precedence (ip route get {via})"
                ),
            ),
        },
        _ => Problem::new("kernel-refused", ""),
    }
}

fn likely_link_cause(op: &Op, link: LinkName, code: i32) -> Problem {
    let kind = match op {
        Op::Add(_, Value::Link(spec)) | Op::Replace(_, Value::Link(spec)) => Some(&spec.kind),
        _ => None,
    };
    match (code, kind) {
        (libc::EOPNOTSUPP, _) => {
            let module = module(op);
            let text = format!(
                "; {link} needs the kernel module {module}; run modprobe {module} (some distributions package the module separately, as linux-modules-extra-$(uname -r) or kernel-modules-extra)"
            );
            Problem::new("module-missing", text)
                .with(Detail::ModuleMissing { name: module.to_owned() })
        }
        // The kernel identifies tunnels by their addresses (net/ipv4/ip_tunnel.c, `ip_tunnel_find`).
        (libc::EEXIST, Some(kind)) if kind.name() == ipip::KIND => Problem::new(
            "tunnel-exists",
            format!(
                "; an interface {link}, or another IPIP interface with the same addresses, exists; find the interface with `ip -d link show type ipip`, and delete it"
            ),
        ),
        (libc::EADDRINUSE, Some(LinkKind::Wireguard(spec))) => {
            let port = spec.port;
            let text = format!(
                "; another WireGuard interface or program uses UDP port {port}, which {link} needs. Find the user of the port with `wg show all listen-port` and `ss -ulpn`, or set another ListenPort in the Backend, on all nodes"
            );
            taken_tunnel_port(port, text)
        }
        (libc::EADDRINUSE, Some(LinkKind::Vxlan(spec))) => {
            let port = spec.port;
            let text = format!(
                "; another program uses UDP port {port}, which {link} needs. Find the program with `ss -ulpn sport = :{port}`, or set another Port in the Backend, on all nodes"
            );
            taken_tunnel_port(port, text)
        }
        // Another vxlan interface with the same VNI and UDP port, or another program that uses the port.
        (libc::EEXIST | libc::EADDRINUSE, _) => Problem::new(
            "tunnel-exists",
            format!(
                "; another vxlan interface or program uses the VNI and UDP port of {link}. Find the interface or program with `ip -d link show type vxlan` and `ss -ulpn`, or set another Port or VNI in the Backend"
            ),
        ),
        _ => Problem::new("kernel-refused", ""),
    }
}

fn taken_tunnel_port(number: u16, text: String) -> Problem {
    let detail = Detail::PortTaken { number, udp: true, purpose: PortPurpose::Tunnel };
    Problem::new("tunnel-port-taken", text).with(detail)
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

    fn refused(op: &Op, errno: i32) -> Option<OpError> {
        op_result(op, Err(RequestError::Refused { errno, words: "words".to_owned() })).err()
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
            assert!(error.why.text.starts_with(&format!("{}: words", Errno(code))), "{error}");
        }
        for (op, code, name, detail) in [
            (
                add(link()),
                libc::EOPNOTSUPP,
                "module-missing",
                Detail::ModuleMissing { name: "vxlan".to_owned() },
            ),
            (
                replace(link()),
                libc::EADDRINUSE,
                "tunnel-port-taken",
                Detail::PortTaken { number: 8472, udp: true, purpose: PortPurpose::Tunnel },
            ),
            (add(route()), libc::ENETUNREACH, "peer-not-on-link", Detail::None),
            (add(route()), libc::ENOBUFS, "kernel-refused", Detail::None),
        ] {
            let problem = Problem::of(&refused(&op, code).unwrap());
            assert_eq!((problem.code.as_ref(), problem.detail), (name, detail));
        }
        assert!(op_result(&add(route()), Err(RequestError::Lost)).is_err());
    }
}
