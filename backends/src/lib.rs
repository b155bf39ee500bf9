//! How packets get there: kernel state computed from leases, compared with what the kernel has, and applied.
//!
//! Knows nothing of stores: a backend announces attributes, the daemon acquires the lease, then the backend joins.

pub mod alloc;
pub mod backend;
pub mod blackhole;
pub mod cleanup;
pub mod datapath;
mod desired;
pub mod host_gw;
pub mod kernel;
mod peers;
pub mod plan;
pub mod reconcile;
pub mod traffic;
pub mod udp;
pub mod vxlan;

pub use backend::{Accepts, Announced, Backend, Error, Inputs, Network, Refusal, Setup, Status, Underlay};

/// Makes a backend of its configuration.
type Make = fn(&Setup) -> Result<Box<dyn Backend>, Error>;

/// The backends by the name that the configuration gives them.
pub const BACKENDS: [(&str, Make); 4] = [
    (alloc::KIND, |setup| Ok(Box::new(alloc::Alloc::new(setup)))),
    (host_gw::KIND, |setup| Ok(Box::new(host_gw::HostGw::new(setup)))),
    (udp::KIND, |setup| Ok(Box::new(udp::Udp::new(setup)?))),
    (vxlan::KIND, |setup| Ok(Box::new(vxlan::Vxlan::new(setup)?))),
];

/// Backends of Go flannel that are not here yet.
const MISSING: [&str; 5] = ["wireguard", "ipip", "extension", "ipsec", "tencent-vpc"];

/// The backend that the network configuration names.
///
/// # Errors
/// When there is none of that name, or its configuration cannot be used.
pub fn create(setup: &Setup) -> Result<Box<dyn Backend>, Error> {
    let kind = setup.config.backend.as_str();
    if let Some((_, make)) = BACKENDS.iter().find(|(name, _)| *name == kind) {
        return make(setup);
    }
    let built: Vec<&str> = BACKENDS.iter().map(|(name, _)| *name).collect();
    let built = built.join(", ");
    Err(Error::Config(if MISSING.contains(&kind) {
        format!("backend type {kind} is not built yet; there are {built}: set Backend.Type in the network configuration to one of them")
    } else {
        format!("unknown backend type: {kind}; there are {built}: set Backend.Type in the network configuration to one of them")
    }))
}

/// The UDP port on which a network's encapsulated packets travel; none where they are not in UDP, or guard themselves.
pub fn encapsulation_port(config: &subnet_lease::NetworkConfig) -> Option<u16> {
    match config.backend.as_str() {
        vxlan::KIND => vxlan::Config::parse(config.backend_config.as_str(), &config.networks).ok().map(|vxlan| vxlan.port.unwrap_or(vxlan::PORT)),
        udp::KIND => udp::Config::parse(config.backend_config.as_str()).ok().map(|udp| udp.port),
        _ => None,
    }
}

/// What a network takes of a host that no other network can have beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// The names of its devices.
    pub devices: Vec<String>,
    /// VNI and port of the kernel's vxlan interfaces, a family each.
    pub tunnels: Vec<String>,
    /// Its UDP port, and whether others can use it, too: the kernel's vxlan interfaces share one.
    pub port: Option<(u16, bool)>,
}

