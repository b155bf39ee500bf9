//! A port of the pods' bridge for flanneld's probes: a veth pair, and neighbour entries that send
//! packets for probe addresses to the pair.
//!
//! One end is in the pods' bridge, like the host's end of a pod's veth pair. The outside end has no
//! address, and its MAC is not [`MAC`], the destination MAC of the frames that arrive there. So the
//! host accepts none of these frames, and a packet socket receives them all. The bridge floods no
//! broadcasts or multicasts to the port, so that the host does not receive them twice.

use crate::kernel::vanished_interface;
use crate::names::Mac;
use netlink::header::{flag_header, link_header, neighbor_header};
use netlink::link::{link_of_name, look_up_links};
use netlink::neighbor::dump_neighbors;
use netlink::uapi::*;
use netlink::{Client, KernelError, Message, family_number};
use std::net::IpAddr;
use types::Problem;

/// The MAC in the neighbour entries of probe addresses. Each bridge has one probe port, so they can
/// share a MAC.
pub const MAC: Mac = Mac([0x02, 0x66, 0x6c, 0x70, 0x6f, 0x64]);
/// The MAC of the veth end in the bridge. A bridge without a configured MAC takes the lowest MAC of
/// its ports, so this one is high.
const OUTER_MAC: Mac = Mac([0xfe, 0xff, 0xff, 0x70, 0x6f, 0x64]);
/// The MAC of the veth end outside the bridge.
const INNER_MAC: Mac = Mac([0xfe, 0xff, 0xff, 0x70, 0x6f, 0x65]);
/// In bytes, of both veth ends: the maximum of a veth device. A bridge without a configured MTU
/// takes the lowest MTU of its ports.
const MTU: u32 = 65_535;

/// The end in the bridge; the bridge's index follows.
const OUTER: &str = "flprobe";
/// The end outside the bridge; the bridge's index follows.
const INNER: &str = "flpod";

/// The first name is that of the end in the bridge.
fn port_names(bridge: u32) -> [String; 2] {
    [OUTER, INNER].map(|prefix| format!("{prefix}{bridge}"))
}

pub(crate) fn bridge_of(name: &str) -> Option<u32> {
    let index = [OUTER, INNER].iter().find_map(|prefix| name.strip_prefix(prefix))?;
    // `parse` would also accept a sign.
    index.bytes().all(|byte| byte.is_ascii_digit()).then(|| index.parse().ok())?
}

#[must_use]
pub fn is_port(name: &str) -> bool {
    bridge_of(name).is_some()
}

/// Creates the probe port of a bridge, or reuses an existing one. The result is the interface index
/// of the veth end outside the bridge.
pub fn create_probe_port(client: &mut Client, bridge: u32) -> Result<u32, KernelError> {
    let mut ends = find_ends(client, bridge)?;
    if ends.is_none() {
        let [outer, inner] = port_names(bridge);
        send_request(client, encode_pair(&outer, &inner))?;
        ends = find_ends(client, bridge)?;
    }
    let Some([outer, inner]) = ends else {
        return Err(setup_error(vanished_interface()));
    };
    send_request(client, encode_silence(inner))?;
    send_request(client, encode_silence(outer))?;
    send_request(
        client,
        Message::new(RTM_NEWLINK, 0, &link_header(outer)).number(IFLA_MASTER, bridge),
    )?;
    send_request(client, without_floods(outer))?;
    for end in [inner, outer] {
        send_request(client, Message::new(RTM_NEWLINK, 0, &flag_header(end, IFF_UP, true)))?;
    }
    Ok(inner)
}

pub fn has_probe_port(client: &mut Client, bridge: u32) -> Result<bool, KernelError> {
    Ok(find_ends(client, bridge)?.is_some())
}

/// The interface indices, in the order of [`port_names`], if both ends exist.
fn find_ends(client: &mut Client, bridge: u32) -> Result<Option<[u32; 2]>, KernelError> {
    let requests = port_names(bridge).iter().map(|name| link_of_name(name)).collect();
    let found = look_up_links(client, requests, |link| (link.kind == "veth").then_some(link.index));
    Ok(found?.try_into().ok())
}

