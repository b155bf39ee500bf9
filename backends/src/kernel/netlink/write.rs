//! Operations turned into messages, and the kernel's verdicts into words.

use super::header::{address_header, link_header, neighbor_header, route_header};
use super::number::*;
use super::socket::{Answer, BATCH};
use super::wire::Message;
use super::{NetlinkKernel, SeenLink, ethtool};
use crate::kernel::names::LinkName;
use crate::kernel::state::{Key, LinkKind, LinkSpec, Op, RouteKind, RouteSpec, Value, VxlanSpec};
use crate::kernel::{Failure, OpError};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

/// How many operations are turned into messages at a time; bounds memory, not what the kernel sees.
const SLICE: usize = 8 * BATCH;

type Indices = BTreeMap<LinkName, u32>;

impl NetlinkKernel {
    pub(super) async fn apply_all(&mut self, ops: &[Op]) -> Vec<OpError> {
        let mut errors = Vec::new();
        let mut rest = ops;
        while let Some(first) = rest.first() {
            if let (Key::Link(name), op) = (first.key(), first) {
                errors.extend(self.apply_link(*name, op).await);
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            let run = rest.iter().take(SLICE).take_while(|op| !matches!(op.key(), Key::Link(_))).count();
            let (now, later) = rest.split_at(run);
            rest = later;
            let indices = self.indices(now).await;
            let (messages, sent): (Vec<Message>, Vec<&Op>) =
                now.iter().filter_map(|op| message(op, &indices).map(|message| (message, op)).map_err(|error| errors.extend(error)).ok()).unzip();
            let answers = self.requests.batch(messages, BATCH, |_, _| ()).await;
            errors.extend(sent.into_iter().zip(answers).filter_map(|(op, answer)| judge(op, &answer)));
        }
        errors
    }

    /// The links that the operations name; one that cannot be looked up is missing.
    async fn indices(&mut self, ops: &[Op]) -> Indices {
        let names: BTreeSet<LinkName> = ops.iter().filter_map(device).collect();
        let names: Vec<LinkName> = names.into_iter().collect();
        let links = self.links_by_name(&names).await.unwrap_or_default();
        links.into_iter().map(|(name, link)| (name, link.index)).collect()
    }

    async fn apply_link(&mut self, name: LinkName, op: &Op) -> Option<OpError> {
        match op {
            Op::Add(_, Value::Link(spec)) => {
                let LinkKind::Vxlan(vxlan) = &spec.kind else {
                    return Some(error(op, Failure::Unsupported, "such a link is made elsewhere".to_owned()));
                };
                if let Some(error) = self.one(op, created(name, spec, vxlan)).await {
                    // Our own device under another name is in the way of a second one.
                    let back = error.failure == Failure::Conflict && self.rename_back(name, spec, vxlan).await;
                    return if back { self.change_link(name, spec, op).await } else { Some(error) };
                }
                self.finish_link(name, spec, op).await
            }
            Op::Replace(_, Value::Link(spec)) => self.change_link(name, spec, op).await,
            Op::Delete(..) => {
                let link = self.links_by_name(&[name]).await.unwrap_or_default().remove(&name)?;
                self.one(op, Message::new(DELLINK, 0, &link_header(link.index))).await
            }
            Op::Refuse(_, Value::Link(spec)) => {
                let kind = if let LinkKind::Other(kind) = &spec.kind { kind.as_str() } else { "unknown" };
                let why =
                    format!("there is an interface of that name, of kind {kind}, that is not ours: rename or delete it (ip link delete {name})");
                Some(error(op, Failure::Conflict, why))
            }
            Op::Add(..) | Op::Replace(..) | Op::Refuse(..) => None,
        }
    }

    /// Gives our device its name again after somebody renamed it: VNI, port and MAC tell that it is ours. Whether that was done.
    async fn rename_back(&mut self, name: LinkName, spec: &LinkSpec, wanted: &VxlanSpec) -> bool {
        let port = |vxlan: &VxlanSpec| vxlan.port.unwrap_or(crate::vxlan::PORT);
        let ours = |link: &SeenLink| {
            let same = matches!(&link.spec.kind, LinkKind::Vxlan(found) if found.vni == wanted.vni && port(found) == port(wanted));
            same && spec.mac.is_some() && link.spec.mac == spec.mac
        };
        let Some(found) = self.all_links().await.unwrap_or_default().into_iter().find(ours) else { return false };
        let renaming = || Message::new(NEWLINK, 0, &link_header(found.index)).text(IFLA_IFNAME, name.as_str());
        let mut answer = self.requests.batch(vec![renaming()], 1, |_, _| ()).await.pop();
        if matches!(answer, Some(Answer::Refused(libc::EBUSY, _))) {
            // Before Linux 6.2 an interface is renamed only while it is down; its routes go with that, and come back with the next pass.
            let down = Message::new(NEWLINK, 0, &flagged(found.index, false));
            answer = self.requests.batch(vec![down, renaming()], 1, |_, _| ()).await.pop();
        }
        let done = answer == Some(Answer::Done);
        if done {
            tracing::warn!("somebody renamed {name} to {}: it has its name back", found.name);
        }
        done
    }

    async fn change_link(&mut self, name: LinkName, spec: &LinkSpec, op: &Op) -> Option<OpError> {
        let links = self.links_by_name(&[name]).await.unwrap_or_default();
        let Some(found) = links.get(&name) else { return Some(error(op, Failure::Other, "it has vanished".to_owned())) };
        let header = link_header(found.index);
        if let (LinkKind::Vxlan(want), LinkKind::Vxlan(have)) = (&spec.kind, &found.spec.kind)
            && (want.local, want.lower, want.learning) != (have.local, have.lower, have.learning)
            && let Some(error) =
                self.one(op, Message::new(NEWLINK, 0, &header).nest(18, |m| m.text(1, "vxlan").nest(2, |m| vxlan_data(m, want)))).await
        {
            return Some(error);
        }
        if let Some(mac) = spec.mac.filter(|mac| Some(*mac) != found.spec.mac)
            && let Some(error) = self.one(op, Message::new(NEWLINK, 0, &header).attr(1, &mac.0)).await
        {
            return Some(error);
        }
        if spec.mtu != found.spec.mtu
            && let Some(error) = self.one(op, Message::new(NEWLINK, 0, &header).number(4, spec.mtu)).await
        {
            return Some(error);
        }
        self.finish_link(name, spec, op).await
    }

    /// What is not an attribute of the link's message, and up last: packets then find everything in place.
    async fn finish_link(&mut self, name: LinkName, spec: &LinkSpec, op: &Op) -> Option<OpError> {
        if let Some(accept) = spec.accept_ra
            && let Err(error) = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_ra"), if accept { "1" } else { "0" })
            && self.fixed_ra.insert(name)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot set net.ipv6.conf.{name}.accept_ra={}: {error}; left as it is", u8::from(accept));
        }
        if let Some(on) = spec.checksum_offload
            && let Err(error) = ethtool::set_tx_checksum(name, on)
            && self.fixed_checksum.insert(name)
        {
            tracing::warn!("cannot switch the checksum offload of {name}: {error}; left as it is");
        }
        let index = match self.links_by_name(&[name]).await {
            Ok(mut links) => links.remove(&name)?.index,
            Err(problem) => return Some(error(op, Failure::Other, problem.why)),
        };
        self.one(op, Message::new(NEWLINK, 0, &flagged(index, spec.up))).await
    }

