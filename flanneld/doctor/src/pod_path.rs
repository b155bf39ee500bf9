//! Selects packets between pods of different nodes for route lookups, and the interfaces that these packets have to use. The
//! functions of this module have no side effects.

use crate::facts::Network;
use crate::facts::host::{Forwarded, Interface, PodPacket, PodPeer};
use ipnet::IpNet;
use std::net::IpAddr;
use types::Family;

/// Offset of a sample pod address from the first address of its subnet. The gateway has offset 1, and every usable subnet contains an address with
/// offset 2.
const POD: u128 = 2;

/// Returns the pods' bridge: a bridge (possibly Docker's) with an address of this node's subnet, otherwise
/// `cni0` if `cni0` has only link-local addresses.
pub fn bridge<'a>(interfaces: &'a [Interface], network: &Network) -> Option<&'a Interface> {
    let is_in_own = |interface: &&Interface| {
        interface.kind == "bridge"
            && interface
                .nets()
                .any(|net| network.own.nets().any(|own| own.contains(&net.addr())))
    };
    let is_bare = |interface: &&Interface| {
        let mut nets = interface.nets();
        interface.name == "cni0"
            && interface.kind == "bridge"
            && nets.all(|net| netstate::host::is_link_local(net.addr()))
    };
    interfaces
        .iter()
        .find(is_in_own)
        .or_else(|| interfaces.iter().find(is_bare))
}

/// Returns whether a bridge has ports that belong to pods.
pub fn has_ports(interfaces: &[Interface], bridge: &Interface) -> bool {
    interfaces
        .iter()
        .any(|interface| interface.is_pods_end_in(bridge.index))
}

/// Returns the interface that sends pod packets to other nodes: the tunnel device, or the underlay interface if there is no tunnel device.
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

/// Returns the packets for route lookups: one in each direction for each peer. Packets from peers arrive on the
/// tunnel device or the underlay interface. Returns no packets until this node has pods.
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
        let own = network
            .own
            .nets()
            .find(|own| Family::from(own.addr()) == family);
        let ends = own
            .and_then(|own| pod_of(&own.trunc()))
            .zip(pod_of(&peer.subnet));
        let outside = outside(interfaces, network, family, underlay);
        let (Some((own, theirs)), Some(outside)) = (ends, outside) else {
            continue;
        };
        all.push(PodPacket {
            peer: peer.clone(),
            out: true,
            packet: Forwarded {
                from: own,
                to: theirs,
                incoming: bridge.index,
            },
        });
        all.push(PodPacket {
            peer: peer.clone(),
            out: false,
            packet: Forwarded {
                from: theirs,
                to: own,
                incoming: outside.index,
            },
        });
    }
    all
}

/// Returns a sample pod address in a subnet; `None` if the subnet is too small.
fn pod_of(subnet: &IpNet) -> Option<IpAddr> {
    let address = match subnet.network() {
        IpAddr::V4(first) => {
            let number = u32::from(first).checked_add(u32::try_from(POD).ok()?)?;
            IpAddr::V4(number.into())
        }
        IpAddr::V6(first) => IpAddr::V6(u128::from(first).checked_add(POD)?.into()),
    };
    subnet.contains(&address).then_some(address)
}
