//! How often rules may be listed: with thousands of Services, one listing takes seconds.

use std::time::Duration;

/// One part of so many of a processor may go into a listing that is repeated.
const SHARE: u32 = 250;
/// Listings that take less are repeated at the usual pace.
const CHEAP: Duration = Duration::from_millis(75);
/// However long a listing takes: the rules are still looked at.
const LONGEST: Duration = Duration::from_secs(900);

/// The time between two listings of which the last took so long.
pub fn interval(usual: Duration, took: Duration) -> Duration {
    if took < CHEAP { usual } else { usual.max(took.saturating_mul(SHARE).min(LONGEST)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_that_takes_long_is_repeated_seldom() {
        let (usual, ms) = (Duration::from_secs(5), Duration::from_millis);
        assert_eq!(interval(usual, ms(20)), usual);
        assert_eq!(interval(usual, ms(400)), Duration::from_secs(100));
        assert_eq!(interval(usual, ms(9000)), LONGEST);
        assert_eq!(interval(Duration::from_secs(60), ms(80)), Duration::from_secs(60));
    }
}
