//! The `udp` backend: the packet engine sends each pod packet in a plain UDP datagram, compatible
//! with Go flannel on the wire.

mod config;

use crate::backend::{Backend, BackendError, Network, Overlay, Setup, Takes};
use crate::error::{LeaseError, UnderlayError};
use crate::network;
use crate::userspace::{UserspaceKernel, networks};
use async_trait::async_trait;
pub use config::Config;
use ipnet::IpNet;
use netstate::forwarding::{Forwarding, NextHop};
use netstate::kernel::Facts;
use netstate::link::tun::TunSpec;
use netstate::link::{LinkKind, LinkSpec};
use netstate::names::LinkName;
use netstate::netlink::NetlinkKernel;
use netstate::object::{KernelState, Key, Value};
use netstate::peers::peers;
use netstate::plan::{Announced, Plan};
use netstate::route::{RouteSpec, metric};
use netstate::scope::Scope;
use netstate::underlay::Underlay;
use packet_engine::engine::config::EngineConfig;
use packet_engine::framing::Framing;
use packet_engine::table::TableSettings;
use std::net::SocketAddr;
use std::sync::Arc;
use subnet_lease::{Kinds, Lease, LeaseAttrs, LeaseTable, PeerRules};
use types::profile::{Device, Keys, Overhead};
use types::{Encapsulation, Family, Problem, Profile};

/// The name in the configuration; in leases, it is empty.
pub const KIND: &str = "udp";
/// As in Go flannel.
pub(crate) const DEVICE: &str = "flannel0";

/// In bytes: UDP 8, IPv4 20 or IPv6 40.
const OVERHEAD_V4: u32 = 28;
const OVERHEAD_V6: u32 = 48;

pub static PROFILE: Profile = Profile {
    name: KIND,
    devices: &[Device::shared(DEVICE, &["tun"])],
    overhead: Overhead { v4: OVERHEAD_V4, v6: OVERHEAD_V6 },
    encapsulation: Encapsulation::udp(config::PORT),
    seen_as: Some(Encapsulation::udp(config::PORT)),
    carries: true,
    encrypts: false,
    needs_links: false,
    shares_address: false,
    keys: Keys { port: Some("Port"), has_mtu: false },
};

/// The backend before the node has a lease.
pub struct Udp {
    setup: Setup,
    config: Config,
}

impl Udp {
    pub fn new(setup: &Setup) -> Result<Self, BackendError> {
        let config = Config::parse(setup.config.backend_config.as_str())?;
        Ok(Self { setup: setup.clone(), config })
    }

    /// The datagrams' family: IPv4 if the network has IPv4, otherwise IPv6.
    fn outer(&self) -> Family {
        if self.setup.config.networks.has(Family::V4) { Family::V4 } else { Family::V6 }
    }
}

#[async_trait]
impl Backend for Udp {
    fn profile(&self) -> &'static Profile {
        &PROFILE
    }

    fn takes(&self, _kernel_vxlan: bool) -> Takes {
        Takes {
            devices: vec![DEVICE.to_owned()],
            ports: vec![self.config.port],
            ..Takes::default()
        }
    }

    fn encapsulation(&self) -> Encapsulation {
        let port = self.config.port;
        Encapsulation::Udp {
            ports: self.setup.config.networks.map(|_| port, |_| port),
            outer: Some(self.outer()),
        }
    }

    fn overlay(&self) -> Option<Overlay> {
        let outer = self.outer();
        let mtu = Arc::new(move |underlay, _| device_mtu(underlay, outer));
        Some(Overlay {
            kinds: Kinds::Any,
            device: true,
            outer: Some(outer),
            family: None,
            clear: true,
            mtu,
        })
    }

    async fn announce(
        &mut self,
        underlay: &Underlay,
        _stored: Option<&LeaseAttrs>,
    ) -> Result<Announced, BackendError> {
        let family = self.outer();
        if !underlay.public.has(family) || underlay.tunnel_source(family).is_none() {
            let (interface, addresses) = (underlay.name.clone(), underlay.addresses);
            return Err(
                UnderlayError::NoAddress { backend: KIND, family, interface, addresses }.into()
            );
        }
        Ok(announced(underlay.mtu, family))
    }

    fn hands_over(&self) -> bool {
        true
    }

    fn rules(&self) -> Arc<dyn PeerRules> {
        Arc::new(Rules(self.outer()))
    }

    async fn join(
        self: Box<Self>,
        own: Lease,
        underlay: &Underlay,
        leases: &LeaseTable,
    ) -> Result<Box<dyn Network>, BackendError> {
        let Some(device) = LinkName::parse(DEVICE) else {
            return Err(BackendError::DeviceName { name: DEVICE });
        };
        let kernel = NetlinkKernel::open()?;
        let plan = UdpPlan {
            scope: self.setup.scope(own.subnets, vec![device]),
            config: self.config.clone(),
            device,
            outer: self.outer(),
        };
        let config = EngineConfig {
            device: device.to_string(),
            framing: Framing::Udp,
            port: self.config.port,
            spread: false,
            features: self.setup.features,
            sources: Some(own.subnets.network_addresses()),
        };
        let mut kernel = UserspaceKernel::new(kernel, self.setup.files.clone());
        kernel.engine(device, config, plan.outer, plan.settings(underlay.mtu));
        let engines = kernel.counters();
        network::join(plan, kernel, engines, underlay, leases, &self.setup).await
    }
}

