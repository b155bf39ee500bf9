//! Delays removals of leases, unless another node leases the subnet, because a vanished lease usually comes back.
//!
//! The published table contains the store's leases and those that vanished recently. A removal has a hold-down of 5 s, or 60 s after a discontinuity
//! of the watch or if many leases vanish at once. It has none if another node leases the subnet. The hold-down runs only while the watch is up and
//! this process runs. It restarts after a gap in the watch, because the cause of the gap may also have prevented writes of other nodes.
//!
//! An interruption of the watch is not a gap if it is shorter than 5 s and the watch resumes at its last version. The hold-down pauses during it, and
//! lasts at least 5 s after it. A node restores a lost lease within 2 s, so the event of the restored lease arrives before the removal. Without this
//! exception, a proxy that closes idle connections every 35 s would prolong a hold-down of 60 s forever.

use crate::admission::UsedSubnets;
use crate::lease::Lease;
use crate::table::LeaseTable;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::Subnets;

const HOLD_DOWN: Duration = Duration::from_secs(5);
const LONG_HOLD_DOWN: Duration = Duration::from_secs(60);
/// Maximum length of a watch interruption that only pauses the hold-downs.
const MAX_INTERRUPTION: Duration = Duration::from_secs(5);
/// Removals of leases within this time belong to one burst.
const BURST_WINDOW: Duration = Duration::from_secs(10);
/// Maximum time between two calls of `published` while the process runs. A longer time shows that it did not run.
const MAX_STALL: Duration = Duration::from_secs(3);

/// Leases that the store no longer has but that stay in force during the hold-down.
///
/// ```
/// use std::collections::BTreeSet;
/// use std::sync::Arc;
/// use std::time::Duration;
/// use subnet_lease::hold_down::HoldDown;
/// use subnet_lease::{Lease, LeaseAttrs, LeaseTable, Term};
/// use types::Subnets;
///
/// let subnets = Subnets::V4("10.244.2.0/24".parse()?);
/// let lease = Lease { subnets, attrs: LeaseAttrs::default(), term: Term::Leased, since: 1 };
/// let (full, empty) = (Arc::new(LeaseTable::of([lease], BTreeSet::new())), Arc::default());
/// let mut hold_down = HoldDown::default();
/// let mut in_force = |table: &Arc<LeaseTable>, second: u64| {
///     hold_down.published(table, Duration::from_secs(second), false, false).0.len()
/// };
/// assert_eq!(in_force(&full, 0), 1);
/// // The lease vanishes at 1 s.
/// assert_eq!([1, 3, 5, 6].map(|second| in_force(&empty, second)), [1, 1, 1, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct HoldDown {
    held: BTreeMap<Subnets, Held>,
    last: Arc<LeaseTable>,
    removals: Vec<Duration>,
    last_step: Option<Duration>,
    interruption: Option<Interruption>,
    /// Until then, new hold-downs last 60 s because of a discontinuity of the watch.
    wary_until: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Interruption {
    since: Duration,
    /// The watch did not resume at its last version.
    relisted: bool,
}

#[derive(Debug, Clone)]
struct Held {
    lease: Arc<Lease>,
    wait: Duration,
    since: Duration,
}

impl Held {
    /// Excludes the time since `from`, and extends the remaining time to at least 5 s.
    fn resume(&mut self, from: Duration, now: Duration) {
        let counted = from.saturating_sub(self.since).min(self.wait.saturating_sub(HOLD_DOWN));
        self.since = now.saturating_sub(counted);
    }
}

impl HoldDown {
    /// The leases in force at `now` (boot-time clock), and the time at which the caller must call again.
    pub fn published(
        &mut self,
        admitted: &Arc<LeaseTable>,
        now: Duration,
        discontinuity: bool,
        interrupted: bool,
    ) -> (Arc<LeaseTable>, Option<Duration>) {
        self.count_time(now, discontinuity, interrupted);
        if discontinuity {
            self.wary_until = now + LONG_HOLD_DOWN;
        }
        self.hold_vanished(admitted, now);
        self.release(admitted, now, interrupted);
        self.last = admitted.clone();
        if self.held.is_empty() {
            return (self.last.clone(), None);
        }
        let leases = admitted
            .shared_leases()
            .cloned()
            .chain(self.held.values().map(|held| held.lease.clone()));
        let next = self
            .held
            .values()
            .map(|held| held.since + held.wait)
            .min()
            .map(|due| due.min(now + Duration::from_secs(1)));
        (
            Arc::new(
                LeaseTable::of(leases, admitted.unreadable().clone())
                    .barring(admitted.barred().clone()),
            ),
            next,
        )
    }

