//! Converts operations to messages and sends the messages in batches.

use super::errno::op_result;
use super::{NetlinkKernel, wireguard};
use crate::error::{FailureKind, OpError};
use crate::names::LinkName;
use crate::object::{Key, Op, Value};
use crate::route::{RouteKind, RouteSpec};
use ipnet::IpNet;
use netlink::header::{address_header, neighbor_header, route_header};
use netlink::uapi::*;
use netlink::{KernelError, Message};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use types::Problem;

/// At most so many operations become messages at once. The limit reduces memory use.
const SLICE: usize = 1024;

type Indices = BTreeMap<LinkName, u32>;

impl NetlinkKernel {
    pub(super) fn apply_all(&mut self, ops: &[Op]) -> Vec<OpError> {
        let mut errors = Vec::new();
        let mut rest = ops;
        while let Some(first) = rest.first() {
            if let (Key::Link(name), op) = (first.key(), first) {
                errors.extend(self.apply_link(*name, op).err());
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            let peers = wireguard::concerns(first);
            let same =
                |op: &&Op| !matches!(op.key(), Key::Link(_)) && wireguard::concerns(op) == peers;
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
            if peers {
                errors.extend(self.apply_peers(now, &indices));
                continue;
            }
            let (messages, sent): (Vec<Message>, Vec<&Op>) = now
                .iter()
                .filter_map(|op| match message(op, &indices) {
                    Ok(message) => Some((message, op)),
                    Err(missing) => {
                        errors.extend(missing.map(|name| missing_interface(op, name)));
                        None
                    }
                })
                .unzip();
            let answers = self.client.batch(messages);
            errors.extend(
                sent.into_iter()
                    .zip(answers)
                    .filter_map(|(op, answer)| op_result(op, answer).err()),
            );
        }
        errors
    }

    /// Goes interface by interface.
    fn apply_peers(&mut self, ops: &[Op], indices: &Indices) -> Vec<OpError> {
        let mut errors = Vec::new();
        let names: BTreeSet<LinkName> = ops.iter().filter_map(device).collect();
        for name in names {
            let on_it: Vec<&Op> = ops.iter().filter(|op| device(op) == Some(name)).collect();
            match indices.get(&name) {
                Some(index) => errors.extend(self.apply_wireguard(*index, &on_it)),
                // Deletions are skipped: the kernel deleted the objects with the interface.
                None => {
                    let missing = on_it.into_iter().filter(|op| !matches!(op, Op::Delete(..)));
                    errors.extend(missing.map(|op| missing_interface(op, name)));
                }
            }
        }
        errors
    }

    /// The links that the operations use, without those that do not exist.
    fn indices(&mut self, ops: &[Op]) -> Result<Indices, KernelError> {
        let names: BTreeSet<LinkName> = ops.iter().filter_map(device).collect();
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

fn missing_interface(op: &Op, name: LinkName) -> OpError {
    let text = format!("interface {name} does not exist");
    OpError::new(op, FailureKind::Other, Problem::new("interface-missing", text))
}

fn device(op: &Op) -> Option<LinkName> {
    match op {
        Op::Add(_, Value::Route(route))
        | Op::Replace(_, Value::Route(route))
        | Op::Delete(_, Value::Route(route)) => {
            Some(route.dev).filter(|dev| *dev != LinkName::default())
        }
        op => op.key().link(),
    }
}

/// The error is the name of a missing interface, or `None` if the operation needs no message.
fn message(op: &Op, indices: &Indices) -> Result<Message, Option<LinkName>> {
    let missing = |name: LinkName| match op {
        Op::Delete(..) => None,
        _ => Some(name),
    };
    let index = |name: LinkName| indices.get(&name).copied().ok_or_else(|| missing(name));
    let (value, kind, flags) = match op {
        Op::Add(_, value) => (value, 0, NLM_F_CREATE | NLM_F_EXCL),
        Op::Replace(_, value) => (value, 0, NLM_F_CREATE | NLM_F_REPLACE),
        Op::Delete(_, value) => (value, DELETION, 0),
        Op::Refuse(..) => return Err(None),
    };
    // A learned or failed entry on our own link may conflict. It has no owner and is overwritten.
    let over = if kind == 0 { NLM_F_CREATE | NLM_F_REPLACE } else { 0 };
    match (op.key(), value) {
        (Key::Address(name, net), Value::Address) => {
            Ok(address_message(RTM_NEWADDR + kind, flags, net, index(*name)?))
        }
        (Key::Fdb(name, mac), Value::Fdb(ip)) => Ok(Message::new(
            RTM_NEWNEIGH + kind,
            over,
            &neighbor_header(AF_BRIDGE, index(*name)?, NUD_PERMANENT, NTF_SELF),
        )
        .attr(NDA_LLADDR, &mac.0)
        .ip(NDA_DST, *ip)),
        (Key::Neighbor(name, ip), Value::Neighbor(mac)) => {
            let message = Message::new(
                RTM_NEWNEIGH + kind,
                over,
                &neighbor_header(family(ip), index(*name)?, NUD_PERMANENT, 0),
            )
            .ip(NDA_DST, *ip);
            Ok(if kind == 0 { message.attr(NDA_LLADDR, &mac.0) } else { message })
        }
        (Key::Route(net, metric), Value::Route(route)) => {
            let oif = if route.dev == LinkName::default() { 0 } else { index(route.dev)? };
            Ok(if kind == 0 {
                route_message(flags, net, *metric, route, oif)
            } else {
                route_removal(net, *metric, route, oif)
            })
        }
        _ => Err(None),
    }
}

fn address_message(kind: u16, flags: u16, net: &IpNet, index: u32) -> Message {
    let mut header = address_header(family(&net.addr()), net.prefix_len(), index);
    // No other host can have this address, and a tentative address cannot be used.
    if let (IpAddr::V6(_), Some(place), RTM_NEWADDR) = (net.addr(), header.get_mut(2), kind) {
        *place = IFA_F_NODAD;
    }
    Message::new(kind, flags, &header).ip(IFA_LOCAL, net.addr()).ip(IFA_ADDRESS, net.addr())
}

fn route_message(flags: u16, net: &IpNet, metric: u32, route: &RouteSpec, oif: u32) -> Message {
    let kind = match route.kind {
        RouteKind::Unicast => RTN_UNICAST,
        RouteKind::Blackhole => RTN_BLACKHOLE,
        RouteKind::Unreachable => RTN_UNREACHABLE,
        RouteKind::Other(kind) => kind,
    };
    let mut header = route_header(
        family(&net.addr()),
        net.prefix_len(),
        route.protocol,
        route.scope,
        kind,
        RT_TABLE_MAIN,
    );
    if let (true, Some(place)) = (route.onlink, header.get_mut(8..12)) {
        place.copy_from_slice(&RTNH_F_ONLINK.to_ne_bytes());
    }
    rest_of_route(Message::new(RTM_NEWROUTE, flags, &header), net, metric, route, oif)
}

/// Contains all known properties, such as the protocol number, so that the kernel deletes no other
/// route.
fn route_removal(net: &IpNet, metric: u32, route: &RouteSpec, oif: u32) -> Message {
    let scope = if net.addr().is_ipv4() { RT_SCOPE_NOWHERE } else { 0 };
    let kind = match route.kind {
        RouteKind::Blackhole => RTN_BLACKHOLE,
        RouteKind::Unreachable => RTN_UNREACHABLE,
        RouteKind::Unicast | RouteKind::Other(_) => RTN_UNSPEC,
    };
    let header = route_header(
        family(&net.addr()),
        net.prefix_len(),
        route.protocol,
        scope,
        kind,
        RT_TABLE_MAIN,
    );
    rest_of_route(Message::new(RTM_DELROUTE, 0, &header), net, metric, route, oif)
}

fn rest_of_route(
    message: Message,
    net: &IpNet,
    metric: u32,
    route: &RouteSpec,
    oif: u32,
) -> Message {
    let mut message = message.ip(RTA_DST, net.network());
    if oif != 0 {
        message = message.number(RTA_OIF, oif);
    }
    if let Some(via) = route.via.filter(|via| via.is_ipv4() == net.addr().is_ipv4()) {
        message = message.ip(RTA_GATEWAY, via);
    }
    if metric != 0 { message.number(RTA_PRIORITY, metric) } else { message }
}

fn family(ip: &IpAddr) -> u8 {
    if ip.is_ipv4() { AF_INET } else { AF_INET6 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{LinkKind, LinkSpec};

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
}
