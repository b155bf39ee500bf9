//! Tells messages (short packets for which a program most likely waits) from the packets of streams.

use crate::flow;
use crate::packet::Header;
use std::time::{Duration, Instant};

/// In bytes: a unit of this size is a bulk transfer. It is one or more packets of a flow.
const BULK: usize = 4096;
/// For this time after a bulk transfer, the short packets of its flow are the ends of bursts and not
/// messages. For this time after a flood, the short packets of no flow are messages.
const LATELY: Duration = Duration::from_secs(1);
/// Interval in which short packets are counted.
const COUNTED: Duration = Duration::from_millis(100);
/// More short packets than this within [`COUNTED`], over all flows, are a flood, and none is a message. A
/// flood keeps the processors busy. With priority for the packet threads over the programs at both ends, only
/// half of the packets would arrive.
const FLOOD: u32 = 2000;

/// Two flows may share a slot. If one is a stream, short packets of the other are not messages.
const FLOWS: usize = 1024;

/// Counts the messages of a batch. It remembers which flows carried bulk transfers.
pub(crate) struct Messages {
    /// Time of the last bulk transfer of each flow.
    bulk: Vec<Option<Instant>>,
    /// The start of the interval, and the number of short packets in it.
    since: Instant,
    short: u32,
    /// Time of the last flood.
    flood: Option<Instant>,
    now: Instant,
    count: usize,
}

impl Messages {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { bulk: vec![None; FLOWS], since: now, short: 0, flood: None, now, count: 0 }
    }

    /// Begins a batch.
    pub(crate) fn begin_batch(&mut self, now: Instant) {
        self.now = now;
        self.count = 0;
        if now.saturating_duration_since(self.since) >= COUNTED {
            self.since = now;
            self.short = 0;
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Counts a unit of one or more packets with `length` bytes in all. `packet` is the first one.
    #[inline]
    pub(crate) fn classify_and_count_unit(
        &mut self,
        packet: &[u8],
        header: &Header,
        length: usize,
    ) {
        if length >= BULK || length <= flow::MESSAGE {
            self.record_bulk_or_short_unit(packet, header, length);
        }
    }

    fn record_bulk_or_short_unit(&mut self, packet: &[u8], header: &Header, length: usize) {
        let place = flow::flow_hash(packet, header) as usize >> 8;
        let Some(bulk) = self.bulk.get_mut(place % FLOWS) else {
            return;
        };
        if length >= BULK {
            *bulk = Some(self.now);
        } else if flow::is_short_and_not_ack(packet, header) {
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

    /// A packet of one of two flows.
    fn tcp_packet_of_either_flow(other: bool, payload: usize) -> Vec<u8> {
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
            messages.begin_batch(start + at);
            for (other, length) in units {
                let packet = tcp_packet_of_either_flow(*other, (*length).min(1400));
                let header = Header::parse(&packet).unwrap();
                messages.classify_and_count_unit(&packet, &header, *length);
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
        let both = [tcp_packet_of_either_flow(false, 60), tcp_packet_of_either_flow(true, 60)];
        let mut batch = |at: Duration, size: usize| {
            messages.begin_batch(start + at);
            for packet in both.iter().cycle().take(size) {
                let header = Header::parse(packet).unwrap();
                messages.classify_and_count_unit(packet, &header, packet.len());
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
