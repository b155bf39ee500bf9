//! The kernel's vxlan interfaces.

use crate::fit::Fit;
use std::net::IpAddr;

/// The kernel's name for this kind of link (`IFLA_INFO_KIND`).
pub const KIND: &str = "vxlan";
/// The UDP port that the kernel uses by default, unless the module parameter `udp_port` sets another port (drivers/net/vxlan).
pub const PORT: u16 = 8472;

/// The properties of a vxlan interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VxlanSpec {
    /// The VXLAN network identifier (24 bits).
    pub vni: u32,
    /// The UDP port on which the interface receives packets.
    pub port: u16,
    /// The outer source address.
    pub local: Option<IpAddr>,
    /// The index of the underlay interface, which does not change when a program renames the interface.
    pub lower: u32,
    /// Whether the kernel learns FDB entries from traffic.
    pub learning: bool,
    /// Whether the Group Based Policy extension is on.
    pub gbp: bool,
}

impl VxlanSpec {
    /// Compares `found` with this desired interface.
    pub(super) fn fit(&self, found: &VxlanSpec) -> Fit {
        if self.vni != found.vni || self.gbp != found.gbp || self.port != found.port {
            return Fit::Rebuild;
        }
        if self.changeable() == found.changeable() { Fit::Same } else { Fit::Change }
    }

    /// Returns the properties that flanneld can change without a new interface.
    pub(crate) fn changeable(&self) -> (Option<IpAddr>, u32, bool) {
        (self.local, self.lower, self.learning)
    }

    /// Returns whether both interfaces are the same VTEP. The kernel identifies a VTEP by VNI and UDP port.
    pub(crate) fn is_same_tunnel(&self, other: &VxlanSpec) -> bool {
        (self.vni, self.port) == (other.vni, other.port)
    }
}
