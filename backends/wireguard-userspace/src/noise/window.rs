//! The counters that a session has received, so that it accepts no packet twice (RFC 6479).

const WORD: u64 = u64::BITS as u64;
/// The same number as in the kernel.
const WORDS: usize = 128;
/// How far a packet's counter may be behind the highest one.
pub(crate) const REACH: u64 = (WORDS as u64 - 1) * WORD;

/// Reuses its words cyclically.
pub(crate) struct Window {
    /// The highest counter plus one.
    next: u64,
    words: [u64; WORDS],
}

impl Window {
    pub(crate) const fn new() -> Self {
        Self { next: 0, words: [0; WORDS] }
    }

    /// Records the counter of an authentic packet. False if the window contains it already, or it is too old
    /// for a check.
    pub(crate) fn take(&mut self, counter: u64) -> bool {
        if counter >= self.next {
            // Words between the highest and this one held counters that have left the window.
            let (first, last) = (self.next.div_ceil(WORD), counter / WORD);
            let stale = (last + 1).saturating_sub(first).min(WORDS as u64);
            for number in (0..stale).map(|back| last - back) {
                if let Some(word) = self.word(number) {
                    *word = 0;
                }
            }
            self.next = counter + 1;
        } else if self.next - counter > REACH {
            return false;
        }
        let bit = 1 << (counter % WORD);
        let Some(word) = self.word(counter / WORD) else {
            return false;
        };
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    fn word(&mut self, number: u64) -> Option<&mut u64> {
        self.words.get_mut((number % WORDS as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn window_reaches_as_far_back_as_the_kernels() {
        let mut window = Window::new();
        assert!(window.take(0));
        assert!(!window.take(0));
        assert!(window.take(REACH));
        assert!(!window.take(0));
        assert!(window.take(1));
        assert!(window.take(10 * REACH));
        assert!(!window.take(9 * REACH));
        assert!(window.take(9 * REACH + 1));
        assert!(!window.take(1));
    }

    proptest! {
        /// Within [`REACH`], a window behaves like a set of all counters.
        #[test]
        fn window_is_a_set_with_a_reach(jumps in prop::collection::vec((0_u64..20_000, any::<bool>()), 1..300)) {
            let (mut window, mut taken, mut at) = (Window::new(), BTreeSet::new(), 0_u64);
            for (jump, ahead) in jumps {
                at = if ahead { at + jump } else { at.saturating_sub(jump) };
                let highest = taken.last().copied();
                let old = highest.is_some_and(|highest: u64| highest + 1 > at + REACH);
                prop_assert_eq!(window.take(at), !old && taken.insert(at));
            }
        }
    }
}
