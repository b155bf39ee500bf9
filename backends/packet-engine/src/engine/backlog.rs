//! Packets that were read from the TUN device but not sent yet. Each flow has a queue. Deficit round robin
//! serves the queues, new flows first, as in RFC 8290, section 4.2.
//!
//! The TUN device's own queue keeps the order of arrival. Streams faster than the engine fill it with
//! megabytes, and a packet for which a program waits would queue behind them.

use crate::flow::SLOTS;
use std::collections::VecDeque;

/// Bytes that a flow sends before the next one may (quantum in RFC 8290), about the longest packet.
const TURN: isize = 64 << 10;

/// A packet in its slot of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) slot: usize,
    /// In bytes, with the virtio header.
    pub(super) length: usize,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    unit: Unit,
    /// Its position in the order of arrival of all packets.
    number: u64,
    fragment: bool,
}

#[derive(Default, Debug)]
struct Flow {
    waiting: VecDeque<Waiting>,
    /// Bytes that the flow may still send in this round; negative if its last packet exceeded the credit.
    credit: isize,
    /// Whether the flow is in one of the two lists.
    listed: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Backlog {
    flows: [Flow; SLOTS],
    /// Flows whose packets have just begun to wait (`new`), and all others with waiting packets (`old`).
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    /// Slots without a packet.
    free: Vec<usize>,
    waiting: usize,
    /// The number of waiting fragments. Only the first fragment of a packet identifies the flow, so all
    /// packets keep their order meanwhile.
    fragments: usize,
    number: u64,
}

impl Backlog {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            flows: std::array::from_fn(|_| Flow::default()),
            new: VecDeque::new(),
            old: VecDeque::new(),
            free: (0..slots).rev().collect(),
            waiting: 0,
            fragments: 0,
            number: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// `None` if all slots are in use.
    #[inline]
    pub(super) fn free_slot(&self) -> Option<usize> {
        self.free.last().copied()
    }

    /// Adds the packet of this length that was read into [`Self::free_slot`].
    #[inline]
    pub(super) fn push_packet(&mut self, length: usize, flow: usize, fragment: bool) {
        let number = flow % SLOTS;
        let (Some(flow), Some(slot)) = (self.flows.get_mut(number), self.free.pop()) else {
            return;
        };
        flow.waiting.push_back(Waiting {
            unit: Unit { slot, length },
            number: self.number,
            fragment,
        });
        if !flow.listed {
            flow.listed = true;
            flow.credit = TURN;
            self.new.push_back(number);
        }
        self.number += 1;
        self.waiting += 1;
        self.fragments += usize::from(fragment);
    }

    /// Moves packets into `batch` until they have at least `bytes` bytes, or none is left.
    pub(super) fn fill_batch(&mut self, bytes: usize, batch: &mut Vec<Unit>) {
        let mut gathered = 0;
        while gathered < bytes && self.waiting > 0 {
            let next = if self.fragments > 0 {
                self.take_oldest_packet()
            } else {
                self.take_packet_or_rotate_flows()
            };
            let Some(Waiting { unit, fragment, .. }) = next else {
                continue;
            };
            gathered += unit.length;
            self.waiting -= 1;
            self.fragments -= usize::from(fragment);
            batch.push(unit);
        }
    }

    /// Takes the packet that arrived first. Its flow keeps its place in the lists.
    #[cold]
    fn take_oldest_packet(&mut self) -> Option<Waiting> {
        let first = |flow: &&mut Flow| flow.waiting.front().map_or(u64::MAX, |first| first.number);
        let flow = self.flows.iter_mut().min_by_key(first)?;
        flow.waiting.pop_front()
    }

    /// Takes a packet of the flow at the head of the list. `None` if the flow has used its credit or has no
    /// packet left.
    fn take_packet_or_rotate_flows(&mut self) -> Option<Waiting> {
        let is_new = !self.new.is_empty();
        let list = if is_new { &mut self.new } else { &mut self.old };
        let number = list.front().copied()?;
        let flow = self.flows.get_mut(number)?;
        if flow.credit > 0
            && let Some(next) = flow.waiting.pop_front()
        {
            flow.credit -= isize::try_from(next.unit.length).unwrap_or(isize::MAX);
            return Some(next);
        }
        list.pop_front();
        if flow.waiting.is_empty() && !is_new {
            flow.listed = false;
            return None;
        }
        // A new flow without packets moves to the old flows once. Otherwise its next packet would make it new again, and it would always be first.
        if flow.credit <= 0 {
            flow.credit += TURN;
        }
        self.old.push_back(number);
        None
    }

