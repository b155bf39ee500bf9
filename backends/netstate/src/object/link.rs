//! Links: what all interfaces have. Each submodule has what only one kind of interface has.

pub mod ipip;
pub mod vxlan;
pub mod wireguard;

use crate::names::{LinkName, Mac};
use crate::report::text::Words;
use ipip::IpipSpec;
use netlink::Message;
use netlink::link::Link;
use netlink::uapi::*;
use std::fmt::Write;
use vxlan::VxlanSpec;
use wireguard::WireguardSpec;

/// The kernel's name for TUN devices (IFLA_INFO_KIND).
const TUN: &str = "tun";

/// Result of the comparison of an existing link with the desired one. Ordered by the effort of the
/// repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    Same,
    /// The property can change in place.
    Change,
    /// The kernel fixes the property when it creates the link.
    Rebuild,
    /// A link of another program has the name of flannel's link.
    Refused,
}

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
    /// A device of flannel-rs or Go flannel. The kernel creates it when a program opens it.
    Tun {
        /// flanneld's packet engine has the device open. Otherwise, packets that enter it are lost.
        held: bool,
    },
    Wireguard(WireguardSpec),
    /// A kind that flannel does not create, as the kernel names it. No desired interface has one.
    Other(String),
}

impl LinkKind {
    /// The kernel's name for the kind (IFLA_INFO_KIND) and for the module that provides it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            LinkKind::Vxlan(_) => vxlan::KIND,
            LinkKind::Ipip(_) => ipip::KIND,
            LinkKind::Tun { .. } => TUN,
            LinkKind::Wireguard(_) => wireguard::KIND,
            LinkKind::Other(kind) => kind,
        }
    }

    /// Packets that enter such a link never leave the host unencrypted.
    pub(crate) fn encrypts(&self) -> bool {
        matches!(self, LinkKind::Wireguard(_))
    }

    /// True for a kind that flannel creates. A link with such a kind and flannel's name belongs to
    /// flannel, so flanneld may rebuild it as another kind.
    pub(crate) fn is_flannels(&self) -> bool {
        !matches!(self, LinkKind::Other(_))
    }

    /// `self` is desired.
    fn fit(&self, found: &LinkKind) -> Fit {
        match (self, found) {
            (want, have) if want == have => Fit::Same,
            (LinkKind::Vxlan(want), LinkKind::Vxlan(have))
                if want.is_same_tunnel(have) && want.gbp == have.gbp =>
            {
                Fit::Change
            }
            // The kernel cannot turn an interface with a remote address into one without (ip_tunnel_changelink).
            (LinkKind::Ipip(want), LinkKind::Ipip(have)) if want.remote == have.remote => {
                Fit::Change
            }
            // flanneld can change all properties in place, without packet loss.
            (LinkKind::Wireguard(_), LinkKind::Wireguard(_)) => Fit::Change,
            (want, have) if want.is_flannels() && have.is_flannels() => Fit::Rebuild,
            _ => Fit::Refused,
        }
    }

    fn decode(link: &Link<'_>) -> Self {
        match link.kind {
            vxlan::KIND => LinkKind::Vxlan(vxlan::decode(link.data)),
            ipip::KIND => LinkKind::Ipip(ipip::decode(link.data)),
            // Key and port are read over generic netlink.
            wireguard::KIND => LinkKind::Wireguard(WireguardSpec::default()),
            TUN => LinkKind::Tun { held: false },
            "" => LinkKind::Other("device".to_owned()),
            other => LinkKind::Other(other.to_owned()),
        }
    }

    /// Completes a request for a new link. `None` for kinds that flanneld does not create with
    /// netlink.
    pub(crate) fn creation(&self, message: Message) -> Option<Message> {
        match self {
            LinkKind::Vxlan(spec) => Some(vxlan::creation(message, spec)),
            LinkKind::Ipip(spec) => Some(ipip::attributes(message, spec)),
            LinkKind::Wireguard(_) => {
                Some(message.nest(IFLA_LINKINFO, |info| info.text(IFLA_INFO_KIND, wireguard::KIND)))
            }
            LinkKind::Tun { .. } | LinkKind::Other(_) => None,
        }
    }

    /// Completes a request to change a link. `None` if all properties are in sync.
    pub(crate) fn change(&self, message: Message, found: &LinkKind) -> Option<Message> {
        match self {
            _ if self == found => None,
            LinkKind::Vxlan(spec) => Some(vxlan::change(message, spec)),
            LinkKind::Ipip(spec) => Some(ipip::attributes(message, spec)),
            _ => None,
        }
    }

    /// The properties, each after a space.
    fn text(&self, words: &Words) -> String {
        match self {
            LinkKind::Vxlan(spec) => spec.text(words),
            LinkKind::Ipip(spec) => spec.text(),
            LinkKind::Tun { held: false } => ", not opened by any flanneld".to_owned(),
            LinkKind::Wireguard(spec) => spec.text(),
            LinkKind::Tun { .. } | LinkKind::Other(_) => String::new(),
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
        let kind = self.kind.fit(&found.kind);
        let change = self.mtu != found.mtu
            || self.up != found.up
            || (self.mac.is_some() && self.mac != found.mac)
            || find_difference(self.accept_ra, found.accept_ra).is_some()
            || find_difference(self.checksum_offload, found.checksum_offload).is_some();
        if kind == Fit::Same && change { Fit::Change } else { kind }
    }

    /// Writes the syntax of `ip -d link`.
    pub(crate) fn text(&self, name: LinkName, words: &Words) -> String {
        let mut out = format!("{name} mtu {} {}", self.mtu, if self.up { "up" } else { "down" });
        if let Some(mac) = self.mac {
            let _ = write!(out, " address {mac}");
        }
        format!("{out} {}{}", self.kind.name(), self.kind.text(words))
    }

    /// As a link that exists instead of the desired one. The text omits properties that flanneld
    /// does not set, and includes differing ones that `ip link` does not show.
    pub(crate) fn text_instead(&self, name: LinkName, wanted: &LinkSpec, words: &Words) -> String {
        let shown = LinkSpec { mac: self.mac.filter(|_| wanted.mac.is_some()), ..self.clone() };
        let mut out = shown.text(name, words);
        if let Some(found) = find_difference(wanted.accept_ra, self.accept_ra) {
            let _ = write!(out, ", accept_ra {}", u8::from(found));
        }
        if let Some(found) = find_difference(wanted.checksum_offload, self.checksum_offload) {
            let _ = write!(out, ", tx-checksumming {}", if found { "on" } else { "off" });
        }
        out
    }
}

