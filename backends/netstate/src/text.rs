//! Formats kernel objects as `ip` and `bridge` print them.

use crate::link::{LinkKind, LinkSpec};
use crate::names::{LinkName, Mac};
use crate::object::{Key, Value};
use crate::route::{RouteKind, RouteSpec};
use crate::wireguard::{PublicKey, WireguardPeer};
use ipnet::IpNet;
use std::fmt::Write;
use std::net::IpAddr;

/// RT_SCOPE_*, as far as routes of the main table can have them.
const SCOPES: [(u8, &str); 3] = [(200, "site"), (253, "link"), (254, "host")];
/// RTN_*, as far as routes of the main table can have them.
const TYPES: [(u8, &str); 9] = [
    (2, "local"),
    (3, "broadcast"),
    (4, "anycast"),
    (5, "multicast"),
    (6, "blackhole"),
    (7, "unreachable"),
    (8, "prohibit"),
    (9, "throw"),
    (10, "nat"),
];

/// What an object contains only as numbers: route protocols, and the underlay interfaces of vxlan
/// links.
pub struct Words<'a> {
    pub protocol: &'a dyn Fn(u8) -> String,
    /// The name of the interface with an index.
    pub interface: &'a dyn Fn(u32) -> Option<String>,
}

impl Words<'_> {
    /// As `ip`, `bridge` or `wg` prints it.
    #[must_use]
    pub fn object(&self, key: &Key, value: &Value) -> String {
        match (key, value) {
            (Key::Link(name), Value::Link(spec)) => self.link(*name, spec),
            (Key::Address(name, net), _) => format!("{net} dev {name}"),
            (Key::Fdb(name, mac), Value::Fdb(ip)) => fdb(*name, *mac, *ip, "permanent"),
            (Key::Neighbor(name, ip), Value::Neighbor(mac)) => {
                neighbour(*name, *ip, *mac, "PERMANENT")
            }
            (Key::WireguardPeer(name, key), Value::WireguardPeer(peer)) => {
                wireguard_peer(*name, key, peer)
            }
            (Key::AllowedIp(name, net), Value::AllowedIp(key)) => {
                format!("{name} peer {key} allowed-ips {net}")
            }
            (Key::Route(net, metric), Value::Route(route)) => self.route(net, *metric, route),
            _ => key.to_string(),
        }
    }

    /// As `ip route` prints it.
    #[must_use]
    pub fn route(&self, net: &IpNet, metric: u32, route: &RouteSpec) -> String {
        let mut out = String::new();
        let kind = match route.kind {
            RouteKind::Unicast => None,
            RouteKind::Blackhole => Some(6),
            RouteKind::Unreachable => Some(7),
            RouteKind::Other(kind) => Some(kind),
        };
        if let Some(kind) = kind {
            let name = TYPES
                .iter()
                .find(|(number, _)| *number == kind)
                .map_or_else(|| kind.to_string(), |(_, name)| (*name).to_owned());
            let _ = write!(out, "{name} ");
        }
        let _ = write!(out, "{net}");
        if let Some(via) = route.via {
            let _ = write!(out, " via {via}");
        }
        if route.dev != LinkName::default() {
            let _ = write!(out, " dev {}", route.dev);
        }
        let _ = write!(out, " proto {}", (self.protocol)(route.protocol));
        if let Some((_, scope)) = SCOPES.iter().find(|(number, _)| *number == route.scope) {
            let _ = write!(out, " scope {scope}");
        }
        if metric != 0 {
            let _ = write!(out, " metric {metric}");
        }
        if route.onlink {
            out.push_str(" onlink");
        }
        out
    }

    /// Writes the syntax of `ip -d link`.
    #[must_use]
    pub fn link(&self, name: LinkName, spec: &LinkSpec) -> String {
        let mut out = format!("{name} mtu {} {}", spec.mtu, if spec.up { "up" } else { "down" });
        if let Some(mac) = spec.mac {
            let _ = write!(out, " address {mac}");
        }
        let _ = write!(out, " {}", spec.kind.name());
        match &spec.kind {
            LinkKind::Vxlan(vxlan) => {
                let _ = write!(out, " id {}", vxlan.vni);
                if let Some(local) = vxlan.local {
                    let _ = write!(out, " local {local}");
                }
                if vxlan.lower != 0 {
                    let lower = (self.interface)(vxlan.lower)
                        .unwrap_or_else(|| format!("if{}", vxlan.lower));
                    let _ = write!(out, " dev {lower}");
                }
                let learning = if vxlan.learning { "learning" } else { "nolearning" };
                let _ = write!(
                    out,
                    " dstport {} {learning}{}",
                    vxlan.port,
                    if vxlan.gbp { " gbp" } else { "" }
                );
            }
            LinkKind::Ipip(ipip) => {
                let end = |ip: Option<std::net::Ipv4Addr>| {
                    ip.map_or("any".to_owned(), |ip| ip.to_string())
                };
                let _ = write!(out, " remote {} local {}", end(ipip.remote), end(ipip.local));
            }
            LinkKind::Tun(tun) if !tun.held => out.push_str(", not opened by any flanneld"),
            LinkKind::Wireguard(wireguard) => {
                let _ = write!(out, " port {}", wireguard.port);
                if let Some(key) = &wireguard.key {
                    let _ = write!(out, " public key {}", key.public());
                }
            }
            LinkKind::Tun(_) | LinkKind::Other(_) => {}
        }
        out
    }

    /// A link that exists instead of a desired one. The text omits properties that flanneld does
    /// not set, and includes differing ones that `ip link` does not show.
    pub(crate) fn link_instead(
        &self,
        name: LinkName,
        wanted: &LinkSpec,
        found: &LinkSpec,
    ) -> String {
        let mut shown = found.clone();
        shown.mac = found.mac.filter(|_| wanted.mac.is_some());
        let mut out = self.link(name, &shown);
        if let (Some(wanted), Some(found)) = (wanted.accept_ra, found.accept_ra)
            && wanted != found
        {
            let _ = write!(out, ", accept_ra {}", u8::from(found));
        }
        if let (Some(wanted), Some(found)) = (wanted.checksum_offload, found.checksum_offload)
            && wanted != found
        {
            let _ = write!(out, ", tx-checksumming {}", if found { "on" } else { "off" });
        }
        out
    }
}

