//! The kernel's WireGuard interfaces.

use crate::object::fit::Fit;
use crate::object::wireguard_peer::Secret;

/// The kernel's name for the kind and for its module.
pub const KIND: &str = "wireguard";

/// flanneld can change all properties in place, without packet loss.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireguardSpec {
    /// `None` if an existing interface has no key or the kernel does not show it.
    pub key: Option<Secret>,
    /// UDP.
    pub port: u16,
}

impl WireguardSpec {
    /// `self` is desired.
    pub(super) fn fit(&self, found: &WireguardSpec) -> Fit {
        if self == found { Fit::Same } else { Fit::Change }
    }

    pub(super) fn text(&self) -> String {
        let key = self.key.as_ref().map(|key| format!(" public key {}", key.public()));
        format!(" port {}{}", self.port, key.unwrap_or_default())
    }
}
