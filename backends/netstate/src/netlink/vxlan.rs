//! Netlink attributes of vxlan links.

use crate::link::vxlan::{KIND, PORT, VxlanSpec};
use netlink::uapi::*;
use netlink::wire::{self, Message};

/// The port of vxlan devices without a configured one: the module parameter `udp_port`, or [`PORT`]
/// without a valid parameter.
#[must_use]
pub fn default_port() -> u16 {
    let parameter = std::fs::read_to_string("/sys/module/vxlan/parameters/udp_port").ok();
    parameter.and_then(|text| text.trim().parse().ok()).filter(|port| *port != 0).unwrap_or(PORT)
}

/// A link without a VNI, which every kernel refuses.
pub(super) fn without_identifier() -> Message {
    Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &[0; IFINFOMSG])
        .nest(IFLA_LINKINFO, |m| m.text(IFLA_INFO_KIND, KIND))
}

pub(super) fn creation(message: Message, spec: &VxlanSpec) -> Message {
    link_info(message, |m| {
        let mut m = changeable(m, spec).attr(IFLA_VXLAN_PORT, &spec.port.to_be_bytes());
        if spec.gbp {
            m = m.attr(IFLA_VXLAN_GBP, &[]);
        }
        // UDP checksums over IPv6 remain required.
        m.attr(IFLA_VXLAN_UDP_ZERO_CSUM6_TX, &[0]).attr(IFLA_VXLAN_UDP_ZERO_CSUM6_RX, &[0])
    })
}

/// `None` if the link is in sync.
pub(super) fn change(message: Message, want: &VxlanSpec, have: &VxlanSpec) -> Option<Message> {
    (want.changeable() != have.changeable()).then(|| link_info(message, |m| changeable(m, want)))
}

fn link_info(message: Message, data: impl FnOnce(Message) -> Message) -> Message {
    message.nest(IFLA_LINKINFO, |m| m.text(IFLA_INFO_KIND, KIND).nest(IFLA_INFO_DATA, data))
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

pub(super) fn decode(data: &[u8]) -> VxlanSpec {
    let mut spec =
        VxlanSpec { vni: 0, port: PORT, local: None, lower: 0, learning: false, gbp: false };
    for (kind, value) in wire::attrs(data, 0) {
        match kind {
            IFLA_VXLAN_ID => spec.vni = wire::u32_at(value, 0).unwrap_or(0),
            IFLA_VXLAN_LINK => spec.lower = wire::u32_at(value, 0).unwrap_or(0),
            IFLA_VXLAN_LOCAL | IFLA_VXLAN_LOCAL6 => {
                spec.local = wire::ip(value).filter(|ip| !ip.is_unspecified()).or(spec.local);
            }
            IFLA_VXLAN_LEARNING => spec.learning = wire::u8_at(value, 0) == Some(1),
            IFLA_VXLAN_PORT => spec.port = value.try_into().map_or(spec.port, u16::from_be_bytes),
            IFLA_VXLAN_GBP => spec.gbp = true,
            _ => {}
        }
    }
    spec
}
