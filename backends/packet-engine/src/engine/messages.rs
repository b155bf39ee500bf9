//! Distinguishes messages (short packets that a program most likely waits for) from the packets of streams.

use crate::flow;
use crate::packet::Header;
use std::time::{Duration, Instant};

/// From this size on, a unit of one or more packets of a flow counts as bulk.
const BULK: usize = 4096;
/// How long the short packets of a flow that carried bulk are no messages: they are the ends of its bursts.
const LATELY: Duration = Duration::from_secs(1);
/// How long the short packets of a flow are counted.
const COUNTED: Duration = Duration::from_millis(100);
/// A flow with more short packets within that time counts as bulk: no sender waits for an answer to each.
const FLOOD: u16 = 3000;

/// The places for flows. Two flows may share one; short packets of a flow that shares its place with a stream do not count as messages.
const FLOWS: usize = 1024;

/// What is known of a flow.
#[derive(Clone, Copy, Default)]
struct Flow {
    bulk: Option<Instant>,
    short: u16,
}

/// The messages of a batch, and which flows carried bulk.
pub(super) struct Messages {
    flows: Vec<Flow>,
    /// Since when short packets are counted.
    since: Instant,
    now: Instant,
    count: usize,
}

impl Messages {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            flows: vec![Flow::default(); FLOWS],
            since: now,
            now,
            count: 0,
        }
    }

    /// Begins a batch.
    pub(super) fn begin(&mut self, now: Instant) {
        self.now = now;
        self.count = 0;
        if now.saturating_duration_since(self.since) >= COUNTED {
            self.since = now;
            self.flows.iter_mut().for_each(|flow| flow.short = 0);
        }
    }

    /// The messages in this batch.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Takes a unit of one or more packets, of this length and with this first packet.
    #[inline]
    pub(super) fn take(&mut self, packet: &[u8], length: usize) {
        if length >= BULK || length <= flow::MESSAGE {
            self.look(packet, length);
        }
    }

    fn look(&mut self, packet: &[u8], length: usize) {
        let Ok(header) = Header::parse(packet) else {
            return;
        };
        let place = flow::hash(packet, &header) as usize >> 8;
        let Some(flow) = self.flows.get_mut(place % FLOWS) else {
            return;
        };
        if length >= BULK {
            flow.bulk = Some(self.now);
        } else if flow::is_message(packet, &header) {
            flow.short = flow.short.saturating_add(1);
            if flow.short > FLOOD {
                flow.bulk = Some(self.now);
            } else if flow
                .bulk
                .is_none_or(|at| self.now.saturating_duration_since(at) > LATELY)
            {
                self.count += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::tests::Recipe;

    /// Of one flow, or of the other.
    fn packet(other: bool, payload: usize) -> Vec<u8> {
        Recipe {
            ipv6: other,
            tcp: true,
            sequence: 1,
            flags: 0x18,
            options: 3,
            id: 0,
            payload: vec![7; payload],
        }
        .packet()
    }

    #[test]
    fn end_of_a_burst_is_no_message() {
        let mut messages = Messages::new();
        let start = Instant::now();
        let mut count = |at: Duration, units: &[(bool, usize)]| {
            messages.begin(start + at);
            for (other, length) in units {
                messages.take(&packet(*other, (*length).min(1400)), *length);
            }
            messages.count()
        };
        let short = 100;
        assert_eq!(count(Duration::ZERO, &[(false, short), (true, short)]), 2);
        // One flow carries bulk, the other does not.
        assert_eq!(
            count(
                Duration::ZERO,
                &[(false, 20_000), (false, short), (true, short), (true, 1400)]
            ),
            1
        );
        assert_eq!(count(LATELY / 2, &[(false, short)]), 0);
        assert_eq!(count(LATELY * 2, &[(false, short)]), 1);
    }

    #[test]
    fn flood_of_short_packets_is_bulk() {
        let (mut messages, start) = (Messages::new(), Instant::now());
        let (flood, answer) = (packet(false, 60), packet(true, 60));
        let mut batch = |at: Duration, size: u16| {
            messages.begin(start + at);
            (0..size).for_each(|_| messages.take(&flood, flood.len()));
            messages.take(&answer, answer.len());
            messages.count()
        };
        // As fast as an answer to each could come.
        for millis in 0..300 {
            assert_eq!(batch(Duration::from_millis(millis), 20), 21);
        }
        // Faster.
        for millis in 300..600 {
            batch(Duration::from_millis(millis), 60);
        }
        assert_eq!(batch(Duration::from_millis(600), 60), 1, "the other flow");
        assert_eq!(batch(Duration::from_secs(2), 60), 61);
    }
}
