//! Tracks WireGuard peers: the endpoints that flanneld has set, and whether the peers respond.
//!
//! The kernel changes a peer's endpoint when the peer sends from another address (roaming). The
//! reconciler sets the endpoint again only if the lease's endpoint has changed, or if the peer does
//! not respond at the current one.

use netstate::kernel::Sessions;
use netstate::names::LinkName;
use netstate::object::{KernelState, Key, Op, Value};
use netstate::wireguard::{PublicKey, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;

/// A session ends so long after its handshake (REJECT_AFTER_TIME in WireGuard's paper, 6.1).
const SESSION: Duration = Duration::from_secs(180);
/// The endpoint to which a peer moved is rejected after so long without an answer. WireGuard
/// repeats its handshake every 5 s, so at least one is unanswered after 20 s.
const NO_ANSWER: Duration = Duration::from_secs(20);
/// A peer that does not respond to this node's packets for so long is silent.
pub(super) const SILENCE: Duration = Duration::from_secs(30);
/// A peer is no longer reported as silent after so long without packets to it.
const AT_REST: Duration = Duration::from_secs(180);
/// In bytes. A keepalive is a data message without data (WireGuard's paper, 5.4.6).
const KEEPALIVE: u64 = 32;
/// WireGuard answers received data with a keepalive after this time.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

type Id = (LinkName, PublicKey);

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
    /// The lease's endpoint, as of the reconciler's last pass.
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
pub(super) struct Tunnels(BTreeMap<Id, TunnelPeer>);

impl Tunnels {
    pub(super) fn note(&mut self, sessions: &Sessions, now: Instant) {
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
    pub(super) fn accept(
        &self,
        have: &mut KernelState,
        want: &KernelState,
        now: Instant,
    ) -> BTreeSet<Key> {
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

    pub(super) fn follow(&mut self, want: &KernelState) {
        for (key, wanted) in &want.0 {
            if let (Key::WireguardPeer(name, id), Value::WireguardPeer(wanted)) = (key, wanted) {
                let peer = self.0.entry((*name, *id)).or_default();
                (peer.set, peer.keepalive) = (wanted.endpoint, wanted.keepalive);
            }
        }
        // A map that grew by single insertions takes twice the memory.
        self.0 = std::mem::take(&mut self.0).into_iter().collect();
    }

    pub(super) fn applied(&mut self, ops: &[Op]) {
        for op in ops {
            match op {
                Op::Add(Key::WireguardPeer(name, id), Value::WireguardPeer(peer)) => {
                    self.0.insert(
                        (*name, *id),
                        TunnelPeer {
                            set: peer.endpoint,
                            keepalive: peer.keepalive,
                            ..TunnelPeer::default()
                        },
                    );
                }
                Op::Replace(Key::WireguardPeer(name, id), Value::WireguardPeer(peer)) => {
                    let known = self.0.entry((*name, *id)).or_default();
                    known.keepalive = peer.keepalive;
                    // Packets go to the new endpoint, unless it is unchanged.
                    if peer.endpoint.is_some() {
                        (known.set, known.unanswered, known.over) = (peer.endpoint, None, false);
                    }
                }
                Op::Delete(Key::WireguardPeer(name, id), _) => {
                    self.0.remove(&(*name, *id));
                }
                _ => {}
            }
        }
    }

    pub(super) fn silent(&self, now: Instant) -> Vec<Silent> {
        let silent = self.0.iter().filter_map(|((link, key), peer)| {
            let silence = peer.silence(now)?;
            let TunnelPeer { set, initiates, .. } = *peer;
            let handshake = peer.handshake_at.map(|at| now.duration_since(at));
            Some(Silent { link: *link, key: *key, endpoint: set, handshake, silence, initiates })
        });
        silent.collect()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstate::wireguard::WireguardPeer;

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
            self.0.silent(self.at(seconds))
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
}
