//! Finds the remote addresses of other programs' vxlan interfaces that use flannel's UDP port.

use crate::object::link::vxlan::{self, KIND};
use netlink::link::{Link, all_links};
use netlink::neighbor::{Neighbor, dump_neighbors};
use netlink::uapi::*;
use netlink::{Client, KernelError, Received};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The notifications that [`is_tunnel_change`] judges.
pub const TUNNEL_GROUPS: i32 = RTMGRP_LINK | RTMGRP_NEIGH;

/// The underlay addresses to which vxlan interfaces with the UDP port `port` send packets,
/// according to permanent FDB entries. Skips interfaces in `own`.
pub fn read_tunnel_destinations(
    client: &mut Client,
    port: u16,
    own: &[String],
) -> Result<BTreeSet<IpAddr>, KernelError> {
    let tunnels = client.dump(&all_links(), |message| {
        let link = Link::decode(message).filter(|link| link.kind == KIND)?;
        let uses = vxlan::decode(link.data).port == port;
        (uses && !own.iter().any(|name| name == link.name)).then_some(link.index)
    });
    let mut found = BTreeSet::new();
    for index in tunnels? {
        found.extend(dump_neighbors(client, index, AF_BRIDGE, |entry| {
            let is_host = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_multicast();
            entry.destination.filter(is_host).filter(|_| entry.is_permanent())
        })?);
    }
    Ok(found)
}

/// True if a vxlan interface or a permanent FDB entry has changed.
#[must_use]
pub fn is_tunnel_change(message: &Received<'_>) -> bool {
    Link::decode(message).is_some_and(|link| link.kind == KIND)
        || Neighbor::decode(message)
            .is_some_and(|entry| entry.family == AF_BRIDGE && entry.is_permanent())
}
