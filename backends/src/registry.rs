//! The backends by name.

use crate::backend::{Backend, Setup};
use crate::error::config_problem;
use crate::{alloc, host_gw, ipip, udp, vxlan, wireguard};
use ipnet::IpNet;
use netstate::{Kernel, KernelState, NetlinkKernel};
use std::collections::BTreeMap;
use std::sync::Arc;
use subnet_lease::{LeaseAttrs, NetworkConfig, PeerRules};
use types::{Coded, Family, Problem, Profile, Subnets};

type Identity = fn(&LeaseAttrs, Family) -> Option<String>;

struct Kind {
    profile: &'static Profile,
    make: fn(&Setup) -> Result<Box<dyn Backend>, Problem>,
    /// The MAC or key that must be unique among leases, because an FDB entry or a WireGuard peer
    /// leads to only one node.
    identity: Option<Identity>,
}

/// If a host has devices of several backends, those of the first one in this list count as the
/// running backend's.
static BACKENDS: &[Kind] = &[
    Kind {
        profile: &vxlan::PROFILE,
        make: |setup| Ok(Box::new(vxlan::Vxlan::new(setup)?)),
        identity: Some(vxlan::identity),
    },
    Kind {
        profile: &udp::PROFILE,
        make: |setup| Ok(Box::new(udp::Udp::new(setup)?)),
        identity: None,
    },
    Kind {
        profile: &ipip::PROFILE,
        make: |setup| Ok(Box::new(ipip::Ipip::new(setup)?)),
        identity: None,
    },
    Kind {
        profile: &wireguard::PROFILE,
        make: |setup| Ok(Box::new(wireguard::Wireguard::new(setup)?)),
        identity: Some(wireguard::identity),
    },
    Kind {
        profile: &host_gw::PROFILE,
        make: |setup| Ok(Box::new(host_gw::HostGw { setup: setup.clone() })),
        identity: None,
    },
    Kind {
        profile: &alloc::PROFILE,
        make: |setup| Ok(Box::new(alloc::Alloc { setup: setup.clone() })),
        identity: None,
    },
];

/// Backends of Go flannel that flannel-rs does not support yet.
const MISSING: [&str; 3] = ["extension", "ipsec", "tencent-vpc"];

pub fn profiles() -> Vec<&'static Profile> {
    BACKENDS.iter().map(|kind| kind.profile).collect()
}

pub fn profile(name: &str) -> Option<&'static Profile> {
    kind(name).map(|kind| kind.profile)
}

/// Sorted; of Go flannel and of flannel-rs. Includes backends that flannel-rs does not support yet,
/// because a later version may.
///
/// ```
/// use backends::{backend_names, profile};
///
/// let vxlan = profile("vxlan").unwrap();
/// assert_eq!((vxlan.overhead.v4, vxlan.encrypts), (50, false));
/// assert_eq!(vxlan.devices[0].named(Some(1)).as_deref(), Some("flannel.1"));
///
/// assert!(backend_names().contains(&"vxlan") && backend_names().contains(&"ipsec"));
/// assert!(profile("ipsec").is_none(), "flannel-rs does not support it yet");
/// ```
pub fn backend_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = built_backends().into_iter().chain(MISSING).collect();
    names.sort_unstable();
    names
}

fn built_backends() -> Vec<&'static str> {
    let mut names: Vec<&str> = BACKENDS.iter().map(|kind| kind.profile.name).collect();
    names.sort_unstable();
    names
}

fn kind(name: &str) -> Option<&'static Kind> {
    BACKENDS.iter().find(|kind| kind.profile.name == name)
}

/// Fails if no such backend exists, or if its configuration is invalid.
///
/// ```
/// use backends::{Setup, create_backend};
/// use subnet_lease::NetworkConfig;
///
/// let create = |backend: &str| {
///     let text = format!(r#"{{"Network": "10.244.0.0/16", "Backend": {backend}}}"#);
///     create_backend(&Setup::of(NetworkConfig::parse(&text).unwrap()))
/// };
/// let vxlan = create(r#"{"Type": "vxlan", "Port": 4789}"#)?;
/// assert_eq!(vxlan.encapsulation().port(), Some(4789));
/// let error = create(r#"{"Type": "vxlam"}"#).err().unwrap();
/// assert!(error.to_string().starts_with("unknown backend type: vxlam;"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn create_backend(setup: &Setup) -> Result<Box<dyn Backend>, Problem> {
    let name = setup.config.backend.as_str();
    if let Some(kind) = kind(name) {
        return (kind.make)(setup);
    }
    let unknown = match MISSING.contains(&name) {
        true => format!("backend type {name} is not supported yet"),
        false => format!("unknown backend type: {name}"),
    };
    let known = built_backends().join(", ");
    let text =
        format!("{unknown}; set Backend.Type in the network configuration to one of {known}");
    Err(config_problem("backend-unknown", text))
}

