//! The kernel's WireGuard interfaces.

use crate::fit::Fit;
use crate::wireguard::Secret;

/// The kernel's name for the kind and for its module.
pub const KIND: &str = "wireguard";

/// The properties of a WireGuard interface. flanneld can change all properties in place, without packet loss.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireguardSpec {
    /// The private key, or `None` if an existing interface has no key or the kernel does not show the key.
    pub key: Option<Secret>,
    /// The UDP port on which the interface listens.
    pub port: u16,
}

impl WireguardSpec {
    /// Compares `found` with this desired interface.
    pub(super) fn fit(&self, found: &WireguardSpec) -> Fit {
        if self == found { Fit::Same } else { Fit::Change }
    }
}
