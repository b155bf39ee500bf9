//! The prober: a [`Node`] on the sockets of this host.

pub mod echo;
mod log;
mod option;
mod ping;
mod problem;
mod socket;
mod sockets;

use crate::node::{Datagram, LocalNode, Node, Now};
use crate::target::{Path, host_bits, overlay_addresses, targets};
use crate::view::{Mesh, Own, Peer, Probe, Problem, Traffic};
use crate::who::who;
use ipnet::IpNet;
use log::Log;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sockets::{Drained, Incoming, Sockets};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use subnet_lease::{Kinds, LeaseTable};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use types::Family;
use types::Subnets;
use types::reachability::{Impact, State};

/// The pause after all peers were taken over, as a multiple of the time that took: changes of leases cost little, however many come ...
const PAUSE_FACTOR: u32 = 40;
/// ... and at most this: the machine may have been busy.
const PAUSE_LIMIT: Duration = Duration::from_secs(1);
/// How often a socket that could not be opened is tried again.
const REOPEN: Duration = Duration::from_secs(10);
/// From this on the program was kept from running.
const STALL: Duration = Duration::from_millis(400);
/// A pause in which a flood does not take the processor.
const FLOOD_PAUSE: Duration = Duration::from_millis(1);
/// Reads wait for the next probe if it is due within this time. The kernel timestamps packets, so this saves wake-ups and costs no accuracy.
const MAX_READ_DELAY: Duration = Duration::from_millis(300);
/// Above this many packets per read, the socket is drained without a pause so that its buffer does not overflow ...
const MAX_BATCH: usize = 16;
/// ... and for this long afterwards: a flood comes in waves.
const FLOOD_MEMORY: Duration = Duration::from_secs(2);
/// The longest sleep: clocks may be changed meanwhile.
const LONGEST: Duration = Duration::from_secs(60);
/// How long asking at once may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What does not change while the network runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The UDP port.
    pub port: u16,
    /// This node's id.
    pub id: String,
    /// Its subnets.
    pub own: Subnets,
    /// Whose leases count.
    pub kinds: Kinds,
    /// Whether each node has an overlay device with the first address of its subnet.
    pub device: bool,
    /// The family of the tunnels, where all families use one.
    pub outer: Option<Family>,
    /// Whether questions may go from node to node in the clear.
    pub clear: bool,
}

/// What may change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnderlayState {
    /// The addresses of this node, from which it asks: IPv4, and IPv6.
    pub addresses: (Option<IpAddr>, Option<IpAddr>),
    /// All addresses of this host.
    pub local: Vec<IpAddr>,
    /// The MTU of the overlay network: IPv4, and IPv6.
    pub mtu: (u16, u16),
    /// Whose tunnel on this host has the probe port. Packets of pods go before probes: the port is left to it.
    pub yields_to: Option<String>,
}

/// Asks and answers. Clones are the same prober.
#[derive(Clone)]
pub struct Prober {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    began: Instant,
    state: Mutex<Inner>,
    wake: Notify,
    verdicts: watch::Sender<u64>,
}

struct Inner {
    node: Node,
    problems: Vec<Problem>,
}

impl std::fmt::Debug for Prober {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prober")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

impl Prober {
    /// A prober that does not run yet.
    pub fn new(settings: Settings, surroundings: &UnderlayState) -> Self {
        let mut random = StdRng::from_os_rng();
        let node = Node::new(local(&settings, surroundings), Duration::ZERO, move || {
            random.random()
        });
        let state = Mutex::new(Inner {
            node,
            problems: Vec::new(),
        });
        Self {
            shared: Arc::new(Shared {
                settings,
                began: Instant::now(),
                state,
                wake: Notify::new(),
                verdicts: watch::channel(0).0,
            }),
        }
    }

    // The state machine leaves consistent values between its calls; a panic in one of them must not end the daemon's views.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            at: self.shared.began.elapsed(),
            wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Everything that is known.
    pub fn view(&self) -> Arc<Mesh> {
        let now = self.now();
        let inner = self.inner();
        Arc::new(
            inner
                .node
                .show(now, self.shared.settings.port, inner.problems.clone()),
        )
    }

    /// What `of` makes of each peer. With thousands of peers this takes less memory than [`Prober::view`].
    pub fn peers<T>(&self, of: impl FnMut(Peer) -> T) -> Vec<T> {
        let now = self.now();
        self.inner().node.peers(now, of)
    }

    /// The sockets that could not be opened.
    pub fn problems(&self) -> Vec<Problem> {
        self.inner().problems.clone()
    }

    /// The UDP port of the probes.
    pub fn port(&self) -> u16 {
        self.shared.settings.port
    }

