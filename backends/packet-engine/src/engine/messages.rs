//! Distinguishes messages (short packets for which a program most likely waits) from the packets of streams.

use crate::flow;
use crate::packet::Header;
use std::time::{Duration, Instant};

/// Minimum size in bytes of a bulk transfer, which is a unit of one or more packets of a flow.
const BULK: usize = 4096;
/// Time after a bulk transfer during which the short packets of its flow are not messages. Short packets soon after
/// a bulk transfer are the ends of the flow's bursts. Within [`LATELY`] after a flood, the short packets of all
/// flows are not messages.
const LATELY: Duration = Duration::from_secs(1);
/// Interval in which the counter counts short packets.
const COUNTED: Duration = Duration::from_millis(100);
/// Maximum number of short packets within [`COUNTED`], over all flows. A larger number of short packets is a flood, and none of these
/// packets is a message. A flood keeps the processors busy. If the packet threads had priority over the programs at both ends during a
/// flood, only half of the packets would arrive.
const FLOOD: u32 = 2000;

/// The number of slots for flows. Two flows may share a slot. Short packets of a flow that shares its slot with a stream are not messages.
const FLOWS: usize = 1024;

/// Counter of the messages (short packets for which programs wait) in a batch. The counter remembers which flows carried bulk transfers.
pub(super) struct Messages {
    /// Time of the last bulk transfer of each flow.
    bulk: Vec<Option<Instant>>,
    /// The start of the interval in which the counter counts short packets, and the number of these packets.
    since: Instant,
    short: u32,
    /// Time of the last flood.
    flood: Option<Instant>,
    now: Instant,
    count: usize,
}

impl Messages {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { bulk: vec![None; FLOWS], since: now, short: 0, flood: None, now, count: 0 }
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

    /// Returns the number of messages in this batch.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Counts a unit of one or more packets with a total of `length` bytes. `packet` is the first packet of the unit.
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

    /// Returns a packet of one of two flows.
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
        // One flow carries a bulk transfer, the other does not.
        assert_eq!(
            count(Duration::ZERO, &[(false, 20_000), (false, short), (true, short), (true, 1400)]),
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
        // 20 packets per millisecond are within the limit.
        for millis in 0..300 {
            assert_eq!(batch(Duration::from_millis(millis), 20), 20);
        }
        // 60 packets per millisecond are a flood, whatever their flows.
        for millis in 300..600 {
            batch(Duration::from_millis(millis), 60);
        }
        assert_eq!(batch(Duration::from_millis(600), 60), 0);
        assert_eq!(batch(Duration::from_secs(2), 60), 60);
    }
}