/// As `ip neighbour` prints it.
#[must_use]
pub fn neighbour(name: LinkName, ip: IpAddr, mac: Mac, state: &str) -> String {
    format!("{ip} dev {name} lladdr {mac} {state}").trim_end().to_owned()
}

/// Writes the syntax of `wg set`.
fn wireguard_peer(name: LinkName, key: &PublicKey, peer: &WireguardPeer) -> String {
    let mut out = format!("{name} peer {key}");
    if peer.preshared.is_some() {
        out.push_str(" preshared-key (hidden)");
    }
    if let Some(endpoint) = peer.endpoint {
        let _ = write!(out, " endpoint {endpoint}");
    }
    if peer.keepalive != 0 {
        let _ = write!(out, " persistent-keepalive {}", peer.keepalive);
    }
    out
}

/// As `bridge fdb` prints it.
#[must_use]
pub fn fdb(name: LinkName, mac: Mac, ip: IpAddr, state: &str) -> String {
    format!("{mac} dev {name} dst {ip} self {state}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::tun::TunSpec;
    use crate::protocols::Protocols;

    #[test]
    fn link_in_place_of_a_wanted_one_shows_what_differs() {
        let (protocols, name) = (Protocols::default(), LinkName::parse("flannel0").unwrap());
        let words = Words { protocol: &|number| protocols.name(number), interface: &|_| None };
        let wanted = LinkSpec {
            kind: LinkKind::Tun(TunSpec { held: true }),
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
            words.link_instead(name, &wanted, &found),
            "flannel0 mtu 1400 down tun, accept_ra 1"
        );
    }
}