    /// Changes whenever a verdict does from which or to which packets are harmed.
    pub fn verdicts(&self) -> watch::Receiver<u64> {
        self.shared.verdicts.subscribe()
    }

    /// The counters, and how many peers are in each state.
    pub fn figures(&self) -> (Traffic, BTreeMap<State, u32>) {
        let inner = self.inner();
        (inner.node.traffic(), inner.node.counts())
    }

    /// Whether any peer is cut off. Cheaper than the view.
    pub fn anybody_cut_off(&self) -> bool {
        self.inner()
            .node
            .counts()
            .get(&State::CutOff)
            .is_some_and(|count| *count > 0)
    }

    /// Somebody looks at other nodes' rows: for the next ten seconds they are asked for them, and [`Prober::view`] has them.
    pub fn look(&self) {
        let now = self.now();
        self.inner().node.look(now);
        self.shared.wake.notify_one();
    }

    /// What this node says of itself in its row.
    pub fn tell(&self, own: Own) {
        self.inner().node.set_own(own);
    }

    /// Asks the peer of this subnet at once, several times; none if there is no such peer, or too many are asked at the moment.
    pub async fn ask(&self, subnet: IpNet) -> Option<Probe> {
        /// Whoever stops waiting leaves nothing behind.
        struct Asking<'a>(&'a Prober, u64);
        impl Drop for Asking<'_> {
            fn drop(&mut self) {
                self.0.inner().node.drop_session(self.1);
            }
        }
        let number = self.inner().node.begin_session(self.now(), subnet)?;
        let _asking = Asking(self, number);
        self.shared.wake.notify_one();
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = self.now();
            if let Some(probe) = self.inner().node.end_session(now, number) {
                return Some(probe);
            }
        }
        None
    }

    /// The address from which this node asks through the overlay network, if it has one now.
    pub fn source(&self, family: Family) -> Option<IpAddr> {
        self.inner().node.source(family)
    }

    /// Asks and answers until `stop`.
    pub async fn run(
        self,
        mut leases: watch::Receiver<Arc<LeaseTable>>,
        mut surroundings: watch::Receiver<UnderlayState>,
        stop: CancellationToken,
    ) {
        let settings = self.shared.settings.clone();
        let mut sockets = Sockets::new(settings.port, StdRng::from_os_rng().random());
        let mut log = Log::default();
        let (mut reopen, mut calm_at) = (Duration::ZERO, Duration::ZERO);
        let (mut changed, mut follow_at) = (true, Duration::ZERO);
        let (mut peers, mut hosts) = (Vec::new(), (0, 0));
        loop {
            let now = self.now();
            let follows = changed && now.at >= follow_at;
            if follows || now.at >= reopen {
                let around = surroundings.borrow_and_update().clone();
                if follows {
                    let table = leases.borrow_and_update().clone();
                    peers = targets(
                        &table,
                        &settings.own,
                        settings.kinds,
                        &around.local,
                        settings.outer,
                    );
                    hosts = host_bits(
                        settings
                            .own
                            .nets()
                            .chain(peers.iter().map(|peer| peer.subnet)),
                    );
                }
                sockets.follow(
                    &addresses(&settings, &around),
                    hosts,
                    settings.clear,
                    around.yields_to.as_deref(),
                );
                reopen = now.at + REOPEN;
                let mut inner = self.inner();
                inner.problems = sockets.problems();
                let open = sockets.places();
                inner
                    .node
                    .set_sockets(move |way, family, ping| open.contains(&(way, family, ping)));
                if follows {
                    inner.node.set_local(local(&settings, &around));
                    inner.node.set_targets(std::mem::take(&mut peers), now.at);
                    let ended = self.now().at;
                    (changed, follow_at) =
                        (false, ended + pause_after(ended.saturating_sub(now.at)));
                }
            }
            let read = self.drain(&mut sockets);
            let (next, notices) = self.step(&sockets);
            log.tell(now.at, &notices);
            // Of a peer that is well at the first look there is nothing to find out: in a large cluster that is news for minutes.
            if notices
                .iter()
                .any(|notice| notice.was.impact().max(notice.is.impact()) >= Impact::Some)
            {
                self.shared
                    .verdicts
                    .send_modify(|count| *count = count.wrapping_add(1));
            }
            if read.count > MAX_BATCH {
                calm_at = now.at + FLOOD_MEMORY;
            }
            if read.more {
                tokio::select! {
                    () = tokio::time::sleep(FLOOD_PAUSE) => {}
                    () = stop.cancelled() => return,
                }
                changed |= leases.has_changed().unwrap_or(false)
                    || surroundings.has_changed().unwrap_or(false);
                continue;
            }
            let present = self.now().at;
            let waits = present >= calm_at
                && next.saturating_sub(present) <= MAX_READ_DELAY
                && self.inner().node.is_calm();
            let longest = if sockets.tell(!waits) {
                LONGEST
            } else {
                MAX_READ_DELAY
            };
            let until = next.min(reopen).min(present + longest);
            let until = if changed { until.min(follow_at) } else { until };
            changed |= tokio::select! {
                () = tokio::time::sleep_until((self.shared.began + until).into()) => {
                    let late = self.now().at.saturating_sub(until);
                    if late >= STALL {
                        // What came in meanwhile is read first: it came in time.
                        self.drain(&mut sockets);
                        self.inner().node.stalled(late);
                    }
                    false
                }
                () = sockets.readable() => false,
                () = self.shared.wake.notified() => false,
                changed = leases.changed(), if !changed => if changed.is_ok() { true } else { return stop.cancelled().await },
                changed = surroundings.changed(), if !changed => if changed.is_ok() { true } else { return stop.cancelled().await },
                () = stop.cancelled() => return,
            };
        }
    }

    /// Reads everything that came in, and answers.
    fn drain(&self, sockets: &mut Sockets) -> Drained {
        let port = self.shared.settings.port;
        sockets.drain(|incoming, age| {
            let now = self.now();
            let at = now.at.saturating_sub(age);
            match incoming {
                // What comes from another port is no node: answers go to the probe port only.
                Incoming::Datagram { port: from, .. } if from != port => None,
                Incoming::Datagram {
                    way, from, bytes, ..
                } => self.inner().node.hear(
                    now,
                    Datagram {
                        way,
                        from,
                        at,
                        bytes,
                    },
                ),
                Incoming::Refusal { from, nonce } => {
                    self.inner().node.refused(from, nonce, at);
                    None
                }
                Incoming::Pong { way, from, nonce } => {
                    self.inner().node.pong(now, way, from, nonce, at);
                    None
                }
            }
        })
    }

    /// Does what is due, and sends.
    fn step(&self, sockets: &Sockets) -> (Duration, Vec<crate::node::Notice>) {
        let (next, sends, notices) = {
            let now = self.now();
            let mut inner = self.inner();
            (
                inner.node.wake(now),
                inner.node.take_sends(),
                inner.node.take_notices(),
            )
        };
        for send in &sends {
            sockets.send(send);
        }
        (next, notices)
    }
}

