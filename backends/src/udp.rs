//! The `udp` backend: the packet engine sends each pod packet in a plain UDP datagram, compatible
//! with Go flannel on the wire.

use crate::backend::{AddressRules, Backend, Datapath, Overlay, Setup, Takes};
use crate::config_keys::ConfigKeys;
use crate::error::missing_underlay_address;
use crate::userspace::UserspaceKernel;
use netstate::{
    Facts, Forwarding, KernelState, Key, LinkKind, LinkName, LinkSpec, NextHop, RouteSpec, Scope,
    Underlay, Value,
};
use packet_engine::{Checks, EngineConfig, Framing};
use reconcile::{Announced, Plan, peers};
use std::net::SocketAddr;
use std::sync::Arc;
use subnet_lease::{Kinds, LeaseAttrs, LeaseTable, Peer, PeerRules};
use types::profile::{Device, Keys, Overhead};
use types::{Encapsulation, Family, Problem, Profile, Subnets};

/// The name in the configuration; in leases, it is empty.
pub const KIND: &str = "udp";
/// As in Go flannel.
pub(crate) const DEVICE: &str = "flannel0";
const LINK: LinkName = LinkName::constant(DEVICE);
/// The default, as in Go flannel.
const PORT: u16 = 8285;

/// In bytes: UDP 8, IPv4 20 or IPv6 40.
const OVERHEAD: Overhead = Overhead { v4: 28, v6: 48 };

pub static PROFILE: Profile = Profile {
    name: KIND,
    devices: &[Device::shared(DEVICE, &["tun"])],
    overhead: OVERHEAD,
    encapsulation: Encapsulation::udp(PORT),
    seen_as: Some(Encapsulation::udp(PORT)),
    keys: Keys { port: Some("Port"), has_mtu: false },
    ..Profile::DEFAULT
};

/// The backend before the node has a lease.
pub struct Udp {
    setup: Setup,
    /// UDP; the same on all nodes.
    port: u16,
    /// The checks of received packets.
    checks: Checks,
}

impl Udp {
    pub fn new(setup: &Setup) -> Result<Self, Problem> {
        let keys = ConfigKeys::parse(setup.config.backend_config.as_str(), "UDP")?;
        let port = keys.read::<i64>("Port")?.unwrap_or(0);
        let port = u16::try_from(port).map_err(|_| keys.out_of_range("Port", port, 1, 65535))?;
        let port = if port == 0 { PORT } else { port };
        Ok(Self { setup: setup.clone(), port, checks: keys.checks()? })
    }

    /// The datagrams' family: IPv4 if the network has IPv4, otherwise IPv6.
    fn outer(&self) -> Family {
        if self.setup.config.networks.has(Family::V4) { Family::V4 } else { Family::V6 }
    }
}

impl Backend for Udp {
    fn profile(&self) -> &'static Profile {
        &PROFILE
    }

    fn takes(&self, _kernel_vxlan: bool) -> Takes {
        Takes { devices: vec![DEVICE.to_owned()], ports: vec![self.port], ..Takes::default() }
    }

    fn encapsulation(&self) -> Encapsulation {
        let port = self.port;
        Encapsulation::Udp {
            ports: self.setup.config.networks.map(|_| port, |_| port),
            outer: Some(self.outer()),
        }
    }

    fn overlay(&self) -> Option<Overlay> {
        let outer = self.outer();
        Some(Overlay {
            kinds: Kinds::Any,
            outer: Some(outer),
            ..Overlay::new(KIND, move |underlay, _| device_mtu(underlay, outer))
        })
    }

    fn announce(
        &mut self,
        underlay: &Underlay,
        _stored: Option<&LeaseAttrs>,
    ) -> Result<Announced, Problem> {
        let family = self.outer();
        if !underlay.public.has(family) || underlay.tunnel_source(family).is_none() {
            return Err(missing_underlay_address(KIND, family, underlay));
        }
        Ok(announced(underlay.mtu, family))
    }

    fn hands_over(&self) -> bool {
        true
    }

    fn rules(&self) -> Arc<dyn PeerRules> {
        Arc::new(AddressRules { kinds: Kinds::Any, backend: KIND, family: self.outer() })
    }

    fn plan(&self, own: Subnets) -> Result<Arc<dyn Plan>, Problem> {
        Ok(Arc::new(UdpPlan {
            scope: self.setup.scope(own, vec![LINK]),
            port: self.port,
            outer: self.outer(),
        }))
    }

    fn datapath(&self, scope: &Scope, _underlay: &Underlay) -> Result<Datapath, Problem> {
        let config = EngineConfig {
            device: DEVICE.to_owned(),
            framing: Framing::Udp,
            port: self.port,
            spread: false,
            features: self.setup.features,
            sources: Some(scope.own.network_addresses()),
        };
        let mut kernel = UserspaceKernel::open(&self.setup.files)?;
        kernel.engine(LINK, config, self.outer(), scope, self.checks);
        Ok(kernel.datapath())
    }
}

fn announced(underlay_mtu: u32, outer: Family) -> Announced {
    Announced::without_data("", device_mtu(underlay_mtu, outer))
}

fn device_mtu(underlay: u32, outer: Family) -> u32 {
    // The longest packet that fits into a datagram.
    underlay.min(65_535).saturating_sub(OVERHEAD.over(outer))
}

/// The kernel objects, and the forwarding of the packet engine.
struct UdpPlan {
    scope: Scope,
    port: u16,
    outer: Family,
}

impl Plan for UdpPlan {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn kinds(&self) -> Kinds {
        Kinds::Any
    }

    fn of_peer(&self, _peer: &Peer<'_>, _facts: &Facts) -> Vec<(Key, Value)> {
        Vec::new()
    }

    fn base(&self, facts: &Facts) -> KernelState {
        let mut state = KernelState::default();
        let mtu = device_mtu(facts.underlay.mtu, self.outer);
        let link = LinkSpec::new(LinkKind::Tun { held: true }, mtu);
        state.set_device(LINK, link, self.scope.own.nets());
        // One route for each network leads into the device. The engine knows the peers.
        let route = RouteSpec::forwarding(None, LINK, self.scope.protocol);
        state.add(self.scope.networks.nets().map(|network| route.leading_to(network)));
        state
    }

    fn forwarding(&self, leases: &LeaseTable, facts: &Facts) -> Vec<Forwarding> {
        let peers = peers(self, leases, &facts.underlay).filter_map(|peer| {
            let attrs = &peer.lease.attrs;
            // With udp, Go flannel announces no IPv6 address and would corrupt IPv6 packets. So a node with an IPv6 address runs flannel-rs.
            let ours = attrs.public_ipv6.is_some();
            let address = attrs.public_for(self.outer)?;
            let next_hop = NextHop {
                address: SocketAddr::new(address, self.port),
                mac: None,
                carries_v6: ours,
                outer_ecn: ours,
            };
            Some((peer.subnet, next_hop))
        });
        let mtu = device_mtu(facts.underlay.mtu, self.outer);
        vec![Forwarding { device: LINK, mtu, peers: peers.collect() }]
    }

    fn announced(&self, facts: &Facts) -> Announced {
        announced(facts.underlay.mtu, self.outer)
    }
}

#[cfg(test)]
mod tests;
