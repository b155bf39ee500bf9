//! The keys of the `Backend` object for wireguard.

use crate::config_keys::{ConfigKeys, Implementation, one_of};
use crate::error::invalid_config;
use netstate::{LinkName, Secret};
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use subnet_lease::LeaseAttrs;
use types::profile::Overhead;
use types::{Addresses, Dual, Family, Problem, Subnets};

/// The device for both families, or for IPv4 if each family has one.
pub(super) const DEVICE: &str = "flannel-wg";
const LINK: LinkName = LinkName::constant(DEVICE);
pub(super) const DEVICE_V6: &str = "flannel-wg-v6";
const LINK_V6: LinkName = LinkName::constant(DEVICE_V6);
pub(super) const PORT: u16 = 51820;
pub(super) const PORT_V6: u16 = 51821;
/// In bytes: IPv6 40, UDP 8, WireGuard's header 16 and tag 16. Go flannel also reserves 40 bytes
/// for an outer IPv4 header, which has only 20.
pub(super) const OVERHEAD: Overhead = Overhead::of_both(80);

/// The family of the outer packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// That of the inner packet; each family has its own device.
    Separate,
    /// Chosen for each peer by its addresses and this node's.
    Auto,
    Ipv4,
    Ipv6,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// UDP; of the only device, or of the IPv4 device.
    port: u16,
    /// UDP; of the IPv6 device.
    port_v6: u16,
    /// In bytes; assumed for the underlay.
    mtu: Option<u32>,
    /// The same on all nodes.
    pub preshared: Option<Secret>,
    pub(crate) preshared_file: Option<PathBuf>,
    /// In seconds; zero disables persistent keepalives.
    pub keepalive: u16,
    pub mode: Mode,
    pub implementation: Implementation,
}

impl Mode {
    /// The only family of all outer packets, of which every node needs a public address; `None` if
    /// there may be several.
    pub(super) fn required_family(self) -> Option<Family> {
        match self {
            Mode::Separate | Mode::Auto => None,
            Mode::Ipv4 => Some(Family::V4),
            Mode::Ipv6 => Some(Family::V6),
        }
    }
}

impl Config {
    pub fn parse(text: &str, networks: &Subnets) -> Result<Self, Problem> {
        let keys = ConfigKeys::parse(text, "WireGuard")?;
        let mode = mode(&keys, networks)?;
        let of = |key, least: u16, default: u16| {
            keys.number(key, least..=u16::MAX).map(|number| number.unwrap_or(default))
        };
        let (port, port_v6) = (of("ListenPort", 1, PORT)?, of("ListenPortV6", 1, PORT_V6)?);
        if mode == Mode::Separate
            && networks.v4().is_some()
            && networks.v6().is_some()
            && port == port_v6
        {
            return Err(keys.error(format!(
                "ListenPort and ListenPortV6 are both {port}; give each device its own port"
            )));
        }
        let mtu = keys.mtu(networks, OVERHEAD)?;
        let preshared = preshared(&keys)?;
        let choices = [
            ("auto", Implementation::Auto),
            ("kernel", Implementation::Kernel),
            ("userspace", Implementation::Userspace),
        ];
        let implementation = keys.choice("Implementation", &choices)?;
        Ok(Self {
            port,
            port_v6,
            mtu,
            preshared,
            preshared_file: Some(keys.word("PSKFile")?)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            keepalive: of("PersistentKeepaliveInterval", 0, 0)?,
            mode,
            implementation,
        })
    }

    /// The family's packets go through the IPv6 device.
    fn second(&self, family: Family) -> bool {
        family.is_v6() && self.mode == Mode::Separate
    }

    /// The device that carries a family's packets.
    pub fn device(&self, family: Family) -> LinkName {
        if self.second(family) { LINK_V6 } else { LINK }
    }

    /// One family for each device that carries packets of these subnets.
    pub fn device_families(&self, subnets: &Subnets) -> impl Iterator<Item = Family> {
        subnets.families().take(if self.mode == Mode::Separate { 2 } else { 1 })
    }

    /// The devices of all configurations, even if this one does not use them.
    pub fn devices() -> Vec<LinkName> {
        vec![LINK, LINK_V6]
    }

    pub fn port(&self, family: Family) -> u16 {
        if self.second(family) { self.port_v6 } else { self.port }
    }

    /// In bytes.
    pub(crate) fn device_mtu(&self, underlay: u32) -> u32 {
        self.mtu.unwrap_or(underlay).min(underlay).saturating_sub(OVERHEAD.v6)
    }

    /// `None` if each inner family has its own device.
    pub(crate) fn outer_family(&self) -> Option<Family> {
        if self.mode == Mode::Auto { Some(Family::V4) } else { self.mode.required_family() }
    }

    /// The public address of a peer for the encrypted packets of an inner family.
    pub fn outer(&self, peer: &LeaseAttrs, family: Family, own: Addresses) -> Option<IpAddr> {
        match self.mode {
            Mode::Auto => peer.public_for(best(peer.public(), own)),
            _ => peer.public_for(self.mode.required_family().unwrap_or(family)),
        }
    }
}

/// Checks that the network has the address family that the mode needs.
fn mode(keys: &ConfigKeys<'_>, networks: &Subnets) -> Result<Mode, Problem> {
    let mode = match keys.word("Mode")?.as_str() {
        "" | "separate" => Mode::Separate,
        "auto" => Mode::Auto,
        "ipv4" => Mode::Ipv4,
        "ipv6" => Mode::Ipv6,
        other => {
            let modes = one_of(&["separate", "auto", "ipv4", "ipv6"]);
            let text = format!("no valid Mode configured: Mode is {other:?}: it must be {modes}");
            return Err(invalid_config(text));
        }
    };
    match mode.required_family().filter(|family| !networks.has(*family)) {
        Some(family) => Err(keys.error(format!(
            "Mode needs {family}, and the network is {networks}; enable the family, or leave out Mode"
        ))),
        None => Ok(mode),
    }
}

