//! Links: network interfaces of any kind.

use crate::client::{Client, Query};
use crate::error::KernelError;
use crate::header::link_header;
use crate::uapi::*;
use crate::wire::{self, Message, Received, read_nested};

/// Of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link<'a> {
    pub index: u32,
    pub name: &'a str,
    /// IFF_*.
    pub flags: u32,
    /// `None` without an Ethernet address.
    pub mac: Option<[u8; 6]>,
    /// In bytes.
    pub mtu: u32,
    /// The index of the bridge or bond of which the link is a port.
    pub master: Option<u32>,
    /// IFLA_INFO_KIND; empty for hardware.
    pub kind: &'a str,
    /// IFLA_INFO_DATA: the attributes of the kind.
    pub data: &'a [u8],
    /// IFLA_AF_SPEC: the attributes of address families.
    pub families: &'a [u8],
    /// IFLA_STATS64.
    pub counters: Option<Counters>,
}

/// Counts since the creation of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    pub packets: u64,
    pub bytes: u64,
    /// Packets that the device lost because of errors.
    pub errors: u64,
    /// Packets that the kernel dropped, for example because a queue was full.
    pub dropped: u64,
}

/// `struct rtnl_link_stats64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// What this host sends through the device; on a TUN device, what a program reads from it.
    pub sent: DirectionCounters,
    /// What this host receives from the device.
    pub received: DirectionCounters,
}

impl<'a> Link<'a> {
    /// From RTM_NEWLINK or RTM_DELLINK, but not of a bridge port, which the kernel also announces so.
    #[must_use]
    pub fn decode(message: &Received<'a>) -> Option<Self> {
        let body = message.body;
        if !matches!(message.kind, RTM_NEWLINK | RTM_DELLINK) || wire::u8_at(body, 0)? == AF_BRIDGE
        {
            return None;
        }
        let mut link = Self {
            index: wire::u32_at(body, 4)?,
            flags: wire::u32_at(body, 8)?,
            ..Self::default()
        };
        for (kind, value) in wire::read_attrs(body, IFINFOMSG) {
            match kind {
                IFLA_ADDRESS => link.mac = value.try_into().ok(),
                IFLA_IFNAME => link.name = wire::read_text(value),
                IFLA_MTU => link.mtu = wire::u32_at(value, 0)?,
                IFLA_MASTER => link.master = wire::u32_at(value, 0),
                IFLA_LINKINFO => {
                    link.kind =
                        read_nested(value, IFLA_INFO_KIND).map(wire::read_text).unwrap_or_default();
                    link.data = read_nested(value, IFLA_INFO_DATA).unwrap_or_default();
                }
                IFLA_AF_SPEC => link.families = value,
                IFLA_STATS64 => link.counters = decode_counters(value),
                _ => {}
            }
        }
        Some(link)
    }

    #[must_use]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether the kernel accepts router advertisements on the link; `None` without IPv6.
    #[must_use]
    pub fn accept_ra(&self) -> Option<bool> {
        let conf = read_nested(read_nested(self.families, u16::from(AF_INET6))?, IFLA_INET6_CONF)?;
        wire::u32_at(conf, DEVCONF_ACCEPT_RA * size_of::<u32>()).map(|value| value != 0)
    }
}

fn decode_counters(stats: &[u8]) -> Option<Counters> {
    let number = |index: usize| wire::u64_at(stats, index * size_of::<u64>());
    // The fields alternate between received and sent.
    let direction = |first: usize| {
        Some(DirectionCounters {
            packets: number(first)?,
            bytes: number(first + 2)?,
            errors: number(first + 4)?,
            dropped: number(first + 6)?,
        })
    };
    Some(Counters { received: direction(0)?, sent: direction(1)? })
}

#[must_use]
pub fn all_links() -> Query {
    Query::new("network interfaces", Message::new(RTM_GETLINK, 0, &[0; IFINFOMSG]))
}

/// What `decode` makes of the links, without those that do not exist. The requests are of
/// [`link_of_name`] and [`link_of_index`].
pub fn look_up_links<T>(
    client: &mut Client,
    requests: Vec<Message>,
    decode: impl Fn(&Link<'_>) -> Option<T>,
) -> Result<Vec<T>, KernelError> {
    let mut links = Vec::new();
    for found in client.look_up(requests, |message| decode(&Link::decode(message)?)) {
        match found {
            Ok(link) => links.extend(link),
            Err(error) if error.errno() == Some(libc::ENODEV) => {}
            Err(error) => return Err(KernelError::new("list network interfaces", error.into())),
        }
    }
    Ok(links)
}

#[must_use]
pub fn link_of_name(name: &str) -> Message {
    Message::new(RTM_GETLINK, 0, &[0; IFINFOMSG]).text(IFLA_IFNAME, name)
}

#[must_use]
pub fn link_of_index(index: u32) -> Message {
    Message::new(RTM_GETLINK, 0, &link_header(index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn counters_are_those_of_proc() {
        let mut client = Client::open().unwrap();
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.send_to(&[0; 1000], receiver.local_addr().unwrap()).unwrap();
        let mut text = String::new();
        std::fs::File::open("/proc/self/net/dev")
            .and_then(|mut file| file.read_to_string(&mut text))
            .unwrap();
        let line = text.lines().find(|line| line.trim().starts_with("lo:"));
        let fields: Vec<u64> = line
            .and_then(|line| line.split_once(':'))
            .map(|(_, numbers)| {
                let numbers = numbers.split_whitespace();
                numbers.map(|number| number.parse().unwrap()).collect()
            })
            .unwrap();
        let found = look_up_links(&mut client, vec![link_of_name("lo")], |link| link.counters);
        let [now] = found.unwrap()[..] else { panic!("one link") };
        for (now, fields) in [(now.received, &fields[..4]), (now.sent, &fields[8..12])] {
            // Other tests send through the device at the same time.
            assert!(now.bytes >= fields[0].max(1000) && now.packets >= fields[1].max(1), "{now:?}");
            assert_eq!((now.errors, now.dropped), (fields[2], fields[3]));
        }
    }
}