    /// Frees the slots of a sent batch.
    pub(super) fn drain_batch_and_free_slots(&mut self, batch: &mut Vec<Unit>) {
        self.free.extend(batch.drain(..).map(|unit| unit.slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Adds packets (flow, length), and returns their flows by slot.
    fn push_packets_and_map_flows(
        backlog: &mut Backlog,
        packets: &[(usize, usize)],
    ) -> HashMap<usize, usize> {
        let mut flows = HashMap::new();
        for (flow, length) in packets {
            flows.insert(backlog.free_slot().unwrap(), *flow);
            backlog.push_packet(*length, *flow, false);
        }
        flows
    }

    /// The flow of each packet in the next batch.
    fn take_batch_and_list_flows(
        backlog: &mut Backlog,
        bytes: usize,
        flows: &HashMap<usize, usize>,
    ) -> Vec<usize> {
        let mut batch = Vec::new();
        backlog.fill_batch(bytes, &mut batch);
        let sent = batch.iter().map(|unit| flows[&unit.slot]).collect();
        backlog.drain_batch_and_free_slots(&mut batch);
        sent
    }

    #[test]
    fn packet_of_another_flow_does_not_wait_for_streams() {
        let mut backlog = Backlog::new(64);
        let stream = [(1, 60_000), (2, 60_000)].repeat(20);
        let mut flows = push_packets_and_map_flows(&mut backlog, &stream);
        assert_eq!(take_batch_and_list_flows(&mut backlog, 60_000, &flows), [1]);
        flows.extend(push_packets_and_map_flows(&mut backlog, &[(3, 84)]));
        let next = take_batch_and_list_flows(&mut backlog, 240_000, &flows);
        assert!(next[..4].contains(&3), "{next:?}");
        // Once served, the flow waits for one turn of each stream, not for all of their packets.
        flows.extend(push_packets_and_map_flows(&mut backlog, &[(3, 84)]));
        let next = take_batch_and_list_flows(&mut backlog, 400_000, &flows);
        assert!(next.contains(&3), "{next:?}");
    }

    #[test]
    fn flow_of_many_short_packets_leaves_streams_their_turns() {
        let mut backlog = Backlog::new(64);
        let mut flows = push_packets_and_map_flows(&mut backlog, &[(1, 60_000); 4]);
        let mut turns = Vec::new();
        for _ in 0..40 {
            let short = (0..16).map(|_| (2, 1000)).collect::<Vec<_>>();
            flows.extend(push_packets_and_map_flows(&mut backlog, &short));
            turns.extend(take_batch_and_list_flows(&mut backlog, 16_000, &flows));
            if turns.iter().filter(|flow| **flow == 1).count() == 4 {
                return;
            }
        }
        panic!("the stream is not served: {turns:?}");
    }

    proptest! {
        /// Whatever the engine reads in between. While a fragment waits, all packets keep their order.
        #[test]
        fn packets_of_a_flow_are_sent_once_and_in_order(
            steps in prop::collection::vec((prop::collection::vec((0..SLOTS, 0_usize..70_000, prop::bool::weighted(0.02)), 0..40), 1_usize..300_000), 1..30),
        ) {
            const ROOM: usize = 32;
            let (mut backlog, mut batch) = (Backlog::new(ROOM), Vec::new());
            // The packets in their slots, and the last packet of each flow that was sent.
            let mut inside: HashMap<usize, (usize, usize, bool)> = HashMap::new();
            let mut last: HashMap<usize, usize> = HashMap::new();
            let (mut pushed, mut taken) = (0, 0);
            for (packets, bytes) in steps {
                for (flow, length, fragment) in packets {
                    let Some(slot) = backlog.free_slot() else { break };
                    prop_assert!(inside.insert(slot, (pushed, flow, fragment)).is_none());
                    backlog.push_packet(length, flow, fragment);
                    pushed += 1;
                }
                let before = inside.len();
                backlog.fill_batch(bytes, &mut batch);
                prop_assert!(before == 0 || !batch.is_empty());
                for unit in &batch {
                    let in_order = inside.values().any(|(.., fragment)| *fragment);
                    let (number, flow, _) = inside[&unit.slot];
                    if in_order {
                        prop_assert_eq!(inside.values().map(|(number, ..)| *number).min(), Some(number));
                    }
                    inside.remove(&unit.slot);
                    prop_assert!(last.insert(flow, number).is_none_or(|last| last < number));
                    taken += 1;
                }
                backlog.drain_batch_and_free_slots(&mut batch);
                prop_assert_eq!(backlog.is_empty(), inside.is_empty());
            }
            backlog.fill_batch(usize::MAX, &mut batch);
            prop_assert_eq!(taken + batch.len(), pushed);
        }
    }
}
