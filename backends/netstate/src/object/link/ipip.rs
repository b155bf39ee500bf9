//! The kernel's IPIP interfaces.

use netlink::uapi::*;
use netlink::wire::{self, Message};
use std::net::{IpAddr, Ipv4Addr};

/// The kernel's name for IPIP interfaces (IFLA_INFO_KIND) and for their module.
pub const KIND: &str = "ipip";

/// INVARIANT: a desired interface has no remote address, so that routes choose the remote address
/// for each packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpipSpec {
    /// The outer source address. Without one, `tunl0`, which the `ipip` module creates in each
    /// network namespace, receives the packets.
    pub local: Option<Ipv4Addr>,
    /// The outer destination, if all packets have the same one.
    pub remote: Option<Ipv4Addr>,
    /// Of the outer packets; 0 copies the TTL of the inner packet.
    pub ttl: u8,
    /// The outer packets have the DF bit, regardless of the inner packets.
    pub pmtudisc: bool,
}

impl IpipSpec {
    /// The kernel allows one interface for each pair of local and remote address.
    pub(crate) fn has_ends_of(&self, other: &IpipSpec) -> bool {
        (self.local, self.remote) == (other.local, other.remote)
    }

    pub(super) fn text(&self) -> String {
        let end = |ip: Option<Ipv4Addr>| ip.map_or("any".to_owned(), |ip| ip.to_string());
        format!(" remote {} local {}", end(self.remote), end(self.local))
    }
}

/// A change of a link needs all attributes, because the kernel sets a missing one to zero
/// (net/ipv4/ipip.c, `ipip_netlink_parms`).
pub(super) fn attributes(message: Message, spec: &IpipSpec) -> Message {
    let address = |address: Option<Ipv4Addr>| IpAddr::V4(address.unwrap_or(Ipv4Addr::UNSPECIFIED));
    message.link_info(KIND, |m| {
        m.ip(IFLA_IPTUN_LOCAL, address(spec.local))
            .ip(IFLA_IPTUN_REMOTE, address(spec.remote))
            .attr(IFLA_IPTUN_TTL, &[spec.ttl])
            // Any inner protocol, like Go flannel's interface.
            .attr(IFLA_IPTUN_PROTO, &[0])
            .attr(IFLA_IPTUN_PMTUDISC, &[u8::from(spec.pmtudisc)])
    })
}

pub(super) fn decode(data: &[u8]) -> IpipSpec {
    let mut spec = IpipSpec { local: None, remote: None, ttl: 0, pmtudisc: false };
    let address = |value: &[u8]| match wire::read_ip(value) {
        Some(IpAddr::V4(ip)) if !ip.is_unspecified() => Some(ip),
        _ => None,
    };
    for (kind, value) in wire::read_attrs(data, 0) {
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
