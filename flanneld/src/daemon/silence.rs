//! Detects when no packets of other nodes arrive over the underlay. Without side effects.

use std::time::Duration;
use tokio::time::Instant;

/// Time without packets from other nodes after which this node stops using a doubtful underlay interface.
pub(super) const SILENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// Replies of peers to this node's probes.
    pub answers: u64,
    /// Packets that the tunnels received.
    pub received: u64,
}

/// When the last packet from another node arrived.
#[derive(Debug)]
pub(super) struct Silence {
    since: Instant,
    last: Received,
}

impl Silence {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, last: Received::default() }
    }

    /// True if no packet has arrived from other nodes for [`SILENCE`].
    pub(super) fn look(&mut self, arrived: Received, now: Instant) -> bool {
        // A recreated device starts to count from 0.
        if arrived.answers > self.last.answers || arrived.received > self.last.received {
            self.since = now;
        }
        self.last = arrived;
        now.duration_since(self.since) >= SILENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_restarts_with_each_reply_and_packet() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let arrived = |answers, received| Received { answers, received };
        let mut silence = Silence::new(start);
        assert!(!silence.look(arrived(0, 0), at(59)) && silence.look(arrived(0, 0), at(60)));
        assert!(!silence.look(arrived(1, 0), at(61)) && !silence.look(arrived(1, 5), at(120)));
        // The device was recreated.
        assert!(!silence.look(arrived(1, 0), at(179)) && silence.look(arrived(1, 0), at(180)));
    }
}
