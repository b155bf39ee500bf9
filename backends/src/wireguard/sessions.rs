//! A [`Kernel`] that tracks WireGuard peers: the endpoints that flanneld has set, and whether the
//! peers respond.
//!
//! The kernel changes a peer's endpoint when the peer sends from another address (roaming).
//! flanneld sets the endpoint again only if the lease's endpoint has changed, or if the peer does
//! not respond at the current one. The kernel announces no changes of peers, so this module reads
//! them every few seconds.

use async_trait::async_trait;
use netstate::report::survey::Survey;
use netstate::{
    ExistingState, Facts, Kernel, KernelError, KernelState, Key, LinkName, Op, OpError, PublicKey,
    Scope, Session, Sessions, Underlay, Value, WireguardKernel,
};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// A session ends so long after its handshake (REJECT_AFTER_TIME in WireGuard's paper, 6.1).
const SESSION: Duration = Duration::from_secs(180);
/// The endpoint to which a peer moved is rejected after so long without an answer. WireGuard
/// repeats its handshake every 5 s, so at least one is unanswered after 20 s.
const NO_ANSWER: Duration = Duration::from_secs(20);
/// A peer that does not respond to this node's packets for so long is silent.
const SILENCE: Duration = Duration::from_secs(30);
/// A peer is no longer reported as silent after so long without packets to it.
const AT_REST: Duration = Duration::from_secs(180);
/// In bytes. A keepalive is a data message without data (WireGuard's paper, 5.4.6).
const KEEPALIVE: u64 = 32;
/// WireGuard answers received data with a keepalive after this time.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Minimum interval between reads of the peers.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// As a multiple of the time that a read takes.
const READ_FACTOR: u32 = 20;
/// This is also the interval of full passes while the desired peers are unknown.
const MAX_READ_INTERVAL: Duration = Duration::from_secs(20);

type Id = (LinkName, PublicKey);

/// The peers on all WireGuard devices of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelPeers {
    pub peers: usize,
    /// Peers that do not respond although this node sends packets to them.
    pub silent: Vec<Silent>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    pub link: LinkName,
    pub key: PublicKey,
    /// The lease's endpoint; this node sends packets to it.
    pub endpoint: Option<SocketAddr>,
    /// Time since the last completed handshake; `None` if there was none.
    pub handshake: Option<Duration>,
    /// How long this node has sent packets to the peer without a response.
    pub silence: Duration,
    /// The peer starts handshakes during this silence but completes none.
    pub initiates: bool,
}

#[derive(Clone, Debug, Default)]
struct TunnelPeer {
    /// The desired endpoint, as of the last full read.
    set: Option<SocketAddr>,
    /// Seconds between two keepalives to the peer. If it is 0, WireGuard sends keepalives only in
    /// answer to data.
    keepalive: u16,
    session: Session,
    /// The last read of the WireGuard peers.
    looked: Option<Instant>,
    /// The last completed handshake. The first read computes its time from the wall clock. Later
    /// ones take the time of the first read that showed the handshake.
    handshake_at: Option<Instant>,
    /// The peer's session was already over at the first read.
    over: bool,
    /// This node has sent packets to the peer since then, without a response.
    unanswered: Option<Instant>,
    /// The peer has started handshakes since the first packet without a response.
    initiates: bool,
    /// The last read that showed new packets to the peer.
    sent: Option<Instant>,
}

impl TunnelPeer {
    /// As far as the reconciler knows: an idle peer counts as responding.
    fn works(&self, now: Instant) -> bool {
        !self.over && self.unanswered.is_none_or(|since| now.duration_since(since) < NO_ANSWER)
    }

    /// The bytes sent since the last read may be only keepalives, which need no response.
    /// Handshakes and messages with data are longer.
    fn only_kept_alive(&self, sent: u64, now: Instant) -> bool {
        let between = match self.keepalive {
            0 => KEEPALIVE_TIMEOUT,
            seconds => KEEPALIVE_TIMEOUT.min(Duration::from_secs(seconds.into())),
        };
        let passed = self.looked.map(|looked| now.duration_since(looked)).unwrap_or_default();
        let most = 1 + passed.as_secs() / between.as_secs().max(1);
        sent.is_multiple_of(KEEPALIVE) && sent / KEEPALIVE <= most
    }

    fn silence(&self, now: Instant) -> Option<Duration> {
        let lately = self.sent.is_some_and(|sent| now.duration_since(sent) < AT_REST);
        let silence = now.duration_since(self.unanswered?);
        (lately && silence >= SILENCE).then_some(silence)
    }
}

