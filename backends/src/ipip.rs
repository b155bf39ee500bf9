//! The `ipip` backend: one tunnel device, and a route for each peer. IPv4 only.

use crate::backend::{Backend, BackendError, Network, Overlay, Setup, Takes};
use crate::config_keys::ConfigKeys;
use crate::error::{ConfigError, LeaseError, UnderlayError};
use crate::network;
use async_trait::async_trait;
use ipnet::IpNet;
use netstate::kernel::Facts;
use netstate::link::ipip::IpipSpec;
use netstate::link::{LinkKind, LinkSpec};
use netstate::names::LinkName;
use netstate::netlink::NetlinkKernel;
use netstate::object::{KernelState, Key, Value};
use netstate::plan::{Announced, Plan};
use netstate::route::{RouteSpec, metric};
use netstate::scope::Scope;
use netstate::underlay::Underlay;
use std::net::IpAddr;
use std::sync::Arc;
use subnet_lease::{Kinds, Lease, LeaseAttrs, LeaseTable, Peer, PeerRules};
use types::profile::{Device, Keys, Overhead};
use types::{Encapsulation, Family, Problem, Profile};

/// The name in the configuration and in leases.
pub const KIND: &str = "ipip";
/// The tunnel device. The kernel module itself creates `tunl0` in each namespace; flannel does not use that device.
const DEVICE: &str = "flannel.ipip";
/// In bytes: the outer IPv4 header.
const OVERHEAD: u32 = 20;
/// In bytes, of an IPv4 link (RFC 791).
const LEAST_MTU: u32 = 68;

pub static PROFILE: Profile = Profile {
    name: KIND,
    devices: &[Device {
        name: DEVICE,
        is_numbered: false,
        kinds: &["ipip"],
        family: Some(Family::V4),
    }],
    overhead: Overhead::of_both(OVERHEAD),
    encapsulation: Encapsulation::Ipip,
    seen_as: Some(Encapsulation::Ipip),
    carries: true,
    encrypts: false,
    needs_links: false,
    shares_address: false,
    keys: Keys { port: None, has_mtu: false },
};

/// The backend before the node has a lease.
pub struct Ipip {
    setup: Setup,
    direct_routing: bool,
    device: LinkName,
}

impl Ipip {
    pub fn new(setup: &Setup) -> Result<Self, BackendError> {
        let keys = ConfigKeys::parse(setup.config.backend_config.as_str(), "IPIP")?;
        let direct_routing = keys.read("DirectRouting")?.unwrap_or_default();
        let networks = setup.config.networks;
        if networks.v4().is_none() {
            let text = format!(
                "ipip carries IPv4 only, and the network is {networks}; use the vxlan, host-gw or udp backend"
            );
            return Err(ConfigError::new("backend-without-family", text).into());
        }
        if networks.v6().is_some() {
            tracing::warn!(
                remedy = "use vxlan or host-gw, which carry both families",
                "ipip carries IPv4 only: IPv6 packets between pods of different nodes do not arrive"
            );
        }
        let device = LinkName::parse(DEVICE).ok_or(BackendError::DeviceName { name: DEVICE })?;
        Ok(Self { setup: setup.clone(), direct_routing, device })
    }
}

