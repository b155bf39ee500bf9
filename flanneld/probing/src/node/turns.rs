//! Scheduled probes: the fewest probes that can confirm a peer's state.

use super::machine::Node;
use super::message::{Now, ROUND_COST, What};
use crate::schedule::turn_paths;
use ipnet::IpNet;
use types::reachability::State;

/// Number of probe intervals between two UDP probes of a peer that replies only to ping.
const QUESTION_INTERVAL: u32 = 10;
/// Number of probe intervals between two long pings of a peer that replies only to ping.
const LONG_PING_INTERVAL: u32 = 4;
/// Number of probe intervals between two MTU searches while the path's MTU is too small.
const MTU_SEARCH_INTERVAL: u32 = 8;

impl Node {
    pub(super) fn turns(&mut self, now: Now) {
        while let Some(key) = self.pace.sample.turn(now.at) {
            self.turn(now, key);
        }
        loop {
            let peers = &self.peers;
            let Some(key) =
                self.pace.walk.turn(now.at, || peers.iter().map(|(key, peer)| (*key, peer.who)))
            else {
                return;
            };
            self.turn(now, key);
        }
    }

    /// A whole round if the MTU is too small, otherwise the fewest probes that can confirm the state.
    fn turn(&mut self, now: Now, key: IpNet) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        peer.turn.count = peer.turn.count.wrapping_add(1);
        peer.turn.rounds = 0;
        let (present, turn) = (peer.standing.present, peer.turn.count);
        if present.state == State::SmallMtu && self.pace.broken.take(now.at, ROUND_COST) {
            self.begin(now, key);
            if turn.is_multiple_of(MTU_SEARCH_INTERVAL) {
                self.mtu_search(now, key, present.ping_only);
            }
            return;
        }
        let whats = if present.ping_only {
            self.pings_of_turn(key)
        } else {
            self.questions_of_turn(now, key)
        };
        self.round(now, key, &whats, false);
    }

    /// The scheduled pings of a peer that replies only to ping. In some probe intervals a UDP probe joins them,
    /// because the peer may now reply to it.
    fn pings_of_turn(&self, key: IpNet) -> Vec<What> {
        let has_overlay = self.overlay_of(&key).is_some();
        let (turn, refuses) =
            self.peers.get(&key).map_or((0, false), |peer| (peer.turn.count, peer.refuses));
        let mut whats = vec![if has_overlay { What::Ping } else { What::UnderlayPing }];
        if has_overlay && turn.is_multiple_of(LONG_PING_INTERVAL) {
            whats.push(What::FullPing);
        }
        if refuses || turn.is_multiple_of(QUESTION_INTERVAL) {
            whats.push(if has_overlay { What::Small } else { What::Underlay });
        }
        whats
    }

    /// The scheduled probes of a peer that replies to probes.
    fn questions_of_turn(&mut self, now: Now, key: IpNet) -> Vec<What> {
        let has_overlay = self.overlay_of(&key).is_some();
        let peers = self.peers.len();
        let Some(peer) = self.peers.get(&key) else {
            return Vec::new();
        };
        let is_unknown = peer.standing.present.state == State::Unknown;
        let paths = turn_paths(peer.who, peer.turn.count, peers);
        let mut whats = Vec::with_capacity(2);
        if has_overlay && (paths.overlay || is_unknown) {
            whats.push(self.long_or_short(now, key));
        }
        if paths.underlay || !has_overlay {
            whats.push(if self.local.clear { What::Underlay } else { What::UnderlayPing });
        }
        whats
    }

    /// A long probe if this peer is next for one.
    fn long_or_short(&mut self, now: Now, key: IpNet) -> What {
        let mut done = self.peers.get(&key).map_or(0, |peer| peer.turn.full_done);
        let others_wait = |round: u32| {
            self.peers.iter().any(|(other, peer)| {
                *other != key && peer.turn.full_done != round && peer.is_asked_long()
            })
        };
        let is_long = self.pace.full.turn(now.at, &mut done, others_wait);
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.turn.full_done = done;
        }
        if is_long { What::Full } else { What::Small }
    }
}