#[derive(Debug, Default)]
struct Tunnels(BTreeMap<Id, TunnelPeer>);

impl Tunnels {
    fn note(&mut self, sessions: &Sessions, now: Instant) {
        self.0.retain(|id, _| sessions.contains_key(id));
        for (id, session) in sessions {
            let first = !self.0.contains_key(id);
            let peer = self.0.entry(*id).or_default();
            // The counters of a recreated peer start at zero.
            let anew = session.received < peer.session.received || session.sent < peer.session.sent;
            // The wall clock may be changed, so it is used only if nothing else is known.
            let shook =
                session.handshake_at.is_some() && session.handshake_at != peer.session.handshake_at;
            if first || anew {
                peer.handshake_at = session.handshake.and_then(|ago| now.checked_sub(ago));
            } else if shook {
                peer.handshake_at = Some(now);
            }
            let lives = peer.handshake_at.is_some_and(|at| now.duration_since(at) < SESSION);
            // Without a session, received bytes are handshake attempts. Any sender can make these, so they are not a response.
            let (came, sent) = (
                session.received != peer.session.received,
                session.sent.saturating_sub(peer.session.sent),
            );
            let received = lives && (shook || came);
            if first || anew || received {
                (peer.unanswered, peer.initiates) = (None, false);
            } else if came {
                peer.initiates = true;
            }
            peer.over = !lives && (first || peer.over);
            if sent > 0 && !first {
                peer.sent = Some(now);
                if !received && !peer.only_kept_alive(sent, now) {
                    peer.unanswered.get_or_insert(now);
                }
            }
            (peer.session, peer.looked) = (*session, Some(now));
        }
    }

    /// The peers that moved to another endpoint and respond there. Their endpoints in `have` become
    /// the desired ones, so that they are in sync.
    fn accept(&self, have: &mut KernelState, want: &KernelState, now: Instant) -> BTreeSet<Key> {
        let mut moved = BTreeSet::new();
        for (key, found) in &mut have.0 {
            let (Key::WireguardPeer(name, id), Value::WireguardPeer(found)) = (key, found) else {
                continue;
            };
            let Some(Value::WireguardPeer(wanted)) = want.0.get(key) else {
                continue;
            };
            let Some(peer) = self.0.get(&(*name, *id)) else {
                continue;
            };
            let unchanged = peer.set.is_none() || peer.set == wanted.endpoint;
            if found.endpoint.is_some()
                && found.endpoint != wanted.endpoint
                && unchanged
                && peer.works(now)
            {
                found.endpoint = wanted.endpoint;
                moved.insert(*key);
            }
        }
        moved
    }

    fn follow(&mut self, want: &KernelState) {
        for (key, wanted) in &want.0 {
            if let (Key::WireguardPeer(name, id), Value::WireguardPeer(wanted)) = (key, wanted) {
                let peer = self.0.entry((*name, *id)).or_default();
                (peer.set, peer.keepalive) = (wanted.endpoint, wanted.keepalive);
            }
        }
        // A map that grew by single insertions takes twice the memory.
        self.0 = std::mem::take(&mut self.0).into_iter().collect();
    }

    fn applied(&mut self, ops: &[Op]) {
        for op in ops {
            let Key::WireguardPeer(name, id) = op.key() else {
                continue;
            };
            if !matches!(op, Op::Replace(..)) {
                self.0.remove(&(*name, *id));
            }
            if let (false, Value::WireguardPeer(peer)) = (op.is_deletion(), op.value()) {
                let known = self.0.entry((*name, *id)).or_default();
                known.keepalive = peer.keepalive;
                // Packets go to the new endpoint, unless it is unchanged.
                if peer.endpoint.is_some() {
                    (known.set, known.unanswered, known.over) = (peer.endpoint, None, false);
                }
            }
        }
    }