#[async_trait]
impl Backend for Ipip {
    fn profile(&self) -> &'static Profile {
        &PROFILE
    }

    fn takes(&self, _kernel_vxlan: bool) -> Takes {
        Takes { devices: vec![DEVICE.to_owned()], ..Takes::default() }
    }

    fn overlay(&self) -> Option<Overlay> {
        let mtu = Arc::new(|underlay, _| device_mtu(underlay));
        Some(Overlay {
            kinds: Kinds::Only(KIND),
            device: true,
            outer: Some(Family::V4),
            family: Some(Family::V4),
            clear: true,
            mtu,
        })
    }

    async fn announce(
        &mut self,
        underlay: &Underlay,
        _stored: Option<&LeaseAttrs>,
    ) -> Result<Announced, BackendError> {
        if underlay.public.v4().is_none() || underlay.addresses.v4().is_none() {
            let (interface, addresses) = (underlay.name.clone(), underlay.addresses);
            return Err(UnderlayError::NoAddress {
                backend: KIND,
                family: Family::V4,
                interface,
                addresses,
            }
            .into());
        }
        if device_mtu(underlay.mtu) < LEAST_MTU {
            let (interface, mtu) = (underlay.name.clone(), underlay.mtu);
            return Err(UnderlayError::MtuForIpip {
                interface,
                mtu,
                overhead: OVERHEAD,
                least: LEAST_MTU,
            }
            .into());
        }
        Ok(announced(underlay.mtu))
    }

    fn rules(&self) -> Arc<dyn PeerRules> {
        Arc::new(Rules)
    }

    async fn join(
        self: Box<Self>,
        own: Lease,
        underlay: &Underlay,
        leases: &LeaseTable,
    ) -> Result<Box<dyn Network>, BackendError> {
        let kernel = NetlinkKernel::open()?;
        let plan = IpipPlan {
            scope: self.setup.scope(own.subnets, vec![self.device]),
            device: self.device,
            direct_routing: self.direct_routing,
        };
        network::join(plan, kernel, Vec::new(), underlay, leases, &self.setup).await
    }
}

/// A lease needs a public IPv4 address.
struct Rules;

impl PeerRules for Rules {
    fn accepts(&self, lease: &Lease) -> Result<(), Problem> {
        match (lease.attrs.backend == KIND, lease.attrs.public_ip) {
            (true, None) => {
                Err(Problem::from(LeaseError::NoAddress { family: Family::V4, backend: KIND }))
            }
            _ => Ok(()),
        }
    }
}

fn device_mtu(underlay: u32) -> u32 {
    underlay.saturating_sub(OVERHEAD)
}

fn announced(underlay_mtu: u32) -> Announced {
    Announced::without_data(KIND, device_mtu(underlay_mtu))
}

struct IpipPlan {
    scope: Scope,
    device: LinkName,
    direct_routing: bool,
}

impl Plan for IpipPlan {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn kinds(&self) -> Kinds {
        Kinds::Only(KIND)
    }

    fn needs_on_link(&self) -> bool {
        self.direct_routing
    }

    fn base(&self, facts: &Facts) -> KernelState {
        let mut state = KernelState::default();
        let Some(own) = self.scope.own.v4() else {
            return state;
        };
        // Packets leave with the interface's address, not with the public one.
        let local = facts.underlay.addresses.v4().copied();
        let link = LinkSpec {
            kind: LinkKind::Ipip(IpipSpec { local, remote: None, ttl: 0, pmtudisc: false }),
            mac: None,
            mtu: device_mtu(facts.underlay.mtu),
            up: true,
            accept_ra: None,
            checksum_offload: None,
        };
        state.set(Key::Link(self.device), Value::Link(Box::new(link)));
        state
            .set(Key::Address(self.device, IpNet::from(IpAddr::V4(own.network()))), Value::Address);
        state
    }

    fn of_peer(&self, peer: &Peer<'_>, facts: &Facts) -> Vec<(Key, Value)> {
        let (IpNet::V4(_), IpAddr::V4(_)) = (peer.subnet, peer.public_ip) else {
            return Vec::new();
        };
        let direct = self.direct_routing && facts.on_link.contains(&peer.public_ip);
        let dev = if direct { LinkName::parse(&facts.underlay.name) } else { Some(self.device) };
        let Some(dev) = dev else { return Vec::new() };
        let route = RouteSpec {
            onlink: true,
            ..RouteSpec::forwarding(Some(peer.public_ip), dev, self.scope.protocol)
        };
        vec![(Key::Route(peer.subnet, metric(&peer.subnet)), Value::Route(route))]
    }

    fn announced(&self, facts: &Facts) -> Announced {
        announced(facts.underlay.mtu)
    }
}

#[cfg(test)]
mod tests;
