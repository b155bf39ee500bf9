//! WireGuard's peers, with their keys.

use std::net::SocketAddr;
use std::time::Duration;
pub use types::wireguard::{KEY, PublicKey, Secret};

/// A peer of a WireGuard device. What it may send and receive, its allowed IPs, are objects of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireguardPeer {
    /// Where it is reached. None: unknown until it sends something.
    pub endpoint: Option<SocketAddr>,
    /// The preshared key of the peer. None: no preshared key.
    pub preshared: Option<Secret>,
    /// Seconds between two packets that keep a path open. 0: none are sent.
    pub keepalive: u16,
}

/// The state of a peer's session, as the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Session {
    /// How long ago the last handshake was completed, by the clock of the day. None: never.
    pub handshake: Option<Duration>,
    /// When that was, since 1970: what distinguishes one handshake from another, whatever is done to the clock.
    pub handshake_at: Option<Duration>,
    /// Bytes received from the peer, handshakes included.
    pub received: u64,
    /// Bytes sent to it.
    pub sent: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preshared_key_of_a_peer_is_not_shown() {
        let secret = Secret::generate().unwrap();
        let peer = WireguardPeer {
            endpoint: None,
            preshared: Some(secret.clone()),
            keepalive: 0,
        };
        let shown = format!("{peer:?}");
        assert!(
            shown.contains("(hidden)") && !shown.contains(&*secret.text()),
            "{shown}"
        );
    }
}
