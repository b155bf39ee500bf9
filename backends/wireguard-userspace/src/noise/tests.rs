//! Helpers for the tests of all modules.

use super::{
    Identity, KEY, NoiseError, PeerCookie, Remote, Session, Stamp, UnprovenInitiation,
    begin_handshake,
};
use std::time::{Duration, Instant, SystemTime};

pub(crate) fn parse_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

pub(crate) fn parse_hex_array<const N: usize>(hex: &str) -> [u8; N] {
    parse_hex(hex).try_into().unwrap()
}

/// Consecutive byte values that begin with `first`.
pub(crate) fn counting_key(first: u8) -> [u8; KEY] {
    std::array::from_fn(|at| first.wrapping_add(at as u8))
}

/// Two nodes that are each other's peers.
pub(crate) struct Pair {
    pub(crate) a: Identity,
    pub(crate) b: Identity,
    /// B as A knows it.
    pub(crate) to_b: Remote,
    /// A as B knows it.
    pub(crate) to_a: Remote,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let (a, b) = (Identity::new(&counting_key(1)), Identity::new(&counting_key(33)));
        let to_b = Remote::new(&a, b.public()).unwrap();
        let to_a = Remote::new(&b, a.public()).unwrap();
        Self { a, b, to_b, to_a }
    }

    /// Both ends of a session that A initiated.
    pub(crate) fn sessions(&self, preshared: &[u8; KEY]) -> (Session, Session) {
        self.complete_handshake(preshared, preshared).unwrap()
    }

    /// A handshake between A and B, each with its own preshared key.
    pub(crate) fn complete_handshake(
        &self,
        ours: &[u8; KEY],
        theirs: &[u8; KEY],
    ) -> Result<(Session, Session), NoiseError> {
        let (initiated, message) =
            begin_handshake(&self.a, &self.to_b, 7, later_stamp(), &counting_key(65))?;
        let half = UnprovenInitiation::read(&self.b, &message)?;
        let (asked, _) = half.prove(&self.to_a)?;
        let (at_b, answer) = asked.answer(&self.to_a, theirs, 8, &counting_key(97))?;
        let at_a = initiated.complete(&self.a, ours, &answer)?;
        Ok((at_a, at_b))
    }
}

/// 2023-11-14 22:13:20 UTC.
pub(crate) fn later_stamp() -> Stamp {
    Stamp::after(None, SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 999_999_999))
}

/// A datagram with this packet, sealed in a session.
pub(crate) fn seal_packet(session: &Session, packet: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; packet.len() + super::OVERHEAD];
    datagram[16..16 + packet.len()].copy_from_slice(packet);
    session.seal(&mut datagram).unwrap();
    datagram
}

/// The packet in a datagram.
pub(crate) fn open_datagram(
    session: &Session,
    mut datagram: Vec<u8>,
) -> Result<Vec<u8>, NoiseError> {
    let length = session.open(&mut datagram)?;
    datagram.truncate(length);
    Ok(datagram)
}

/// An empty peer_cookie, and the current time.
pub(crate) fn peer_cookie() -> (PeerCookie, Instant) {
    (PeerCookie::default(), Instant::now())
}
