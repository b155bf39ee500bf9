//! The `udp` backend: packets in plain UDP datagrams, moved by our own engine; on the wire it is Go flannel's.

mod config;

use crate::backend::{Accepts, Backend, Error, Network, Refusal, Setup, Takes};
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
use netstate::route::{RouteKind, RouteSpec, metric};
use netstate::scope::Scope;
use netstate::underlay::Underlay;
use packet_engine::engine::config::EngineConfig;
use packet_engine::framing::Framing;
use packet_engine::table::Settings;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use subnet_lease::{Kinds, Lease, LeaseAttrs, LeaseTable, Subnets};

/// The name in the configuration; on the wire it is empty.
pub const KIND: &str = "udp";
/// Go flannel's name for the device.
pub(crate) const DEVICE: &str = "flannel0";

/// What the headers of a datagram cost: UDP 8, IPv4 20 or IPv6 40.
const OVERHEAD_V4: u32 = 28;
const OVERHEAD_V6: u32 = 48;

/// The backend before it has a lease.
pub struct Udp {
    setup: Setup,
    config: Config,
}

impl Udp {
    /// Reads the backend's configuration.
    ///
    /// # Errors
    /// Names the key that cannot be used.
    pub fn new(setup: &Setup) -> Result<Self, Error> {
        let config = Config::parse(setup.config.backend_config.as_str()).map_err(Error::Config)?;
        Ok(Self { setup: setup.clone(), config })
    }

    /// Datagrams go over IPv4 wherever the network has it.
    fn outer_ipv6(&self) -> bool {
        self.setup.config.networks.v4().is_none()
    }
}

#[async_trait]
impl Backend for Udp {
    fn takes(&self, _kernel_vxlan: bool) -> Takes {
        Takes { devices: vec![DEVICE.to_owned()], ports: vec![self.config.port], ..Takes::default() }
    }

    fn guarded_ports(&self) -> Vec<u16> {
        vec![self.config.port]
    }

    async fn announce(&mut self, underlay: &Underlay, _stored: Option<&LeaseAttrs>) -> Result<Announced, Error> {
        let ipv6 = self.outer_ipv6();
        let public = if ipv6 { underlay.public.v6().is_some() } else { underlay.public.v4().is_some() };
        if !public || underlay.tunnel_source(ipv6).is_none() {
            return Err(Error::Config(format!(
                "udp over {} needs an IPv{} address on it; it has {}: choose another interface with --iface",
                underlay.name,
                if ipv6 { 6 } else { 4 },
                underlay.addresses
            )));
        }
        Ok(announced(underlay.mtu, ipv6))
    }

    fn hands_over(&self) -> bool {
        true
    }

    fn accepts(&self) -> Accepts {
        let ipv6 = self.outer_ipv6();
        Arc::new(move |lease| match lease.attrs.public_for(ipv6) {
            Some(_) => Ok(()),
            None => Err(Refusal(format!("it publishes no IPv{} address, to which udp sends here", if ipv6 { 6 } else { 4 }))),
        })
    }

    async fn join(self: Box<Self>, own: Lease, underlay: &Underlay, leases: &LeaseTable) -> Result<Box<dyn Network>, Error> {
        let Some(device) = LinkName::parse(DEVICE) else { return Err(Error::Config(format!("{DEVICE} is no name of an interface"))) };
        let kernel = NetlinkKernel::open()?;
        let plan =
            UdpPlan { scope: self.setup.scope(vec![device]), own: own.subnets, config: self.config.clone(), device, outer_ipv6: self.outer_ipv6() };
        let config = EngineConfig {
            device: device.to_string(),
            framing: Framing::Udp,
            port: self.config.port,
            spread: false,
            features: self.setup.features,
            sources: (own.subnets.v4().map(|net| net.network()), own.subnets.v6().map(|net| net.network())),
        };
        let mut kernel = UserspaceKernel::new(kernel, self.setup.files.clone());
        kernel.engine(device, config, plan.outer_ipv6, plan.settings(underlay.mtu));
        let engines = kernel.counters();
        network::join(plan, kernel, engines, underlay, leases, &self.setup).await
    }
}

fn announced(underlay_mtu: u32, outer_ipv6: bool) -> Announced {
    Announced { backend: String::new(), data: None, v6_data: None, mtu: device_mtu(underlay_mtu, outer_ipv6) }
}

fn device_mtu(underlay: u32, outer_ipv6: bool) -> u32 {
    // The longest packet that a datagram can hold.
    underlay.min(65_535).saturating_sub(if outer_ipv6 { OVERHEAD_V6 } else { OVERHEAD_V4 })
}

/// What udp wants of the kernel, and of the engine.
struct UdpPlan {
    scope: Scope,
    own: Subnets,
    config: Config,
    device: LinkName,
    outer_ipv6: bool,
}

impl UdpPlan {
    fn settings(&self, underlay_mtu: u32) -> Settings {
        Settings {
            networks: networks(&self.scope.networks),
            own: networks(&self.own),
            checks: self.config.checks,
            mtu: u16::try_from(device_mtu(underlay_mtu, self.outer_ipv6)).unwrap_or(u16::MAX),
            routed: true,
            encap_port: self.config.port,
        }
    }
}

impl Plan for UdpPlan {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn own(&self) -> &Subnets {
        &self.own
    }

    fn kinds(&self) -> Kinds {
        Kinds::Any
    }

    fn base(&self, facts: &Facts) -> KernelState {
        let mut state = KernelState::default();
        let link = LinkSpec {
            kind: LinkKind::Tun(TunSpec { held: true }),
            mac: None,
            mtu: device_mtu(facts.underlay.mtu, self.outer_ipv6),
            up: true,
            accept_ra: None,
            checksum_offload: None,
        };
        state.set(Key::Link(self.device), Value::Link(Box::new(link)));
        for own in self.own.nets() {
            state.set(Key::Address(self.device, IpNet::from(own.network())), Value::Address);
        }
        for network in self.scope.networks.nets() {
            let route = RouteSpec { via: None, dev: self.device, onlink: false, kind: RouteKind::Unicast, scope: 0, protocol: self.scope.protocol };
            state.set(Key::Route(network, metric(&network)), Value::Route(route));
        }
        state
    }

    fn of_peer(&self, _peer: &subnet_lease::Peer<'_>, _facts: &Facts) -> Vec<(Key, Value)> {
        // One route leads into the device; where packets go from there the engine knows.
        Vec::new()
    }

    fn forwarding(&self, leases: &LeaseTable, facts: &Facts) -> Vec<Forwarding> {
        let peers = peers(leases, &self.own, self.kinds(), &self.scope, &facts.underlay).filter_map(|peer| {
            let attrs = &peer.lease.attrs;
            // Go flannel publishes no IPv6 address with udp, and would corrupt IPv6 packets: who has one is ours.
            let ours = attrs.public_ipv6.is_some();
            let address = if self.outer_ipv6 { attrs.public_ipv6.map(IpAddr::V6) } else { attrs.public_ip.map(IpAddr::V4) }?;
            let next_hop = NextHop { address: SocketAddr::new(address, self.config.port), mac: None, carries_v6: ours, outer_ecn: ours };
            Some((peer.subnet, next_hop))
        });
        let mtu = device_mtu(facts.underlay.mtu, self.outer_ipv6);
        vec![Forwarding { device: self.device, mtu, peers: peers.collect() }]
    }

    fn announced(&self, facts: &Facts) -> Announced {
        announced(facts.underlay.mtu, self.outer_ipv6)
    }
}

#[cfg(test)]
mod tests;
