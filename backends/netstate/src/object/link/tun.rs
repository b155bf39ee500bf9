//! TUN devices. The kernel creates a TUN device when a program opens the device.

use crate::object::fit::Fit;

/// The kernel's name for TUN devices (IFLA_INFO_KIND).
pub const KIND: &str = "tun";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunSpec {
    /// flanneld's packet engine has the device open. Otherwise, packets that enter it are lost.
    pub held: bool,
}

impl TunSpec {
    /// `self` is desired.
    pub(super) fn fit(&self, found: &TunSpec) -> Fit {
        if self == found { Fit::Same } else { Fit::Rebuild }
    }
}
