//! TUN devices. The kernel creates a TUN device when a program opens the device.

use crate::fit::Fit;

/// The kernel's name for TUN devices (IFLA_INFO_KIND).
pub const KIND: &str = "tun";

/// The properties of a TUN device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunSpec {
    /// Whether flanneld's packet engine has the device open. If no packet engine has the device open, packets that enter the device are lost.
    pub held: bool,
}

impl TunSpec {
    /// Compares `found` with the desired device `self`.
    pub(super) fn fit(&self, found: &TunSpec) -> Fit {
        if self == found { Fit::Same } else { Fit::Rebuild }
    }
}
