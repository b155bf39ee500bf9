//! The device's own key, and what follows from it.

use boringtun::noise::TunnResult;
use boringtun::noise::errors::WireGuardError;
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::x25519;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use types::wireguard::Secret;

/// The device's own key, and what follows from it.
pub(super) struct Identity {
    pub(super) private: x25519::StaticSecret,
    pub(super) public: x25519::PublicKey,
    /// Checks both MACs of messages and makes cookies. It wants proof of each sender's address; who has to give it is decided elsewhere.
    prover: RateLimiter,
    /// Of addresses and ports, for the cookies: the library takes addresses only, and neighbours behind one NAT have the same.
    places: [RandomState; 2],
    /// For the tunnels of peers, which would otherwise count each message again.
    pub(super) unlimited: Arc<RateLimiter>,
}

impl Identity {
    pub(super) fn new(private: &Secret) -> Self {
        let private = x25519::StaticSecret::from(*private.bytes());
        let public = x25519::PublicKey::from(&private);
        Self {
            prover: RateLimiter::new(&public, 0),
            places: [RandomState::new(), RandomState::new()],
            unlimited: Arc::new(RateLimiter::new(&public, u64::MAX)),
            private,
            public,
        }
    }

    /// Whether the sender of a message proved its address: the second MAC is right. None if the first is wrong.
    pub(super) fn proof(&self, from: SocketAddr, message: &[u8]) -> Option<bool> {
        // There is no room for a cookie, so that none is made.
        match self
            .prover
            .verify_packet(Some(self.place(from)), message, &mut [])
        {
            Ok(_) => Some(true),
            Err(TunnResult::Err(WireGuardError::DestinationBufferTooSmall)) => Some(false),
            Err(_) => None,
        }
    }

    /// A cookie, with which the sender of a message can prove its address. None if it did.
    pub(super) fn cookie<'b>(
        &self,
        from: SocketAddr,
        message: &[u8],
        buffer: &'b mut [u8],
    ) -> Option<&'b [u8]> {
        match self
            .prover
            .verify_packet(Some(self.place(from)), message, buffer)
        {
            Err(TunnResult::WriteToNetwork(cookie)) => Some(cookie),
            _ => None,
        }
    }

    /// An address that stands for an address and a port.
    fn place(&self, from: SocketAddr) -> IpAddr {
        let [high, low] = self
            .places
            .each_ref()
            .map(|keys| u128::from(keys.hash_one(from)));
        IpAddr::V6((high << 64 | low).into())
    }
}
