//! The sockets of a node: for each path and family, one socket for probes and replies, and one socket for pings.

use super::error::{OpenError, Place, SocketError, name};
use super::ping;
use super::socket::{MAX_DATAGRAM, Registered};
use crate::node::Send;
use crate::target::{HostMasks, Path};
use crate::view::UnusableSocket;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::task::Poll;
use std::time::Duration;
use types::{Coded, Family};

/// Number of packets after which the prober reads the next socket.
const MAX_READS_PER_SOCKET: usize = 64;

pub(super) enum Incoming<'a> {
    /// A datagram, with its source port.
    Datagram { path: Path, from: IpAddr, port: u16, bytes: &'a [u8] },
    /// A reply to a ping.
    Pong { path: Path, from: IpAddr, nonce: u64 },
    /// An ICMP error by which a host refuses a probe.
    Refusal { from: IpAddr, nonce: u64 },
}

pub(super) struct Drained {
    /// Number of packets read from all sockets.
    pub count: usize,
    /// Whether a socket may hold more packets.
    pub more: bool,
}

pub(super) struct Sockets {
    port: u16,
    id: u16,
    open: BTreeMap<Place, Registered>,
    problems: BTreeMap<Place, SocketError>,
    /// Of the last call of [`Sockets::follow`].
    hosts: Option<HostMasks>,
    buffer: Vec<u8>,
}

impl Sockets {
    /// `id` is the identifier in ICMP echo requests.
    pub(super) fn new(port: u16, id: u16) -> Self {
        Self {
            port,
            id,
            open: BTreeMap::new(),
            problems: BTreeMap::new(),
            hosts: None,
            buffer: vec![0; MAX_DATAGRAM],
        }
    }

    /// The path, the address family and the type (probe or ping) of each open socket.
    pub(super) fn places(&self) -> BTreeSet<Place> {
        self.open.keys().copied().collect()
    }

    /// Opens missing sockets for the paths and local addresses in `wanted`, and closes all others. `hosts` are the
    /// bits that distinguish a node's overlay address from its pods' addresses, for IPv4 and IPv6. `clear` is true if
    /// unencrypted probes may use the underlay. `yields_to` is the tunnel that needs the probe port.
    pub(super) fn follow(
        &mut self,
        wanted: &[(Path, IpAddr)],
        hosts: &HostMasks,
        clear: bool,
        yields_to: Option<&str>,
    ) {
        let others = self.hosts.replace(hosts.clone()).as_ref() != Some(hosts);
        let hosts = |(path, family, _): &Place| {
            (*path == Path::Overlay).then_some(family.pick(&hosts.0, &hosts.1))
        };
        let mut places: BTreeMap<Place, SocketAddr> = BTreeMap::new();
        for (path, address) in wanted {
            let family = Family::from(address);
            if *path == Path::Overlay || clear {
                places.insert((*path, family, false), SocketAddr::new(*address, self.port));
            }
            places.insert((*path, family, true), SocketAddr::new(*address, 0));
        }
        self.open.retain(|place, socket| {
            places.get(place) == Some(&socket.address) && (yields_to.is_none() || place.2)
        });
        self.problems.retain(|place, _| places.contains_key(place));
        for (place, address) in places {
            let (_, _, is_ping) = place;
            if let Some(open) = self.open.get(&place) {
                if others
                    && !is_ping
                    && let Err(error) = open.let_send(hosts(&place))
                {
                    tracing::debug!(address = %open.address, error = %error, "cannot change the senders that a probe socket accepts");
                }
                continue;
            }
            if let Some(owner) = yields_to.filter(|_| !is_ping) {
                // If the probes took the port, the kernel would refuse that port to the tunnel, and the tunnel would lose all packets of its pods.
                let why = OpenError::Lent { port: address.port(), owner: owner.to_owned() };
                self.problem(SocketError { place, address, why });
                continue;
            }
            let opened = if is_ping {
                Registered::pings(address.ip(), self.id, self.port)
            } else {
                Registered::datagrams(address, hosts(&place))
            };
            match opened {
                Ok(socket) => {
                    if self.problems.remove(&place).is_some() {
                        tracing::info!(
                            name = name(&place, address),
                            "resolved: probes use the socket"
                        );
                    }
                    self.open.insert(place, socket);
                }
                Err(error) => {
                    let why = OpenError::of(&error, address.port());
                    self.problem(SocketError { place, address, why });
                }
            }
        }
    }