    /// Operations without the endpoints of peers that moved and whose desired endpoint is unchanged,
    /// so that the kernel keeps their current ones.
    fn keep_endpoints<'a>(&self, ops: &'a [Op], moved: &BTreeSet<Key>) -> Cow<'a, [Op]> {
        let mut kept = Cow::Borrowed(ops);
        for (place, op) in ops.iter().enumerate() {
            let Op::Replace(key @ Key::WireguardPeer(name, id), Value::WireguardPeer(wanted)) = op
            else {
                continue;
            };
            let known = self.0.get(&(*name, *id));
            if moved.contains(key)
                && known.is_some_and(|known| known.set == wanted.endpoint)
                && let Some(Op::Replace(_, Value::WireguardPeer(peer))) =
                    kept.to_mut().get_mut(place)
            {
                peer.endpoint = None;
            }
        }
        kept
    }

    /// Peers without keepalives that are added although the last full read expected them. Peers
    /// with new leases start their sessions themselves.
    fn lost_sessions(&self, ops: &[Op]) -> Vec<Id> {
        let lost = ops.iter().filter_map(|op| match op {
            Op::Add(Key::WireguardPeer(name, key), Value::WireguardPeer(peer))
                if peer.keepalive == 0 && self.0.contains_key(&(*name, *key)) =>
            {
                Some((*name, *key))
            }
            _ => None,
        });
        lost.collect()
    }

    fn status(&self, now: Instant) -> TunnelPeers {
        let silent = self.0.iter().filter_map(|((link, key), peer)| {
            let silence = peer.silence(now)?;
            let TunnelPeer { set, initiates, .. } = *peer;
            let handshake = peer.handshake_at.map(|at| now.duration_since(at));
            Some(Silent { link: *link, key: *key, endpoint: set, handshake, silence, initiates })
        });
        TunnelPeers { peers: self.0.len(), silent: silent.collect() }
    }
}

/// Removes from `have` the peers to which an operator added allowed IPs of other networks, unless
/// `want` contains the peer.
fn leave_to_operators(have: &mut KernelState, want: &KernelState, mixed: &BTreeSet<Key>) {
    let theirs: BTreeSet<Key> =
        mixed.iter().filter(|key| !want.0.contains_key(key)).copied().collect();
    if theirs.is_empty() {
        return;
    }
    have.0.retain(|key, value| match (key, value) {
        (Key::AllowedIp(name, _), Value::AllowedIp(peer)) => {
            !theirs.contains(&Key::WireguardPeer(*name, *peer))
        }
        (key, _) => !theirs.contains(key),
    });
}

pub(super) struct SessionKernel<K> {
    kernel: K,
    tunnels: Tunnels,
    /// As of the last full read.
    moved: BTreeSet<Key>,
    next_read: Instant,
    /// The last time that the reconciler was woken because the desired peers were unknown.
    last_blind_wake: Option<Instant>,
    status: Arc<Mutex<TunnelPeers>>,
}

impl<K: WireguardKernel> SessionKernel<K> {
    pub(super) fn new(kernel: K) -> Self {
        Self {
            kernel,
            tunnels: Tunnels::default(),
            moved: BTreeSet::new(),
            next_read: Instant::now() + READ_INTERVAL,
            last_blind_wake: None,
            status: Arc::default(),
        }
    }

    /// Updated after each read.
    pub(super) fn status(&self) -> Arc<Mutex<TunnelPeers>> {
        self.status.clone()
    }

    /// Notes the sessions, and shows in `found` what stays as it is.
    fn take_peers(&mut self, found: &mut ExistingState, want: &KernelState) -> BTreeSet<Key> {
        let now = Instant::now();
        self.tunnels.note(&std::mem::take(&mut found.sessions), now);
        let moved = self.tunnels.accept(&mut found.ours, want, now);
        leave_to_operators(&mut found.ours, want, &found.mixed);
        moved
    }

    /// Reads the peers; true if a full pass is due. It reports the error if they cannot be read.
    async fn peers_differ(&mut self, scope: &Scope, known: Option<&KernelState>) -> bool {
        let began = Instant::now();
        let found = self.kernel.read_peers(scope).await;
        let interval = (began.elapsed() * READ_FACTOR).clamp(READ_INTERVAL, MAX_READ_INTERVAL);
        self.next_read = Instant::now() + interval;
        let Ok(mut found) = found else {
            return known.is_some();
        };
        let unknown = KernelState::default();
        self.take_peers(&mut found, known.unwrap_or(&unknown));
        *self.status.lock() = self.tunnels.status(began);
        let Some(known) = known else {
            // Something failed, or a lease cannot be read. A full pass determines what differs.
            let due = self.last_blind_wake.is_none_or(|last| last.elapsed() >= MAX_READ_INTERVAL);
            self.last_blind_wake = if due { Some(began) } else { self.last_blind_wake };
            return due;
        };
        let of_peers =
            |(key, _): &(&Key, &Value)| matches!(key, Key::WireguardPeer(..) | Key::AllowedIp(..));
        !known.0.iter().filter(of_peers).eq(found.ours.0.iter().filter(of_peers))
    }
}

