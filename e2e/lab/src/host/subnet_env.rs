//! A parser of `subnet.env`, the file that the CNI plugin reads.

use std::path::Path;

use anyhow::{Context, Result};
use ipnet::{Ipv4Net, Ipv6Net};

/// What a daemon writes for the host's pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// `FLANNEL_NETWORK`: contains the subnets of all nodes.
    pub network: Option<Ipv4Net>,
    /// `FLANNEL_SUBNET`: the gateway's address with the subnet's prefix length.
    pub subnet: Option<Ipv4Net>,
    /// `FLANNEL_IPV6_NETWORK`: contains the subnets of all nodes.
    pub v6_network: Option<Ipv6Net>,
    /// `FLANNEL_IPV6_SUBNET`: the gateway's address with the subnet's prefix length.
    pub v6_subnet: Option<Ipv6Net>,
    /// `FLANNEL_MTU`: for pods, in bytes.
    pub mtu: u32,
    /// `FLANNEL_IPMASQ`: the daemon masquerades.
    pub ip_masq: bool,
}

impl SubnetEnv {
    pub fn read(path: &Path) -> Result<SubnetEnv> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        SubnetEnv::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    pub fn parse(text: &str) -> Result<SubnetEnv> {
        let mut env = SubnetEnv::default();
        for line in text.lines() {
            let (key, value) =
                line.split_once('=').with_context(|| format!("no `=` in {line:?}"))?;
            let wrong = || format!("{line:?}");
            match key {
                "FLANNEL_NETWORK" => env.network = Some(value.parse().with_context(wrong)?),
                "FLANNEL_SUBNET" => env.subnet = Some(value.parse().with_context(wrong)?),
                "FLANNEL_IPV6_NETWORK" => env.v6_network = Some(value.parse().with_context(wrong)?),
                "FLANNEL_IPV6_SUBNET" => env.v6_subnet = Some(value.parse().with_context(wrong)?),
                "FLANNEL_MTU" => env.mtu = value.parse().with_context(wrong)?,
                "FLANNEL_IPMASQ" => env.ip_masq = value.parse().with_context(wrong)?,
                _ => {}
            }
        }
        Ok(env)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUAL: &str = "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.7.1/24\nFLANNEL_IPV6_NETWORK=2001:cafe:42::/56\n\
        FLANNEL_IPV6_SUBNET=2001:cafe:42:7::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

    #[test]
    fn dual_stack_file_is_parsed_completely() {
        let env = SubnetEnv::parse(DUAL).unwrap();
        assert_eq!(env.subnet.unwrap().to_string(), "10.42.7.1/24");
        assert_eq!(env.v6_subnet.unwrap().to_string(), "2001:cafe:42:7::1/64");
        assert_eq!((env.mtu, env.ip_masq), (1450, true));
    }

    #[test]
    fn a_half_written_line_is_an_error() {
        assert!(SubnetEnv::parse("FLANNEL_SUBNET=10.42.").is_err());
        assert!(SubnetEnv::parse("FLANNEL_SUB").is_err());
    }
}