/// The pause after all peers were taken over, which took so long.
fn pause_after(took: Duration) -> Duration {
    took.saturating_mul(PAUSE_FACTOR).min(PAUSE_LIMIT)
}

/// The address in the overlay network from which a subnet's node asks.
fn overlay_address(settings: &Settings, subnet: &IpNet) -> IpAddr {
    let [device, bridge] = overlay_addresses(subnet);
    if settings.device { device } else { bridge }
}

/// The sockets' addresses.
fn addresses(settings: &Settings, around: &UnderlayState) -> Vec<(Path, IpAddr)> {
    let overlay = settings
        .own
        .nets()
        .map(|subnet| (Path::Overlay, overlay_address(settings, &subnet)));
    let underlay = [around.addresses.0, around.addresses.1]
        .into_iter()
        .flatten()
        .map(|address| (Path::Underlay, address));
    overlay.chain(underlay).collect()
}

fn local(settings: &Settings, around: &UnderlayState) -> LocalNode {
    let number = |subnet: Option<IpNet>| subnet.map(|subnet| who(&settings.id, &subnet));
    // A device that is gone comes back; until then its peers are cut off. A bridge comes with the first pod.
    let overlay = |subnet: Option<IpNet>| {
        let address = overlay_address(settings, &subnet?);
        (settings.device || around.local.contains(&address)).then_some(address)
    };
    let (v4, v6) = (
        settings.own.v4().map(|net| IpNet::V4(*net)),
        settings.own.v6().map(|net| IpNet::V6(*net)),
    );
    LocalNode {
        who_v4: number(v4),
        who_v6: number(v6),
        overlay_v4: overlay(v4),
        overlay_v6: overlay(v6),
        device: settings.device,
        clear: settings.clear,
        mtu_v4: around.mtu.0,
        mtu_v6: around.mtu.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_follows_the_work_up_to_a_second() {
        let ms = Duration::from_millis;
        assert_eq!(
            [ms(0), ms(2), ms(2000), Duration::MAX].map(pause_after),
            [ms(0), ms(80), ms(1000), ms(1000)]
        );
    }
}