/// The MAC or key that identifies the node of a lease; `None` if the backend's leases contain none.
pub fn identity_of(attrs: &LeaseAttrs, family: Family) -> Option<String> {
    kind(&attrs.backend)?.identity?(attrs, family)
}

/// The MAC or public key that each peer's subnet has in the kernel, from an earlier run. Empty if the
/// kernel does not encapsulate, or if it cannot be read: an older lease then counts more.
pub async fn identities_in_kernel(backend: &dyn Backend, own: Subnets) -> BTreeMap<IpNet, String> {
    let has_identity = kind(backend.profile().name).is_some_and(|kind| kind.identity.is_some());
    let plan = match backend.plan(own) {
        Ok(plan) if has_identity && !backend.hands_over() => plan,
        _ => return BTreeMap::new(),
    };
    let read = async { NetlinkKernel::open()?.read(plan.scope(), &KernelState::default()).await };
    match read.await {
        Ok(found) => found.ours.identities(),
        Err(error) => {
            tracing::warn!(code = error.code(), %error, "cannot read which MACs and keys the kernel has");
            BTreeMap::new()
        }
    }
}

/// The rules by which the configured backend accepts leases. If the configuration is invalid, every
/// lease is accepted.
pub fn rules(config: &NetworkConfig) -> Arc<dyn PeerRules> {
    match create_backend(&Setup::of(config.clone())) {
        Ok(backend) => backend.rules(),
        Err(_) => Arc::new(NoBackend),
    }
}

/// The rules if the configuration names no usable backend.
struct NoBackend;

