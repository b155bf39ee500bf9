//! Asking one peer at once, for somebody who waits for it.

use super::{Node, Now, WAIT, What};
use crate::view::{Probe, Tally};
use ipnet::IpNet;
use std::time::Duration;

/// How often each kind is asked.
const TIMES: u8 = 5;
/// The time between two.
const PAUSE: Duration = Duration::from_millis(200);
/// Sessions at a time.
const SESSIONS: usize = 8;

/// A kind of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Overlay { full: bool },
    Beside,
    OverlayPing,
    BesidePing,
}

impl Kind {
    pub fn is_ping(self) -> bool {
        matches!(self, Kind::OverlayPing | Kind::BesidePing)
    }

    pub fn is_full(self) -> bool {
        self == Kind::Overlay { full: true }
    }

    pub fn is_overlay(self) -> bool {
        matches!(self, Kind::Overlay { .. } | Kind::OverlayPing)
    }

    fn place(self) -> usize {
        match self {
            Kind::Overlay { .. } => 0,
            Kind::Beside => 1,
            Kind::OverlayPing => 2,
            Kind::BesidePing => 3,
        }
    }
}

/// Asking one peer.
#[derive(Debug)]
pub struct Session {
    key: IpNet,
    next: Duration,
    done: u8,
    asked: [u8; 4],
    answered: [Vec<u32>; 4],
}

impl Session {
    pub fn next(&self) -> Duration {
        self.next
    }

    pub fn delay(&mut self, by: Duration) {
        self.next += by;
    }

    pub fn answered(&mut self, kind: Kind, rtt: Duration) {
        if let Some(list) = self.answered.get_mut(kind.place()) {
            list.push(u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX));
        }
    }

    fn tally(&self, kind: Kind) -> Tally {
        let mut rtts = self.answered.get(kind.place()).cloned().unwrap_or_default();
        rtts.sort_unstable();
        let asked = self.asked.get(kind.place()).copied().unwrap_or(0);
        Tally { asked, answered: u8::try_from(rtts.len()).unwrap_or(u8::MAX), rtt_us: rtts.get(rtts.len() / 2).copied() }
    }
}

impl Node {
    /// Begins to ask a peer at once; none if there is no such peer, or too many are asked. The number leads to the result.
    pub fn begin_session(&mut self, now: Now, key: IpNet) -> Option<u64> {
        if !self.peers.contains_key(&key) || self.sessions.len() >= SESSIONS {
            return None;
        }
        let number = self.sessions.last_key_value().map_or(0, |(last, _)| last + 1);
        self.sessions.insert(number, Session { key, next: now.at, done: 0, asked: [0; 4], answered: Default::default() });
        Some(number)
    }

    /// The result, once it is there; the session is over then.
    pub fn end_session(&mut self, now: Now, number: u64) -> Option<Probe> {
        if self.sessions.get(&number).is_none_or(|session| session.done <= TIMES) {
            return None;
        }
        let session = self.sessions.remove(&number)?;
        Some(Probe {
            peer: self.show_peer(now, &session.key)?,
            overlay: session.tally(Kind::Overlay { full: false }),
            beside: session.tally(Kind::Beside),
            overlay_ping: session.tally(Kind::OverlayPing),
            beside_ping: session.tally(Kind::BesidePing),
        })
    }

    /// Ends a session for which nobody waits any more.
    pub fn drop_session(&mut self, number: u64) {
        self.sessions.remove(&number);
    }

    pub(super) fn step_sessions(&mut self, now: Now) {
        let due: Vec<u64> =
            self.sessions.iter().filter(|(_, session)| session.done <= TIMES && session.next <= now.at).map(|(number, _)| *number).collect();
        for number in due {
            let Some((key, step)) = self.sessions.get_mut(&number).map(|session| {
                let step = session.done;
                session.done += 1;
                session.next = match step + 1 {
                    TIMES => now.at + WAIT,
                    // Who waits comes for it.
                    after if after > TIMES => Duration::MAX,
                    _ => now.at + PAUSE,
                };
                (session.key, step)
            }) else {
                continue;
            };
            if step >= TIMES {
                continue;
            }
            for kind in [Kind::Overlay { full: step % 2 == 0 }, Kind::Beside, Kind::OverlayPing, Kind::BesidePing] {
                let sent = self.ask(now, key, What::Session(number, kind), 0);
                if let Some(asked) = self.sessions.get_mut(&number).and_then(|session| session.asked.get_mut(kind.place())) {
                    *asked += u8::from(sent);
                }
            }
        }
    }
}
