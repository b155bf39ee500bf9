//! Sessions, in which this node probes one peer on demand for a waiting caller.

use super::machine::Node;
use super::message::{ANSWER_TIMEOUT, Asked, Now, What};
use super::session::Session;
use crate::view::Probe;
use ipnet::IpNet;
use std::time::Duration;

/// Number of probes of each kind in a session.
const REPETITIONS: u8 = 5;
/// Time between two rounds of probes.
const REPETITION_INTERVAL: Duration = Duration::from_millis(200);
const MAX_SESSIONS: usize = 8;

impl Node {
    /// Returns the number of the session, or `None` if the peer does not exist or too many sessions are open.
    pub fn begin_session(&mut self, now: Now, key: IpNet) -> Option<u64> {
        if !self.peers.contains_key(&key) || self.sessions.open.len() >= MAX_SESSIONS {
            return None;
        }
        // Numbers are never reused, so that a late reply does not enter another session.
        let number = self.sessions.begun;
        self.sessions.begun += 1;
        self.sessions.open.insert(number, Session::new(key, now.at));
        Some(number)
    }

    /// `None` while the session is not complete.
    pub fn end_session(&mut self, now: Now, number: u64) -> Option<Probe> {
        let is_over = |session: &Session| {
            session.done > REPETITIONS || session.done == REPETITIONS && session.is_complete()
        };
        if !self.sessions.open.get(&number).is_some_and(is_over) {
            return None;
        }
        let session = self.sessions.open.remove(&number)?;
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

    /// Ends a session whose caller no longer waits.
    #[cfg(feature = "prober")]
    pub(crate) fn drop_session(&mut self, number: u64) {
        self.sessions.open.remove(&number);
    }

    pub(super) fn step_sessions(&mut self, now: Now) {
        let due: Vec<u64> = self
            .sessions
            .open
            .iter()
            .filter(|(_, session)| session.done <= REPETITIONS && session.next <= now.at)
            .map(|(number, _)| *number)
            .collect();
        for number in due {
            let Some((key, step)) = self.sessions.open.get_mut(&number).map(|session| {
                let step = session.done;
                session.done += 1;
                session.next = match step + 1 {
                    REPETITIONS => now.at + ANSWER_TIMEOUT,
                    // The caller fetches the result.
                    after if after > REPETITIONS => Duration::MAX,
                    _ => now.at + REPETITION_INTERVAL,
                };
                (session.key, step)
            }) else {
                continue;
            };
            if step >= REPETITIONS {
                continue;
            }
            for kind in Asked::ALL {
                if self.ask(now, key, What::Session(number, kind), 0)
                    && let Some(session) = self.sessions.open.get_mut(&number)
                {
                    session.asked(kind);
                }
            }
        }
    }
}
