//! The device's own key, and the cookies with which senders prove their addresses.

use super::keypair::random;
use noise::{Baker, CookieReply};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::time::Instant;
use types::wireguard::Secret;

pub(super) struct Identity {
    pub(super) keys: noise::Identity,
    /// Creates and verifies cookies. The callers decide which senders have to prove their address.
    baker: Mutex<Option<Baker>>,
}

impl Identity {
    pub(super) fn new(private: &Secret) -> Self {
        Self { keys: noise::Identity::new(private.bytes()), baker: Mutex::new(None) }
    }

    /// Whether the sender of a message proved its address with a correct mac2. `None` if mac1 is invalid.
    pub(super) fn proof(&self, from: SocketAddr, message: &[u8], now: Instant) -> Option<bool> {
        self.keys.is_addressed(message).then(|| {
            self.baker.lock().as_ref().is_some_and(|baker| baker.is_proven(from, message, now))
        })
    }

    /// A cookie reply, with which the sender of a message can prove its address. `None` if the message
    /// already does.
    pub(super) fn cookie(
        &self,
        from: SocketAddr,
        message: &[u8],
        now: Instant,
    ) -> Option<CookieReply> {
        let mut baker = self.baker.lock();
        if baker.as_ref().is_none_or(|baker| baker.is_stale(now)) {
            *baker = Some(Baker::new(random()?, now));
        }
        let baker = baker.as_ref()?;
        if baker.is_proven(from, message, now) {
            return None;
        }
        baker.reply(&self.keys, from, message, random()?).ok()
    }
}