/// A lease needs a public address of the datagrams' family.
struct Rules(Family);

impl PeerRules for Rules {
    fn accepts(&self, lease: &Lease) -> Result<(), Problem> {
        let Self(family) = *self;
        match lease.attrs.public_for(family) {
            Some(_) => Ok(()),
            None => Err(Problem::from(LeaseError::NoAddress { family, backend: KIND })),
        }
    }
}

fn announced(underlay_mtu: u32, outer: Family) -> Announced {
    Announced::without_data("", device_mtu(underlay_mtu, outer))
}

fn device_mtu(underlay: u32, outer: Family) -> u32 {
    // The longest packet that fits into a datagram.
    underlay.min(65_535).saturating_sub(outer.pick(OVERHEAD_V4, OVERHEAD_V6))
}

/// The kernel objects, and the forwarding of the packet engine.
struct UdpPlan {
    scope: Scope,
    config: Config,
    device: LinkName,
    outer: Family,
}

impl UdpPlan {
    fn settings(&self, underlay_mtu: u32) -> TableSettings {
        TableSettings {
            networks: networks(&self.scope.networks),
            own: networks(&self.scope.own),
            checks: self.config.checks,
            mtu: u16::try_from(device_mtu(underlay_mtu, self.outer)).unwrap_or(u16::MAX),
            routed: true,
            encap_port: self.config.port,
            address: None,
        }
    }
}

impl Plan for UdpPlan {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn kinds(&self) -> Kinds {
        Kinds::Any
    }

    fn base(&self, facts: &Facts) -> KernelState {
        let mut state = KernelState::default();
        let link = LinkSpec {
            kind: LinkKind::Tun(TunSpec { held: true }),
            mac: None,
            mtu: device_mtu(facts.underlay.mtu, self.outer),
            up: true,
            accept_ra: None,
            checksum_offload: None,
        };
        state.set(Key::Link(self.device), Value::Link(Box::new(link)));
        for own in self.scope.own.nets() {
            state.set(Key::Address(self.device, IpNet::from(own.network())), Value::Address);
        }
        for network in self.scope.networks.nets() {
            let route = RouteSpec::forwarding(None, self.device, self.scope.protocol);
            state.set(Key::Route(network, metric(&network)), Value::Route(route));
        }
        state
    }

    fn of_peer(&self, _peer: &subnet_lease::Peer<'_>, _facts: &Facts) -> Vec<(Key, Value)> {
        // One route for each network leads into the device. The engine knows the peers.
        Vec::new()
    }

    fn forwarding(&self, leases: &LeaseTable, facts: &Facts) -> Vec<Forwarding> {
        let peers = peers(self, leases, &facts.underlay).filter_map(|peer| {
            let attrs = &peer.lease.attrs;
            // With udp, Go flannel announces no IPv6 address and would corrupt IPv6 packets. So a node with an IPv6 address runs flannel-rs.
            let ours = attrs.public_ipv6.is_some();
            let address = attrs.public_for(self.outer)?;
            let next_hop = NextHop {
                address: SocketAddr::new(address, self.config.port),
                mac: None,
                carries_v6: ours,
                outer_ecn: ours,
            };
            Some((peer.subnet, next_hop))
        });
        let mtu = device_mtu(facts.underlay.mtu, self.outer);
        vec![Forwarding { device: self.device, mtu, peers: peers.collect() }]
    }

    fn announced(&self, facts: &Facts) -> Announced {
        announced(facts.underlay.mtu, self.outer)
    }
}

#[cfg(test)]
mod tests;
