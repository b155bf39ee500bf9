//! Cookies, with which the sender of a handshake message proves that it receives packets at its address (section 5.4.7 of the paper).

use super::crypto::{KEY, TAG, compute_mac, open_cookie, seal_cookie};
use super::error::NoiseError;
use super::identity::{Identity, Remote};
use super::message::{Codes, CookieReply, Initiation, Kind, Response, Sealed};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Lifetime of a secret: older cookies prove no address (COOKIE_SECRET_MAX_AGE of the kernel).
const LASTS: Duration = Duration::from_secs(120);
/// The receiver uses a cookie only for [`LASTS`] minus this time.
const MARGIN: Duration = Duration::from_secs(5);

/// Creates cookies for senders of handshake messages and verifies them.
pub struct CookieChecker {
    secret: Zeroizing<[u8; KEY]>,
    born: Instant,
}

impl CookieChecker {
    /// `secret` is 32 random bytes.
    #[must_use]
    pub fn new(secret: [u8; KEY], now: Instant) -> Self {
        Self { secret: Zeroizing::new(secret), born: now }
    }

    /// A stale secret has to be replaced, because its cookies no longer prove an address.
    #[must_use]
    pub fn is_stale(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.born) >= LASTS
    }

    fn cookie(&self, from: SocketAddr) -> [u8; TAG] {
        let mut place = match from.ip() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        place.extend_from_slice(&from.port().to_be_bytes());
        compute_mac(&self.secret, &place)
    }

    /// Whether `mac2` of the message matches the cookie for this address and port.
    #[must_use]
    pub fn is_proven(&self, from: SocketAddr, message: &[u8], now: Instant) -> bool {
        !self.is_stale(now)
            && Codes::of(message).is_some_and(|(_, covered, codes)| {
                let right = compute_mac(&self.cookie(from), covered);
                bool::from(right.ct_eq(&codes.second))
            })
    }

    /// The reply to a handshake message whose sender has to prove its address. `nonce` is 24 random bytes.
    pub fn reply(
        &self,
        identity: &Identity,
        from: SocketAddr,
        message: &[u8],
        nonce: [u8; 24],
    ) -> Result<CookieReply, NoiseError> {
        let sender = match (Initiation::read(message), Response::read(message)) {
            (Some(initiation), _) => initiation.sender,
            (_, Some(response)) => response.sender,
            _ => return Err(NoiseError::Malformed),
        };
        let (_, _, codes) = Codes::of(message).ok_or(NoiseError::Malformed)?;
        let mut value = self.cookie(from);
        let tag = seal_cookie(&identity.labels.cookie, &nonce, &codes.first, &mut value)?;
        Ok(CookieReply {
            kind: Kind::CookieReply.word(),
            receiver: sender,
            nonce,
            cookie: Sealed { value, tag },
        })
    }
}

/// The cookie that a peer sent to this node, and the message to which the next cookie may reply.
#[derive(Default)]
pub struct PeerCookie {
    cookie: Option<([u8; TAG], Instant)>,
    /// `mac1` of the last sent message, while a cookie may reply to it.
    asked: Option<[u8; TAG]>,
}

impl PeerCookie {
    /// Adds `mac2` if there is a cookie, and stores `mac1`.
    pub fn prove(&mut self, message: &mut Initiation, now: Instant) {
        let second = Codes::of(message.bytes()).and_then(|(_, covered, _)| self.code(covered, now));
        message.codes.second = second.unwrap_or_default();
        self.asked = Some(message.codes.first);
    }

    /// Adds `mac2` if there is a cookie, and stores `mac1`.
    pub fn prove_answer(&mut self, message: &mut Response, now: Instant) {
        let second = Codes::of(message.bytes()).and_then(|(_, covered, _)| self.code(covered, now));
        message.codes.second = second.unwrap_or_default();
        self.asked = Some(message.codes.first);
    }

    fn code(&self, covered: &[u8], now: Instant) -> Option<[u8; TAG]> {
        let (cookie, since) = self.cookie.as_ref()?;
        (now.saturating_duration_since(*since) < LASTS - MARGIN)
            .then(|| compute_mac(cookie, covered))
    }

    /// Stores a cookie for the next messages to the peer. Fails if it replies to no message of this node, or
    /// is not from the peer.
    pub fn keep(
        &mut self,
        remote: &Remote,
        reply: &CookieReply,
        now: Instant,
    ) -> Result<(), NoiseError> {
        let asked = self.asked.as_ref().ok_or(NoiseError::Unasked)?;
        let mut cookie = reply.cookie.value;
        let (key, tag) = (&remote.labels.cookie, &reply.cookie.tag);
        open_cookie(key, &reply.nonce, asked, &mut cookie, tag)?;
        self.cookie = Some((cookie, now));
        self.asked = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
