//! Creates, changes and deletes links. Each kind of link has its own file.

use super::decode::SeenLink;
use super::header::{flag_header, link_header};
use super::socket::Answer;
use super::uapi::*;
use super::wire::Message;
use super::{NetlinkKernel, ethtool, ipip, port, vxlan};
use crate::error::{FailureKind, OpError, vanished_interface};
use crate::link::{LinkKind, LinkSpec};
use crate::names::LinkName;
use crate::object::{Op, Value};
use crate::probe_port::bridge_of;
use std::io;
use types::Problem;

impl NetlinkKernel {
    pub(super) async fn apply_link(&mut self, name: LinkName, op: &Op) -> Option<OpError> {
        match op {
            Op::Add(_, Value::Link(spec)) => {
                let Some(message) = creation(name, spec) else {
                    let kind = spec.kind.name();
                    let text = format!(
                        "only the program that opens a {kind} device can create the device"
                    );
                    let why = Problem::new("interface-not-creatable", text);
                    return Some(OpError::new(op, FailureKind::Unsupported, why));
                };
                // Otherwise a second device would be created, and could not have the port of the first.
                if matches!(spec.kind, LinkKind::Wireguard(_)) && self.rename_back(name, spec).await
                {
                    return self.change_link(name, spec, op).await;
                }
                if let Some(error) = self.one(op, message).await {
                    // Another program may have renamed our own device, which then conflicts with the new one.
                    let back =
                        error.kind == FailureKind::Conflict && self.rename_back(name, spec).await;
                    return if back { self.change_link(name, spec, op).await } else { Some(error) };
                }
                self.finish_link(name, spec, op).await
            }
            Op::Replace(_, Value::Link(spec)) => self.change_link(name, spec, op).await,
            Op::Delete(..) => {
                if let Some(bridge) = bridge_of(name.as_str()) {
                    // Otherwise a pod that gets one of the addresses would not be reachable.
                    let _ = port::forget_all(&mut self.requests, bridge).await;
                }
                let link = self.links_by_name(&[name]).await.unwrap_or_default().remove(&name)?;
                self.one(op, Message::new(RTM_DELLINK, 0, &link_header(link.index))).await
            }
            Op::Refuse(_, Value::Link(spec)) => {
                let kind = spec.kind.name();
                let text = format!(
                    "an interface {name} of kind {kind} already exists; rename or delete the interface (ip link delete {name})"
                );
                let why = Problem::new("interface-name-taken", text);
                Some(OpError::new(op, FailureKind::Conflict, why))
            }
            Op::Add(..) | Op::Replace(..) | Op::Refuse(..) => None,
        }
    }

    /// Restores the name of flannel's device after another program renamed it; true if it was
    /// restored. A vxlan device is recognised by VNI, UDP port and MAC. A WireGuard device is
    /// recognised by the last known index, an IPIP device also by local and remote address.
    async fn rename_back(&mut self, name: LinkName, wanted: &LinkSpec) -> bool {
        let same_tunnel = |found: &LinkKind| match (found, &wanted.kind) {
            (LinkKind::Vxlan(found), LinkKind::Vxlan(wanted)) => found.is_same_tunnel(wanted),
            (LinkKind::Ipip(found), LinkKind::Ipip(wanted)) => wanted.has_ends_of(found),
            (LinkKind::Wireguard(_), LinkKind::Wireguard(_)) => true,
            _ => false,
        };
        let index = self.last_index.get(&name).copied();
        let known = |link: &SeenLink| match link.spec.kind {
            LinkKind::Ipip(_) | LinkKind::Wireguard(_) => Some(link.index) == index,
            _ => wanted.mac.is_some() && link.spec.mac == wanted.mac,
        };
        let ours = |link: &SeenLink| same_tunnel(&link.spec.kind) && known(link);
        let Some(found) = self.all_links().await.unwrap_or_default().into_iter().find(ours) else {
            return false;
        };
        let renaming = || {
            Message::new(RTM_NEWLINK, 0, &link_header(found.index)).text(IFLA_IFNAME, name.as_str())
        };
        let mut answer = self.requests.batch(vec![renaming()], 1, |_, _| ()).await.pop();
        if matches!(answer, Some(Answer::Refused(libc::EBUSY, _))) {
            // Before Linux 6.2 an interface can be renamed only while it is down. Its routes are lost and come back with the next pass.
            let down = Message::new(RTM_NEWLINK, 0, &flag_header(found.index, IFF_UP, false));
            answer = self.requests.batch(vec![down, renaming()], 1, |_, _| ()).await.pop();
        }
        let done = answer == Some(Answer::Done);
        if done {
            tracing::warn!(
                device = %name,
                from = %found.name,
                "another program renamed the device; restored the name"
            );
        }
        done
    }

