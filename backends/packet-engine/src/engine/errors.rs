//! ICMP errors to pods, sent by a raw socket as packets of this host. From the TUN device, the kernel would
//! drop them as forged, because their source is this host's own address.

use crate::counters::{Counters, add_to_counter};
use crate::packet::Header;
use crate::packet::icmp;
use crate::packet::icmp_limit::Buckets;
use crate::verdict::Icmp;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use types::Addresses;

/// IPPROTO_RAW: the packet includes its own IP header.
const RAW: i32 = 255;

/// Sends ICMP errors at a limited rate.
pub(super) struct Errors {
    /// The tunnel's own addresses, at most one of each family, and the socket of each.
    sockets: Vec<(IpAddr, Socket)>,
    buckets: Buckets,
    began: Instant,
}

impl Errors {
    /// Opens a raw socket for each of the tunnel's own addresses, which are the sources of the errors.
    pub(super) fn open_raw_sockets(sources: Option<Addresses>) -> Self {
        let open = |source: IpAddr| {
            let domain = Domain::for_address(SocketAddr::new(source, 0));
            Socket::new(domain, Type::RAW.nonblocking().cloexec(), Some(Protocol::from(RAW)))
                .inspect_err(|error| {
                    tracing::warn!(
                        error = %error,
                        remedy = "give flanneld the capability CAP_NET_RAW",
                        "cannot open a raw socket; pods get no ICMP errors"
                    );
                })
                .ok()
                .map(|socket| (source, socket))
        };
        let sockets = sources.iter().flat_map(Addresses::ips).filter_map(open).collect();
        Self { sockets, buckets: Buckets::default(), began: Instant::now() }
    }

    /// Sends nothing if the protocol forbids the error, or the rate limit is reached.
    pub(super) fn reply_if_allowed(
        &mut self,
        kind: Icmp,
        packet: &[u8],
        header: &Header,
        counters: &Counters,
    ) {
        let same_family =
            |(source, _): &&(IpAddr, Socket)| source.is_ipv4() == header.source.is_ipv4();
        let Some((source, socket)) = self.sockets.iter().find(same_family) else {
            return;
        };
        let mut room = [0; icmp::V6_MAX];
        let Some(length) = icmp::write_error_packet(kind, packet, header, *source, &mut room)
        else {
            return;
        };
        if !self.buckets.allow(header.source, self.began.elapsed()) {
            return;
        }
        let sent = socket.send_to(
            room.get(..length).unwrap_or_default(),
            &SocketAddr::new(header.source, 0).into(),
        );
        if sent.is_ok() {
            add_to_counter(&counters.icmp, 1);
        }
    }
}
