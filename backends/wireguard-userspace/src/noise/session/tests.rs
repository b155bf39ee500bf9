//! Accepted and refused datagrams, and concurrent threads.

use super::*;
use crate::noise::tests::{Pair, open_datagram, seal_packet};
use proptest::prelude::*;
use std::collections::BTreeSet;

#[test]
fn packet_opens_once_and_in_its_own_direction() {
    let (a, b) = Pair::new().sessions(&[0; KEY]);
    let datagram = seal_packet(&a, b"packet");
    assert_eq!(Session::index_in(&datagram), Some(b.index()));
    assert_eq!(open_datagram(&a, datagram.clone()), Err(NoiseError::Tag));
    assert_eq!(open_datagram(&b, datagram.clone()).unwrap(), b"packet");
    assert_eq!(open_datagram(&b, datagram), Err(NoiseError::Replayed));
    assert_eq!(open_datagram(&b, seal_packet(&a, b"")).unwrap(), b"");
    assert_eq!((a.sealed(), b.sealed()), (2, 0));
}

#[test]
fn datagram_that_was_changed_does_not_open_and_does_not_count_as_received() {
    let (a, b) = Pair::new().sessions(&[0; KEY]);
    let datagram = seal_packet(&a, b"packet");
    for at in 8..datagram.len() {
        let mut changed = datagram.clone();
        changed[at] ^= 0x10;
        // A counter after the end of the session is refused before the cipher runs.
        assert!(
            matches!(open_datagram(&b, changed), Err(NoiseError::Tag | NoiseError::Exhausted)),
            "byte {at}"
        );
    }
    assert_eq!(open_datagram(&b, datagram).unwrap(), b"packet");
}

#[test]
fn short_datagram_carries_no_packet() {
    let (a, b) = Pair::new().sessions(&[0; KEY]);
    let datagram = seal_packet(&a, b"");
    for length in 0..OVERHEAD {
        assert_eq!(Session::index_in(&datagram[..length]), None);
        assert!(open_datagram(&b, datagram[..length].to_vec()).is_err());
        assert_eq!(a.seal(&mut vec![0; length]), Err(NoiseError::Malformed), "{length}");
    }
    assert_eq!(open_datagram(&b, datagram).unwrap(), b"");
}

#[test]
fn session_ends_before_its_counter_does() {
    let (a, b) = Pair::new().sessions(&[0; KEY]);
    a.next.store(REJECT_AFTER - 1, Ordering::Relaxed);
    let last = seal_packet(&a, b"last");
    let mut room = [0; OVERHEAD];
    for _ in 0..3 {
        assert_eq!(a.seal(&mut room), Err(NoiseError::Exhausted));
    }
    assert_eq!(open_datagram(&b, last.clone()).unwrap(), b"last");
    let mut later = last;
    later[8..16].fill(0xff);
    assert_eq!(open_datagram(&b, later), Err(NoiseError::Exhausted));
}

/// The packets of all threads arrive, and no two have the same counter.
#[test]
fn threads_seal_and_open_side_by_side() {
    let (a, b) = Pair::new().sessions(&[0; KEY]);
    let datagrams: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let sealing: Vec<_> = (0..4_u8)
            .map(|thread| {
                let a = &a;
                scope.spawn(move || (0..500_u16).map(|_| seal_packet(a, &[thread; 40])).collect())
            })
            .collect();
        sealing.into_iter().flat_map(|thread| -> Vec<Vec<u8>> { thread.join().unwrap() }).collect()
    });
    let counters: BTreeSet<&[u8]> = datagrams.iter().map(|datagram| &datagram[8..16]).collect();
    assert_eq!(counters.len(), 2000);
    let opened_by = |part: &[Vec<u8>]| {
        part.iter().filter(|datagram| open_datagram(&b, datagram.to_vec()).is_ok()).count()
    };
    // Two threads open each half: each packet opens in only one of them.
    let count: usize = std::thread::scope(|scope| {
        let (first, second) = datagrams.split_at(1000);
        let opened_by = &opened_by;
        [first, second, first, second]
            .map(|part| scope.spawn(move || opened_by(part)))
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(count, 2000);
}

proptest! {
    #[test]
    fn packets_of_all_lengths_pass(packet in prop::collection::vec(any::<u8>(), 0..2000)) {
        let (a, b) = Pair::new().sessions(&[0; KEY]);
        let datagram = seal_packet(&a, &packet);
        prop_assert_eq!(datagram.len(), packet.len() + OVERHEAD);
        prop_assert_eq!(open_datagram(&b, datagram), Ok(packet));
    }
}
