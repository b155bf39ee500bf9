//! The order in which the packets of one batch are written: flows with few bytes first. A program usually
//! waits for these (replies, acknowledgements, DNS), and they would queue behind a bulk stream. The order
//! within a flow stays the same.

use crate::flow::SLOTS;

/// A batch below this size in bytes is not scheduled.
pub(crate) const MIN_BYTES: usize = 64 << 10;

/// Schedule of one batch. A unit is what one system call writes.
pub(crate) struct FlowSchedule {
    /// The bytes of each flow.
    bytes: [usize; SLOTS],
    all: usize,
    /// The flow of each unit.
    flows: Vec<usize>,
    /// Whether the batch is written in order of arrival.
    keep_order: bool,
    order: Vec<usize>,
}

impl Default for FlowSchedule {
    fn default() -> Self {
        Self { bytes: [0; SLOTS], all: 0, flows: Vec::new(), keep_order: false, order: Vec::new() }
    }
}

impl FlowSchedule {
    pub(crate) fn clear(&mut self) {
        self.bytes = [0; SLOTS];
        self.all = 0;
        self.flows.clear();
        self.keep_order = false;
        self.order.clear();
    }

    /// Counts a packet of the flow in this slot ([`crate::flow::flow_table_slot`]).
    #[inline]
    pub(crate) fn add_flow_bytes(&mut self, slot: usize, bytes: usize) {
        self.all += bytes;
        if let Some(sum) = self.bytes.get_mut(slot) {
            *sum += bytes;
        }
    }

    #[inline]
    pub(crate) fn add_unit_of_flow(&mut self, slot: usize) {
        self.flows.push(slot);
    }

    /// Because the flow of a packet is unknown.
    #[inline]
    pub(crate) fn keep_order(&mut self) {
        self.keep_order = true;
    }

    /// Determines the order, after all units were added.
    pub(crate) fn order_small_flows_first(&mut self) {
        if self.keep_order || self.all < MIN_BYTES || self.flows.len() < 2 {
            return;
        }
        let Self { bytes, flows, order, .. } = self;
        order.extend(0..flows.len());
        // The sort is stable, so units of one flow keep their order.
        order.sort_by_key(|unit| flows.get(*unit).and_then(|slot| bytes.get(*slot)));
    }

    /// The unit at a position of the order.
    #[inline]
    pub(crate) fn unit_at(&self, position: usize) -> usize {
        self.order.get(position).copied().unwrap_or(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn scheduled_unit_order(batch: &[(usize, usize)], keep_order: bool) -> Vec<usize> {
        let mut schedule = FlowSchedule::default();
        // `clear` must forget this batch.
        schedule.keep_order();
        schedule.add_flow_bytes(7, MIN_BYTES);
        schedule.add_unit_of_flow(7);
        schedule.clear();
        for (slot, bytes) in batch {
            schedule.add_flow_bytes(*slot, *bytes);
            schedule.add_unit_of_flow(*slot);
        }
        if keep_order {
            schedule.keep_order();
        }
        schedule.order_small_flows_first();
        (0..batch.len()).map(|position| schedule.unit_at(position)).collect()
    }

    #[test]
    fn flows_with_few_bytes_go_first() {
        let batch = [(1, 60_000), (1, 60_000), (2, 84), (1, 60_000), (3, 1400), (2, 84)];
        assert_eq!(scheduled_unit_order(&batch, false), [2, 5, 4, 0, 1, 3]);
        assert_eq!(scheduled_unit_order(&batch, true), [0, 1, 2, 3, 4, 5]);
        assert_eq!(scheduled_unit_order(&[(1, 1400), (2, 84)], false), [0, 1], "too small a batch");
        assert_eq!(scheduled_unit_order(&[], false), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn the_order_within_a_flow_stays(batch in vec((0..SLOTS, 40usize..70_000), 0..100), keep_order: bool) {
            let order = scheduled_unit_order(&batch, keep_order);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert!(sorted.into_iter().eq(0..batch.len()));
            for (earlier, later) in order.iter().enumerate().flat_map(|(position, unit)| order[position + 1..].iter().map(move |later| (unit, later))) {
                prop_assert!(batch[*earlier].0 != batch[*later].0 || earlier < later);
            }
        }
    }
}
