//! In which order the packets of one batch go on: flows of few bytes first. Theirs are the packets that somebody waits for (answers,
//! acknowledgements, names); beside a stream they would wait for all of it. A flow keeps its own order.

use super::flow::SLOTS;

/// A batch of fewer bytes is over before anybody notices.
pub const WORTH: usize = 64 << 10;

/// The turns of one batch. A unit is what is handed on at once.
pub struct FlowSchedule {
    /// Bytes of each flow.
    bytes: [usize; SLOTS],
    all: usize,
    /// The flow of each unit.
    flows: Vec<usize>,
    /// Whether the batch goes on as it came.
    fixed: bool,
    order: Vec<usize>,
}

impl Default for FlowSchedule {
    /// Of an empty batch.
    fn default() -> Self {
        Self { bytes: [0; SLOTS], all: 0, flows: Vec::new(), fixed: false, order: Vec::new() }
    }
}

impl FlowSchedule {
    /// Forgets the batch.
    pub fn clear(&mut self) {
        self.bytes = [0; SLOTS];
        self.all = 0;
        self.flows.clear();
        self.fixed = false;
        self.order.clear();
    }

    /// A packet of the flow with this slot ([`super::flow::slot`]).
    #[inline]
    pub fn count(&mut self, slot: usize, bytes: usize) {
        self.all += bytes;
        if let Some(sum) = self.bytes.get_mut(slot) {
            *sum += bytes;
        }
    }

    /// One more unit, of that flow.
    #[inline]
    pub fn push(&mut self, slot: usize) {
        self.flows.push(slot);
    }

    /// The batch goes on as it came: something in it belongs to nobody knows which flow.
    #[inline]
    pub fn fix(&mut self) {
        self.fixed = true;
    }

    /// All units are there.
    pub fn arrange(&mut self) {
        if self.fixed || self.all < WORTH || self.flows.len() < 2 {
            return;
        }
        let Self { bytes, flows, order, .. } = self;
        order.extend(0..flows.len());
        // A stable sort: units of one flow are equal and stay as they are.
        order.sort_by_key(|unit| flows.get(*unit).and_then(|slot| bytes.get(*slot)));
    }

    /// Which unit goes on as the `turn`th.
    #[inline]
    pub fn unit(&self, turn: usize) -> usize {
        self.order.get(turn).copied().unwrap_or(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn units(batch: &[(usize, usize)], fixed: bool) -> Vec<usize> {
        let mut turns = FlowSchedule::default();
        // What was there before is forgotten.
        turns.fix();
        turns.count(7, WORTH);
        turns.push(7);
        turns.clear();
        for (slot, bytes) in batch {
            turns.count(*slot, *bytes);
            turns.push(*slot);
        }
        if fixed {
            turns.fix();
        }
        turns.arrange();
        (0..batch.len()).map(|turn| turns.unit(turn)).collect()
    }

    #[test]
    fn who_sends_little_goes_first() {
        let batch = [(1, 60_000), (1, 60_000), (2, 84), (1, 60_000), (3, 1400), (2, 84)];
        assert_eq!(units(&batch, false), [2, 5, 4, 0, 1, 3]);
        assert_eq!(units(&batch, true), [0, 1, 2, 3, 4, 5]);
        assert_eq!(units(&[(1, 1400), (2, 84)], false), [0, 1], "not worth it");
        assert_eq!(units(&[], false), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn all_go_on_and_none_overtakes_its_flow(batch in vec((0..SLOTS, 40usize..70_000), 0..100), fixed: bool) {
            let order = units(&batch, fixed);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert!(sorted.into_iter().eq(0..batch.len()));
            for (earlier, later) in order.iter().enumerate().flat_map(|(turn, unit)| order[turn + 1..].iter().map(move |later| (unit, later))) {
                prop_assert!(batch[*earlier].0 != batch[*later].0 || earlier < later);
            }
        }
    }
}
