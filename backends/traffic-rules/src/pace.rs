//! Limits how often the daemon lists rules of the kernel, which takes long in a cluster with thousands of Services.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::time::{Duration, Instant};

/// The interval between listings is so many times the processor time of a listing.
const SHARE: u32 = 500;
/// Below this processor time of a listing, the usual interval stays.
const CHEAP: Duration = Duration::from_millis(75);
/// The longest interval between listings, regardless of their cost.
const LONGEST: Duration = Duration::from_secs(1800);

/// The processor time of this process and its child processes during a listing. On a busy machine, it is far less than
/// the elapsed time.
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
    let usages = [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN].map(getrusage);
    let times = usages.into_iter().flatten().map(|usage| usage.user_time() + usage.system_time());
    Duration::from_micros(times.map(|time| time.num_microseconds().unsigned_abs()).sum())
}

/// Until the next listing, from the cost of the last one.
#[must_use]
pub fn interval(usual: Duration, cost: Duration) -> Duration {
    if cost < CHEAP { usual } else { usual.max(cost.saturating_mul(SHARE).min(LONGEST)) }
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
    fn cost_is_processor_time_of_children() {
        let child = Cost::begin();
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", busy]).status().unwrap().success());
        assert!(child.so_far() > Duration::from_millis(5), "{:?}", child.so_far());
    }
}
