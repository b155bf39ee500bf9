//! A node's report about itself and its peers, in one datagram. `docs/probing-format.md` describes the format.

use crate::view::Own;
use crate::wire::{HEADER, ROW, Reader};
use std::collections::BTreeMap;
use types::reachability::State;

/// Space in bytes for the name of the check with the most severe finding.
const NAME_LENGTH: usize = 24;
/// Maximum number of checks in a report.
const MAX_CHECKS: usize = 16;
/// In bytes.
const CELL_LENGTH: usize = 8;
/// The "ping only" bit in the encoded state of a peer.
const PING_ONLY: u8 = 0x80;
/// Encoding of an unknown round trip or age.
const NEVER: u8 = u8::MAX;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// The node's report about itself.
    pub own: Own,
    pub counts: BTreeMap<State, u32>,
    /// In microseconds.
    pub rtt_us: Option<u32>,
    /// The peers, or only the worst peers if the report has no room for all peers.
    pub cells: Vec<Wire>,
}

/// A peer in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// The number of the peer's subnet, as [`crate::who::short`] computes it.
    pub subnet: u32,
    /// The node's verdict on this peer.
    pub state: State,
    /// Whether the peer replies only to ping.
    pub ping_only: bool,
    /// Approximate round trip in microseconds.
    pub rtt_us: Option<u32>,
    /// Number of the node's last 16 probes to the peer that got no reply.
    pub lost: u8,
    /// Approximate time since the node's last probe to the peer, in milliseconds.
    pub asked_age_ms: Option<u64>,
}

/// True if a report has room for this number of peers. If not, the caller must sort `cells` by [`Wire::rank`], so
/// that the report keeps the worst peers.
pub fn fit(own: &Own, peers: usize) -> bool {
    peers <= room(own)
}

/// The maximum number of peers in a report.
pub fn room(own: &Own) -> usize {
    (ROW - HEADER - fixed() - checks(own).len()) / CELL_LENGTH
}

/// The checks follow the peers, because older versions ignore all bytes after the peers.
fn checks(own: &Own) -> Vec<u8> {
    let mut out = Vec::new();
    let named = own.checks.iter().take(MAX_CHECKS);
    let named: Vec<&String> = named.filter(|name| name.len() <= NAME_LENGTH).collect();
    if named.is_empty() {
        return out;
    }
    out.push(u8::try_from(named.len()).unwrap_or(0));
    for name in named {
        out.push(u8::try_from(name.len()).unwrap_or(0));
        out.extend(name.bytes());
    }
    out
}

fn fixed() -> usize {
    // Flags, three counts, the name, the number of states and their counts, the round trip, the number of peers.
    1 + 6 + NAME_LENGTH + 1 + 4 * State::ALL.len() + 4 + 2
}

impl Wire {
    /// A sort key that puts the worst peers first: by impact on packets, then by state, losses and round trip.
    pub fn rank(&self) -> impl Ord + use<> {
        std::cmp::Reverse((self.state.impact(), self.state, self.lost, self.rtt_us))
    }
}

/// Omits peers for which the report has no room.
pub fn write(body: &Body) -> Vec<u8> {
    let mut out = Vec::with_capacity(ROW - HEADER);
    out.push(u8::from(body.own.ready));
    for count in [body.own.broken, body.own.degraded, body.own.risks] {
        out.extend(count.to_be_bytes());
    }
    let mut name = [0u8; NAME_LENGTH];
    let gravest = body.own.gravest.as_deref().unwrap_or_default();
    name.iter_mut().zip(gravest.bytes()).for_each(|(to, from)| *to = from);
    out.extend(name);
    out.push(u8::try_from(State::ALL.len()).unwrap_or(u8::MAX));
    for state in State::ALL {
        out.extend(body.counts.get(&state).copied().unwrap_or(0).to_be_bytes());
    }
    out.extend(body.rtt_us.unwrap_or(u32::MAX).to_be_bytes());
    let cells = body.cells.iter().take(room(&body.own));
    out.extend(u16::try_from(cells.len()).unwrap_or(0).to_be_bytes());
    for cell in cells {
        out.extend(cell.subnet.to_be_bytes());
        out.push(cell.state.number() | if cell.ping_only { PING_ONLY } else { 0 });
        out.push(cell.rtt_us.map_or(NEVER, |us| rough(us.into(), 12)));
        out.push(cell.lost);
        out.push(cell.asked_age_ms.map_or(NEVER, |ms| rough(ms, 10)));
    }
    out.extend(checks(&body.own));
    out
}

