//! The kernel's WireGuard interfaces.

use crate::object::wireguard_peer::Secret;

/// The kernel's name for the kind and for its module.
pub const KIND: &str = "wireguard";

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WireguardSpec {
    /// `None` if an existing interface has no key or the kernel does not show it.
    pub key: Option<Secret>,
    /// UDP.
    pub port: u16,
}

impl WireguardSpec {
    pub(super) fn text(&self) -> String {
        let key = self.key.as_ref().map(|key| format!(" public key {}", key.public()));
        format!(" port {}{}", self.port, key.unwrap_or_default())
    }
}
