//! Limits how often the daemon lists the traffic rules in the kernel. One listing takes several
//! seconds in a cluster with thousands of Services.

use netlink::Notified;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use std::time::{Duration, Instant};

/// The interval between listings is so many times the processor time of a listing.
const SHARE: u32 = 500;
/// Below this processor time of a listing, the usual interval stays.
const CHEAP: Duration = Duration::from_millis(75);
/// The longest interval between listings, regardless of their cost.
const LONGEST: Duration = Duration::from_secs(1800);

/// How long the rules are taken as unchanged if the kernel sends no notification.
const UNCHANGED: Duration = Duration::from_secs(60);
/// Divides the interval between comparisons after a notification about flannel's own rules.
const NOTICED: u32 = 20;
/// Divides the interval between comparisons after the kernel dropped notifications.
const LOST: u32 = 2;
/// The interval after a failed attempt is so many times its processor time.
const RETRIED: u32 = 20;
/// Maximum interval after a failed attempt: the rules may be missing until the next.
const RETRY_LIMIT: Duration = Duration::from_secs(30);

/// The processor time of this process and its child processes during a listing. On a busy machine,
/// it is far less than the elapsed time.
pub struct Cost {
    began: Instant,
    spent: Duration,
}

impl Cost {
    #[must_use]
    pub fn begin() -> Self {
        Self { began: Instant::now(), spent: processor_time() }
    }

    /// At most the elapsed time.
    #[must_use]
    pub fn so_far(&self) -> Duration {
        processor_time().saturating_sub(self.spent).min(self.began.elapsed())
    }
}

/// Counts this process and its child processes that have ended.
fn processor_time() -> Duration {
    let of = |time: TimeVal| {
        Duration::from_micros(
            u64::try_from(time.tv_sec() * 1_000_000 + time.tv_usec()).unwrap_or(0),
        )
    };
    let usages = [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN]
        .into_iter()
        .filter_map(|who| getrusage(who).ok());
    usages.map(|usage| of(usage.user_time()) + of(usage.system_time())).sum()
}

/// Until the next listing, from the cost of the last one.
#[must_use]
pub fn interval(usual: Duration, cost: Duration) -> Duration {
    if cost < CHEAP { usual } else { usual.max(cost.saturating_mul(SHARE).min(LONGEST)) }
}

/// Until the next attempt to apply rules, from the cost of the failed one.
#[must_use]
pub fn retry(usual: Duration, cost: Duration) -> Duration {
    if cost < CHEAP { usual } else { usual.max(cost.saturating_mul(RETRIED).min(RETRY_LIMIT)) }
}

/// The minimum time between two comparisons of flannel's rules. `notified` are the kernel's
/// notifications since the last one. `announces` is true if the kernel sends notifications. `cost`
/// is the processor time of a comparison.
#[must_use]
pub fn comparison(notified: Notified, announces: bool, cost: Duration) -> Duration {
    match (notified, announces) {
        // Others rarely change our chains, so a quick repair is worth the cost.
        (Notified::Change, _) => interval(Duration::ZERO, cost) / NOTICED,
        (Notified::Lost, true) => interval(Duration::ZERO, cost) / LOST,
        (Notified::Nothing, true) => interval(UNCHANGED, cost),
        // Nothing else shows that a rule is missing.
        (_, false) => interval(Duration::ZERO, cost).min(UNCHANGED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_that_costs_much_is_repeated_seldom() {
        let (usual, ms) = (Duration::from_secs(5), Duration::from_millis);
        assert_eq!(interval(usual, ms(20)), usual);
        assert_eq!(interval(usual, ms(400)), Duration::from_secs(200));
        assert_eq!(interval(usual, ms(9000)), LONGEST);
        assert_eq!(interval(Duration::from_secs(60), ms(80)), Duration::from_secs(60));
    }

    #[test]
    fn comparison_waits_for_a_notice_where_the_kernel_gives_one() {
        let ms = Duration::from_millis;
        let cases = [
            // Few rules: after a notification, or if there are none at all, the rules are compared in each round.
            (Notified::Change, true, ms(20), Duration::ZERO),
            (Notified::Lost, true, ms(20), Duration::ZERO),
            (Notified::Change, true, ms(100), ms(2500)),
            (Notified::Nothing, false, ms(20), Duration::ZERO),
            (Notified::Nothing, true, ms(20), Duration::from_secs(60)),
            // Thousands of Services.
            (Notified::Change, true, ms(1000), Duration::from_secs(25)),
            (Notified::Lost, true, ms(1000), Duration::from_secs(250)),
            (Notified::Nothing, true, ms(1000), Duration::from_secs(500)),
            (Notified::Nothing, false, ms(1000), Duration::from_secs(60)),
        ];
        for (notified, announces, cost, expected) in cases {
            assert_eq!(
                comparison(notified, announces, cost),
                expected,
                "{notified:?} {announces} {cost:?}"
            );
        }
    }

    #[test]
    fn attempt_that_cost_much_is_repeated_later() {
        let (usual, ms) = (Duration::from_secs(1), Duration::from_millis);
        assert_eq!(
            [ms(20), ms(100), ms(1000), ms(50_000)].map(|cost| retry(usual, cost)),
            [ms(1000), ms(2000), ms(20_000), ms(30_000)]
        );
        assert_eq!(retry(ms(25_000), ms(1000)), ms(25_000));
    }

    #[test]
    fn cost_is_processor_time_of_children() {
        let child = Cost::begin();
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", busy]).status().unwrap().success());
        assert!(child.so_far() > Duration::from_millis(5), "{:?}", child.so_far());
    }
}
