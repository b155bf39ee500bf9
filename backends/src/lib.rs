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

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(backend: &str) -> String {
        let config = subnet_lease::NetworkConfig::parse(&format!(r#"{{"Network":"10.244.0.0/16","Backend":{backend}}}"#)).unwrap();
        let setup = Setup { config, node_id: "n".to_owned(), route_protocol: 241, audit: None, blackhole: false, files: Default::default() };
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
