//! WireGuard peers and their keys.

use crate::names::LinkName;
use ipnet::IpNet;
use netlink::uapi::*;
use netlink::wire::{self, read_nested};
use netlink::{Message, family_number};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::time::Duration;
pub use types::wireguard::{KEY, PublicKey, Secret};

/// Its allowed IPs are separate objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireguardPeer {
    /// `None` if it is unknown until the peer sends a packet.
    pub endpoint: Option<SocketAddr>,
    pub preshared: Option<Secret>,
    /// Seconds between two keepalive packets; 0 disables them.
    pub keepalive: u16,
}

/// As the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Session {
    /// Time since the last completed handshake, by the wall clock; `None` if there was none.
    pub handshake: Option<Duration>,
    /// Time from 1970 to the last handshake, which distinguishes handshakes even after a change of
    /// the clock.
    pub handshake_at: Option<Duration>,
    /// In bytes, including handshakes.
    pub received: u64,
    /// In bytes.
    pub sent: u64,
}

/// As the kernel reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenPeer {
    pub key: PublicKey,
    pub peer: WireguardPeer,
    pub session: Session,
    pub allowed: Vec<IpNet>,
}

impl SeenPeer {
    /// `now` is the time since 1970.
    pub(crate) fn decode(value: &[u8], now: Duration) -> Option<Self> {
        let key = PublicKey(read_nested(value, WGPEER_A_PUBLIC_KEY)?.try_into().ok()?);
        let mut seen = Self {
            key,
            peer: WireguardPeer { endpoint: None, preshared: None, keepalive: 0 },
            session: Session::default(),
            allowed: Vec::new(),
        };
        for (kind, value) in wire::read_attrs(value, 0) {
            match kind {
                WGPEER_A_PRESHARED_KEY => {
                    seen.peer.preshared =
                        value.try_into().ok().filter(|key| *key != [0; KEY]).map(Secret::new);
                }
                WGPEER_A_ENDPOINT => seen.peer.endpoint = decode_endpoint(value),
                WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL => {
                    seen.peer.keepalive = wire::u16_at(value, 0).unwrap_or(0);
                }
                WGPEER_A_LAST_HANDSHAKE_TIME => {
                    // struct __kernel_timespec. Zero means never.
                    let seconds = wire::u64_at(value, 0).filter(|seconds| *seconds != 0);
                    let nanoseconds = wire::u64_at(value, 8).unwrap_or(0);
                    seen.session.handshake_at = seconds.map(|seconds| {
                        Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds)
                    });
                    seen.session.handshake =
                        seconds.map(|seconds| now.saturating_sub(Duration::from_secs(seconds)));
                }
                WGPEER_A_RX_BYTES => seen.session.received = wire::u64_at(value, 0).unwrap_or(0),
                WGPEER_A_TX_BYTES => seen.session.sent = wire::u64_at(value, 0).unwrap_or(0),
                WGPEER_A_ALLOWEDIPS => seen.allowed.extend(
                    wire::read_attrs(value, 0).filter_map(|(_, value)| decode_allowed_ip(value)),
                ),
                _ => {}
            }
        }
        Some(seen)
    }
}

impl WireguardPeer {
    /// Writes the syntax of `wg set`.
    pub(crate) fn text(&self, name: LinkName, key: &PublicKey) -> String {
        let mut out = format!("{name} peer {key}");
        if self.preshared.is_some() {
            out.push_str(" preshared-key (hidden)");
        }
        if let Some(endpoint) = self.endpoint {
            let _ = write!(out, " endpoint {endpoint}");
        }
        if self.keepalive != 0 {
            let _ = write!(out, " persistent-keepalive {}", self.keepalive);
        }
        out
    }
}

/// `flags` are of WGPEER_F_*.
fn open_entry(entry: Message, key: &PublicKey, flags: u32) -> Message {
    entry.attr(WGPEER_A_PUBLIC_KEY, &key.0).number(WGPEER_A_FLAGS, flags)
}

