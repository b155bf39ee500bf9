//! Whether anything of other nodes comes in over the underlay: pure.

use std::time::Duration;
use tokio::time::Instant;

/// How long nothing may come in before a doubtful interface is given up.
pub(super) const SILENCE: Duration = Duration::from_secs(60);

/// What came in so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// Answers of peers to probes.
    pub answers: u64,
    /// Packets through the tunnel.
    pub received: u64,
}

/// Notes since when nothing has come in.
#[derive(Debug)]
pub(super) struct Silence {
    since: Instant,
    last: Received,
}

impl Silence {
    /// Begins now.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            last: Received::default(),
        }
    }

    /// Takes the counters as they are now. Returns whether nothing has come in for [`SILENCE`].
    pub(super) fn look(&mut self, heard: Received, now: Instant) -> bool {
        // A device that was made anew counts from 0.
        if heard.answers > self.last.answers || heard.received > self.last.received {
            self.since = now;
        }
        self.last = heard;
        now.duration_since(self.since) >= SILENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_begins_anew_with_each_answer_and_packet() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let heard = |answers, received| Received { answers, received };
        let mut silence = Silence::new(start);
        assert!(!silence.look(heard(0, 0), at(59)) && silence.look(heard(0, 0), at(60)));
        assert!(!silence.look(heard(1, 0), at(61)) && !silence.look(heard(1, 5), at(120)));
        // The device was made anew.
        assert!(!silence.look(heard(1, 0), at(179)) && silence.look(heard(1, 0), at(180)));
    }
}
