//! The kernel's WireGuard interfaces.

use crate::fit::Fit;
use crate::wireguard::Secret;

/// The kernel's name for the kind, and that of its module.
pub const KIND: &str = "wireguard";

/// The properties of a WireGuard interface. All can be changed in place, without loss.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireguardSpec {
    /// Its private key. None in a found one that has none or does not show it.
    pub key: Option<Secret>,
    /// The UDP port on which it listens.
    pub port: u16,
}

impl WireguardSpec {
    /// How `found` compares to this desired interface.
    pub(super) fn fit(&self, found: &WireguardSpec) -> Fit {
        if self == found {
            Fit::Same
        } else {
            Fit::Change
        }
    }
}
