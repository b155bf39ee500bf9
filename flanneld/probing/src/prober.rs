//! The prober, which connects a [`Node`] to the sockets of this host.

pub mod echo;
mod error;
mod log;
mod option;
mod ping;
mod socket;
mod sockets;

use crate::node::{Client, CommonNotice, Datagram, LocalNode, Node, Notice, Now};
use crate::target::{HostMasks, Path, host_masks, overlay_addresses, targets};
use crate::view::{
    CommonOutage, Losses, Mesh, Own, PathState, PeerView, Probe, Traffic, UnusableSocket,
};
use crate::who::who;
use ipnet::IpNet;
use log::Log;
use parking_lot::{Mutex, MutexGuard};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sockets::{Drained, Incoming, Sockets};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use subnet_lease::{Kinds, LeaseTable};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use types::reachability::{Impact, State};
use types::{Durations, Family, Subnets};

/// Pause after an update of all peers, as a multiple of the time that the update took. It limits the load, even if
/// leases change frequently.
const PAUSE_FACTOR: u32 = 40;
/// Maximum length of the pause. Without it, an update on a busy machine could cause an overlong pause.
const PAUSE_LIMIT: Duration = Duration::from_secs(1);
/// Interval at which the prober tries again to open missing sockets.
const REOPEN_INTERVAL: Duration = Duration::from_secs(10);
/// Delay of a wake-up from which the prober infers that the kernel did not schedule the program.
const MIN_STALL: Duration = Duration::from_millis(400);
/// Pause between reads during a flood of packets, so that it does not use all processor time.
const FLOOD_PAUSE: Duration = Duration::from_millis(1);
/// Maximum time for which the prober delays a read until the next probe is due. The kernel timestamps packets, so the
/// wait saves wake-ups and costs no accuracy.
const MAX_READ_DELAY: Duration = Duration::from_millis(300);
/// Number of packets per read above which the prober drains the socket without a pause, because its buffer would
/// overflow meanwhile.
const MAX_BATCH: usize = 16;
/// Time after a flood during which the prober still drains sockets without a pause, because a flood comes in bursts.
const FLOOD_MEMORY: Duration = Duration::from_secs(2);
/// Maximum time for which the prober sleeps, because clocks may change during a sleep.
const MAX_SLEEP: Duration = Duration::from_secs(60);
/// Timeout of [`Prober::ask`].
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// They do not change while the network runs.
#[derive(Clone, Debug)]
pub struct ProberSettings {
    /// The UDP port of probes.
    pub port: u16,
    /// The node id that this node's lease publishes.
    pub id: String,
    /// The leases of these subnets do not belong to peers.
    pub own: Subnets,
    /// The backends whose leases belong to peers.
    pub kinds: Kinds,
    /// Whether each node has an overlay device with the first address of its subnet.
    pub device: bool,
    /// The family of the tunnel's outer packets, if one family carries the pod packets of all families.
    pub outer: Option<Family>,
    /// Whether the node may send unencrypted probes over the underlay.
    pub clear: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnderlayState {
    /// The source addresses of probes over the underlay: IPv4 and IPv6.
    pub addresses: (Option<IpAddr>, Option<IpAddr>),
    /// All addresses of this host, with their prefix lengths.
    pub local: Vec<IpNet>,
    /// The MTU of the overlay for IPv4 and for IPv6, in bytes.
    pub mtu: (u16, u16),
    /// The tunnel on this host that uses the probe port, if any. It keeps the port, because pod packets take
    /// precedence over probes.
    pub yields_to: Option<String>,
}

/// All clones share the state of one prober.
#[derive(Clone)]
pub struct Prober {
    shared: Arc<Shared>,
}

struct Shared {
    settings: ProberSettings,
    began: Instant,
    state: Mutex<Inner>,
    wake: Notify,
    verdicts: watch::Sender<u64>,
}

struct Inner {
    node: Node,
    problems: Vec<UnusableSocket>,
}

/// For metrics, without figures of single peers.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub traffic: Traffic,
    /// Counted separately in each address family.
    pub states: BTreeMap<State, u32>,
    /// Numbers of peers that reply and that do not reply.
    pub paths: BTreeMap<(Path, PathState), u32>,
    /// Over the overlay, since the start.
    pub round_trips: Durations,
    /// Median of all peers' round trips over the overlay, in microseconds.
    pub rtt_us: Option<u32>,
}