    fn problem(&mut self, problem: SocketError) {
        if self.problems.get(&problem.place) != Some(&problem) {
            tracing::warn!(code = problem.code(), address = %problem.address, error = %problem, "cannot open a probe socket");
            self.problems.insert(problem.place, problem);
        }
    }

    /// The probe sockets that are not open, with the reasons.
    pub(super) fn problems(&self) -> Vec<UnusableSocket> {
        self.problems.values().map(SocketError::shown).collect()
    }

    /// True if packets on all sockets wake the program.
    pub(super) fn wake_on_packets(&mut self, on: bool) -> bool {
        let mut all = true;
        for socket in self.open.values_mut() {
            all &= socket.wake_on_packets(on);
        }
        all
    }

    /// Waits for a packet that wakes the program.
    pub(super) async fn readable(&self) {
        std::future::poll_fn(|context| {
            let mut ready = false;
            for socket in self.open.values() {
                ready |= socket.poll_readable(context).is_ready();
            }
            if ready { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Calls `take` with each packet and its age, and sends the reply that it returns, if any.
    pub(super) fn drain(
        &mut self,
        mut take: impl FnMut(Incoming<'_>, Duration) -> Option<Vec<u8>>,
    ) -> Drained {
        let mut drained = Drained { count: 0, more: false };
        for ((path, family, is_ping), socket) in &mut self.open {
            let mut rest = MAX_READS_PER_SOCKET;
            while rest > 0 {
                let Some(read) = socket.read(&mut self.buffer) else {
                    break;
                };
                rest -= 1;
                let bytes = self.buffer.get(..read.length).unwrap_or_default();
                let incoming =
                    if *is_ping {
                        let pong = ping::reply(*family, self.id, bytes)
                            .map(|nonce| Incoming::Pong { path: *path, from: read.from, nonce });
                        let refusal = || {
                            ping::refusal(*family, self.port, bytes)
                                .map(|nonce| Incoming::Refusal { from: read.from, nonce })
                        };
                        let Some(incoming) = pong.or_else(refusal) else {
                            continue;
                        };
                        incoming
                    } else {
                        Incoming::Datagram { path: *path, from: read.from, port: read.port, bytes }
                    };
                if let Some(answer) = take(incoming, read.age) {
                    socket.send(SocketAddr::new(read.from, read.port), &answer);
                }
            }
            drained.count += MAX_READS_PER_SOCKET - rest;
            drained.more |= rest == 0;
        }
        drained
    }

    /// Drops the packet if no socket is open for its path.
    pub(super) fn send(&self, send: &Send) {
        match send {
            Send::Datagram { path, to, bytes } => {
                if let Some(socket) = self.open.get(&(*path, (*to).into(), false)) {
                    socket.send(SocketAddr::new(*to, self.port), bytes);
                }
            }
            Send::ToPod { to, port, bytes } => {
                if let Some(socket) = self.open.get(&(Path::Overlay, (*to).into(), false)) {
                    socket.send(SocketAddr::new(*to, *port), bytes);
                }
            }
            Send::Ping { path, to, nonce, length } => {
                if let Some(socket) = self.open.get(&(*path, (*to).into(), true)) {
                    socket.send(
                        SocketAddr::new(*to, 0),
                        &ping::request((*to).into(), self.id, *nonce, *length),
                    );
                }
            }
        }
    }
}
