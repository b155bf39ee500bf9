//! The backends: ways to carry packets between nodes, each in a file or folder of its own, and a line in [`BACKENDS`].
//!
//! Knows nothing of stores: a backend announces attributes, the daemon acquires the lease, then the backend joins.

pub mod alloc;
pub mod backend;
pub mod handover;
pub mod host_gw;
mod network;
pub mod status;
pub mod udp;
mod userspace;
pub mod vxlan;

pub use backend::{Accepts, Backend, Error, Network, Refusal, Setup, Takes};
pub use netstate::plan::Announced;
pub use netstate::reconcile::{Inputs, Options};
pub use netstate::underlay::Underlay;
pub use status::Status;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(text: &str) -> Setup {
        Setup {
            config: subnet_lease::NetworkConfig::parse(text).unwrap(),
            node_id: "n".to_owned(),
            route_protocol: 241,
            options: Options::default(),
            former: Default::default(),
            files: Default::default(),
        }
    }

    #[test]
    fn what_networks_take() {
        let takes = |text: &str, kernel| create(&setup(text)).unwrap().takes(kernel);
        let v4 = |backend: &str, kernel| takes(&format!(r#"{{"Network":"10.244.0.0/16","Backend":{backend}}}"#), kernel);
        let dual = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"Type":"vxlan","VNI":7,"Port":4789}}"#;
        let both = takes(dual, true);
        assert_eq!((both.devices, both.ports, both.shares_ports), (vec!["flannel.7".to_owned(), "flannel-v6.7".to_owned()], vec![4789], true));
        assert_eq!(both.tunnels, ["VNI 7 on UDP port 4789 over IPv4", "VNI 7 on UDP port 4789 over IPv6"]);
        for (mode, kernel, shared) in [("auto", true, true), ("auto", false, false), ("kernel", false, true), ("userspace", true, false)] {
            let one = v4(&format!(r#"{{"Type":"vxlan","Mode":"{mode}"}}"#), kernel);
            assert_eq!((one.devices, one.ports), (vec!["flannel.1".to_owned()], vec![8472]), "{mode}");
            assert_eq!((one.shares_ports, one.tunnels.is_empty()), (shared, !shared), "{mode}");
        }
        assert_eq!(v4(r#"{"Type":"udp"}"#, true), Takes { devices: vec!["flannel0".to_owned()], ports: vec![8285], ..Takes::default() });
        assert_eq!(v4(r#"{"Type":"host-gw"}"#, true), Takes::default());
    }

    fn refusal(backend: &str) -> String {
        let setup = setup(&format!(r#"{{"Network":"10.244.0.0/16","Backend":{backend}}}"#));
        create(&setup).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn ports_that_rules_can_guard() {
        for (backend, ports) in [
            (r#"{"Type":"vxlan"}"#, vec![8472]),
            (r#"{"Type":"VXLAN","port":4789}"#, vec![4789]),
            (r#"{"Type":"udp"}"#, vec![8285]),
            (r#"{"Type":"udp","Port":9000}"#, vec![9000]),
            (r#"{"Type":"host-gw","Port":1}"#, vec![]),
        ] {
            let setup = setup(&format!(r#"{{"Network":"10.244.0.0/16","Backend":{backend}}}"#));
            assert_eq!(create(&setup).unwrap().guarded_ports(), ports, "{backend}");
        }
        assert!(refusal(r#"{"Type":"udp","Port":70000}"#).contains("Port is 70000"));
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
