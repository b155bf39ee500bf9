//! The device's own key, and the cookies with which senders prove their addresses.

use crate::keypair::random_bytes;
use crate::noise::{self, CookieChecker, CookieReply};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::time::Instant;
use types::wireguard::Secret;

pub(crate) struct Identity {
    pub(crate) keys: noise::Identity,
    /// Creates and verifies cookies. The callers decide which senders have to prove their address.
    checker: Mutex<Option<CookieChecker>>,
}

impl Identity {
    pub(crate) fn new(private: &Secret) -> Self {
        Self { keys: noise::Identity::new(private.bytes()), checker: Mutex::new(None) }
    }

    /// Whether the sender of a message proved its address with a correct mac2. `None` if mac1 is invalid.
    pub(crate) fn proof(&self, from: SocketAddr, message: &[u8], now: Instant) -> Option<bool> {
        self.keys.is_addressed(message).then(|| {
            self.checker
                .lock()
                .as_ref()
                .is_some_and(|checker| checker.is_proven(from, message, now))
        })
    }

    /// A cookie reply, with which the sender of a message can prove its address. `None` if the message
    /// already does.
    pub(crate) fn cookie(
        &self,
        from: SocketAddr,
        message: &[u8],
        now: Instant,
    ) -> Option<CookieReply> {
        let mut checker = self.checker.lock();
        if checker.as_ref().is_none_or(|checker| checker.is_stale(now)) {
            *checker = Some(CookieChecker::new(random_bytes()?, now));
        }
        let checker = checker.as_ref()?;
        if checker.is_proven(from, message, now) {
            return None;
        }
        checker.reply(&self.keys, from, message, random_bytes()?).ok()
    }
}