/// `None` if the report is truncated. Checks the ranges of numbers and the characters of names (lower-case letters,
/// digits and hyphens), but not the truth of the report.
pub fn read(bytes: &[u8]) -> Option<Body> {
    let mut read = Reader(bytes);
    let ready = read.u8()? & 1 == 1;
    let (broken, degraded, risks) = (read.u16()?, read.u16()?, read.u16()?);
    let name: [u8; NAME_LENGTH] = read.take()?;
    let gravest = name.split(|byte| *byte == 0).next().and_then(legible);
    let mut counts = BTreeMap::new();
    for number in 0..read.u8()? {
        let count = read.u32()?;
        if count > 0 {
            // An unknown number is a state of a later version. Its peers are added to those in the `unknown` state.
            let known: &mut u32 = counts.entry(State::of_number(number)).or_default();
            *known = known.saturating_add(count);
        }
    }
    let rtt_us = Some(read.u32()?).filter(|us| *us != u32::MAX);
    let count = read.u16()?;
    let mut cells = Vec::with_capacity(usize::from(count).min(ROW / CELL_LENGTH));
    for _ in 0..count {
        let (subnet, state, rtt, lost, age) =
            (read.u32()?, read.u8()?, read.u8()?, read.u8()?, read.u8()?);
        cells.push(Wire {
            subnet,
            state: State::of_number(state & !PING_ONLY),
            ping_only: state & PING_ONLY != 0,
            rtt_us: (rtt != NEVER).then(|| u32::try_from(exact(rtt, 12)).unwrap_or(u32::MAX)),
            lost: lost.min(16),
            asked_age_ms: (age != NEVER).then(|| exact(age, 10)),
        });
    }
    let own = Own { ready, broken, degraded, risks, gravest, checks: named_checks(&mut read) };
    Some(Body { own, counts, rtt_us, cells })
}

/// Decodes the checks that follow the peers. Stops decoding at a name that is truncated or too long, and skips invalid names.
fn named_checks(read: &mut Reader<'_>) -> Vec<String> {
    let count = usize::from(read.u8().unwrap_or(0)).min(MAX_CHECKS);
    let mut name = || {
        let length = read.u8()?;
        let bytes: Option<Vec<u8>> = (0..length).map(|_| read.u8()).collect();
        bytes.filter(|bytes| bytes.len() <= NAME_LENGTH)
    };
    let names = (0..count).map_while(|_| name());
    names.filter_map(|name| legible(&name)).collect()
}

/// `None` unless the bytes can be the name of a check: lower-case letters, digits and hyphens.
fn legible(bytes: &[u8]) -> Option<String> {
    let fits = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    (!bytes.is_empty() && bytes.iter().all(fits))
        .then(|| bytes.iter().copied().map(char::from).collect())
}

/// Encodes a number as its logarithm in one byte, with `steps` steps per doubling.
fn rough(number: u64, steps: u32) -> u8 {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "roughly, and clamped"
    )]
    let step = ((number as f64 + 1.0).log2() * f64::from(steps)).round().clamp(0.0, 254.0) as u8;
    step
}