    async fn one(&mut self, op: &Op, message: Message) -> Option<OpError> {
        let answer = self.requests.batch(vec![message], 1, |_, _| ()).await.pop().unwrap_or(Answer::Lost);
        judge(op, &answer)
    }
}

/// The header that brings a link up or down.
fn flagged(index: u32, up: bool) -> [u8; 16] {
    let mut header = link_header(index);
    // ifi_flags and ifi_change: the one bit that says "up".
    for (at, value) in [(8, u8::from(up)), (12, 1)] {
        if let Some(place) = header.get_mut(if cfg!(target_endian = "little") { at } else { at + 3 }) {
            *place = value;
        }
    }
    header
}

fn device(op: &Op) -> Option<LinkName> {
    match op {
        Op::Add(_, Value::Route(route)) | Op::Replace(_, Value::Route(route)) | Op::Delete(_, Value::Route(route)) => {
            Some(route.dev).filter(|dev| *dev != LinkName::default())
        }
        op => op.key().link(),
    }
}

fn created(name: LinkName, spec: &LinkSpec, vxlan: &VxlanSpec) -> Message {
    let mut message = Message::new(NEWLINK, CREATE | EXCLUSIVE, &[0; 16]).text(IFLA_IFNAME, name.as_str()).number(4, spec.mtu).number(13, 0);
    if let Some(mac) = spec.mac {
        message = message.attr(1, &mac.0);
    }
    message.nest(18, |m| {
        m.text(1, "vxlan").nest(2, |m| {
            let mut m = vxlan_data(m, vxlan);
            if let Some(port) = vxlan.port {
                m = m.attr(15, &port.to_be_bytes());
            }
            if vxlan.gbp {
                m = m.attr(23, &[]);
            }
            // Checksums over IPv6 stay required (udp_zero_csum6_tx, _rx).
            m.attr(19, &[0]).attr(20, &[0])
        })
    })
}

