//! WireGuard peers and their keys.

use std::net::SocketAddr;
use std::time::Duration;
pub use types::wireguard::{KEY, PublicKey, Secret};

/// A peer of a WireGuard device. The peer's allowed IPs are separate objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireguardPeer {
    /// The address and port of the peer, or `None` if the endpoint is unknown until the peer sends a packet.
    pub endpoint: Option<SocketAddr>,
    /// The preshared key of the peer, if it has one.
    pub preshared: Option<Secret>,
    /// Seconds between two keepalive packets. 0 disables keepalive packets.
    pub keepalive: u16,
}

/// The state of a peer's session, as the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Session {
    /// Time since the last completed handshake, by the wall clock, or `None` if no handshake has completed.
    pub handshake: Option<Duration>,
    /// Time from 1970 to the last handshake, which distinguishes handshakes even after a change of the clock.
    pub handshake_at: Option<Duration>,
    /// Bytes received from the peer, including handshakes.
    pub received: u64,
    /// Bytes sent to the peer.
    pub sent: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preshared_key_of_a_peer_is_not_shown() {
        let secret = Secret::generate().unwrap();
        let peer = WireguardPeer { endpoint: None, preshared: Some(secret.clone()), keepalive: 0 };
        let shown = format!("{peer:?}");
        assert!(shown.contains("(hidden)") && !shown.contains(&*secret.text()), "{shown}");
    }
}
