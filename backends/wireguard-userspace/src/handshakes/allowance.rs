//! Rate limit of curve operations for senders that proved their address: a token bucket for each, in a table
//! of fixed size.

use packet_engine::packet::icmp_limit::Rate;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Initiations per second from each source, and the burst, as in the kernel.
const EACH: Rate = Rate::new(20, 5);
/// The buckets occupy 32 KiB. A hash maps each source to one, so memory does not grow with the sources.
const SLOTS: usize = 4096;
/// The longest time for which two sources share a bucket. One that shares it with a flood gets another before
/// its sessions end.
const SHARED: Duration = Duration::from_secs(20);

/// Token buckets for the initiations of each source.
pub(crate) struct Allowances {
    began: Instant,
    /// Sources share other buckets with each new hasher.
    hasher: RandomState,
    hashed_since: Duration,
    turns: Box<[u64]>,
}

impl Allowances {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            began: now,
            hasher: RandomState::new(),
            hashed_since: Duration::ZERO,
            turns: vec![0; SLOTS].into(),
        }
    }

    /// False if the bucket of this key is empty.
    pub(crate) fn take(&mut self, key: u128, now: Instant) -> bool {
        let now = now.saturating_duration_since(self.began);
        if now.saturating_sub(self.hashed_since) >= SHARED {
            self.hasher = RandomState::new();
            self.hashed_since = now;
            self.turns.fill(0);
        }
        let slot = self.hasher.hash_one(key) as usize % SLOTS;
        let Some(turn) = self.turns.get_mut(slot) else {
            return false;
        };
        let next =
            EACH.next_turn_if_allowed(*turn, u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        *turn = next.unwrap_or(*turn);
        next.is_some()
    }
}

/// The key of a source: its IPv4 address, or the first 64 bits of its IPv6 address. One host usually has a
/// whole /64.
pub(crate) fn source_key(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits() >> 64 << 64 | 1 << 63,
    }
}

/// The key of a source: its address and port.
pub(crate) fn endpoint_key(from: SocketAddr) -> u128 {
    let bits = match from.ip() {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    bits ^ u128::from(from.port()) << 48
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_source_has_twenty_a_second_and_a_burst_of_five() {
        let start = Instant::now();
        let mut buckets = Allowances::new(start);
        let taken = |buckets: &mut Allowances, from: u64, to: u64| {
            (from..to)
                .filter(|ms| {
                    buckets
                        .take(source_key(parse_ip("192.0.2.1")), start + Duration::from_millis(*ms))
                })
                .count()
        };
        assert_eq!((taken(&mut buckets, 0, 1), taken(&mut buckets, 1, 10_001)), (1, 4 + 200));
    }

    #[test]
    fn sources_are_addresses_with_ipv4_and_networks_of_64_bits_with_ipv6() {
        assert_ne!(source_key(parse_ip("192.0.2.1")), source_key(parse_ip("192.0.2.2")));
        assert_eq!(
            source_key(parse_ip("2001:db8:0:1::1")),
            source_key(parse_ip("2001:db8:0:1:ffff::2"))
        );
        assert_ne!(
            source_key(parse_ip("2001:db8:0:1::1")),
            source_key(parse_ip("2001:db8:0:2::1"))
        );
        assert_ne!(source_key(parse_ip("::c000:201")), source_key(parse_ip("192.0.2.1")));
    }

    #[test]
    fn a_source_that_shares_its_bucket_with_a_flood_has_another_later() {
        let start = Instant::now();
        let mut buckets = Allowances::new(start);
        // Ten times more sources than buckets, each with five initiations.
        let flood = |buckets: &mut Allowances, now| {
            (0..50 * SLOTS as u128).filter(|n| buckets.take((1 << 40) + n / 5, now)).count()
        };
        assert!(flood(&mut buckets, start) <= 5 * SLOTS);
        let full = (0..1000).filter(|n| !buckets.take(*n, start)).count();
        assert!(full > 900, "{full}");
        let free = (0..1000).filter(|n| buckets.take(*n, start + SHARED)).count();
        assert!(free > 900, "{free}");
    }
}