/// Adds the peer to a list, with all its properties.
pub(crate) fn set_peer(list: Message, key: &PublicKey, peer: &WireguardPeer) -> Message {
    list.nest(0, |entry| {
        let preshared = peer.preshared.as_ref().map_or(&[0; KEY], |preshared| preshared.bytes());
        let entry = open_entry(entry, key, 0)
            .attr(WGPEER_A_PRESHARED_KEY, preshared)
            .attr(WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL, &peer.keepalive.to_ne_bytes());
        match peer.endpoint {
            Some(endpoint) => entry.attr(WGPEER_A_ENDPOINT, &encode_endpoint(endpoint)),
            None => entry,
        }
    })
}

pub(crate) fn remove_peer(list: Message, key: &PublicKey) -> Message {
    list.nest(0, |entry| open_entry(entry, key, WGPEER_F_REMOVE_ME))
}

/// flanneld never replaces a peer's whole list of allowed IPs, because the kernel would drop the
/// peer's packets meanwhile. An allowed IP that another peer has moves atomically.
pub(crate) fn set_allowed_ip(list: Message, net: &IpNet, peer: &PublicKey) -> Message {
    list.nest(0, |entry| allow(open_entry(entry, peer, WGPEER_F_UPDATE_ONLY), net))
}

/// Before Linux 6.16, a single allowed IP can only be removed by moving it to another peer. That
/// peer is deleted at once.
pub(crate) fn remove_allowed_ip(list: Message, net: &IpNet) -> Message {
    let other = PublicKey(rand::random());
    let moved = list.nest(0, |entry| allow(open_entry(entry, &other, 0), net));
    remove_peer(moved, &other)
}

fn allow(peer: Message, net: &IpNet) -> Message {
    let family = u16::from(family_number(net));
    peer.nest(WGPEER_A_ALLOWEDIPS, |list| {
        list.nest(0, |entry| {
            entry
                .attr(WGALLOWEDIP_A_FAMILY, &family.to_ne_bytes())
                .ip(WGALLOWEDIP_A_IPADDR, net.network())
                .attr(WGALLOWEDIP_A_CIDR_MASK, &[net.prefix_len()])
        })
    })
}

fn decode_allowed_ip(entry: &[u8]) -> Option<IpNet> {
    let ip = wire::read_ip(read_nested(entry, WGALLOWEDIP_A_IPADDR)?)?;
    IpNet::new(ip, wire::u8_at(read_nested(entry, WGALLOWEDIP_A_CIDR_MASK)?, 0)?).ok()
}

/// Enables and disables the peer's keepalive, so that the kernel sends it a packet at once.
pub(crate) fn greet(list: Message, key: &PublicKey) -> Message {
    [1u16, 0].iter().fold(list, |list, interval| {
        list.nest(0, |message| {
            open_entry(message, key, WGPEER_F_UPDATE_ONLY)
                .attr(WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL, &interval.to_ne_bytes())
        })
    })
}

/// struct sockaddr_in or sockaddr_in6.
fn encode_endpoint(endpoint: SocketAddr) -> Vec<u8> {
    let port = endpoint.port().to_be_bytes();
    match endpoint {
        SocketAddr::V4(v4) => {
            [&u16::from(AF_INET).to_ne_bytes()[..], &port, &v4.ip().octets(), &[0; 8]].concat()
        }
        SocketAddr::V6(v6) => [
            &u16::from(AF_INET6).to_ne_bytes()[..],
            &port,
            &[0; 4],
            &v6.ip().octets(),
            &v6.scope_id().to_ne_bytes(),
        ]
        .concat(),
    }
}

fn decode_endpoint(value: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(value.get(2..4)?.try_into().ok()?);
    let ip = match u8::try_from(wire::u16_at(value, 0)?).ok()? {
        AF_INET => value.get(4..8)?,
        AF_INET6 => value.get(8..24)?,
        _ => return None,
    };
    Some(match wire::read_ip(ip)? {
        IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
        IpAddr::V6(ip) => {
            SocketAddrV6::new(ip, port, 0, wire::u32_at(value, 24).unwrap_or(0)).into()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preshared_key_of_a_peer_is_not_shown() {
        let secret = Secret::generate().unwrap();
        let peer = WireguardPeer { endpoint: None, preshared: Some(secret.clone()), keepalive: 0 };
        let shown = format!("{peer:?}");
        assert!(shown.contains("(hidden)") && !shown.contains(&*secret.text()), "{shown}");
    }
}
