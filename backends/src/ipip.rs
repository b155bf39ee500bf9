//! The `ipip` backend: one tunnel device, and a route for each peer. IPv4 only.

use crate::backend::{AddressRules, Backend, Overlay, Setup, Takes};
use crate::config_keys::ConfigKeys;
use crate::error::{config_problem, missing_underlay_address};
use ipnet::IpNet;
use netstate::{
    Facts, IpipSpec, KernelState, Key, LinkKind, LinkName, LinkSpec, RouteSpec, Scope, Underlay,
    Value,
};
use reconcile::{Announced, Plan};
use std::net::IpAddr;
use std::sync::Arc;
use subnet_lease::{Kinds, LeaseAttrs, Peer, PeerRules};
use types::profile::{Device, Overhead};
use types::{Encapsulation, Family, Problem, Profile, Subnets};

/// The name in the configuration and in leases.
pub const KIND: &str = "ipip";
/// The tunnel device. The kernel module itself creates `tunl0` in each namespace; flannel does not use that device.
const DEVICE: &str = "flannel.ipip";
const LINK: LinkName = LinkName::constant(DEVICE);
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
    ..Profile::DEFAULT
};

/// The backend before the node has a lease.
pub struct Ipip {
    setup: Setup,
    direct_routing: bool,
}

impl Ipip {
    pub fn new(setup: &Setup) -> Result<Self, Problem> {
        let keys = ConfigKeys::parse(setup.config.backend_config.as_str(), "IPIP")?;
        let direct_routing = keys.read("DirectRouting")?.unwrap_or_default();
        let networks = setup.config.networks;
        if networks.v4().is_none() {
            let text = format!(
                "ipip carries IPv4 only, and the network is {networks}; use the vxlan, host-gw or udp backend"
            );
            return Err(config_problem("backend-without-family", text));
        }
        if networks.v6().is_some() {
            tracing::warn!(
                remedy = "use vxlan or host-gw, which carry both families",
                "ipip carries IPv4 only: IPv6 packets between pods of different nodes do not arrive"
            );
        }
        Ok(Self { setup: setup.clone(), direct_routing })
    }
}

impl Backend for Ipip {
    fn profile(&self) -> &'static Profile {
        &PROFILE
    }

    fn takes(&self, _kernel_vxlan: bool) -> Takes {
        Takes { devices: vec![DEVICE.to_owned()], ..Takes::default() }
    }

    fn overlay(&self) -> Option<Overlay> {
        Some(Overlay {
            outer: Some(Family::V4),
            family: Some(Family::V4),
            ..Overlay::new(KIND, |underlay, _| device_mtu(underlay))
        })
    }

    fn announce(
        &mut self,
        underlay: &Underlay,
        _stored: Option<&LeaseAttrs>,
    ) -> Result<Announced, Problem> {
        if underlay.public.v4().is_none() || underlay.addresses.v4().is_none() {
            return Err(missing_underlay_address(KIND, Family::V4, underlay));
        }
        if device_mtu(underlay.mtu) < LEAST_MTU {
            let Underlay { name, mtu, .. } = underlay;
            let text = format!(
                "MTU {mtu} of iface {name} is too small for ipip mode to work: ipip takes {OVERHEAD} bytes of the MTU, and IPv4 needs {LEAST_MTU} bytes"
            );
            return Err(Problem::new("underlay-mtu-too-small", text));
        }
        Ok(announced(underlay.mtu))
    }

    fn rules(&self) -> Arc<dyn PeerRules> {
        Arc::new(AddressRules { kinds: Kinds::Only(KIND), backend: KIND, family: Family::V4 })
    }

    fn plan(&self, own: Subnets) -> Result<Arc<dyn Plan>, Problem> {
        let scope = self.setup.scope(own, vec![LINK]);
        Ok(Arc::new(IpipPlan { scope, direct_routing: self.direct_routing }))
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
        let kind = LinkKind::Ipip(IpipSpec { local, remote: None, ttl: 0, pmtudisc: false });
        let link = LinkSpec::new(kind, device_mtu(facts.underlay.mtu));
        state.set_device(LINK, link, [IpNet::V4(*own)]);
        state
    }

    fn of_peer(&self, peer: &Peer<'_>, facts: &Facts) -> Vec<(Key, Value)> {
        let (IpNet::V4(_), IpAddr::V4(_)) = (peer.subnet, peer.public_ip) else {
            return Vec::new();
        };
        let direct = self.direct_routing && facts.on_link.contains(&peer.public_ip);
        let dev = if direct { LinkName::parse(&facts.underlay.name) } else { Some(LINK) };
        let Some(dev) = dev else { return Vec::new() };
        let route = RouteSpec {
            onlink: true,
            ..RouteSpec::forwarding(Some(peer.public_ip), dev, self.scope.protocol)
        };
        vec![route.leading_to(peer.subnet)]
    }

    fn announced(&self, facts: &Facts) -> Announced {
        announced(facts.underlay.mtu)
    }
}

#[cfg(test)]
mod tests;