/// What the network of this configuration takes. `kernel_vxlan` tells whether the kernel knows vxlan, for those that leave the choice to it.
pub fn takes(config: &subnet_lease::NetworkConfig, kernel_vxlan: bool) -> Takes {
    let families = [(false, config.networks.v4().is_some()), (true, config.networks.v6().is_some())];
    match config.backend.as_str() {
        vxlan::KIND => {
            let Ok(vxlan) = vxlan::Config::parse(config.backend_config.as_str(), &config.networks) else { return Takes::default() };
            let used = || families.iter().filter(|(_, used)| *used).map(|(ipv6, _)| *ipv6);
            let port = vxlan.port.unwrap_or(vxlan::PORT);
            let kernel = vxlan.mode == vxlan::Mode::Kernel || vxlan.mode == vxlan::Mode::Auto && kernel_vxlan;
            let tunnel = |ipv6| format!("VNI {} on UDP port {port} over {}", vxlan.vni, if ipv6 { "IPv6" } else { "IPv4" });
            Takes {
                devices: used().map(|ipv6| vxlan.link(ipv6).to_string()).collect(),
                tunnels: used().filter(|_| kernel).map(tunnel).collect(),
                port: Some((port, kernel)),
            }
        }
        udp::KIND => Takes {
            devices: vec![udp::DEVICE.to_owned()],
            tunnels: Vec::new(),
            port: udp::Config::parse(config.backend_config.as_str()).ok().map(|udp| (udp.port, false)),
        },
        _ => Takes::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_networks_take() {
        let takes = |text: &str, kernel| takes(&subnet_lease::NetworkConfig::parse(text).unwrap(), kernel);
        let v4 = |backend: &str, kernel| takes(&format!(r#"{{"Network":"10.244.0.0/16","Backend":{backend}}}"#), kernel);
        let dual = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"Type":"vxlan","VNI":7,"Port":4789}}"#;
        let both = takes(dual, true);
        assert_eq!((both.devices, both.port), (vec!["flannel.7".to_owned(), "flannel-v6.7".to_owned()], Some((4789, true))));
        assert_eq!(both.tunnels, ["VNI 7 on UDP port 4789 over IPv4", "VNI 7 on UDP port 4789 over IPv6"]);
        for (mode, kernel, shared) in [("auto", true, true), ("auto", false, false), ("kernel", false, true), ("userspace", true, false)] {
            let one = v4(&format!(r#"{{"Type":"vxlan","Mode":"{mode}"}}"#), kernel);
            assert_eq!((one.devices, one.port, one.tunnels.is_empty()), (vec!["flannel.1".to_owned()], Some((8472, shared)), !shared), "{mode}");
        }
        assert_eq!(v4(r#"{"Type":"udp"}"#, true), Takes { devices: vec!["flannel0".to_owned()], port: Some((8285, false)), ..Takes::default() });
        assert_eq!(v4(r#"{"Type":"host-gw"}"#, true), Takes::default());
    }

    fn refusal(backend: &str) -> String {
        let config = subnet_lease::NetworkConfig::parse(&format!(r#"{{"Network":"10.244.0.0/16","Backend":{backend}}}"#)).unwrap();
        let setup = Setup {
            config,
            node_id: "n".to_owned(),
            route_protocol: 241,
            audit: None,
            blackhole: false,
            former: Default::default(),
            features: Default::default(),
            files: Default::default(),
        };
        create(&setup).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn encapsulation_ports() {
        for (backend, port) in [
            (r#"{"Type":"vxlan"}"#, Some(8472)),
            (r#"{"Type":"VXLAN","port":4789}"#, Some(4789)),
            (r#"{"Type":"udp"}"#, Some(8285)),
            (r#"{"Type":"udp","Port":9000}"#, Some(9000)),
            (r#"{"Type":"udp","Port":70000}"#, None),
            (r#"{"Type":"host-gw","Port":1}"#, None),
            (r#"{"Type":"wireguard"}"#, None),
        ] {
            let config = subnet_lease::NetworkConfig::parse(&format!(r#"{{"Network":"10.244.0.0/16","Backend":{backend}}}"#)).unwrap();
            assert_eq!(encapsulation_port(&config), port, "{backend}");
        }
    }

    #[test]
    fn types_are_found_or_named() {
        for built in ["vxlan", "host-gw", "alloc", "udp", "VXLAN"] {
            assert_eq!(refusal(&format!(r#"{{"Type":"{built}"}}"#)), "");
        }
        assert!(refusal(r#"{"Type":"aws-vpc"}"#).starts_with("unknown backend type: aws-vpc; there are alloc, host-gw, udp, vxlan"));
        assert!(refusal(r#"{"Type":"wireguard"}"#).contains("wireguard is not built yet"));
        assert!(refusal(r#"{"Type":"vxlan","VNI":"x"}"#).contains("error decoding VXLAN backend config: VNI"));
    }
}