fn exact(step: u8, steps: u32) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the result is at most 2 to the power of 26"
    )]
    let number = ((f64::from(step) / f64::from(steps)).exp2() - 1.0).round() as u64;
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cell(subnet: u32, state: State) -> Wire {
        Wire {
            subnet,
            state,
            ping_only: false,
            rtt_us: Some(400),
            lost: 0,
            asked_age_ms: Some(5_000),
        }
    }

    #[test]
    fn row_survives_encoding() {
        let own = Own {
            ready: true,
            broken: 1,
            degraded: 2,
            risks: 300,
            gravest: Some("wrong-interface".into()),
            checks: vec!["wrong-interface".into(), "mtu".into()],
        };
        let cells = vec![Wire {
            ping_only: true,
            rtt_us: None,
            lost: 3,
            asked_age_ms: None,
            ..cell(7, State::OneWay)
        }];
        let body = Body {
            own,
            counts: BTreeMap::from([(State::Well, 9), (State::OneWay, 1)]),
            rtt_us: Some(410),
            cells,
        };
        let bytes = write(&body);
        assert_eq!(read(&bytes), Some(body.clone()));
        assert_eq!(read(&write(&Body::default())), Some(Body::default()));
        // The row of a version without checks.
        let earlier = Body { own: Own { checks: Vec::new(), ..body.own.clone() }, ..body };
        assert!(write(&earlier).len() < bytes.len());
        assert_eq!(read(&write(&earlier)), Some(earlier));
    }

    #[test]
    fn checks_are_bounded_and_legible() {
        let own = |checks: Vec<String>| Own { checks, ..Own::default() };
        let many =
            own((0..40).map(|number| format!("a-check-of-this-length-{}", number % 10)).collect());
        let body = Body {
            own: many.clone(),
            cells: (0..1000).map(|number| cell(number, State::Well)).collect(),
            ..Body::default()
        };
        let bytes = write(&body);
        assert!(bytes.len() <= ROW - HEADER, "{}", bytes.len());
        let back = read(&bytes).unwrap();
        assert_eq!(back.own.checks, many.checks[..MAX_CHECKS]);
        assert_eq!(back.cells.len(), room(&many));
        for hostile in ["", "Mtu", "mtu\u{1b}", "a b", "this-name-is-longer-than-24"] {
            let sent = own(vec![hostile.to_owned(), "mtu".to_owned()]);
            let bytes = write(&Body { own: sent, ..Body::default() });
            assert_eq!(read(&bytes).unwrap().own.checks, ["mtu"], "{hostile:?}");
        }
    }

    #[test]
    fn row_has_room_for_about_140_peers() {
        let own = Own::default();
        assert!((139..=145).contains(&room(&own)), "{}", room(&own));
        assert!(fit(&own, room(&own)) && !fit(&own, room(&own) + 1));
        let many = Body {
            cells: (0..1000).map(|number| cell(number, State::Well)).collect(),
            ..Body::default()
        };
        let bytes = write(&many);
        assert!(bytes.len() <= ROW - HEADER && bytes.len() + CELL_LENGTH > ROW - HEADER);
        assert_eq!(read(&bytes).unwrap().cells.len(), room(&own));
    }

    #[test]
    fn worst_peers_come_first() {
        let mut cells = [
            cell(1, State::Well),
            cell(2, State::Unknown),
            cell(3, State::CutOff),
            Wire { lost: 1, ..cell(4, State::Well) },
        ];
        cells.sort_by_key(Wire::rank);
        assert_eq!(cells.iter().map(|cell| cell.subnet).collect::<Vec<_>>(), [3, 4, 1, 2]);
    }

    #[test]
    fn rough_numbers_are_within_five_percent() {
        for number in [0u64, 1, 10, 400, 5_000, 1_000_000] {
            for steps in [10, 12] {
                let back = exact(rough(number, steps), steps);
                assert!(back.abs_diff(number) * 20 <= number + 20, "{number} became {back}");
            }
        }
        assert_eq!(rough(u64::MAX, 12), 254);
        // The largest age that can be encoded is 12 hours. One hour is below that limit.
        assert!(exact(254, 10) > 40_000_000 && rough(3_600_000, 10) < 254);
    }

    proptest! {
        #[test]
        fn junk_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1300)) {
            if let Some(body) = read(&bytes) {
                prop_assert!(body.cells.len() * CELL_LENGTH <= bytes.len());
                prop_assert!(body.own.gravest.is_none_or(|name| name.is_ascii() && name.len() <= NAME_LENGTH));
                prop_assert!(body.cells.iter().all(|cell| cell.lost <= 16));
                prop_assert!(body.own.checks.len() <= MAX_CHECKS && body.own.checks.iter().all(|name| legible(name.as_bytes()).is_some()));
            }
        }
    }
}
