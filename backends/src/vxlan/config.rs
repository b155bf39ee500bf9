//! The keys of the `Backend` object for vxlan.

use crate::config_keys::{ConfigKeys, Implementation};
use netstate::LinkName;
use packet_engine::Checks;
use types::profile::Overhead;
use types::{Family, Problem, Subnets};

/// In bytes, by family: Ethernet 14, VXLAN 8, UDP 8, IPv4 20 or IPv6 40.
pub(super) const OVERHEAD: Overhead = Overhead { v4: 50, v6: 70 };
/// The device's name continues with the VNI.
pub(super) const DEVICE: &str = "flannel.";
pub(super) const DEVICE_V6: &str = "flannel-v6.";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// 24 bits.
    pub vni: u32,
    /// UDP; `None` selects the kernel's default port, usually 8472.
    pub port: Option<u16>,
    /// In bytes; assumed for the underlay.
    pub mtu: Option<u32>,
    /// The Group Based Policy extension.
    pub gbp: bool,
    /// The kernel learns FDB entries from traffic.
    pub learning: bool,
    /// Packets to peers on the same link bypass the tunnel.
    pub(crate) direct_routing: bool,
    /// Offload of sent packets; `None` leaves it unchanged at the device.
    pub checksum_offload: Option<bool>,
    pub mode: Implementation,
    /// The checks of packets that the packet engine receives.
    pub checks: Checks,
    names: (LinkName, LinkName),
}

impl Config {
    pub fn parse(text: &str, networks: &Subnets) -> Result<Self, Problem> {
        let keys = ConfigKeys::parse(text, "VXLAN")?;
        let switch = |key: &str| keys.read::<bool>(key).map(Option::unwrap_or_default);
        let vni = keys.number("VNI", 0..=0x00ff_ffff_u32)?.unwrap_or(1);
        let port = keys.number("Port", 0..=u16::MAX)?;
        let mtu = keys.mtu(networks, OVERHEAD)?;
        let choices = [("auto", None), ("on", Some(true)), ("off", Some(false))];
        let checksum_offload = keys.choice("ChecksumOffload", &choices)?;
        let choices = [
            ("kernel", Implementation::Kernel),
            ("userspace", Implementation::Userspace),
            ("auto", Implementation::Auto),
        ];
        let mode = keys.choice("Mode", &choices)?;
        let name = |text: String, used: bool| {
            match LinkName::parse(&text) {
            Some(name) => Ok(name),
            None if !used => Ok(LinkName::default()),
            None => Err(keys.error(format!(
                "VNI is {vni}: the interface name {text} exceeds the kernel's limit of 15 characters; use a smaller VNI"
            ))),
        }
        };
        let v4 = name(format!("{DEVICE}{vni}"), networks.v4().is_some())?;
        let v6 = name(format!("{DEVICE_V6}{vni}"), networks.v6().is_some())?;
        Ok(Self {
            vni,
            port: port.filter(|port| *port != 0),
            mtu,
            gbp: switch("GBP")?,
            learning: switch("Learning")?,
            direct_routing: switch("DirectRouting")?,
            checksum_offload,
            mode,
            checks: keys.checks()?,
            names: (v4, v6),
        })
    }

    pub fn link(&self, family: Family) -> LinkName {
        family.pick(self.names.0, self.names.1)
    }

    /// In bytes. The kernel refuses an MTU above the underlay's.
    pub(crate) fn device_mtu(&self, underlay: u32, family: Family) -> u32 {
        self.mtu.unwrap_or(underlay).min(underlay).saturating_sub(OVERHEAD.over(family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (config.vni, config.port, config.mtu, config.checksum_offload),
            (1, None, None, None)
        );
        assert_eq!(
            (config.link(Family::V4).as_str(), config.link(Family::V6).as_str()),
            ("flannel.1", "flannel-v6.1")
        );
        assert!(!config.gbp && !config.learning && !config.direct_routing);
        let text = r#"{"type":"vxlan","vni":7,"PORT":4789,"mtu":1400,"gbp":true,"Learning":true,"directrouting":true,"ChecksumOffload":"OFF","Other":{}}"#;
        let config = parse(text).unwrap();
        assert_eq!(
            (config.vni, config.port, config.mtu, config.checksum_offload),
            (7, Some(4789), Some(1400), Some(false))
        );
        assert!(config.gbp && config.learning && config.direct_routing);
        assert_eq!(
            (
                config.device_mtu(1500, Family::V4),
                config.device_mtu(1500, Family::V6),
                config.device_mtu(1300, Family::V4)
            ),
            (1350, 1330, 1250)
        );
    }

    #[test]
    fn config_errors_name_the_key() {
        for (text, part) in [
            (r#"{"VNI":-1}"#, "VNI is -1"),
            (r#"{"VNI":16777216}"#, "VNI is 16777216"),
            (r#"{"VNI":10000}"#, "flannel-v6.10000"),
            (r#"{"VNI":"1"}"#, "VNI"),
            (r#"{"Port":65536}"#, "Port is 65536"),
            (r#"{"MTU":1000}"#, "MTU is 1000"),
            (r#"{"GBP":1}"#, "GBP"),
            (r#"{"ChecksumOffload":"maybe"}"#, "ChecksumOffload"),
            (r#"{"Mode":"fast"}"#, "Mode is"),
            (r#"{"Checks":"fast"}"#, "Checks is"),
            ("[]", "a JSON object"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(
                error.starts_with("error decoding VXLAN backend config: ") && error.contains(part),
                "{text}: {error}"
            );
        }
    }
}