/// Errors do not quote the value, because it may be a secret.
fn preshared(keys: &ConfigKeys<'_>) -> Result<Option<Secret>, Problem> {
    let error = || {
        invalid_config(
            "could not parse psk: PSK must be 32 bytes in base64, as `wg genpsk` prints them",
        )
    };
    let text = keys.secret("PSK").ok_or_else(error)?;
    match text.as_str() {
        "" => Ok(None),
        text => Secret::parse(text).map(Some).ok_or_else(error),
    }
}

/// The family of the peer's address to which Go flannel sends. It prefers the peer's public IPv4
/// address if this node has an IPv4 address. Otherwise, it prefers the peer's public IPv6 address
/// if this node also has one. All other dual-stack peers get IPv4.
fn best(peer: Option<Addresses>, own: Addresses) -> Family {
    let is_local = |ip: &Ipv6Addr| ip.segments()[0] & 0xfe00 == 0xfc00;
    match peer {
        None | Some(Dual::V4(_)) => Family::V4,
        Some(Dual::V6(_)) => Family::V6,
        Some(Dual::Both(v4, _)) if !v4.is_private() && own.v4().is_some() => Family::V4,
        Some(Dual::Both(_, v6)) if !is_local(&v6) && own.v6().is_some_and(|own| !is_local(own)) => {
            Family::V6
        }
        Some(Dual::Both(..)) => Family::V4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn parse(text: &str) -> Result<Config, Problem> {
        Config::parse(
            text,
            &Subnets::Both("10.0.0.0/16".parse().unwrap(), "fd00::/48".parse().unwrap()),
        )
    }

    #[test]
    fn defaults_and_keys_in_any_case() {
        let config = parse("{}").unwrap();
        assert_eq!(
            (config.port(Family::V4), config.port(Family::V6), config.keepalive, config.mode),
            (51820, 51821, 0, Mode::Separate)
        );
        assert_eq!(
            (config.device(Family::V4).as_str(), config.device(Family::V6).as_str()),
            ("flannel-wg", "flannel-wg-v6")
        );
        assert_eq!(
            (config.device_mtu(1500), config.implementation, config.preshared),
            (1420, Implementation::Auto, None)
        );
        let text = r#"{"listenport":7,"ListenPortV6":8,"MTU":1400,"PSK":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","PersistentKeepaliveInterval":25,"Mode":"auto","Implementation":"Userspace","PSKFile":"/etc/psk"}"#;
        let config = parse(text).unwrap();
        assert_eq!(
            (
                config.port(Family::V4),
                config.port(Family::V6),
                config.keepalive,
                config.device_mtu(1500)
            ),
            (7, 7, 25, 1320)
        );
        assert_eq!(
            (config.device(Family::V6).as_str(), config.implementation),
            ("flannel-wg", Implementation::Userspace)
        );
        assert_eq!(config.preshared.clone().unwrap().bytes()[31], 31);
        assert!(!format!("{config:?}").contains("AAECAw"));
    }

    #[test]
    fn config_errors_name_the_key() {
        for (text, part) in [
            (r#"{"ListenPort":0}"#, "ListenPort is 0"),
            (r#"{"ListenPort":65536}"#, "ListenPort is 65536"),
            (r#"{"ListenPortV6":51820}"#, "both 51820"),
            (r#"{"PersistentKeepaliveInterval":-1}"#, "PersistentKeepaliveInterval is -1"),
            (r#"{"MTU":1000}"#, "MTU is 1000"),
            (r#"{"PSK":"short"}"#, "could not parse psk"),
            (r#"{"PSK":["secret"]}"#, "could not parse psk: PSK must be"),
            (r#"{"Mode":"Auto"}"#, "no valid Mode configured"),
            (r#"{"Implementation":"go"}"#, "Implementation is"),
            ("[]", "a JSON object"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let v6 = Subnets::V6("fd00::/48".parse().unwrap());
        assert!(
            Config::parse(r#"{"Mode":"ipv4"}"#, &v6)
                .unwrap_err()
                .to_string()
                .contains("Mode needs IPv4")
        );
        assert!(Config::parse(r#"{"ListenPortV6":51820}"#, &v6).is_ok());
    }

    #[test]
    fn addresses_are_chosen_as_by_go_flannel() {
        let v4 = |text: &str| text.parse::<Ipv4Addr>().ok();
        let v6 = |text: &str| text.parse::<Ipv6Addr>().ok();
        let (inner, local) = ((v4("10.0.0.1"), v6("fd00::1")), (v4("10.0.0.2"), v6("fd00::2")));
        let global = (v4("192.0.2.1"), v6("2001:db8::1"));
        for (peer, own, family) in [
            (inner, local, Family::V4),
            (global, local, Family::V4),
            (global, global, Family::V4),
            ((v4("10.0.0.1"), v6("2001:db8::1")), global, Family::V6),
            ((v4("10.0.0.1"), v6("2001:db8::1")), local, Family::V4),
            ((None, v6("fd00::1")), local, Family::V6),
            ((v4("10.0.0.1"), None), global, Family::V4),
        ] {
            let dual = |(v4, v6): (Option<Ipv4Addr>, Option<Ipv6Addr>)| Dual::from_options(v4, v6);
            assert_eq!(best(dual(peer), dual(own).unwrap()), family, "{peer:?} {own:?}");
        }
    }
}