impl PeerRules for NoBackend {
    fn identity(&self, attrs: &LeaseAttrs, family: Family) -> Option<String> {
        identity_of(attrs, family)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Takes;
    use subnet_lease::RawJson;
    use types::{Dual, Encapsulation, Family};

    fn setup(text: &str) -> Setup {
        Setup::of(NetworkConfig::parse(text).unwrap())
    }

    fn made(network: &str, backend: &str) -> Box<dyn Backend> {
        create_backend(&setup(&format!(r#"{{{network},"Backend":{backend}}}"#))).unwrap()
    }

    fn takes(network: &str, backend: &str, kernel: bool) -> Takes {
        made(network, backend).takes(kernel)
    }

    const IPV4: &str = r#""Network":"10.244.0.0/16""#;
    const DUAL_STACK: &str =
        r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48""#;

    fn devices(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn vxlan_shares_its_port_only_in_the_kernel() {
        for (mode, kernel, shared) in [
            ("auto", true, true),
            ("auto", false, false),
            ("kernel", false, true),
            ("userspace", true, false),
        ] {
            let keys = format!(r#"{{"Type":"vxlan","VNI":7,"Port":4789,"Mode":"{mode}"}}"#);
            let both = takes(DUAL_STACK, &keys, kernel);
            let tunnels = ["IPv4", "IPv6"].map(|ip| format!("VNI 7 on UDP port 4789 over {ip}"));
            let wanted = Takes {
                devices: devices(&["flannel.7", "flannel-v6.7"]),
                ports: vec![4789],
                shares_ports: shared,
                tunnels: if shared { tunnels.to_vec() } else { Vec::new() },
            };
            assert_eq!(both, wanted, "{mode}");
        }
    }

    #[test]
    fn backends_take_their_devices_and_ports() {
        for (network, backend, names, ports) in [
            (IPV4, r#"{"Type":"udp"}"#, &["flannel0"][..], &[8285][..]),
            (IPV4, r#"{"Type":"ipip"}"#, &["flannel.ipip"], &[]),
            (
                DUAL_STACK,
                r#"{"Type":"wireguard"}"#,
                &["flannel-wg", "flannel-wg-v6"],
                &[51820, 51821],
            ),
            (
                DUAL_STACK,
                r#"{"Type":"wireguard","Mode":"auto","ListenPort":7}"#,
                &["flannel-wg"],
                &[7],
            ),
            (IPV4, r#"{"Type":"host-gw"}"#, &[], &[]),
        ] {
            assert_eq!(
                takes(network, backend, true),
                Takes { devices: devices(names), ports: ports.to_vec(), ..Takes::default() },
                "{backend}"
            );
        }
    }

    #[test]
    fn ipip_carries_no_ipv6_probes() {
        let (v4, v6) = ("10.5.1.0/24".parse().unwrap(), "fd00:5::/64".parse().unwrap());
        let both = Dual::Both(v4, v6);
        for (backend, carried) in [("ipip", Dual::V4(v4)), ("vxlan", both)] {
            let made = made(IPV4, &format!(r#"{{"Type":"{backend}"}}"#));
            assert_eq!(made.overlay().unwrap().carried(both), carried);
        }
    }

    fn refusal(backend: &str) -> String {
        let setup = setup(&format!(r#"{{{IPV4},"Backend":{backend}}}"#));
        create_backend(&setup).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn guarded_encapsulation_follows_the_backend() {
        let udp = |port, outer| Encapsulation::Udp { ports: Dual::V4(port), outer };
        for (backend, guarded) in [
            (r#"{"Type":"vxlan"}"#, udp(8472, None)),
            (r#"{"Type":"VXLAN","port":4789}"#, udp(4789, None)),
            (r#"{"Type":"udp"}"#, udp(8285, Some(Family::V4))),
            (r#"{"Type":"udp","Port":9000}"#, udp(9000, Some(Family::V4))),
            (r#"{"Type":"ipip","Port":1}"#, Encapsulation::Ipip),
            (r#"{"Type":"host-gw","Port":1}"#, Encapsulation::None),
            (r#"{"Type":"wireguard"}"#, Encapsulation::None),
        ] {
            assert_eq!(made(IPV4, backend).guarded(), guarded, "{backend}");
        }
        assert!(refusal(r#"{"Type":"udp","Port":70000}"#).contains("Port is 70000"));
    }

    #[test]
    fn profiles_are_those_of_the_backends() {
        for profile in profiles() {
            let made = made(IPV4, &format!(r#"{{"Type":"{}"}}"#, profile.name));
            let (name, takes) = (profile.name, made.takes(true));
            assert_eq!(made.profile(), profile);
            assert!(
                takes.devices.iter().all(|device| profile.device(device).is_some()),
                "{name}: {:?}",
                takes.devices
            );
            assert_eq!(takes.devices.is_empty(), profile.devices.is_empty(), "{name}");
            assert_eq!(
                (made.encapsulation().protocol(), made.encapsulation().port()),
                (profile.encapsulation.protocol(), takes.ports.first().copied())
            );
            assert_eq!(
                profile.encapsulation.port_of(Family::V4),
                takes.ports.first().copied(),
                "{name}: the port that is used by default"
            );
            assert_eq!(made.overlay().is_some(), profile.carries, "{name}");
            if let Some(overlay) = made.overlay() {
                assert_eq!(
                    ((overlay.mtu)(1500, Family::V4), overlay.clear),
                    (1500 - profile.overhead.v4, !profile.encrypts),
                    "{name}"
                );
                assert_eq!(overlay.outer, made.encapsulation().outer(), "{name}");
            }
        }
        assert_eq!(profile("vxlan").map(|profile| profile.name), Some("vxlan"));
        assert!(
            profile("ipsec").is_none()
                && backend_names().contains(&"ipsec")
                && backend_names().is_sorted()
        );
    }

    #[test]
    fn unsupported_types_are_named() {
        for name in built_backends().into_iter().chain(["VXLAN"]) {
            assert_eq!(refusal(&format!(r#"{{"Type":"{name}"}}"#)), "");
        }
        let list = built_backends().join(", ");
        assert!(list.contains("alloc, host-gw") && list.ends_with("vxlan, wireguard"), "{list}");
        let unknown = refusal(r#"{"Type":"aws-vpc"}"#);
        assert!(unknown.contains("aws-vpc") && unknown.contains(&list), "{unknown}");
        assert!(refusal(r#"{"Type":"ipsec"}"#).contains("ipsec"));
        assert!(refusal(r#"{"Type":"vxlan","VNI":"x"}"#).contains("VNI"));
    }

    #[test]
    fn identities_have_one_spelling() {
        for (backend, data, want) in [
            ("vxlan", r#"{"VNI":1,"VtepMAC":"0a:00:00:00:00:65"}"#, Some("0a:00:00:00:00:65")),
            ("vxlan", r#"{"VtepMAC": "0A-00-00-00-00-6F"}"#, Some("0a:00:00:00:00:6f")),
            ("vxlan", "7", None),
            (
                "wireguard",
                r#"{"publickey":"8zW86T16o0QhEmGDr8pSAZ++\nCK9d74PZLGvnUE5aHSP="}"#,
                Some("8zW86T16o0QhEmGDr8pSAZ++CK9d74PZLGvnUE5aHSM="),
            ),
            ("wireguard", r#"{"PublicKey":"aB-c+/="}"#, None),
            ("host-gw", r#"{"VtepMAC":"0a:00:00:00:00:65"}"#, None),
        ] {
            let attrs = LeaseAttrs {
                backend: backend.into(),
                v6_data: RawJson::parse(data).ok(),
                ..LeaseAttrs::default()
            };
            assert_eq!(
                (identity_of(&attrs, Family::V6).as_deref(), identity_of(&attrs, Family::V4)),
                (want, None),
                "{data}"
            );
        }
    }
}
