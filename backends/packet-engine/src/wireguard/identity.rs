//! The device's own key, and what follows from it.

use super::key::Secret;
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::x25519;
use std::sync::Arc;

/// Handshake messages with a valid first MAC that are answered in a second without proof of the sender's address. Each costs some 150 us.
const UNPROVEN: u64 = 1000;

/// The device's own key, and what follows from it.
pub(super) struct Identity {
    pub(super) private: x25519::StaticSecret,
    pub(super) public: x25519::PublicKey,
    /// Judges messages before anything is computed for them: MACs, and cookies under load.
    pub(super) limiter: RateLimiter,
    /// For the tunnels of peers, which would otherwise count each message again.
    pub(super) unlimited: Arc<RateLimiter>,
}

impl Identity {
    pub(super) fn new(private: &Secret) -> Self {
        let private = x25519::StaticSecret::from(*private.bytes());
        let public = x25519::PublicKey::from(&private);
        Self { limiter: RateLimiter::new(&public, UNPROVEN), unlimited: Arc::new(RateLimiter::new(&public, u64::MAX)), private, public }
    }
}
