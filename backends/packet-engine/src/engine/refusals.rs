//! Remembers which offloads the kernel refuses, and for which destinations. The engine does not try these for
//! a while. Without a refusal, the check of a destination costs one comparison.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a refusal is remembered; routes, policies and drivers change.
pub(super) const REMEMBERED: Duration = Duration::from_secs(300);
/// After this many refusals in a row, an offload counts as unsupported.
const IN_A_ROW: u8 = 3;
/// Maximum number of remembered destinations. For any further one, each message tries the offload and is
/// refused.
const DESTINATIONS: usize = 4096;

/// An offload that the kernel may refuse.
#[derive(Debug)]
pub(super) struct Offload {
    supported: bool,
    in_a_row: u8,
    off_since: Option<Instant>,
}

impl Offload {
    pub(super) fn new(supported: bool) -> Self {
        Self { supported, in_a_row: 0, off_since: None }
    }

    /// Whether the engine tries the offload.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.supported && !self.is_refused()
    }

    #[inline]
    pub(super) fn is_refused(&self) -> bool {
        self.off_since.is_some()
    }

    /// The kernel accepted the offload, so the next refusal is the first in a row.
    #[inline]
    pub(super) fn record_success(&mut self) {
        self.in_a_row = 0;
    }

    /// True if this refusal switches the offload off.
    pub(super) fn count_refusal_toward_disabling(&mut self, now: Instant) -> bool {
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row < IN_A_ROW || self.is_refused() {
            return false;
        }
        (self.in_a_row, self.off_since) = (0, Some(now));
        true
    }

    pub(super) fn enable_if_refusal_expired(&mut self, now: Instant) {
        if self.off_since.is_some_and(|since| !is_recent(since, now)) {
            (self.in_a_row, self.off_since) = (0, None);
        }
    }
}

/// Decides to which destinations datagrams go as segments of one message.
#[derive(Debug)]
pub(super) struct Segmenting {
    to_all: Offload,
    /// With the time of each refusal.
    refused: HashMap<IpAddr, Instant>,
    /// The time of the oldest remembered refusal, or earlier.
    oldest: Option<Instant>,
}

impl Segmenting {
    pub(super) fn new(supported: bool) -> Self {
        Self { to_all: Offload::new(supported), refused: HashMap::new(), oldest: None }
    }

    /// Nothing was refused, neither for one destination nor for all.
    #[inline]
    pub(super) fn is_unrestricted(&self) -> bool {
        self.refused.is_empty() && !self.to_all.is_refused()
    }

    #[inline]
    pub(super) fn is_on(&self, to: IpAddr) -> bool {
        self.to_all.is_on() && !self.refused.contains_key(&to)
    }

    #[inline]
    pub(super) fn record_success(&mut self) {
        self.to_all.record_success();
    }

    /// Segments to this address were refused, but its datagrams went out one by one. `of_path`: the path
    /// caused this, so the kernel may still support the offload. True if this refusal disables segments to
    /// all addresses.
    pub(super) fn disable_for_destination_or_all(
        &mut self,
        to: IpAddr,
        of_path: bool,
        now: Instant,
    ) -> bool {
        // The kernel may also refuse the rest of a batch, which was gathered before the first refusal.
        if self.refused.contains_key(&to) {
            return false;
        }
        if self.refused.len() < DESTINATIONS {
            self.refused.insert(to, now);
            self.oldest = self.oldest.or(Some(now));
        }
        !of_path && self.to_all.count_refusal_toward_disabling(now)
    }

    pub(super) fn forget_expired_refusals(&mut self, now: Instant) {
        self.to_all.enable_if_refusal_expired(now);
        if self.oldest.is_some_and(|since| !is_recent(since, now)) {
            self.refused.retain(|_, since| is_recent(*since, now));
            self.oldest = self.refused.values().min().copied();
            if self.oldest.is_none() {
                // Refusals that are minutes apart concern single peers. Successes in between were not counted, because nothing was refused then.
                self.to_all.record_success();
            }
        }
    }
}

fn is_recent(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < REMEMBERED
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    #[test]
    fn refusals_of_single_peers_minutes_apart_do_not_end_it_for_all() {
        let start = Instant::now();
        let mut segmenting = Segmenting::new(true);
        for n in 0..10 {
            let now = start + n * REMEMBERED;
            segmenting.forget_expired_refusals(now);
            assert!(
                segmenting.is_unrestricted()
                    && !segmenting.disable_for_destination_or_all(ip(1), false, now),
                "{n}"
            );
            assert!(!segmenting.is_on(ip(1)) && segmenting.is_on(ip(2)));
        }
    }

    #[test]
    fn refusals_are_remembered_of_a_bounded_number_of_peers() {
        let now = Instant::now();
        let mut segmenting = Segmenting::new(true);
        (0..3 * DESTINATIONS as u32)
            .for_each(|n| assert!(!segmenting.disable_for_destination_or_all(ip(n), true, now)));
        assert_eq!(segmenting.refused.len(), DESTINATIONS);
        assert!(!segmenting.is_on(ip(0)) && segmenting.is_on(ip(3 * DESTINATIONS as u32)));
        segmenting.forget_expired_refusals(now + REMEMBERED);
        assert!(segmenting.is_unrestricted() && segmenting.is_on(ip(0)));
    }
}