    /// Excludes from the hold-downs the time in which the watch was interrupted or the process was stopped.
    fn count_time(&mut self, now: Duration, discontinuity: bool, interrupted: bool) {
        let stalled = self.last_step.is_some_and(|last| now.saturating_sub(last) > MAX_STALL)
            && !self.held.is_empty();
        let ended = self.interruption.filter(|_| !interrupted);
        let brief = ended.filter(|ended| {
            now.saturating_sub(ended.since) < MAX_INTERRUPTION && !ended.relisted && !discontinuity
        });
        for held in self.held.values_mut() {
            match brief {
                Some(brief) if !stalled => held.resume(brief.since, now),
                None if ended.is_none() && !stalled => {}
                _ => held.since = now,
            }
        }
        self.interruption = interrupted.then(|| {
            let known = self.interruption.unwrap_or(Interruption { since: now, relisted: false });
            Interruption { relisted: known.relisted || discontinuity, ..known }
        });
        self.last_step = Some(now);
    }

    /// Delays the removal of leases that admission no longer admits.
    fn hold_vanished(&mut self, admitted: &LeaseTable, now: Duration) {
        let vanished: Vec<Arc<Lease>> = self
            .last
            .changes(admitted)
            .filter_map(|(was, is)| was.filter(|_| is.is_none()).cloned())
            .collect();
        self.removals.retain(|at| now.saturating_sub(*at) <= BURST_WINDOW);
        self.removals.extend(vanished.iter().map(|_| now));
        let total = admitted.len() + self.removals.len();
        let burst = self.removals.len() > 3 && self.removals.len() * 5 > total;
        let wait = if burst || now < self.wary_until { LONG_HOLD_DOWN } else { HOLD_DOWN };
        if burst {
            for held in self.held.values_mut() {
                held.wait = LONG_HOLD_DOWN;
            }
        }
        for lease in vanished {
            self.held.insert(lease.subnets, Held { lease, wait, since: now });
        }
    }

    /// Removes the leases whose hold-down has ended or whose subnet another node has leased.
    fn release(&mut self, admitted: &LeaseTable, now: Duration, interrupted: bool) {
        if self.held.is_empty() {
            return;
        }
        let due = |held: &Held| !interrupted && now.saturating_sub(held.since) >= held.wait;
        let mut used = UsedSubnets::default();
        admitted.iter().for_each(|lease| used.take(&lease.subnets));
        self.held.retain(|subnets, held| !due(held) && used.taken(subnets).is_none());
    }

