//! TUN devices, which are made by whoever opens them.

use crate::fit::Fit;

/// The kernel's name for the kind.
pub const KIND: &str = "tun";

/// What belongs to a TUN device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunSpec {
    /// Whether our packet engine is behind it; without it nothing that enters it goes anywhere.
    pub held: bool,
}

impl TunSpec {
    /// How `found` relates to this wanted device.
    pub(super) fn fit(&self, found: &TunSpec) -> Fit {
        if self == found { Fit::Same } else { Fit::Rebuild }
    }
}
