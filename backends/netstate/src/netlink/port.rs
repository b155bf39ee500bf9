//! A port of the pods' bridge for flanneld's probes: a veth pair, and neighbour entries that send
//! packets for probe addresses to the pair.
//!
//! One end is in the pods' bridge, like the host's end of a pod's veth pair. The outside end has no
//! address, and its MAC is not [`MAC`], the destination MAC of the frames that arrive there. So the
//! host accepts none of these frames, and a packet socket receives them all. The bridge floods no
//! broadcasts or multicasts to the port, so that the host does not receive them twice.

use super::decode::neighbor;
use super::header::{flag_header, link_header, neighbor_header};
use super::host::HostReader;
use super::socket::{Answer, Requests, answer_problem};
use super::uapi::*;
use super::wire::Message;
use crate::error::{KernelError, vanished_interface};
use crate::host::Interface;
use crate::names::Mac;
use crate::probe_port::names;
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

pub struct Ports {
    requests: Requests,
    host: HostReader,
}

impl Ports {
    /// Opens the sockets in the network namespace of the calling thread.
    pub fn open() -> Result<Self, KernelError> {
        Ok(Self { requests: Requests::open()?, host: HostReader::open()? })
    }

    /// Includes their addresses.
    pub async fn interfaces(&mut self) -> Result<Vec<Interface>, KernelError> {
        self.host.interfaces().await
    }

    /// Creates the probe port of a bridge, or reuses an existing one. The result is the interface
    /// index of the veth end outside the bridge.
    pub async fn make(&mut self, bridge: u32) -> Result<u32, KernelError> {
        let (outer, inner) = names(bridge);
        let mut ends = self.ends(&outer, &inner).await?;
        if ends.is_none() {
            self.request(pair(&outer, &inner)).await?;
            ends = self.ends(&outer, &inner).await?;
        }
        let Some((outer, inner)) = ends else {
            return Err(failed(vanished_interface()));
        };
        self.request(silent(inner)).await?;
        self.request(silent(outer)).await?;
        let into = Message::new(RTM_NEWLINK, 0, &link_header(outer)).number(IFLA_MASTER, bridge);
        self.request(into).await?;
        self.request(without_floods(outer)).await?;
        for end in [inner, outer] {
            self.request(Message::new(RTM_NEWLINK, 0, &flag_header(end, IFF_UP, true))).await?;
        }
        Ok(inner)
    }

    pub async fn exists(&mut self, bridge: u32) -> Result<bool, KernelError> {
        let (outer, inner) = names(bridge);
        Ok(self.ends(&outer, &inner).await?.is_some())
    }

    /// The interface indices, if both ends exist.
    async fn ends(&mut self, outer: &str, inner: &str) -> Result<Option<(u32, u32)>, KernelError> {
        let links = self.host.links().await?;
        let index = |name: &str| {
            let is_it = |link: &&Interface| link.name == name && link.kind == "veth";
            links.iter().find(is_it).map(|link| link.index)
        };
        Ok(index(outer).zip(index(inner)))
    }

    /// Adds a neighbour entry on the bridge that sends packets for a probe address to the probe
    /// port.
    pub async fn lead(&mut self, bridge: u32, address: IpAddr) -> Result<(), KernelError> {
        let header = neighbor_header(family(address), bridge, NUD_PERMANENT, 0);
        self.request(
            Message::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &header)
                .ip(NDA_DST, address)
                .attr(NDA_LLADDR, &MAC.0),
        )
        .await
    }

    /// Deletes the bridge's neighbour entry for a probe address. A missing entry is not an error.
    pub async fn forget(&mut self, bridge: u32, address: IpAddr) -> Result<(), KernelError> {
        self.request(deletion(bridge, address)).await
    }

    /// Removes the probe port and the neighbour entries with its MAC. A missing probe port is not
    /// an error.
    pub async fn remove(&mut self, bridge: u32) -> Result<(), KernelError> {
        forget_all(&mut self.requests, bridge).await?;
        let (outer, inner) = names(bridge);
        match self.ends(&outer, &inner).await? {
            Some((outer, _)) => {
                self.request(Message::new(RTM_DELLINK, 0, &link_header(outer))).await
            }
            None => Ok(()),
        }
    }

    async fn request(&mut self, message: Message) -> Result<(), KernelError> {
        ask(&mut self.requests, message).await
    }
}

/// Deletes all neighbour entries of a bridge that contain the probe port's MAC.
pub(super) async fn forget_all(requests: &mut Requests, bridge: u32) -> Result<(), KernelError> {
    let request = || Message::new(RTM_GETNEIGH, 0, &neighbor_header(0, 0, 0, 0));
    let found =
        requests.dump("neighbours", request, Vec::new, |list: &mut Vec<IpAddr>, message| {
            let ours = neighbor(message)
                .filter(|seen| seen.index == bridge && seen.mac == Some(MAC) && seen.permanent());
            list.extend(ours.and_then(|seen| seen.dst));
        });
    for address in found.await? {
        ask(requests, deletion(bridge, address)).await?;
    }
    Ok(())
}

fn deletion(bridge: u32, address: IpAddr) -> Message {
    let header = neighbor_header(family(address), bridge, 0, 0);
    Message::new(RTM_DELNEIGH, 0, &header).ip(NDA_DST, address)
}

/// A reply that the object to delete does not exist is not an error.
async fn ask(requests: &mut Requests, message: Message) -> Result<(), KernelError> {
    let answers = requests.batch(vec![message], 1, |_, _| ()).await;
    match answers.first() {
        Some(Answer::Done | Answer::Refused(libc::ENOENT | libc::ENODEV, _)) => Ok(()),
        answer => Err(failed(answer_problem(answer))),
    }
}

fn failed(why: Problem) -> KernelError {
    KernelError::new("create a probe port in the pods' bridge", why)
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

fn pair(outer: &str, inner: &str) -> Message {
    Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &[0; IFINFOMSG])
        .text(IFLA_IFNAME, outer)
        .attr(IFLA_ADDRESS, &OUTER_MAC.0)
        .number(IFLA_MTU, MTU)
        .nest(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |data| {
                data.nest(VETH_INFO_PEER, |peer| {
                    peer.header(&[0; IFINFOMSG])
                        .text(IFLA_IFNAME, inner)
                        .attr(IFLA_ADDRESS, &INNER_MAC.0)
                        .number(IFLA_MTU, MTU)
                })
            })
        })
}

/// Disables ARP and automatic IPv6 addresses on an interface.
fn silent(index: u32) -> Message {
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