    #[must_use]
    pub fn waiting(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{LeaseAttrs, Term};
    use std::collections::BTreeSet;
    use types::Dual;

    fn lease(third: u8) -> Lease {
        let net = ipnet::Ipv4Net::new([10, 5, third, 0].into(), 24).unwrap();
        Lease {
            subnets: Dual::V4(net),
            attrs: LeaseAttrs::default(),
            term: Term::Leased,
            since: i64::from(third),
        }
    }

    fn table(thirds: impl IntoIterator<Item = u8>) -> Arc<LeaseTable> {
        Arc::new(LeaseTable::of(thirds.into_iter().map(lease), BTreeSet::new()))
    }

    fn seconds(tenths: u64) -> Duration {
        Duration::from_millis(tenths * 100)
    }

    /// Calls `published` once per second from `from` until `to` (both in tenths of a second). The result is the final number of leases in force.
    fn run(hold_down: &mut HoldDown, table: &Arc<LeaseTable>, from: u64, to: u64) -> usize {
        let mut count = 0;
        for at in (from..=to).step_by(10) {
            count = hold_down.published(table, seconds(at), false, false).0.len();
        }
        count
    }

    #[test]
    fn single_removal_waits_five_seconds() {
        let mut hold_down = HoldDown::default();
        hold_down.published(&table(1..20), seconds(0), false, false);
        assert_eq!(run(&mut hold_down, &table(2..20), 10, 50), 19);
        assert_eq!(run(&mut hold_down, &table(2..20), 60, 60), 18);
    }

    #[test]
    fn burst_of_removals_waits_a_minute() {
        let mut hold_down = HoldDown::default();
        hold_down.published(&table(1..=20), seconds(0), false, false);
        assert_eq!(run(&mut hold_down, &table(1..=10), 10, 600), 20);
        assert_eq!(run(&mut hold_down, &table(1..=20), 610, 700), 20);
        assert_eq!(hold_down.waiting(), 0);
        assert_eq!(run(&mut hold_down, &table(1..=10), 710, 1320), 10);
    }

    #[test]
    fn subnet_that_is_leased_again_is_removed_at_once() {
        let mut hold_down = HoldDown::default();
        hold_down.published(&table(1..=2), seconds(0), false, false);
        let mut anew = lease(1);
        anew.subnets = Dual::V4("10.5.1.0/25".parse().unwrap());
        let now = Arc::new(LeaseTable::of([anew.clone(), lease(2)], BTreeSet::new()));
        let (published, _) = hold_down.published(&now, seconds(1), true, false);
        assert_eq!(published, now);
    }

    /// Calls `published` like `run`, but interrupts the watch for `cut` tenths of a second every 35 s. The result is the time of the removal, in
    /// tenths of a second.
    fn removed_under_cuts(wait: u64, cut: u64, relists: bool) -> Option<u64> {
        let mut hold_down = HoldDown::default();
        hold_down.published(&table(1..20), seconds(0), wait == 60, false);
        let mut was = false;
        (10..6000).step_by(10).find(|at| {
            let interrupted = *at >= 350 && at % 350 < cut;
            let relisted = relists && was && !interrupted;
            was = interrupted;
            hold_down.published(&table(2..20), seconds(*at), relisted, interrupted).0.len() == 18
        })
    }

    #[test]
    fn short_interruption_that_resumes_is_no_gap() {
        // The lease vanishes at 1 s and waits 60 s. The interruption at 35 s does not count.
        assert_eq!(removed_under_cuts(60, 20, false), Some(10 + 600 + 20));
        assert_eq!(removed_under_cuts(60, 40, false), Some(10 + 600 + 40));
        assert_eq!(removed_under_cuts(60, 50, false), None, "an interruption as long as a gap");
        assert_eq!(
            removed_under_cuts(60, 20, true),
            None,
            "the watch did not resume at its version"
        );
    }

    #[test]
    fn short_interruption_leaves_five_seconds_of_watching() {
        let mut hold_down = HoldDown::default();
        hold_down.published(&table(1..20), seconds(0), false, false);
        assert_eq!(run(&mut hold_down, &table(2..20), 10, 50), 19);
        // Without the interruption, the removal would be due at 6 s.
        assert_eq!(hold_down.published(&table(2..20), seconds(58), false, true).0.len(), 19);
        assert_eq!(run(&mut hold_down, &table(2..20), 68, 112), 19);
        assert_eq!(run(&mut hold_down, &table(2..20), 118, 118), 18);
    }

    #[test]
    fn waiting_counts_only_while_watching_and_running() {
        let mut hold_down = HoldDown::default();
        hold_down.published(&table(1..20), seconds(0), false, false);
        hold_down.published(&table(2..20), seconds(10), false, false);
        for at in (20..1000).step_by(10) {
            assert_eq!(hold_down.published(&table(2..20), seconds(at), false, true).0.len(), 19);
        }
        assert_eq!(run(&mut hold_down, &table(2..20), 1000, 1040), 19);
        // The process was stopped for ten minutes, so the wait starts over.
        assert_eq!(run(&mut hold_down, &table(2..20), 7040, 7080), 19);
        assert_eq!(run(&mut hold_down, &table(2..20), 7090, 7100), 18);
    }
}