    async fn change_link(&mut self, name: LinkName, spec: &LinkSpec, op: &Op) -> Option<OpError> {
        let links = self.links_by_name(&[name]).await.unwrap_or_default();
        let Some(found) = links.get(&name) else {
            return Some(OpError::new(op, FailureKind::Other, vanished_interface()));
        };
        let header = link_header(found.index);
        if let Some(message) =
            change_of_kind(Message::new(RTM_NEWLINK, 0, &header), &spec.kind, &found.spec.kind)
            && let Some(error) = self.one(op, message).await
        {
            return Some(error);
        }
        if let Some(mac) = spec.mac.filter(|mac| Some(*mac) != found.spec.mac)
            && let Some(error) =
                self.one(op, Message::new(RTM_NEWLINK, 0, &header).attr(IFLA_ADDRESS, &mac.0)).await
        {
            return Some(error);
        }
        if spec.mtu != found.spec.mtu
            && let Some(error) =
                self.one(op, Message::new(RTM_NEWLINK, 0, &header).number(IFLA_MTU, spec.mtu)).await
        {
            return Some(error);
        }
        self.finish_link(name, spec, op).await
    }

    /// Sets the properties that are not attributes of RTM_NEWLINK. The link comes up last, so that
    /// it has all properties when packets arrive.
    async fn finish_link(&mut self, name: LinkName, spec: &LinkSpec, op: &Op) -> Option<OpError> {
        if let Some(accept) = spec.accept_ra
            && let Err(error) = std::fs::write(
                format!("/proc/sys/net/ipv6/conf/{name}/accept_ra"),
                if accept { "1" } else { "0" },
            )
            && self.fixed_ra.insert(name)
            && error.kind() != io::ErrorKind::NotFound
        {
            const MESSAGE: &str = "cannot set accept_ra of the device, leaving it unchanged";
            let to = u8::from(accept);
            // In an unprivileged pod this happens on every node of every cluster.
            match error.kind() {
                io::ErrorKind::ReadOnlyFilesystem => {
                    tracing::debug!(device = %name, to, error = %error, "{MESSAGE}");
                }
                _ => tracing::warn!(device = %name, to, error = %error, "{MESSAGE}"),
            }
        }
        if let Some(on) = spec.checksum_offload
            && let Err(error) = ethtool::set_tx_checksum(name, on)
            && self.fixed_checksum.insert(name)
        {
            tracing::warn!(
                device = %name,
                error = %error,
                "cannot set the checksum offload of the device, leaving it unchanged"
            );
        }
        let index = match self.links_by_name(&[name]).await {
            Ok(mut links) => links.remove(&name)?.index,
            Err(error) => return Some(OpError::new(op, FailureKind::Other, error.why)),
        };
        if let LinkKind::Wireguard(spec) = &spec.kind
            && let Some(error) = self.set_wireguard(index, spec, op).await
        {
            return Some(error);
        }
        self.one(op, Message::new(RTM_NEWLINK, 0, &flag_header(index, IFF_UP, spec.up))).await
    }
}

/// `None` for kinds that flanneld does not create with netlink.
fn creation(name: LinkName, spec: &LinkSpec) -> Option<Message> {
    let mut message = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &[0; IFINFOMSG])
        .text(IFLA_IFNAME, name.as_str())
        .number(IFLA_MTU, spec.mtu)
        .number(IFLA_TXQLEN, 0);
    if let Some(mac) = spec.mac {
        message = message.attr(IFLA_ADDRESS, &mac.0);
    }
    match &spec.kind {
        LinkKind::Vxlan(spec) => Some(vxlan::creation(message, spec)),
        LinkKind::Ipip(spec) => Some(ipip::attributes(message, spec)),
        LinkKind::Wireguard(_) => {
            Some(message.nest(IFLA_LINKINFO, |info| {
                info.text(IFLA_INFO_KIND, crate::link::wireguard::KIND)
            }))
        }
        LinkKind::Tun(_) | LinkKind::Other(_) => None,
    }
}

/// `None` if all properties are in sync.
fn change_of_kind(message: Message, want: &LinkKind, have: &LinkKind) -> Option<Message> {
    match (want, have) {
        (LinkKind::Vxlan(want), LinkKind::Vxlan(have)) => vxlan::change(message, want, have),
        (LinkKind::Ipip(want), LinkKind::Ipip(have)) => {
            (want != have).then(|| ipip::attributes(message, want))
        }
        _ => None,
    }
}
