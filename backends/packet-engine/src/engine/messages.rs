//! Distinguishes messages (short packets that a program most likely waits for) from the packets of streams.

use crate::flow;
use crate::packet::Header;
use std::time::{Duration, Instant};

/// From this size on, a unit of one or more packets of a flow counts as bulk.
const BULK: usize = 4096;
/// How long the short packets of a flow that carried bulk are no messages: they are the ends of its bursts. As long as those after a flood.
const LATELY: Duration = Duration::from_secs(1);
/// How long short packets are counted.
const COUNTED: Duration = Duration::from_millis(100);
/// More short packets within that time, whatever their flows, are a flood, and none of them counts. They keep the processors busy, and threads that go ahead of the
/// programs at both ends halve what comes.
const FLOOD: u32 = 2000;

/// The places for flows. Two flows may share one; short packets of a flow that shares its place with a stream do not count as messages.
const FLOWS: usize = 1024;

/// The messages of a batch, and which flows carried bulk.
pub(super) struct Messages {
    /// When each flow last carried bulk.
    bulk: Vec<Option<Instant>>,
    /// Since when short packets are counted, and their number.
    since: Instant,
    short: u32,
    /// When there were last too many.
    flood: Option<Instant>,
    now: Instant,
    count: usize,
}

impl Messages {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            bulk: vec![None; FLOWS],
            since: now,
            short: 0,
            flood: None,
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
            self.short = 0;
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
        let Some(bulk) = self.bulk.get_mut(place % FLOWS) else {
            return;
        };
        if length >= BULK {
            *bulk = Some(self.now);
        } else if flow::is_message(packet, &header) {
            self.short = self.short.saturating_add(1);
            if self.short > FLOOD {
                self.flood = Some(self.now);
            }
            let lately = |at: Instant| self.now.saturating_duration_since(at) <= LATELY;
            if !bulk.is_some_and(lately) && !self.flood.is_some_and(lately) {
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
    fn flood_of_short_packets_is_no_message() {
        let (mut messages, start) = (Messages::new(), Instant::now());
        let both = [packet(false, 60), packet(true, 60)];
        let mut batch = |at: Duration, size: usize| {
            messages.begin(start + at);
            for packet in both.iter().cycle().take(size) {
                messages.take(packet, packet.len());
            }
            messages.count()
        };
        // As many as answers may come.
        for millis in 0..300 {
            assert_eq!(batch(Duration::from_millis(millis), 20), 20);
        }
        // More, of any flow.
        for millis in 300..600 {
            batch(Duration::from_millis(millis), 60);
        }
        assert_eq!(batch(Duration::from_millis(600), 60), 0);
        assert_eq!(batch(Duration::from_secs(2), 60), 60);
    }
}