/// The found value, if both are known and differ.
fn find_difference(wanted: Option<bool>, found: Option<bool>) -> Option<bool> {
    found.filter(|found| wanted.is_some_and(|wanted| wanted != *found))
}

/// A link of any program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenLink {
    pub index: u32,
    pub name: LinkName,
    pub spec: LinkSpec,
}

impl SeenLink {
    pub(crate) fn decode(link: &Link<'_>) -> Option<Self> {
        let spec = LinkSpec {
            mac: link.mac.map(Mac),
            up: link.has(IFF_UP),
            accept_ra: link.accept_ra(),
            ..LinkSpec::new(LinkKind::decode(link), link.mtu)
        };
        Some(Self { index: link.index, name: LinkName::parse(link.name)?, spec })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn ipip_changes_are_in_place_or_need_a_rebuild() {
        let want = IpipSpec {
            local: Some(Ipv4Addr::new(192, 0, 2, 1)),
            remote: None,
            ttl: 0,
            pmtudisc: false,
        };
        for (found, fit) in [
            (want, Fit::Same),
            (IpipSpec { local: None, ..want }, Fit::Change),
            (IpipSpec { ttl: 64, pmtudisc: true, ..want }, Fit::Change),
            (IpipSpec { remote: Some(Ipv4Addr::new(192, 0, 2, 2)), ..want }, Fit::Rebuild),
        ] {
            assert_eq!(LinkKind::Ipip(want).fit(&LinkKind::Ipip(found)), fit, "{found:?}");
        }
    }

    #[test]
    fn link_in_place_of_a_wanted_one_shows_what_differs() {
        let name = LinkName::parse("flannel0").unwrap();
        let wanted = LinkSpec {
            kind: LinkKind::Tun { held: true },
            mac: None,
            mtu: 1450,
            up: true,
            accept_ra: Some(false),
            checksum_offload: None,
        };
        let found = LinkSpec {
            mac: Some(Mac([2; 6])),
            mtu: 1400,
            up: false,
            accept_ra: Some(true),
            checksum_offload: Some(false),
            ..wanted.clone()
        };
        assert_eq!(
            found.text_instead(name, &wanted, &Words::default()),
            "flannel0 mtu 1400 down tun, accept_ra 1"
        );
    }
}
