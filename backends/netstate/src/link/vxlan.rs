//! The kernel's vxlan interfaces.

use crate::fit::Fit;
use std::net::IpAddr;

/// The kernel's name for this kind of link (`IFLA_INFO_KIND`).
pub const KIND: &str = "vxlan";
/// The UDP port that the kernel uses by default, unless the module parameter `udp_port` sets another port (drivers/net/vxlan).
pub const PORT: u16 = 8472;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VxlanSpec {
    /// 24 bits.
    pub vni: u32,
    /// The UDP port on which the interface receives packets.
    pub port: u16,
    /// The outer source address.
    pub local: Option<IpAddr>,
    /// The index of the underlay interface, which survives a renaming.
    pub lower: u32,
    /// The kernel learns FDB entries from traffic.
    pub learning: bool,
    /// The Group Based Policy extension.
    pub gbp: bool,
}

impl VxlanSpec {
    /// `self` is desired.
    pub(super) fn fit(&self, found: &VxlanSpec) -> Fit {
        if self.vni != found.vni || self.gbp != found.gbp || self.port != found.port {
            return Fit::Rebuild;
        }
        if self.changeable() == found.changeable() { Fit::Same } else { Fit::Change }
    }

    /// What flanneld can change without a new interface.
    pub(crate) fn changeable(&self) -> (Option<IpAddr>, u32, bool) {
        (self.local, self.lower, self.learning)
    }

    /// The kernel identifies a VTEP by VNI and UDP port.
    pub(crate) fn is_same_tunnel(&self, other: &VxlanSpec) -> bool {
        (self.vni, self.port) == (other.vni, other.port)
    }
}