/// What can be changed while the device exists, and the VNI, which the kernel wants to see again.
fn vxlan_data(message: Message, vxlan: &VxlanSpec) -> Message {
    let message = message.number(1, vxlan.vni).number(3, vxlan.lower).attr(7, &[u8::from(vxlan.learning)]);
    match vxlan.local {
        Some(ip) => message.ip(if ip.is_ipv4() { 4 } else { 17 }, ip),
        None => message,
    }
}

/// The message of an operation; `Err(None)` where nothing has to be done.
fn message(op: &Op, indices: &Indices) -> Result<Message, Option<OpError>> {
    let missing = |name: LinkName| match op {
        Op::Delete(..) => None,
        _ => Some(error(op, Failure::Other, format!("there is no interface {name}"))),
    };
    let index = |name: LinkName| indices.get(&name).copied().ok_or_else(|| missing(name));
    let (value, kind, flags) = match op {
        Op::Add(_, value) => (value, 0, CREATE | EXCLUSIVE),
        Op::Replace(_, value) => (value, 0, CREATE | REPLACE),
        Op::Delete(_, value) => (value, 1, 0),
        Op::Refuse(..) => return Err(None),
    };
    // On our own link a learned or failed entry may be in the way; it is nobody's.
    let over = if kind == 0 { CREATE | REPLACE } else { 0 };
    match (op.key(), value) {
        (Key::Address(name, net), Value::Address) => Ok(address_message(NEWADDR + kind, flags, net, index(*name)?)),
        (Key::Fdb(name, mac), Value::Fdb(ip)) => {
            const SELF: u8 = 2;
            Ok(Message::new(NEWNEIGH + kind, over, &neighbor_header(BRIDGE, index(*name)?, PERMANENT, SELF)).attr(2, &mac.0).ip(1, *ip))
        }
        (Key::Neighbor(name, ip), Value::Neighbor(mac)) => {
            let message = Message::new(NEWNEIGH + kind, over, &neighbor_header(family(ip), index(*name)?, PERMANENT, 0)).ip(1, *ip);
            Ok(if kind == 0 { message.attr(2, &mac.0) } else { message })
        }
        (Key::Route(net, metric), Value::Route(route)) => {
            let oif = if route.dev == LinkName::default() { 0 } else { index(route.dev)? };
            Ok(if kind == 0 { route_message(flags, net, *metric, route, oif) } else { route_removal(net, *metric, route, oif) })
        }
        _ => Err(None),
    }
}

