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
        // Never one that was: an answer that comes late belongs to nobody.
        let number = self.sessions_begun;
        self.sessions_begun += 1;
        self.sessions.insert(number, Session::new(key, now.at));
        Some(number)
    }

    /// The result, once it is there; the session is over then.
    pub fn end_session(&mut self, now: Now, number: u64) -> Option<Probe> {
        let is_over = |session: &Session| {
            session.done > TIMES || session.done == TIMES && session.is_complete()
        };
        if !self.sessions.get(&number).is_some_and(is_over) {
            return None;
        }
        let session = self.sessions.remove(&number)?;
        Some(Probe {
            peer: self.show_peer(now, &session.key)?,
            small: session.tally(Asked::Overlay { full: false }),
            full: session.tally(Asked::Overlay { full: true }),
            underlay: session.tally(Asked::Underlay),
            ping: session.tally(Asked::OverlayPing { full: false }),
            full_ping: session.tally(Asked::OverlayPing { full: true }),
            underlay_ping: session.tally(Asked::UnderlayPing),
            answered_by: session.other.map(|who| self.name_of(who)),
        })
    }

    /// Ends a session for which nobody waits any more.
    pub(crate) fn drop_session(&mut self, number: u64) {
        self.sessions.remove(&number);
    }

    pub(super) fn step_sessions(&mut self, now: Now) {
        let due: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.done <= TIMES && session.next <= now.at)
            .map(|(number, _)| *number)
            .collect();
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
            for kind in Asked::ALL {
                if self.ask(now, key, What::Session(number, kind), 0)
                    && let Some(session) = self.sessions.get_mut(&number)
                {
                    session.asked(kind);
                }
            }
        }
    }
}
