//! Timestamps of initiations.

use super::*;

fn new_link() -> Link {
    let identity = Identity::new(&Secret::new([1; 32]));
    Link::new(Some(Arc::new(identity)), None, 0)
}

#[test]
fn initiations_follow_the_clock_and_never_go_back() {
    let mut link = new_link();
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let hour = Duration::from_secs(3600);
    let stamps = [now, now - hour, now + hour, now, now + 2 * hour].map(|clock| link.stamp(clock));
    assert!(stamps.is_sorted_by(|a, b| a < b));
    assert_eq!(stamps[2], Stamp::after(None, now + hour));
}

/// This also holds after a change of keys and after the end of all sessions.
#[test]
fn initiation_that_is_not_later_than_one_before_is_a_copy() {
    let mut link = new_link();
    let at = |seconds| Stamp::after(None, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    assert_eq!(link.see(at(5)), Ok(()));
    link.renew();
    link.rekey(None);
    assert_eq!(link.see(at(5)), Err(NoiseError::Replayed));
    assert_eq!(link.see(at(4)), Err(NoiseError::Replayed));
    assert_eq!(link.see(at(6)), Ok(()));
}