/// State of the loop of [`Prober::run`].
struct LoopState {
    sockets: Sockets,
    log: Log,
    /// Time of the next attempt to open the missing sockets.
    reopen_at: Duration,
    /// Time until which the prober expects a flood and does not delay reads.
    calm_at: Duration,
    /// Whether leases or addresses have changed since the last update.
    changed: bool,
    /// Earliest time of the next update of all peers.
    follow_at: Duration,
    /// The bits that distinguish the addresses of nodes from those of pods.
    hosts: HostMasks,
}

impl LoopState {
    fn new(sockets: Sockets) -> Self {
        Self {
            sockets,
            log: Log::default(),
            reopen_at: Duration::ZERO,
            calm_at: Duration::ZERO,
            changed: true,
            follow_at: Duration::ZERO,
            hosts: HostMasks::default(),
        }
    }
}

impl std::fmt::Debug for Prober {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prober").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl Prober {
    /// [`Prober::run`] runs it.
    pub fn new(settings: ProberSettings, underlay: &UnderlayState) -> Self {
        let mut random = StdRng::from_os_rng();
        let node = Node::new(local(&settings, underlay), Duration::ZERO, move || random.random());
        let state = Mutex::new(Inner { node, problems: Vec::new() });
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

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.shared.state.lock()
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            at: self.shared.began.elapsed(),
            wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
        }
    }

    pub fn view(&self) -> Arc<Mesh> {
        let now = self.now();
        let inner = self.inner();
        Arc::new(inner.node.show(now, self.shared.settings.port, inner.problems.clone()))
    }

    /// Applies `of` to the view of each peer. With thousands of peers, this takes less memory than [`Prober::view`].
    pub fn peers<T>(&self, of: impl FnMut(PeerView) -> T) -> Vec<T> {
        let now = self.now();
        self.inner().node.peers(now, of)
    }

    /// The first results of `of`, at most `most`. It does not reserve memory for all peers.
    pub fn find_peers<T>(&self, most: usize, of: impl Fn(PeerView) -> Option<T>) -> Vec<T> {
        let mut found = Vec::new();
        self.peers(|peer| {
            if found.len() < most {
                found.extend(of(peer));
            }
        });
        found
    }

    pub fn problems(&self) -> Vec<UnusableSocket> {
        self.inner().problems.clone()
    }

    /// See [`Node::answering`].
    pub fn answering(
        &self,
        family: Family,
        first: &[IpNet],
        after: Option<IpNet>,
        most: usize,
    ) -> Vec<(IpNet, IpAddr)> {
        self.inner().node.answering(family, first, after, most)
    }

    /// See [`Node::pod_question`].
    pub fn pod_question(&self, peer: IpNet, nonce: u64) -> Option<Vec<u8>> {
        self.inner().node.pod_question(peer, nonce)
    }

    /// See [`Node::strangers`].
    pub fn strangers(&self) -> Vec<IpAddr> {
        let now = self.now();
        self.inner().node.strangers(now)
    }

    pub fn port(&self) -> u16 {
        self.shared.settings.port
    }

    /// The faults that all peers of a family have in common, and the losses of the last five minutes.
    pub fn common(&self) -> (Vec<CommonOutage>, Losses) {
        let now = self.now();
        let inner = self.inner();
        (inner.node.show_faults(now), inner.node.show_losses(now))
    }

    /// A counter that changes with each verdict that affects packets.
    pub fn verdicts(&self) -> watch::Receiver<u64> {
        self.shared.verdicts.subscribe()
    }

    /// Costs less than [`Prober::view`].
    pub fn figures(&self) -> Figures {
        let inner = self.inner();
        Figures {
            traffic: inner.node.traffic(),
            states: inner.node.counts(),
            paths: inner.node.paths(),
            round_trips: inner.node.round_trips(),
            rtt_us: inner.node.median_round_trip(),
        }
    }

    /// Costs less than [`Prober::view`].
    pub fn anybody_cut_off(&self) -> bool {
        self.inner().node.counts().get(&State::CutOff).is_some_and(|count| *count > 0)
    }

    /// Requests other nodes' reports for the next ten seconds, so that [`Prober::view`] includes them.
    pub fn request_rows(&self, client: Client) {
        let now = self.now();
        self.inner().node.request_rows(client, now);
        self.shared.wake.notify_one();
    }

    /// Sets the report about this node that other nodes request.
    pub fn set_own(&self, own: Own) {
        self.inner().node.set_own(own);
    }

    /// Probes a peer several times, at the request of the caller. `None` if no peer has the subnet, if too many
    /// sessions are open, or if the result takes longer than five seconds.
    pub async fn ask(&self, subnet: IpNet) -> Option<Probe> {
        /// Ends the session on drop, even if the caller cancels the future.
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
        while begin.elapsed() < ASK_TIMEOUT {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = self.now();
            if let Some(probe) = self.inner().node.end_session(now, number) {
                return Some(probe);
            }
        }
        None
    }

    /// `None` while the node has no address in the overlay.
    pub fn source(&self, family: Family) -> Option<IpAddr> {
        self.inner().node.source(family)
    }

    /// Probes peers and replies to probes until the caller cancels `stop`.
    pub async fn run(
        self,
        mut leases: watch::Receiver<Arc<LeaseTable>>,
        mut underlay: watch::Receiver<UnderlayState>,
        stop: CancellationToken,
    ) {
        let port = self.shared.settings.port;
        let mut state = LoopState::new(Sockets::new(port, StdRng::from_os_rng().random()));
        loop {
            let now = self.now();
            self.follow(&mut state, &mut leases, &mut underlay, now);
            let read = self.drain(&mut state.sockets);
            let Step { next, notices, common } = self.step(&state.sockets);
            log::report_common(&common);
            state.log.report(now.at, &notices);
            self.publish(&notices, &common);
            if read.count > MAX_BATCH {
                state.calm_at = now.at + FLOOD_MEMORY;
            }
            if read.more {
                tokio::select! {
                    () = tokio::time::sleep(FLOOD_PAUSE) => {}
                    () = stop.cancelled() => return,
                }
                state.changed |= leases.has_changed().unwrap_or(false)
                    || underlay.has_changed().unwrap_or(false);
            } else if self
                .wait(&mut state, next, &mut leases, &mut underlay, &stop)
                .await
                .is_break()
            {
                return;
            }
        }
    }

    /// Applies changed leases and addresses, and opens and closes sockets, if an update is due.
    fn follow(
        &self,
        state: &mut LoopState,
        leases: &mut watch::Receiver<Arc<LeaseTable>>,
        underlay: &mut watch::Receiver<UnderlayState>,
        now: Now,
    ) {
        let follows = state.changed && now.at >= state.follow_at;
        if !follows && now.at < state.reopen_at {
            return;
        }
        let settings = &self.shared.settings;
        let underlay = underlay.borrow_and_update().clone();
        let peers = follows.then(|| {
            let table = leases.borrow_and_update().clone();
            targets(&table, &settings.own, settings.kinds, &underlay.local, settings.outer)
        });
        if let Some(peers) = &peers {
            let subnets = peers.iter().map(|peer| peer.subnet);
            state.hosts = host_masks(settings.own.nets().chain(subnets));
        }
        state.sockets.follow(
            &addresses(settings, &underlay),
            &state.hosts,
            settings.clear,
            underlay.yields_to.as_deref(),
        );
        state.reopen_at = now.at + REOPEN_INTERVAL;
        let mut inner = self.inner();
        inner.problems = state.sockets.problems();
        let open = state.sockets.places();
        inner.node.set_sockets(move |path, family, ping| open.contains(&(path, family, ping)));
        if let Some(peers) = peers {
            inner.node.set_local(local(settings, &underlay));
            inner.node.set_targets(peers, now.at);
            let ended = self.now().at;
            state.changed = false;
            state.follow_at = ended + pause_after(ended.saturating_sub(now.at));
        }
    }

    /// Notifies subscribers of changes that affect packets. Omits the first verdict on a `well` peer, because first
    /// verdicts occur for minutes after a start in a large cluster.
    fn publish(&self, notices: &[Notice], common: &[CommonNotice]) {
        let is_news = |notice: &Notice| notice.was.impact().max(notice.is.impact()) >= Impact::Some;
        if !common.is_empty() || notices.iter().any(is_news) {
            self.shared.verdicts.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Waits until work is due. `next` is the time at which the node needs a wake-up. `Break` if `stop` is cancelled.
    async fn wait(
        &self,
        state: &mut LoopState,
        next: Duration,
        leases: &mut watch::Receiver<Arc<LeaseTable>>,
        underlay: &mut watch::Receiver<UnderlayState>,
        stop: &CancellationToken,
    ) -> ControlFlow<()> {
        let present = self.now().at;
        let may_delay = present >= state.calm_at
            && next.saturating_sub(present) <= MAX_READ_DELAY
            && self.inner().node.is_calm();
        let longest =
            if state.sockets.wake_on_packets(!may_delay) { MAX_SLEEP } else { MAX_READ_DELAY };
        let changed = state.changed;
        let until = next.min(state.reopen_at).min(present + longest);
        let until = if changed { until.min(state.follow_at) } else { until };
        let source = tokio::select! {
            () = tokio::time::sleep_until((self.shared.began + until).into()) => {
                let late = self.now().at.saturating_sub(until);
                if late >= MIN_STALL {
                    // Packets that arrived meanwhile are read first: they were in time.
                    self.drain(&mut state.sockets);
                    self.inner().node.stalled(late);
                }
                return ControlFlow::Continue(());
            }
            () = state.sockets.readable() => return ControlFlow::Continue(()),
            () = self.shared.wake.notified() => return ControlFlow::Continue(()),
            source = leases.changed(), if !changed => source,
            source = underlay.changed(), if !changed => source,
            () = stop.cancelled() => return ControlFlow::Break(()),
        };
        if source.is_err() {
            // The sender is gone, so nothing will change: the daemon is about to stop.
            stop.cancelled().await;
            return ControlFlow::Break(());
        }
        state.changed = true;
        ControlFlow::Continue(())
    }

    fn drain(&self, sockets: &mut Sockets) -> Drained {
        let port = self.shared.settings.port;
        sockets.drain(|incoming, age| {
            let now = self.now();
            let at = now.at.saturating_sub(age);
            match incoming {
                // A datagram from another port is from no node, but it may be a pod probe.
                Incoming::Datagram { path: Path::Overlay, from, port: from_port, bytes }
                    if from_port != port =>
                {
                    let datagram = Datagram { path: Path::Overlay, from, at, bytes };
                    self.inner().node.answer_pod(now, &datagram)
                }
                Incoming::Datagram { port: from, .. } if from != port => None,
                Incoming::Datagram { path, from, bytes, .. } => {
                    self.inner().node.receive(now, Datagram { path, from, at, bytes })
                }
                Incoming::Refusal { from, nonce } => {
                    self.inner().node.refused(from, nonce, at);
                    None
                }
                Incoming::Pong { path, from, nonce } => {
                    self.inner().node.pong(now, path, from, nonce, at);
                    None
                }
            }
        })
    }

    /// Does the work of the node that is due, and sends the resulting packets.
    fn step(&self, sockets: &Sockets) -> Step {
        let (sends, step) = {
            let now = self.now();
            let mut inner = self.inner();
            let next = inner.node.wake(now);
            let step = Step {
                next,
                notices: inner.node.take_notices(),
                common: inner.node.take_common_notices(),
            };
            (inner.node.take_sends(), step)
        };
        for send in &sends {
            sockets.send(send);
        }
        step
    }
}

struct Step {
    next: Duration,
    notices: Vec<Notice>,
    common: Vec<CommonNotice>,
}

/// From the duration of the update.
fn pause_after(took: Duration) -> Duration {
    took.saturating_mul(PAUSE_FACTOR).min(PAUSE_LIMIT)
}

/// The address from which the node of a subnet probes over the overlay.
fn overlay_address(settings: &ProberSettings, subnet: &IpNet) -> IpAddr {
    let [device, bridge] = overlay_addresses(subnet);
    if settings.device { device } else { bridge }
}

/// The addresses to which the prober binds its sockets.
fn addresses(settings: &ProberSettings, underlay: &UnderlayState) -> Vec<(Path, IpAddr)> {
    let overlay =
        settings.own.nets().map(|subnet| (Path::Overlay, overlay_address(settings, &subnet)));
    let underlay = [underlay.addresses.0, underlay.addresses.1]
        .into_iter()
        .flatten()
        .map(|address| (Path::Underlay, address));
    overlay.chain(underlay).collect()
}

fn local(settings: &ProberSettings, underlay: &UnderlayState) -> LocalNode {
    let number = |subnet: Option<IpNet>| subnet.map(|subnet| who(&settings.id, &subnet));
    // A missing device comes back, and until then its peers are cut off. A bridge appears with the first pod.
    let overlay = |subnet: Option<IpNet>| {
        let address = overlay_address(settings, &subnet?);
        let is_here = underlay.local.iter().any(|net| net.addr() == address);
        (settings.device || is_here).then_some(address)
    };
    let (v4, v6) = (
        settings.own.v4().map(|net| IpNet::V4(*net)),
        settings.own.v6().map(|net| IpNet::V6(*net)),
    );
    LocalNode {
        who_v4: number(v4),
        who_v6: number(v6),
        subnet_v4: v4,
        subnet_v6: v6,
        overlay_v4: overlay(v4),
        overlay_v6: overlay(v6),
        device: settings.device,
        clear: settings.clear,
        mtu_v4: underlay.mtu.0,
        mtu_v6: underlay.mtu.1,
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
