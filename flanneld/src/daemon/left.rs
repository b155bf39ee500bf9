//! The addresses that this node stopped using, because no peer responded at them.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time during which the node does not reuse such an address. Without it, the node would alternate between two bad
/// addresses.
const NOT_BACK: Duration = Duration::from_secs(600);

/// With the times at which the node stopped using them.
#[derive(Clone, Debug, Default)]
pub(super) struct Left(Arc<Mutex<Vec<(IpAddr, Instant)>>>);

impl Left {
    pub(super) fn note(&self, addresses: impl IntoIterator<Item = IpAddr>, now: Instant) {
        let mut all = self.0.lock();
        all.retain(|(_, since)| now.duration_since(*since) < NOT_BACK);
        all.extend(addresses.into_iter().map(|ip| (ip, now)));
    }

    /// The addresses that the node may not reuse yet.
    pub(super) fn recent(&self, now: Instant) -> BTreeSet<IpAddr> {
        let all = self.0.lock();
        all.iter()
            .filter(|(_, since)| now.duration_since(*since) < NOT_BACK)
            .map(|(ip, _)| *ip)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_up_address_is_used_again_after_ten_minutes() {
        let (left, ip, start) = (Left::default(), IpAddr::from([10, 0, 2, 15]), Instant::now());
        left.note([ip], start);
        assert!(left.recent(start + NOT_BACK - Duration::from_secs(1)).contains(&ip));
        assert!(left.recent(start + NOT_BACK).is_empty());
    }
}
