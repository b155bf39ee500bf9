//! The kernel's vxlan interfaces.

use crate::report::text::Words;
use netlink::uapi::*;
use netlink::wire::{self, Message};
use std::fmt::Write;
use std::net::IpAddr;

/// The kernel's name for this kind of link (`IFLA_INFO_KIND`).
pub const KIND: &str = "vxlan";
/// The UDP port that the kernel uses by default, unless the module parameter `udp_port` sets another port (drivers/net/vxlan).
pub const PORT: u16 = 8472;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VxlanSpec {
    /// 24 bits.
    pub vni: u32,
    /// The UDP port on which the interface receives packets.
    pub port: u16,
    /// The outer source address.
    pub local: Option<IpAddr>,
    /// The index of the underlay interface, which survives a renaming.
    pub lower: u32,
    /// The kernel learns FDB entries from traffic.
    pub learning: bool,
    /// The Group Based Policy extension.
    pub gbp: bool,
}

impl VxlanSpec {
    /// The kernel identifies a VTEP by VNI and UDP port.
    pub(crate) fn is_same_tunnel(&self, other: &VxlanSpec) -> bool {
        (self.vni, self.port) == (other.vni, other.port)
    }

    pub(super) fn text(&self, words: &Words) -> String {
        let mut out = format!(" id {}", self.vni);
        if let Some(local) = self.local {
            let _ = write!(out, " local {local}");
        }
        if self.lower != 0 {
            let _ = match words.interfaces.get(&self.lower) {
                Some(lower) => write!(out, " dev {lower}"),
                None => write!(out, " dev if{}", self.lower),
            };
        }
        let learning = if self.learning { "learning" } else { "nolearning" };
        let gbp = if self.gbp { " gbp" } else { "" };
        let _ = write!(out, " dstport {} {learning}{gbp}", self.port);
        out
    }
}

/// The port of vxlan devices without a configured one: the module parameter `udp_port`, or [`PORT`]
/// without a valid parameter.
#[must_use]
pub fn default_port() -> u16 {
    let parameter = std::fs::read_to_string("/sys/module/vxlan/parameters/udp_port").ok();
    parameter.and_then(|text| text.trim().parse().ok()).filter(|port| *port != 0).unwrap_or(PORT)
}

/// A link without a VNI, which every kernel refuses.
pub(crate) fn without_identifier() -> Message {
    Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &[0; IFINFOMSG])
        .nest(IFLA_LINKINFO, |m| m.text(IFLA_INFO_KIND, KIND))
}

pub(super) fn creation(message: Message, spec: &VxlanSpec) -> Message {
    message.link_info(KIND, |m| {
        let mut m = changeable(m, spec).attr(IFLA_VXLAN_PORT, &spec.port.to_be_bytes());
        if spec.gbp {
            m = m.attr(IFLA_VXLAN_GBP, &[]);
        }
        // UDP checksums over IPv6 remain required.
        m.attr(IFLA_VXLAN_UDP_ZERO_CSUM6_TX, &[0]).attr(IFLA_VXLAN_UDP_ZERO_CSUM6_RX, &[0])
    })
}

pub(super) fn change(message: Message, spec: &VxlanSpec) -> Message {
    message.link_info(KIND, |m| changeable(m, spec))
}

/// What the kernel can change on an existing link, and the VNI, which it requires in each request.
fn changeable(message: Message, spec: &VxlanSpec) -> Message {
    let message = message
        .number(IFLA_VXLAN_ID, spec.vni)
        .number(IFLA_VXLAN_LINK, spec.lower)
        .attr(IFLA_VXLAN_LEARNING, &[u8::from(spec.learning)]);
    match spec.local {
        Some(ip) => message.ip(if ip.is_ipv4() { IFLA_VXLAN_LOCAL } else { IFLA_VXLAN_LOCAL6 }, ip),
        None => message,
    }
}

pub(crate) fn decode(data: &[u8]) -> VxlanSpec {
    let mut spec =
        VxlanSpec { vni: 0, port: PORT, local: None, lower: 0, learning: false, gbp: false };
    for (kind, value) in wire::read_attrs(data, 0) {
        match kind {
            IFLA_VXLAN_ID => spec.vni = wire::u32_at(value, 0).unwrap_or(0),
            IFLA_VXLAN_LINK => spec.lower = wire::u32_at(value, 0).unwrap_or(0),
            IFLA_VXLAN_LOCAL | IFLA_VXLAN_LOCAL6 => {
                spec.local = wire::read_ip(value).filter(|ip| !ip.is_unspecified()).or(spec.local);
            }
            IFLA_VXLAN_LEARNING => spec.learning = wire::u8_at(value, 0) == Some(1),
            IFLA_VXLAN_PORT => spec.port = value.try_into().map_or(spec.port, u16::from_be_bytes),
            IFLA_VXLAN_GBP => spec.gbp = true,
            _ => {}
        }
    }
    spec
}
