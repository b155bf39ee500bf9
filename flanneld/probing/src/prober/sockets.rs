//! The sockets of a node: for each way and family one for questions and answers, and one for ping.

use super::ping;
use super::problem::{Place, Unusable, Why, name};
use super::socket::{LARGEST, Registered};
use crate::node::Send;
use crate::target::Path;
use crate::view::Problem;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::task::Poll;
use std::time::Duration;
use types::Family;

/// How many datagrams of a socket are read before the others have their turn.
const AT_ONCE: usize = 64;

/// What came in.
pub(super) enum Incoming<'a> {
    /// A datagram, with the port it came from.
    Datagram {
        way: Path,
        from: IpAddr,
        port: u16,
        bytes: &'a [u8],
    },
    /// An answer to a ping.
    Pong { way: Path, from: IpAddr, nonce: u64 },
    /// A question was refused by the host that it went to.
    Refusal { from: IpAddr, nonce: u64 },
}

/// How much came in.
pub(super) struct Drained {
    /// So many datagrams were read.
    pub count: usize,
    /// There may be more.
    pub more: bool,
}

/// All sockets.
pub(super) struct Sockets {
    port: u16,
    id: u16,
    open: BTreeMap<Place, Registered>,
    problems: BTreeMap<Place, Unusable>,
    /// Who may send through the overlay network.
    hosts: Option<(u32, u32)>,
    buffer: Vec<u8>,
}

impl Sockets {
    /// None yet. `id` is the identifier of pings.
    pub(super) fn new(port: u16, id: u16) -> Self {
        Self {
            port,
            id,
            open: BTreeMap::new(),
            problems: BTreeMap::new(),
            hosts: None,
            buffer: vec![0; LARGEST],
        }
    }

    /// Which sockets are open.
    pub(super) fn places(&self) -> BTreeSet<Place> {
        self.open.keys().copied().collect()
    }

    /// Opens and closes what it takes to have exactly these addresses. `hosts` are the bits by which a node's address in the overlay network
    /// differs from those of its pods: IPv4, and IPv6. `clear` tells whether questions go beside the overlay network, `yields_to` whose tunnel
    /// has the port.
    pub(super) fn follow(
        &mut self,
        wanted: &[(Path, IpAddr)],
        hosts: (u32, u32),
        clear: bool,
        yields_to: Option<&str>,
    ) {
        let others = self.hosts.replace(hosts) != Some(hosts);
        let hosts = |(way, family, _): &Place| {
            (*way == Path::Overlay).then_some(family.pick(hosts.0, hosts.1))
        };
        let mut places: BTreeMap<Place, SocketAddr> = BTreeMap::new();
        for (way, address) in wanted {
            let family = Family::from(address);
            if *way == Path::Overlay || clear {
                places.insert((*way, family, false), SocketAddr::new(*address, self.port));
            }
            places.insert((*way, family, true), SocketAddr::new(*address, 0));
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
                    tracing::debug!("who may send to {} stays as it is: {error}", open.address);
                }
                continue;
            }
            if let Some(owner) = yields_to.filter(|_| !is_ping) {
                // Without it the kernel refuses that tunnel its port, and with it all packets of its pods.
                self.problem(Unusable {
                    place,
                    address,
                    why: Why::Lent(owner.to_owned()),
                });
                continue;
            }
            let opened = if is_ping {
                Registered::pings(address.ip(), self.id)
            } else {
                Registered::datagrams(address, hosts(&place))
            };
            match opened {
                Ok(socket) => {
                    if self.problems.remove(&place).is_some() {
                        tracing::info!("resolved: probes use {}", name(&place, address));
                    }
                    self.open.insert(place, socket);
                }
                Err(error) => self.problem(Unusable::refused(place, address, &error)),
            }
        }
    }

    fn problem(&mut self, problem: Unusable) {
        if self.problems.get(&problem.place) != Some(&problem) {
            tracing::warn!("{problem}");
            self.problems.insert(problem.place, problem);
        }
    }

    /// What does not work.
    pub(super) fn problems(&self) -> Vec<Problem> {
        self.problems.values().map(Unusable::shown).collect()
    }

    /// Whether the program is to be woken for what comes in. False where it is not for some of it, even if it should be.
    pub(super) fn tell(&mut self, on: bool) -> bool {
        let mut all = true;
        for socket in self.open.values_mut() {
            all &= socket.tell(on);
        }
        all
    }

    /// Waits until something comes in of which this is told.
    pub(super) async fn readable(&self) {
        std::future::poll_fn(|context| {
            let mut ready = false;
            for socket in self.open.values() {
                ready |= socket.poll_readable(context).is_ready();
            }
            if ready {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Reads what came in. `take` gets each, with its age, and returns an answer.
    pub(super) fn drain(
        &mut self,
        mut take: impl FnMut(Incoming<'_>, Duration) -> Option<Vec<u8>>,
    ) -> Drained {
        let mut drained = Drained {
            count: 0,
            more: false,
        };
        for ((way, family, is_ping), socket) in &self.open {
            let mut rest = AT_ONCE;
            while rest > 0 {
                let Some(read) = socket.read(&mut self.buffer) else {
                    break;
                };
                rest -= 1;
                let bytes = self.buffer.get(..read.length).unwrap_or_default();
                let incoming = if *is_ping {
                    let pong = ping::reply(*family, self.id, bytes).map(|nonce| Incoming::Pong {
                        way: *way,
                        from: read.from,
                        nonce,
                    });
                    let refusal = || {
                        ping::refusal(*family, self.port, bytes).map(|nonce| Incoming::Refusal {
                            from: read.from,
                            nonce,
                        })
                    };
                    let Some(incoming) = pong.or_else(refusal) else {
                        continue;
                    };
                    incoming
                } else {
                    Incoming::Datagram {
                        way: *way,
                        from: read.from,
                        port: read.port,
                        bytes,
                    }
                };
                if let Some(answer) = take(incoming, read.age) {
                    socket.send(SocketAddr::new(read.from, read.port), &answer);
                }
            }
            drained.count += AT_ONCE - rest;
            drained.more |= rest == 0;
        }
        drained
    }

    /// Sends. What has no socket is lost.
    pub(super) fn send(&self, send: &Send) {
        match send {
            Send::Datagram { way, to, bytes } => {
                if let Some(socket) = self.open.get(&(*way, (*to).into(), false)) {
                    socket.send(SocketAddr::new(*to, self.port), bytes);
                }
            }
            Send::Ping {
                way,
                to,
                nonce,
                length,
            } => {
                if let Some(socket) = self.open.get(&(*way, (*to).into(), true)) {
                    socket.send(
                        SocketAddr::new(*to, 0),
                        &ping::request((*to).into(), self.id, *nonce, *length),
                    );
                }
            }
        }
    }
}
