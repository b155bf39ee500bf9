//! Properties that all interfaces have. Submodules define the properties of each kind of interface.

pub mod ipip;
pub mod tun;
pub mod vxlan;
pub mod wireguard;

use crate::fit::Fit;
use crate::names::Mac;
use ipip::IpipSpec;
use tun::TunSpec;
use vxlan::VxlanSpec;
use wireguard::WireguardSpec;

/// `None` means "leave unchanged" in a desired interface and "unknown" in an existing one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkSpec {
    /// Contains the properties that only the kind has.
    pub kind: LinkKind,
    /// `None` if the interface has no MAC or flanneld leaves it unchanged.
    pub mac: Option<Mac>,
    /// In bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Whether the kernel accepts router advertisements on the interface.
    pub accept_ra: Option<bool>,
    /// Whether the device computes transmit checksums (ethtool's `tx`).
    pub checksum_offload: Option<bool>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkKind {
    Vxlan(VxlanSpec),
    Ipip(IpipSpec),
    /// A device of flannel-rs or Go flannel.
    Tun(TunSpec),
    Wireguard(WireguardSpec),
    /// A kind that flannel does not create, as the kernel names it. No desired interface has one.
    Other(String),
}

impl LinkKind {
    /// The kernel's name for the kind (IFLA_INFO_KIND).
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            LinkKind::Vxlan(_) => vxlan::KIND,
            LinkKind::Ipip(_) => ipip::KIND,
            LinkKind::Tun(_) => tun::KIND,
            LinkKind::Wireguard(_) => wireguard::KIND,
            LinkKind::Other(kind) => kind,
        }
    }

    /// The kernel module that provides the kind.
    #[must_use]
    pub fn module(&self) -> &str {
        // The module has the same name as the kind.
        self.name()
    }

    /// Packets that enter such a link never leave the host unencrypted.
    pub(crate) fn encrypts(&self) -> bool {
        matches!(self, LinkKind::Wireguard(_))
    }

    /// True for a kind that flannel creates. A link with such a kind and flannel's name belongs to
    /// flannel, so flanneld may rebuild it as another kind.
    fn is_flannels(&self) -> bool {
        !matches!(self, LinkKind::Other(_))
    }

    /// `self` is desired.
    fn fit(&self, found: &LinkKind) -> Fit {
        match (self, found) {
            (LinkKind::Vxlan(want), LinkKind::Vxlan(have)) => want.fit(have),
            (LinkKind::Ipip(want), LinkKind::Ipip(have)) => want.fit(have),
            (LinkKind::Tun(want), LinkKind::Tun(have)) => want.fit(have),
            (LinkKind::Wireguard(want), LinkKind::Wireguard(have)) => want.fit(have),
            (LinkKind::Other(want), LinkKind::Other(have)) if want == have => Fit::Same,
            (want, have) if want.is_flannels() && have.is_flannels() => Fit::Rebuild,
            _ => Fit::Refused,
        }
    }
}

impl LinkSpec {
    /// Administratively up. The other properties stay unchanged.
    #[must_use]
    pub fn new(kind: LinkKind, mtu: u32) -> Self {
        Self { kind, mac: None, mtu, up: true, accept_ra: None, checksum_offload: None }
    }

    /// `self` is desired.
    #[must_use]
    pub fn fit(&self, found: &LinkSpec) -> Fit {
        let differs = |want: Option<bool>, have: Option<bool>| matches!((want, have), (Some(a), Some(b)) if a != b);
        let kind = self.kind.fit(&found.kind);
        let change = self.mtu != found.mtu
            || self.up != found.up
            || (self.mac.is_some() && self.mac != found.mac)
            || differs(self.accept_ra, found.accept_ra)
            || differs(self.checksum_offload, found.checksum_offload);
        if kind == Fit::Same && change { Fit::Change } else { kind }
    }
}
