//! Selects packets between pods of different nodes for route lookups, and the interfaces that they have to use. Has no side effects.

use crate::facts::Network;
use crate::facts::host::{Forwarded, Interface, PodPacket, PodPeer};
use ipnet::IpNet;
use std::net::IpAddr;
use types::Family;

/// From the first address of a subnet, as in subnet.env.
const GATEWAY: u8 = 1;
/// Offset of a sample pod's address from the first address of its subnet. Every usable subnet contains it.
const POD: u8 = 2;

/// A bridge (possibly Docker's) with an address of this node's subnet, otherwise `cni0` if it has only link-local addresses.
pub fn bridge<'a>(interfaces: &'a [Interface], network: &Network) -> Option<&'a Interface> {
    let is_in_own = |interface: &&Interface| {
        interface.kind == "bridge"
            && interface.nets().any(|net| network.own.nets().any(|own| own.contains(&net.addr())))
    };
    let is_bare = |interface: &&Interface| {
        let mut nets = interface.nets();
        interface.name == "cni0"
            && interface.kind == "bridge"
            && nets.all(|net| netstate::host::is_link_local(net.addr()))
    };
    interfaces.iter().find(is_in_own).or_else(|| interfaces.iter().find(is_bare))
}

/// True if the bridge has ports that belong to pods.
pub fn has_ports(interfaces: &[Interface], bridge: &Interface) -> bool {
    interfaces.iter().any(|interface| interface.is_pods_end_in(bridge.index))
}

/// The host's ends of veth pairs that only pods of a deleted bridge have: no port, without an address, with the MTU of flannel's pods.
pub(crate) fn detached<'a>(interfaces: &'a [Interface], network: &Network) -> Vec<&'a Interface> {
    let is_detached = |interface: &&Interface| {
        interface.kind == "veth"
            && interface.up
            && interface.master.is_none()
            && interface.name.starts_with("veth")
            && network.mtu == Some(interface.mtu)
            && interface.nets().all(|net| netstate::host::is_link_local(net.addr()))
            && !netstate::host::port::is_port(&interface.name)
    };
    interfaces.iter().filter(is_detached).collect()
}

/// The tunnel device, or the underlay interface if there is none: it sends pod packets to other nodes.
pub fn outside<'a>(
    interfaces: &'a [Interface],
    network: &Network,
    family: Family,
    underlay: Option<&str>,
) -> Option<&'a Interface> {
    let device = network.device(family);
    let name = device.as_deref().or(underlay)?;
    interfaces.iter().find(|interface| interface.name == name)
}

/// One in each direction for each peer; none until this node has pods. Packets from peers arrive on the tunnel device or the underlay interface.
pub(crate) fn packets(
    interfaces: &[Interface],
    network: &Network,
    underlay: Option<&str>,
    peers: &[PodPeer],
) -> Vec<PodPacket> {
    let Some(bridge) = bridge(interfaces, network).filter(|bridge| has_ports(interfaces, bridge))
    else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for peer in peers {
        let family = Family::from(peer.subnet.addr());
        let own = network.own.nets().find(|own| Family::from(own.addr()) == family);
        let ends =
            own.as_ref().and_then(|own| address_in(own, POD)).zip(address_in(&peer.subnet, POD));
        let outside = outside(interfaces, network, family, underlay);
        let (Some((own, theirs)), Some(outside)) = (ends, outside) else {
            continue;
        };
        all.push(PodPacket {
            peer: peer.clone(),
            out: true,
            packet: Forwarded { from: own, to: theirs, incoming: bridge.index },
        });
        all.push(PodPacket {
            peer: peer.clone(),
            out: false,
            packet: Forwarded { from: theirs, to: own, incoming: outside.index },
        });
    }
    all
}

/// The address has the subnet's prefix length.
pub(crate) fn gateway(subnet: &IpNet) -> Option<IpNet> {
    IpNet::new(address_in(subnet, GATEWAY)?, subnet.prefix_len()).ok()
}

/// `None` if the subnet is too small.
fn address_in(subnet: &IpNet, offset: u8) -> Option<IpAddr> {
    let address = match subnet.network() {
        IpAddr::V4(first) => IpAddr::V4(u32::from(first).checked_add(offset.into())?.into()),
        IpAddr::V6(first) => IpAddr::V6(u128::from(first).checked_add(offset.into())?.into()),
    };
    subnet.contains(&address).then_some(address)
}
