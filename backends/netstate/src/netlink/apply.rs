//! Converts operations to messages, sends the messages in batches, and classifies the refusals.

use super::NetlinkKernel;
use crate::kernel::{FailureKind, OpError};
use crate::kinds;
use crate::names::LinkName;
use crate::object::{Key, Op, Value};
use netlink::{Answer, KernelError, Message, RequestError};
use std::collections::{BTreeMap, BTreeSet};
use types::{Errno, Problem};

/// At most so many operations become messages at once. The limit reduces memory use.
const SLICE: usize = 1024;

impl NetlinkKernel {
    pub(super) fn apply_all(&mut self, ops: &[Op]) -> Vec<OpError> {
        let mut errors = Vec::new();
        let mut rest = ops;
        while let Some(first) = rest.first() {
            if let (Key::Link(name), Value::Link(spec)) = (first.key(), first.value()) {
                errors.extend(self.apply_link(*name, spec, first).err());
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            let peers = is_about_peers(first);
            let same =
                |op: &&Op| !matches!(op.value(), Value::Link(_)) && is_about_peers(op) == peers;
            let run = rest.iter().take(SLICE).take_while(same).count();
            let (now, later) = rest.split_at(run);
            rest = later;
            let indices = match self.indices(now) {
                Ok(indices) => indices,
                // Which of the links exist is not known.
                Err(error) => {
                    errors.extend(now.iter().map(|op| not_looked_up(op, &error)));
                    continue;
                }
            };
            let index = |op: &Op| op.device().map_or(Some(0), |name| indices.get(&name).copied());
            let (present, missing): (Vec<&Op>, Vec<&Op>) =
                now.iter().partition(|op| index(op).is_some());
            // The kernel deleted the objects with the interface.
            let missing = missing.into_iter().filter(|op| !op.is_deletion());
            errors.extend(missing.map(missing_interface));
            if peers {
                for (name, index) in &indices {
                    let is_on_it = |op: &&&Op| op.device() == Some(*name);
                    let on_it: Vec<&Op> = present.iter().filter(is_on_it).copied().collect();
                    errors.extend(self.apply_wireguard(*index, &on_it));
                }
                continue;
            }
            let message = |op| Some((kinds::encode_request(op, index(op)?)?, op));
            let (messages, sent): (Vec<Message>, Vec<&Op>) =
                present.into_iter().filter_map(message).unzip();
            let answers = self.client.batch(messages);
            errors.extend(
                sent.into_iter()
                    .zip(answers)
                    .filter_map(|(op, answer)| op_result(op, answer).err()),
            );
        }
        errors
    }

    /// The links that the operations use, without those that do not exist.
    fn indices(&mut self, ops: &[Op]) -> Result<BTreeMap<LinkName, u32>, KernelError> {
        let names: BTreeSet<LinkName> = ops.iter().filter_map(Op::device).collect();
        let names: Vec<LinkName> = names.into_iter().collect();
        let links = self.links_by_name(&names)?;
        Ok(links.into_iter().map(|(name, link)| (name, link.index)).collect())
    }

    pub(super) fn apply_one(&mut self, op: &Op, message: Message) -> Result<(), OpError> {
        op_result(op, self.client.request(message))
    }
}

/// A failed look-up does not tell whether the object of the operation exists.
pub(super) fn not_looked_up(op: &Op, error: &KernelError) -> OpError {
    OpError::new(op, FailureKind::Other, error.why.clone())
}

fn missing_interface(op: &Op) -> OpError {
    let text = format!("interface {} does not exist", op.device().unwrap_or_default());
    OpError::new(op, FailureKind::Other, Problem::new("interface-missing", text))
}

fn is_about_peers(op: &Op) -> bool {
    matches!(op.key(), Key::WireguardPeer(..) | Key::AllowedIp(..))
}

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
    let (kind, cause) = match code {
        libc::EPERM => (
            FailureKind::Unsupported,
            Problem::new(
                "kernel-forbidden",
                "; run this program with CAP_NET_ADMIN in this network namespace",
            ),
        ),
        _ => kinds::explain_refusal(op, code),
    };
    let colon = if words.is_empty() { "" } else { ": " };
    let text = format!("{}{colon}{words}{cause}", Errno(code));
    Err(OpError::new(op, kind, Problem { text, ..cause }))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Mac;
    use crate::object::link::vxlan::VxlanSpec;
    use crate::object::link::{LinkKind, LinkSpec};
    use crate::object::route::{RouteKind, RouteSpec};
    use std::net::IpAddr;
    use types::Detail;
    use types::problem::PortPurpose;

    #[tokio::test]
    async fn failed_look_up_of_links_is_an_error_of_each_operation() {
        let mut kernel = NetlinkKernel::open().unwrap();
        kernel.client.shrink_receive_buffer().unwrap();
        let [lo, none] = ["lo", "no-such-link"].map(|name| LinkName::parse(name).unwrap());
        let address = |name| Key::Address(name, "192.0.2.1/32".parse().unwrap());
        let spec = LinkSpec {
            kind: LinkKind::Other("device".to_owned()),
            mac: None,
            mtu: 65_536,
            up: true,
            accept_ra: None,
            checksum_offload: None,
        };
        let link = || Value::Link(Box::new(spec.clone()));
        let ops = [
            Op::Delete(address(lo), Value::Address),
            Op::Add(address(none), Value::Address),
            Op::Delete(Key::Link(lo), link()),
            Op::Replace(Key::Link(lo), link()),
        ];
        let errors = kernel.apply_all(&ops);
        assert_eq!(errors.len(), ops.len(), "{errors:?}");
        assert!(errors.iter().all(|error| error.why.code == "kernel-refused"), "{errors:?}");
    }

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
