//! The kernel's WireGuard interfaces.

use crate::fit::Fit;
use crate::wireguard::Secret;

/// The kernel's name for the kind and for its module.
pub const KIND: &str = "wireguard";

/// The properties of a WireGuard interface. All of them can be changed in place, without packet loss.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireguardSpec {
    /// The private key. `None` in a found interface that has none or does not show it.
    pub key: Option<Secret>,
    /// The UDP port on which it listens.
    pub port: u16,
}

impl WireguardSpec {
    /// Compares `found` with this desired interface.
    pub(super) fn fit(&self, found: &WireguardSpec) -> Fit {
        if self == found {
            Fit::Same
        } else {
            Fit::Change
        }
    }
}