#[async_trait]
impl<K: WireguardKernel> Kernel for SessionKernel<K> {
    async fn read(
        &mut self,
        scope: &Scope,
        want: &KernelState,
    ) -> Result<ExistingState, KernelError> {
        let mut found = self.kernel.read(scope, want).await?;
        self.moved = self.take_peers(&mut found, want);
        self.tunnels.follow(want);
        self.next_read = Instant::now() + READ_INTERVAL;
        *self.status.lock() = self.tunnels.status(Instant::now());
        Ok(found)
    }

    async fn survey(&mut self, scope: &Scope) -> Result<Survey, KernelError> {
        self.kernel.survey(scope).await
    }

    async fn facts(
        &mut self,
        underlay: &Underlay,
        queries: &[IpAddr],
    ) -> Result<Facts, KernelError> {
        self.kernel.facts(underlay, queries).await
    }

    async fn on_link(&mut self, queries: &[IpAddr]) -> BTreeSet<IpAddr> {
        self.kernel.on_link(queries).await
    }

    async fn apply(&mut self, ops: &[Op]) -> Vec<OpError> {
        let ops = self.tunnels.keep_endpoints(ops, &self.moved);
        let errors = self.kernel.apply(&ops).await;
        let lost = self.tunnels.lost_sessions(&ops);
        if !lost.is_empty() {
            self.kernel.greet(&lost).await;
        }
        self.tunnels.applied(&ops);
        errors
    }

    async fn wait_for_change(&mut self, scope: &Scope, known: Option<&KernelState>) {
        loop {
            tokio::select! {
                () = self.kernel.wait_for_change(scope, known) => return,
                () = sleep_until(self.next_read) => {}
            }
            if self.peers_differ(scope, known).await {
                return;
            }
        }
    }

