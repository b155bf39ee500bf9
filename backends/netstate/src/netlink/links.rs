//! Creates, changes and deletes links. Each kind of link has its own file.

use super::NetlinkKernel;
use super::apply::not_looked_up;
use crate::host::{ethtool, port};
use crate::kernel::{FailureKind, OpError, vanished_interface};
use crate::names::LinkName;
use crate::object::Op;
use crate::object::link::{LinkKind, LinkSpec, SeenLink};
use netlink::header::{flag_header, link_header};
use netlink::uapi::*;
use netlink::{Message, RequestError};
use std::io;
use types::Problem;

impl NetlinkKernel {
    pub(super) fn apply_link(
        &mut self,
        name: LinkName,
        spec: &LinkSpec,
        op: &Op,
    ) -> Result<(), OpError> {
        match op {
            Op::Add(..) => {
                let Some(message) = creation(name, spec) else {
                    let kind = spec.kind.name();
                    let text = format!(
                        "only the program that opens a {kind} device can create the device"
                    );
                    let why = Problem::new("interface-not-creatable", text);
                    return Err(OpError::new(op, FailureKind::Unsupported, why));
                };
                // Otherwise a second device would be created, and could not have the port of the first.
                if matches!(spec.kind, LinkKind::Wireguard(_))
                    && self.rename_back(name, spec, op)?
                {
                    return self.change_link(name, spec, op);
                }
                match self.apply_one(op, message) {
                    Ok(()) => self.finish_link(name, spec, op),
                    // Another program may have renamed our own device, which then conflicts with the new one.
                    Err(error)
                        if error.kind == FailureKind::Conflict
                            && self.rename_back(name, spec, op) == Ok(true) =>
                    {
                        self.change_link(name, spec, op)
                    }
                    Err(error) => Err(error),
                }
            }
            Op::Replace(..) => self.change_link(name, spec, op),
            Op::Delete(..) => {
                if let Some(bridge) = port::bridge_of(name.as_str()) {
                    // Otherwise a pod that gets one of the addresses would not be reachable.
                    let _ = port::forget_all(&mut self.client, bridge);
                }
                match self.link_by_name(name, op)? {
                    Some(link) => {
                        let message = Message::new(RTM_DELLINK, 0, &link_header(link.index));
                        self.apply_one(op, message)
                    }
                    None => Ok(()),
                }
            }
            Op::Refuse(..) => {
                let kind = spec.kind.name();
                let text = format!(
                    "an interface {name} of kind {kind} already exists; rename or delete the interface (ip link delete {name})"
                );
                let why = Problem::new("interface-name-taken", text);
                Err(OpError::new(op, FailureKind::Conflict, why))
            }
        }
    }

    fn link_by_name(&mut self, name: LinkName, op: &Op) -> Result<Option<SeenLink>, OpError> {
        let found = self.links_by_name(&[name]);
        Ok(found.map_err(|error| not_looked_up(op, &error))?.remove(&name))
    }

    /// Restores the name of flannel's device after another program renamed it; true if it was
    /// restored. A vxlan device is recognised by VNI, UDP port and MAC. A WireGuard device is
    /// recognised by the last known index, an IPIP device also by local and remote address.
    fn rename_back(&mut self, name: LinkName, wanted: &LinkSpec, op: &Op) -> Result<bool, OpError> {
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
        let links = self.all_links().map_err(|error| not_looked_up(op, &error))?;
        let Some(found) = links.into_iter().find(ours) else {
            return Ok(false);
        };
        let renaming = || {
            Message::new(RTM_NEWLINK, 0, &link_header(found.index)).text(IFLA_IFNAME, name.as_str())
        };
        let mut answer = self.client.request(renaming());
        if answer.as_ref().err().and_then(RequestError::errno) == Some(libc::EBUSY) {
            // Before Linux 6.2 an interface can be renamed only while it is down. Its routes are lost and come back with the next pass.
            let down = Message::new(RTM_NEWLINK, 0, &flag_header(found.index, IFF_UP, false));
            answer = self.client.request(down).and_then(|()| self.client.request(renaming()));
        }
        if answer.is_ok() {
            tracing::warn!(
                device = %name,
                from = %found.name,
                "another program renamed the device; restored the name"
            );
        }
        Ok(answer.is_ok())
    }

    fn change_link(&mut self, name: LinkName, spec: &LinkSpec, op: &Op) -> Result<(), OpError> {
        let Some(found) = self.link_by_name(name, op)? else {
            return Err(OpError::new(op, FailureKind::Other, vanished_interface()));
        };
        let header = link_header(found.index);
        let message = || Message::new(RTM_NEWLINK, 0, &header);
        if let Some(message) = spec.kind.change(message(), &found.spec.kind) {
            self.apply_one(op, message)?;
        }
        if let Some(mac) = spec.mac.filter(|mac| Some(*mac) != found.spec.mac) {
            self.apply_one(op, message().attr(IFLA_ADDRESS, &mac.0))?;
        }
        if spec.mtu != found.spec.mtu {
            self.apply_one(op, message().number(IFLA_MTU, spec.mtu))?;
        }
        self.finish_link(name, spec, op)
    }

    /// Sets the properties that are not attributes of RTM_NEWLINK. The link comes up last, so that
    /// it has all properties when packets arrive.
    fn finish_link(&mut self, name: LinkName, spec: &LinkSpec, op: &Op) -> Result<(), OpError> {
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
        let Some(link) = self.link_by_name(name, op)? else {
            return Err(OpError::new(op, FailureKind::Other, vanished_interface()));
        };
        if let LinkKind::Wireguard(spec) = &spec.kind {
            self.set_wireguard(link.index, spec, op)?;
        }
        let message = Message::new(RTM_NEWLINK, 0, &flag_header(link.index, IFF_UP, spec.up));
        self.apply_one(op, message)
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
    spec.kind.creation(message)
}
