//! WireGuard peers and their keys.

use std::net::SocketAddr;
use std::time::Duration;
pub use types::wireguard::{KEY, PublicKey, Secret};

/// Its allowed IPs are separate objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireguardPeer {
    /// `None` if it is unknown until the peer sends a packet.
    pub endpoint: Option<SocketAddr>,
    pub preshared: Option<Secret>,
    /// Seconds between two keepalive packets; 0 disables them.
    pub keepalive: u16,
}

/// As the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Session {
    /// Time since the last completed handshake, by the wall clock; `None` if there was none.
    pub handshake: Option<Duration>,
    /// Time from 1970 to the last handshake, which distinguishes handshakes even after a change of
    /// the clock.
    pub handshake_at: Option<Duration>,
    /// In bytes, including handshakes.
    pub received: u64,
    /// In bytes.
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
