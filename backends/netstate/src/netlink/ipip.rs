//! Netlink attributes of IPIP links.

use crate::link::ipip::{IpipSpec, KIND};
use netlink::uapi::*;
use netlink::wire::{self, Message};
use std::net::{IpAddr, Ipv4Addr};

/// A change of a link needs all attributes, because the kernel sets a missing one to zero
/// (net/ipv4/ipip.c, `ipip_netlink_parms`).
pub(super) fn attributes(message: Message, spec: &IpipSpec) -> Message {
    let address = |address: Option<Ipv4Addr>| IpAddr::V4(address.unwrap_or(Ipv4Addr::UNSPECIFIED));
    message.nest(IFLA_LINKINFO, |m| {
        m.text(IFLA_INFO_KIND, KIND).nest(IFLA_INFO_DATA, |m| {
            m.ip(IFLA_IPTUN_LOCAL, address(spec.local))
                .ip(IFLA_IPTUN_REMOTE, address(spec.remote))
                .attr(IFLA_IPTUN_TTL, &[spec.ttl])
                // Any inner protocol, like Go flannel's interface.
                .attr(IFLA_IPTUN_PROTO, &[0])
                .attr(IFLA_IPTUN_PMTUDISC, &[u8::from(spec.pmtudisc)])
        })
    })
}

pub(super) fn decode(data: &[u8]) -> IpipSpec {
    let mut spec = IpipSpec { local: None, remote: None, ttl: 0, pmtudisc: false };
    let address = |value: &[u8]| match wire::ip(value) {
        Some(IpAddr::V4(ip)) if !ip.is_unspecified() => Some(ip),
        _ => None,
    };
    for (kind, value) in wire::attrs(data, 0) {
        match kind {
            IFLA_IPTUN_LOCAL => spec.local = address(value),
            IFLA_IPTUN_REMOTE => spec.remote = address(value),
            IFLA_IPTUN_TTL => spec.ttl = wire::u8_at(value, 0).unwrap_or(0),
            IFLA_IPTUN_PMTUDISC => spec.pmtudisc = wire::u8_at(value, 0) == Some(1),
            _ => {}
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipip_attributes_are_read_back() {
        let spec = IpipSpec {
            local: Some(Ipv4Addr::new(192, 0, 2, 1)),
            remote: None,
            ttl: 7,
            pmtudisc: true,
        };
        for spec in [
            spec,
            IpipSpec { remote: Some(Ipv4Addr::new(192, 0, 2, 2)), ..spec },
            IpipSpec { local: None, remote: None, ttl: 0, pmtudisc: false },
        ] {
            let message = attributes(Message::new(RTM_NEWLINK, 0, &[0; IFINFOMSG]), &spec);
            let found = message.read_back(|message| {
                let link = netlink::link::Link::decode(message)?;
                Some((link.kind == KIND, decode(link.data)))
            });
            assert_eq!(found, [(true, spec)]);
        }
    }
}