    fn change_pending(&mut self, scope: &Scope, known: Option<&KernelState>) -> bool {
        self.kernel.change_pending(scope, known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstate::WireguardPeer;
    use netstate::tests::fake::FakeKernel;

    const PEER: PublicKey = PublicKey([7; 32]);

    fn name() -> LinkName {
        LinkName::parse("flannel-wg").unwrap()
    }

    fn state(endpoint: &str) -> KernelState {
        let mut state = KernelState::default();
        let peer = WireguardPeer { endpoint: endpoint.parse().ok(), preshared: None, keepalive: 0 };
        state.set(Key::WireguardPeer(name(), PEER), Value::WireguardPeer(Box::new(peer)));
        state
    }

    fn session(
        handshake: Option<Duration>,
        handshake_at: Option<u64>,
        received: u64,
        sent: u64,
    ) -> Sessions {
        let session = Session {
            handshake,
            handshake_at: handshake_at.map(Duration::from_secs),
            received,
            sent,
        };
        [((name(), PEER), session)].into()
    }

    /// The time is that of the first read.
    struct Clock(Tunnels, Instant);

    impl Clock {
        fn new() -> Self {
            Self(Tunnels::default(), Instant::now() + Duration::from_secs(3600))
        }

        fn at(&self, seconds: u64) -> Instant {
            self.1 + Duration::from_secs(seconds)
        }

        /// The session after `at` seconds; its last handshake was `handshake` seconds before.
        fn note(&mut self, at: u64, handshake: Option<u64>, received: u64, sent: u64) {
            let handshake_at = handshake.map(|ago| 10_000 + at - ago);
            let session = session(handshake.map(Duration::from_secs), handshake_at, received, sent);
            self.0.note(&session, self.at(at));
        }

        fn silent(&self, seconds: u64) -> Vec<Silent> {
            self.0.status(self.at(seconds)).silent
        }

        /// True if the endpoint to which the peer moved is accepted in place of the lease's.
        fn accepts(&self, seconds: u64, lease: &str) -> bool {
            let (mut have, want) = (state("198.51.100.1:40000"), state(lease));
            let found = self.0.accept(&mut have, &want, self.at(seconds));
            assert_eq!(have == want, !found.is_empty());
            have == want
        }
    }

    const LEASE: &str = "192.0.2.1:51820";

    #[test]
    fn a_roamed_endpoint_stays_while_it_answers() {
        let mut clock = Clock::new();
        assert!(!clock.accepts(0, LEASE), "nothing is known");
        // After a start of the daemon.
        clock.note(0, Some(100), 10, 10);
        assert!(clock.accepts(0, LEASE), "it works");
        clock.0.follow(&state(LEASE));
        assert!(!clock.accepts(0, "192.0.2.9:51820"), "the lease now has another endpoint");
        for (second, received, sent, accepted) in [
            // An answer may be under way.
            (10, 10, 20, true),
            (35, 10, 30, false),
            (36, 20, 40, true),
            // The session is over, and neither node sent packets.
            (200, 20, 40, true),
        ] {
            clock.note(second, Some(100 + second), received, sent);
            assert_eq!(clock.accepts(second, LEASE), accepted, "{second} s");
        }
        let mut clock = Clock::new();
        clock.note(0, Some(300), 20, 40);
        assert!(!clock.accepts(0, LEASE), "the session was over at the first read");
    }

    #[test]
    fn silence_is_reported_only_of_peers_with_traffic() {
        let mut clock = Clock::new();
        // Nobody sent anything for a long time.
        for (second, sent) in [(0, 0), (100, 0), (105, 148), (110, 296), (130, 700)] {
            clock.note(second, None, 0, sent);
            assert_eq!(clock.silent(second), []);
        }
        clock.note(135, None, 0, 900);
        let silent = Silent {
            link: name(),
            key: PEER,
            endpoint: None,
            handshake: None,
            silence: SILENCE,
            initiates: false,
        };
        assert_eq!(clock.silent(135), [silent]);
        assert_eq!(clock.silent(400), [], "this node sent its last packet to the peer long ago");
        // The peer's own handshake attempts are not a response: they also arrive if the preshared keys differ.
        clock.note(138, None, 148, 1000);
        assert_eq!(clock.silent(138).len(), 1);
        clock.note(140, Some(0), 240, 1100);
        assert_eq!(clock.silent(140), [], "it answered");
    }

    /// If the preshared keys differ, both ends start handshakes repeatedly, and the kernel counts
    /// them as received.
    #[test]
    fn handshakes_that_are_never_completed_are_no_answer() {
        let mut clock = Clock::new();
        clock.0.follow(&state(LEASE));
        for (second, received) in [(0, 0), (5, 148), (10, 148), (15, 444), (30, 740), (35, 888)] {
            clock.note(second, None, received, second * 100);
        }
        let [silent] = <[_; 1]>::try_from(clock.silent(35)).unwrap();
        assert!(silent.initiates && silent.endpoint == LEASE.parse().ok(), "{silent:?}");
        // The peer answered, and then no more.
        for (second, ago, sent) in [(45, 0, 4100), (50, 5, 4200), (85, 40, 4300)] {
            clock.note(second, Some(ago), 1276, sent);
        }
        let [silent] = <[_; 1]>::try_from(clock.silent(85)).unwrap();
        assert!(!silent.initiates, "{silent:?}");
        // The handshake attempts after a session has ended are not a response either.
        let mut ended = Clock::new();
        for (second, received, sent) in [(0, 1036, 4000), (5, 1184, 4148), (40, 1332, 4296)] {
            ended.note(second, Some(200 + second), received, sent);
        }
        assert_eq!(ended.silent(40).len(), 1);
    }

    #[test]
    fn handshake_age_survives_a_wall_clock_change() {
        let note = |clock: &mut Clock, second, ago, received, sent| {
            let session = session(Some(Duration::from_secs(ago)), Some(10_000), received, sent);
            clock.0.note(&session, clock.at(second));
        };
        // The clock was set back: the handshake seems to be in the future, but is not recent.
        let mut clock = Clock::new();
        note(&mut clock, 0, 170, 500, 500);
        for second in (5..=60).step_by(5) {
            note(&mut clock, second, 0, 500, 500 + second * 148);
        }
        let [silent] = <[_; 1]>::try_from(clock.silent(60)).unwrap();
        assert_eq!(silent.handshake, Some(Duration::from_secs(230)));
        // The clock was set forward by an hour: the session is still alive.
        let mut clock = Clock::new();
        note(&mut clock, 0, 10, 500, 500);
        for second in (5..=100).step_by(5) {
            let bytes = 500 + second * 100;
            note(&mut clock, second, 3600 + second, bytes, bytes);
            assert_eq!(clock.silent(second), []);
        }
    }

    #[test]
    fn keepalives_need_no_answer() {
        for (keepalive, each) in [(0, 0), (1, 5), (2, 2), (25, 1), (40, 1)] {
            let peer = WireguardPeer { endpoint: None, preshared: None, keepalive };
            let mut kept = KernelState::default();
            let key = Key::WireguardPeer(name(), PEER);
            kept.set(key, Value::WireguardPeer(Box::new(peer)));
            let (mut clock, mut sent) = (Clock::new(), 0);
            let mut look = |clock: &mut Clock, second: u64, more: u64| {
                sent += more;
                clock.note(second, Some(second), 500, sent);
                clock.silent(second).len()
            };
            look(&mut clock, 0, 500);
            clock.0.follow(&kept);
            for second in (5..=100).step_by(5) {
                assert_eq!(look(&mut clock, second, each * 32), 0, "{keepalive}");
            }
            // Handshake attempts, or data.
            look(&mut clock, 105, 148);
            assert_eq!(look(&mut clock, 140, 148), 1, "{keepalive}");
        }
    }

    fn scope() -> Scope {
        let networks = types::Subnets::V4("10.244.0.0/16".parse().unwrap());
        Scope {
            links: vec![name()],
            networks,
            own: networks,
            former: None,
            protocol: 241,
            checksum_offload: false,
        }
    }

    fn peer(state: &KernelState) -> (Key, Value) {
        state.0.iter().next().map(|(key, value)| (*key, value.clone())).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn roamed_endpoint_is_replaced_only_with_the_leases() {
        let fake = FakeKernel::default();
        fake.world().state = state("198.51.100.1:40000");
        fake.world().sessions = session(Some(Duration::from_secs(9)), Some(10_000), 10, 10);
        let mut kernel = SessionKernel::new(fake);
        let found = kernel.read(&scope(), &state(LEASE)).await.unwrap();
        assert_eq!(found.ours, state(LEASE), "it is shown as in sync");
        for (wanted, sent) in [(LEASE, None), ("192.0.2.9:51820", Some("192.0.2.9:51820"))] {
            let (key, value) = peer(&state(wanted));
            let ops = [Op::Replace(key, value)];
            let kept = kernel.tunnels.keep_endpoints(&ops, &kernel.moved);
            let [Op::Replace(_, Value::WireguardPeer(peer))] = &*kept else { unreachable!() };
            assert_eq!(peer.endpoint, sent.and_then(|sent| sent.parse().ok()), "{wanted}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_start_with_lost_peers_but_not_with_new_ones() {
        let fake = FakeKernel::default();
        let mut kernel = SessionKernel::new(fake.clone());
        let (key, value) = peer(&state(LEASE));
        let _ = kernel.read(&scope(), &KernelState::default()).await.unwrap();
        kernel.apply(&[Op::Add(key, value.clone())]).await;
        assert_eq!(fake.world().greeted, [], "the peer has a new lease");
        let _ = kernel.read(&scope(), &state(LEASE)).await.unwrap();
        kernel.apply(&[Op::Add(key, value)]).await;
        assert_eq!(fake.world().greeted, [(name(), PEER)]);
    }

    #[tokio::test(start_paused = true)]
    async fn peer_changed_without_a_notification_is_a_change() {
        let fake = FakeKernel::default();
        fake.world().state = state(LEASE);
        let mut kernel = SessionKernel::new(fake.clone());
        let waits = async |kernel: &mut SessionKernel<FakeKernel>, known: Option<&KernelState>| {
            let minute = Duration::from_secs(60);
            let scope = scope();
            tokio::time::timeout(minute, kernel.wait_for_change(&scope, known)).await.is_err()
        };
        let known = state(LEASE);
        assert!(waits(&mut kernel, Some(&known)).await, "nothing changes");
        assert!(!waits(&mut kernel, None).await, "what is desired is unknown");
        fake.world().state = KernelState::default();
        assert!(!waits(&mut kernel, Some(&known)).await, "the peer is gone");
        fake.world().state = known.clone();
        fake.world().faults.push_back(true);
        assert!(!waits(&mut kernel, Some(&known)).await, "the peers cannot be read");
    }

    #[test]
    fn peers_with_operators_addresses_stay() {
        let (key, _) = peer(&state(LEASE));
        for (want, kept) in [(KernelState::default(), false), (state(LEASE), true)] {
            let mut have = state(LEASE);
            have.set(
                Key::AllowedIp(name(), "10.244.7.0/24".parse().unwrap()),
                Value::AllowedIp(PEER),
            );
            leave_to_operators(&mut have, &want, &[key].into());
            assert_eq!(!have.0.is_empty(), kept);
        }
    }
}
