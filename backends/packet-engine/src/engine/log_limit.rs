//! Rate-limited logging of packet errors: the first error of each kind, then at most one line a minute with
//! the count.

use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(60);
/// Errors between two reads of the clock.
const STRIDE: u64 = 256;

/// The log limits of one thread, for each kind of error.
#[derive(Default)]
pub(super) struct LogLimit {
    kinds: Vec<LogKind>,
}

struct LogKind {
    name: &'static str,
    since: u64,
    last: Instant,
}

impl LogLimit {
    /// Counts errors of a kind, and returns the number to log if a line is due.
    pub(super) fn count_and_take_if_due(
        &mut self,
        name: &'static str,
        times: usize,
    ) -> Option<u64> {
        let times = times as u64;
        let Some(kind) = self.kinds.iter_mut().find(|kind| kind.name == name) else {
            self.kinds.push(LogKind { name, since: 0, last: Instant::now() });
            return Some(times);
        };
        let before = kind.since;
        kind.since += times;
        let check = before == 0 || before / STRIDE != kind.since / STRIDE;
        (check && kind.last.elapsed() >= PAUSE).then(|| {
            kind.last = Instant::now();
            std::mem::take(&mut kind.since)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_logged_and_a_flood_is_not() {
        let mut log = LogLimit::default();
        assert_eq!(log.count_and_take_if_due("a", 3), Some(3));
        assert!((0..10_000).all(|_| log.count_and_take_if_due("a", 1).is_none()));
        assert_eq!(log.count_and_take_if_due("b", 1), Some(1));
        for kind in &mut log.kinds {
            kind.last = kind.last.checked_sub(PAUSE).unwrap();
        }
        assert_eq!(
            (0..STRIDE).find_map(|_| log.count_and_take_if_due("a", 1)),
            Some(10_000 + STRIDE - 10_000 % STRIDE)
        );
    }
}
