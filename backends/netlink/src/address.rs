//! Addresses of links.

use crate::client::Query;
use crate::header::address_header;
use crate::uapi::*;
use crate::wire::{self, Message, Received};
use ipnet::IpNet;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Of the link.
    pub index: u32,
    /// The address of this host, with its prefix length.
    pub net: IpNet,
    /// RT_SCOPE_*.
    pub scope: u8,
    /// IFA_F_*.
    pub flags: u32,
}

impl Address {
    /// From RTM_NEWADDR or RTM_DELADDR.
    #[must_use]
    pub fn decode(message: &Received<'_>) -> Option<Self> {
        let body = message.body;
        if !matches!(message.kind, RTM_NEWADDR | RTM_DELADDR) {
            return None;
        }
        let (mut local, mut peer, mut flags) = (None, None, u32::from(wire::u8_at(body, 2)?));
        for (kind, value) in wire::read_attrs(body, IFADDRMSG) {
            match kind {
                // On a point-to-point link, the first is ours and the second is the peer's. Otherwise IPv6 has only the second.
                IFA_LOCAL => local = wire::read_ip(value),
                IFA_ADDRESS => peer = wire::read_ip(value),
                IFA_FLAGS => flags = wire::u32_at(value, 0)?,
                _ => {}
            }
        }
        Some(Self {
            index: wire::u32_at(body, 4)?,
            net: IpNet::new(local.or(peer)?, wire::u8_at(body, 1)?).ok()?,
            scope: wire::u8_at(body, 3)?,
            flags,
        })
    }

    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.net.addr()
    }

    /// True if the address has one of the flags.
    #[must_use]
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    /// Duplicate address detection is still running, and the kernel does not use the address.
    #[must_use]
    pub fn is_tentative(&self) -> bool {
        self.has(IFA_F_TENTATIVE) && !self.has(IFA_F_OPTIMISTIC)
    }

    /// An IPv6 privacy address. For IPv4, the same bit is IFA_F_SECONDARY.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        self.net.addr().is_ipv6() && self.has(IFA_F_TEMPORARY)
    }
}

/// Index 0 stands for all links, and family 0 for all families. Older kernels also list others.
#[must_use]
pub fn addresses_of_link(index: u32, family: u8) -> Query {
    Query::new("addresses", Message::new(RTM_GETADDR, 0, &address_header(family, 0, 0, index)))
}