fn address_message(kind: u16, flags: u16, net: &IpNet, index: u32) -> Message {
    let mut header = address_header(family(&net.addr()), net.prefix_len(), index);
    // Nobody else can have this address, and a tentative one cannot be used (IFA_F_NODAD).
    const NODAD: u8 = 2;
    if let (IpAddr::V6(_), Some(place), NEWADDR) = (net.addr(), header.get_mut(2), kind) {
        *place = NODAD;
    }
    Message::new(kind, flags, &header).ip(2, net.addr()).ip(1, net.addr())
}

fn route_message(flags: u16, net: &IpNet, metric: u32, route: &RouteSpec, oif: u32) -> Message {
    let kind = match route.kind {
        RouteKind::Unicast => 1,
        RouteKind::Blackhole => BLACKHOLE,
        RouteKind::Other(kind) => kind,
    };
    let mut header = route_header(family(&net.addr()), net.prefix_len(), route.protocol, route.scope, kind, MAIN);
    if let (true, Some(place)) = (route.onlink, header.get_mut(8..12)) {
        place.copy_from_slice(&ONLINK.to_ne_bytes());
    }
    rest_of_route(Message::new(NEWROUTE, flags, &header), net, metric, route, oif)
}

/// Names everything that is known of the route, its protocol first: nobody else's is hit.
fn route_removal(net: &IpNet, metric: u32, route: &RouteSpec, oif: u32) -> Message {
    const NOWHERE: u8 = 255;
    let scope = if net.addr().is_ipv4() { NOWHERE } else { 0 };
    let kind = if route.kind == RouteKind::Blackhole { BLACKHOLE } else { 0 };
    let header = route_header(family(&net.addr()), net.prefix_len(), route.protocol, scope, kind, MAIN);
    rest_of_route(Message::new(DELROUTE, 0, &header), net, metric, route, oif)
}

fn rest_of_route(message: Message, net: &IpNet, metric: u32, route: &RouteSpec, oif: u32) -> Message {
    let mut message = message.ip(1, net.network());
    if oif != 0 {
        message = message.number(4, oif);
    }
    if let Some(via) = route.via.filter(|via| via.is_ipv4() == net.addr().is_ipv4()) {
        message = message.ip(5, via);
    }
    if metric != 0 { message.number(6, metric) } else { message }
}

fn family(ip: &IpAddr) -> u8 {
    if ip.is_ipv4() { INET } else { INET6 }
}

fn error(op: &Op, failure: Failure, why: String) -> OpError {
    OpError { verb: op.verb(), key: *op.key(), failure, why }
}

/// The errno policy, all of it.
fn judge(op: &Op, answer: &Answer) -> Option<OpError> {
    let (code, words) = match answer {
        Answer::Done => return None,
        Answer::Lost => return Some(error(op, Failure::Other, "the kernel did not answer; it is looked at again".to_owned())),
        Answer::Refused(code, words) => (*code, words.trim()),
    };
    let said = match (io::Error::from_raw_os_error(code), words) {
        (error, "") => error.to_string(),
        (error, words) => format!("{error}: {words}"),
    };
    let (failure, remedy) = match (op, op.key(), code) {
        // What is to go is gone.
        (Op::Delete(..), _, libc::ESRCH | libc::ENOENT | libc::ENODEV | libc::EADDRNOTAVAIL | libc::ENXIO) => return None,
        (Op::Add(..), Key::Address(..), libc::EEXIST) => return None,
        (_, _, libc::EPERM) => (Failure::Unsupported, "; CAP_NET_ADMIN is needed in this network namespace".to_owned()),
        (_, Key::Address(name, IpNet::V6(_)), libc::EACCES) => {
            (Failure::Unsupported, format!("; IPv6 is switched off there: sysctl -w net.ipv6.conf.{name}.disable_ipv6=0, and the same for default"))
        }
        (Op::Add(..), Key::Route(net, _), libc::EEXIST) => {
            (Failure::Conflict, format!("; a route to {net} that is not ours is in the way (ip route show {net}): it is left alone, remove it"))
        }
        (_, Key::Route(..), libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL) => (Failure::Conflict, gateway_text(op)),
        (_, Key::Link(name), libc::EOPNOTSUPP) => (
            Failure::Unsupported,
            format!(
                "; {name} needs the kernel module vxlan (modprobe vxlan; some distributions ship it apart, as linux-modules-extra-$(uname -r) or kernel-modules-extra)"
            ),
        ),
        (_, Key::Link(name), libc::EEXIST | libc::EADDRINUSE) => (
            Failure::Conflict,
            format!(
                "; another vxlan interface or program uses the VNI and UDP port of {name}: find it with `ip -d link show type vxlan` and `ss -ulpn`, or set another Port or VNI in the Backend"
            ),
        ),
        _ => (Failure::Other, String::new()),
    };
    Some(error(op, failure, said + &remedy))
}

