//! Tells a queue that stands from one that a burst made: nothing behind a TUN device or a socket pushes back on who sends, so a stream fills
//! any queue and every other packet waits in it. As in CoDel (RFC 8289) the sender is told by a mark, or by one lost segment, once the queue has
//! not been empty for a while, and again a little sooner each time until it was.

use std::time::{Duration, Instant};

/// How long a queue may go without having been empty.
const PATIENCE: Duration = Duration::from_millis(4);

/// One queue's state.
#[derive(Default)]
pub struct Standing {
    since: Option<Instant>,
    next: Option<Instant>,
    told: u32,
}

impl Standing {
    /// The queue was found empty.
    #[inline]
    pub fn emptied(&mut self) {
        *self = Self::default();
    }

    /// There was more in the queue than was taken; whether its senders have to be told now.
    pub fn remained(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let due = *self.next.get_or_insert(since + PATIENCE);
        if now < due {
            return false;
        }
        self.told = self.told.saturating_add(1);
        self.next = Some(now + PATIENCE.div_f64(f64::from(self.told).sqrt()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_let_be_and_a_standing_queue_is_told() {
        let begun = Instant::now();
        let at = |milliseconds: u64| begun + Duration::from_millis(milliseconds);
        let mut queue = Standing::default();
        assert!(!queue.remained(at(0)) && !queue.remained(at(3)));
        assert!(queue.remained(at(4)) && !queue.remained(at(5)));
        assert!(queue.remained(at(8)), "and again");
        assert!(!queue.remained(at(10)) && queue.remained(at(11)), "sooner each time");
        queue.emptied();
        assert!(!queue.remained(at(20)) && !queue.remained(at(23)) && queue.remained(at(24)));
    }
}
