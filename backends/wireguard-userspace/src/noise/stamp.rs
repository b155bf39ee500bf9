//! The time in an initiation (TAI64N), which tells a new initiation from a copy.

use std::time::{Duration, SystemTime};

/// In bytes.
pub(crate) const STAMP: usize = 12;
/// TAI64's label of 1970-01-01 00:00:00 TAI, plus the seconds by which TAI has been ahead of UTC since 2017.
const EPOCH: u64 = (1 << 62) + 37;
/// Granularity in nanoseconds, as in the kernel: coarse, so that a stamp reveals little about the handling of
/// packets.
const STEP: u32 = 1 << 24;

/// A TAI64N label of 12 bytes. Labels of later times are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stamp(pub(crate) [u8; STAMP]);

impl Stamp {
    /// The stamp of the clock's time, or the next one after `last` if that is later. Else peers would reject
    /// this node's initiations after a backward step of the clock.
    #[must_use]
    pub fn after(last: Option<Stamp>, clock: SystemTime) -> Self {
        let since = clock.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = Self::of(EPOCH.saturating_add(since.as_secs()), since.subsec_nanos());
        match last {
            Some(last) if last >= now => last.next(),
            _ => now,
        }
    }

    fn of(seconds: u64, nanoseconds: u32) -> Self {
        let mut bytes = [0; 12];
        let all =
            seconds.to_be_bytes().into_iter().chain((nanoseconds & !(STEP - 1)).to_be_bytes());
        bytes.iter_mut().zip(all).for_each(|(byte, own)| *byte = own);
        Self(bytes)
    }

    fn next(self) -> Self {
        let [s @ .., n0, n1, n2, n3] = self.0;
        let (seconds, nanoseconds) = (u64::from_be_bytes(s), u32::from_be_bytes([n0, n1, n2, n3]));
        match nanoseconds.checked_add(STEP) {
            Some(later) if Duration::from_nanos(u64::from(later)) < Duration::from_secs(1) => {
                Self::of(seconds, later)
            }
            _ => Self::of(seconds.saturating_add(1), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stamp_is_tai64n_with_coarse_nanoseconds() {
        let at = |seconds, nanoseconds| {
            Stamp::after(None, SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds))
        };
        assert_eq!(at(0, 0).0, [0x40, 0, 0, 0, 0, 0, 0, 37, 0, 0, 0, 0]);
        assert_eq!(
            at(1_700_000_000, 999_999_999).0,
            [0x40, 0, 0, 0, 0x65, 0x53, 0xf1, 0x25, 0x3b, 0, 0, 0]
        );
        assert_eq!(Stamp::after(None, SystemTime::UNIX_EPOCH - Duration::from_secs(1)), at(0, 0));
    }

    proptest! {
        /// Whatever the clock does.
        #[test]
        fn stamps_rise(clocks in prop::collection::vec(0_u64..u64::from(u32::MAX) * 2_000_000_000, 1..50)) {
            let mut last = None;
            for clock in clocks {
                let next = Stamp::after(last, SystemTime::UNIX_EPOCH + Duration::from_nanos(clock));
                prop_assert!(Some(next) > last);
                last = Some(next);
            }
        }
    }
}