fn gateway_text(op: &Op) -> String {
    match op {
        Op::Add(_, Value::Route(route)) | Op::Replace(_, Value::Route(route)) => match route.via {
            Some(via) if !route.onlink => {
                format!(
                    "; the peer's address {via} is not on the network of {}: host-gw and DirectRouting need a direct link, other peers are not affected",
                    route.dev
                )
            }
            Some(via) => {
                format!("; the way to {via} has to be {}: is it up, and does no other route send {via} elsewhere (ip route get {via})?", route.dev)
            }
            None => String::new(),
        },
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::names::Mac;

    #[test]
    fn each_errno_has_its_meaning() {
        let name = LinkName::parse("flannel.1").unwrap();
        let net: IpNet = "10.244.2.0/24".parse().unwrap();
        let via: IpAddr = "192.168.56.2".parse().unwrap();
        let route =
            RouteSpec { via: Some(via), dev: LinkName::parse("eth0").unwrap(), onlink: false, kind: RouteKind::Unicast, scope: 0, protocol: 241 };
        let kind = LinkKind::Vxlan(VxlanSpec { vni: 1, port: None, local: None, lower: 2, learning: false, gbp: false });
        let link = Value::Link(Box::new(LinkSpec { kind, mac: None, mtu: 1450, up: true, accept_ra: None, checksum_offload: None }));
        let refused = |op: Op, code| judge(&op, &Answer::Refused(code, "words".to_owned()));
        let key = Key::Route(net, 0);
        for code in [libc::ESRCH, libc::ENOENT, libc::ENODEV, libc::EADDRNOTAVAIL] {
            assert!(refused(Op::Delete(key, Value::Route(route)), code).is_none());
            assert!(refused(Op::Add(key, Value::Route(route)), code).is_some());
        }
        for (op, code, failure, part) in [
            (Op::Add(key, Value::Route(route)), libc::EEXIST, Failure::Conflict, "not ours is in the way"),
            (Op::Add(key, Value::Route(route)), libc::ENETUNREACH, Failure::Conflict, "192.168.56.2 is not on the network of eth0"),
            (Op::Add(Key::Link(name), link.clone()), libc::EOPNOTSUPP, Failure::Unsupported, "modprobe vxlan"),
            (Op::Add(Key::Link(name), link.clone()), libc::EEXIST, Failure::Conflict, "VNI and UDP port of flannel.1"),
            (Op::Replace(Key::Link(name), link), libc::EADDRINUSE, Failure::Conflict, "VNI and UDP port of flannel.1"),
            (Op::Add(Key::Fdb(name, Mac([2; 6])), Value::Fdb(via)), libc::EPERM, Failure::Unsupported, "CAP_NET_ADMIN"),
            (Op::Add(Key::Fdb(name, Mac([2; 6])), Value::Fdb(via)), libc::ENOMEM, Failure::Other, "words"),
            (Op::Add(Key::Address(name, "fd00::/128".parse().unwrap()), Value::Address), libc::EACCES, Failure::Unsupported, "disable_ipv6=0"),
        ] {
            let error = refused(op, code).unwrap();
            assert!(error.failure == failure && error.to_string().contains(part), "{error}");
        }
        assert!(judge(&Op::Add(key, Value::Route(route)), &Answer::Lost).is_some());
    }
}