/// Adds a neighbour entry on the bridge that sends packets for a probe address to the probe port.
pub fn lead_to_probe_port(
    client: &mut Client,
    bridge: u32,
    address: IpAddr,
) -> Result<(), KernelError> {
    let header = neighbor_header(family_number(address), bridge, NUD_PERMANENT, 0);
    let message = Message::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &header);
    send_request(client, message.ip(NDA_DST, address).attr(NDA_LLADDR, &MAC.0))
}

/// Deletes the bridge's neighbour entry for a probe address. A missing entry is not an error.
pub fn forget_probe_address(
    client: &mut Client,
    bridge: u32,
    address: IpAddr,
) -> Result<(), KernelError> {
    let header = neighbor_header(family_number(address), bridge, 0, 0);
    send_request(client, Message::new(RTM_DELNEIGH, 0, &header).ip(NDA_DST, address))
}

/// Deletes all neighbour entries of a bridge that contain the probe port's MAC.
pub(crate) fn forget_all(client: &mut Client, bridge: u32) -> Result<(), KernelError> {
    let found = dump_neighbors(client, bridge, 0, |seen| {
        seen.destination.filter(|_| seen.mac == Some(MAC.0) && seen.is_permanent())
    });
    for address in found? {
        forget_probe_address(client, bridge, address)?;
    }
    Ok(())
}

/// Removes the probe port and the neighbour entries with its MAC. A missing probe port is not an
/// error.
pub fn remove_probe_port(client: &mut Client, bridge: u32) -> Result<(), KernelError> {
    forget_all(client, bridge)?;
    match find_ends(client, bridge)? {
        Some([outer, _]) => send_request(client, Message::new(RTM_DELLINK, 0, &link_header(outer))),
        None => Ok(()),
    }
}

/// A reply that the object to delete does not exist is not an error.
fn send_request(client: &mut Client, message: Message) -> Result<(), KernelError> {
    match client.request(message) {
        Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::ENODEV)) => Ok(()),
        answer => answer.map_err(|error| setup_error(error.into())),
    }
}

fn setup_error(why: Problem) -> KernelError {
    KernelError::new("create a probe port in the pods' bridge", why)
}

fn encode_pair(outer: &str, inner: &str) -> Message {
    Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &[0; IFINFOMSG])
        .text(IFLA_IFNAME, outer)
        .attr(IFLA_ADDRESS, &OUTER_MAC.0)
        .number(IFLA_MTU, MTU)
        .link_info("veth", |data| {
            data.nest(VETH_INFO_PEER, |peer| {
                peer.header(&[0; IFINFOMSG])
                    .text(IFLA_IFNAME, inner)
                    .attr(IFLA_ADDRESS, &INNER_MAC.0)
                    .number(IFLA_MTU, MTU)
            })
        })
}

/// Disables ARP and automatic IPv6 addresses on an interface.
fn encode_silence(index: u32) -> Message {
    Message::new(RTM_NEWLINK, 0, &flag_header(index, IFF_NOARP, true)).nest(
        IFLA_AF_SPEC,
        |families| {
            families.nest(u16::from(AF_INET6), |v6| {
                v6.attr(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE])
            })
        },
    )
}

/// Stops the bridge from flooding broadcasts and multicasts to the port.
fn without_floods(port: u32) -> Message {
    Message::new(RTM_NEWLINK, 0, &link_header(port)).nest(IFLA_LINKINFO, |info| {
        info.text(IFLA_INFO_SLAVE_KIND, "bridge").nest(IFLA_INFO_SLAVE_DATA, |data| {
            data.attr(IFLA_BRPORT_BCAST_FLOOD, &[0]).attr(IFLA_BRPORT_MCAST_FLOOD, &[0])
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_known_by_their_names() {
        for bridge in [7, 99_999_999] {
            let names = port_names(bridge);
            assert!(names[0].len() < 16, "{names:?}");
            assert_eq!(names.map(|name| bridge_of(&name)), [Some(bridge); 2]);
        }
        for name in ["flprobe", "flpod7a", "flpod+7", "veth7", "flannel.1", "xflpod1"] {
            assert!(!is_port(name), "{name}");
        }
    }
}
