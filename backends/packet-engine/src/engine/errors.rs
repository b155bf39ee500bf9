//! ICMP errors to pods, sent as packets of this host. Written to the TUN device, packets with our own address would count as forged.

use crate::counters::{Counters, add};
use crate::icmp;
use crate::limit::Buckets;
use crate::packet::Header;
use crate::verdict::Icmp;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

/// IPPROTO_RAW: the packet includes its own IP header.
const RAW: i32 = 255;

/// Sends ICMP errors at a limited rate.
pub struct Errors {
    sources: (Option<Ipv4Addr>, Option<Ipv6Addr>),
    sockets: (Option<Socket>, Option<Socket>),
    buckets: Buckets,
    began: Instant,
}

impl Errors {
    /// Uses these addresses, which are the tunnel's own, as sources.
    pub fn new(sources: (Option<Ipv4Addr>, Option<Ipv6Addr>)) -> Self {
        let open = |domain| Socket::new(domain, Type::RAW.nonblocking().cloexec(), Some(Protocol::from(RAW)));
        let socket = |wanted: bool, domain| {
            if !wanted {
                return None;
            }
            open(domain)
                .inspect_err(|error| {
                    tracing::warn!("cannot send ICMP errors to pods: no raw socket: {error}; give flanneld the capability CAP_NET_RAW");
                })
                .ok()
        };
        let sockets = (socket(sources.0.is_some(), Domain::IPV4), socket(sources.1.is_some(), Domain::IPV6));
        Self { sources, sockets, buckets: Buckets::new(rand::random()), began: Instant::now() }
    }

    /// Sends an error to the sender of `packet`, unless that is not allowed or the rate limit is reached.
    pub fn tell(&mut self, kind: Icmp, packet: &[u8], header: &Header, counters: &Counters) {
        let (source, socket) = match header.source {
            IpAddr::V4(_) => (self.sources.0.map(IpAddr::V4), &self.sockets.0),
            IpAddr::V6(_) => (self.sources.1.map(IpAddr::V6), &self.sockets.1),
        };
        let (Some(source), Some(socket)) = (source, socket) else { return };
        let mut room = [0; icmp::V6_MAX];
        let Some(length) = icmp::reply(kind, packet, header, source, &mut room) else { return };
        if !self.buckets.allow(header.source, self.began.elapsed()) {
            return;
        }
        let sent = socket.send_to(room.get(..length).unwrap_or_default(), &SocketAddr::new(header.source, 0).into());
        if sent.is_ok() {
            add(&counters.icmp, 1);
        }
    }
}
