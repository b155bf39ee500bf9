//! Neighbours, and FDB entries, which are neighbours of the family AF_BRIDGE.

use crate::client::{Client, Query};
use crate::error::KernelError;
use crate::header::neighbor_header;
use crate::uapi::*;
use crate::wire::{self, Message, Received};
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neighbor {
    pub family: u8,
    /// Of the link.
    pub index: u32,
    /// NUD_*.
    pub state: u16,
    /// NTF_*.
    pub flags: u8,
    pub destination: Option<IpAddr>,
    pub mac: Option<[u8; 6]>,
    /// The program that added the entry, if it sets a number.
    pub protocol: Option<u8>,
}

impl Neighbor {
    /// From RTM_NEWNEIGH or RTM_DELNEIGH.
    #[must_use]
    pub fn decode(message: &Received<'_>) -> Option<Self> {
        let body = message.body;
        if !matches!(message.kind, RTM_NEWNEIGH | RTM_DELNEIGH) {
            return None;
        }
        let mut neighbor = Self {
            family: wire::u8_at(body, 0)?,
            index: wire::u32_at(body, 4)?,
            state: wire::u16_at(body, 8)?,
            flags: wire::u8_at(body, 10)?,
            ..Self::default()
        };
        for (kind, value) in wire::read_attrs(body, NDMSG) {
            match kind {
                NDA_DST => neighbor.destination = wire::read_ip(value),
                NDA_LLADDR => neighbor.mac = value.try_into().ok(),
                NDA_PROTOCOL => neighbor.protocol = wire::u8_at(value, 0),
                _ => {}
            }
        }
        Some(neighbor)
    }

    #[must_use]
    pub fn is_permanent(&self) -> bool {
        self.state & NUD_PERMANENT != 0
    }

    /// False while the MAC's resolution is pending or has failed, and for multicast and loopback
    /// entries, which exist on every interface.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        // Static FDB entries that are not permanent are also NOARP.
        !self.is_unanswered() && (self.family == AF_BRIDGE || self.state & !NUD_NOARP != 0)
    }

    /// Another host has answered for the entry's address.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.state & (NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE) != 0
    }

    /// The kernel has asked for the entry's MAC, but no host has answered.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        self.state & (NUD_INCOMPLETE | NUD_FAILED) != 0
    }
}

/// What `decode` makes of the entries of a link. Family 0 stands for all families except AF_BRIDGE.
pub fn dump_neighbors<T>(
    client: &mut Client,
    index: u32,
    family: u8,
    decode: impl Fn(&Neighbor) -> Option<T>,
) -> Result<Vec<T>, KernelError> {
    let request = |index| Message::new(RTM_GETNEIGH, 0, &neighbor_header(family, index, 0, 0));
    let query = match family {
        AF_BRIDGE => Query::new("FDB entries", request(index)),
        _ => Query::new("neighbours", request(0).number(NDA_IFINDEX, index)),
    };
    client.dump(&query, |message| {
        let seen = Neighbor::decode(message)?;
        // An older kernel also lists the entries of other links and families.
        let is_wanted = seen.index == index && (family == 0 || seen.family == family);
        if is_wanted { decode(&seen) } else { None }
    })
}
