//! Asking one peer at once, for somebody who waits for it.

use super::machine::Node;
use super::message::{Asked, Now, WAIT, What};
use super::session::Session;
use crate::view::Probe;
use ipnet::IpNet;
use std::time::Duration;

/// How often each kind is asked.
const TIMES: u8 = 5;
/// The time between two.
const PAUSE: Duration = Duration::from_millis(200);
/// Sessions at a time.
const SESSIONS: usize = 8;

impl Node {
    /// Begins to ask a peer at once; none if there is no such peer, or too many are asked. The number leads to the result.
    pub fn begin_session(&mut self, now: Now, key: IpNet) -> Option<u64> {
        if !self.peers.contains_key(&key) || self.sessions.len() >= SESSIONS {
            return None;
        }
        let number = self.sessions.last_key_value().map_or(0, |(last, _)| last + 1);
        self.sessions.insert(number, Session::new(key, now.at));
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
            overlay: session.tally(Asked::Overlay { full: false }),
            beside: session.tally(Asked::Beside),
            overlay_ping: session.tally(Asked::OverlayPing),
            beside_ping: session.tally(Asked::BesidePing),
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
            for kind in [Asked::Overlay { full: step % 2 == 0 }, Asked::Beside, Asked::OverlayPing, Asked::BesidePing] {
                let sent = self.ask(now, key, What::Session(number, kind), 0);
                if let Some(asked) = self.sessions.get_mut(&number).and_then(|session| session.asked.get_mut(kind.place())) {
                    *asked += u8::from(sent);
                }
            }
        }
    }
}
