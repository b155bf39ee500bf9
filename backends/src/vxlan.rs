//! The `vxlan` backend: one tunnel device for each family. Each peer needs an FDB entry, a
//! neighbour and a route. With `DirectRouting`, a peer on the underlay's link needs only a route.

mod config;

use crate::backend::{Backend, Datapath, Overlay, Setup, Takes};
use crate::config_keys::Implementation;
use crate::error::{absent_lease_key, read_lease_data, unannounced_backend, unusable_lease};
use crate::userspace::UserspaceKernel;
pub use config::Config;
use ipnet::IpNet;
use netstate::object::link::vxlan::{PORT, default_port};
use netstate::{
    Facts, Forwarding, KernelState, Key, LinkKind, LinkName, LinkSpec, Mac, NetlinkKernel, NextHop,
    RouteSpec, Scope, Underlay, Value, VxlanSpec,
};
use packet_engine::{EngineConfig, Framing};
use reconcile::{Announced, Plan, peers};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::sync::Arc;
use subnet_lease::{Kinds, Lease, LeaseAttrs, LeaseTable, NodeId, Peer, PeerRules, RawJson};
use types::profile::{Device, Keys};
use types::{Dual, Encapsulation, Family, Problem, Profile, Subnets};

/// The name in the configuration and in leases.
pub const KIND: &str = "vxlan";

pub static PROFILE: Profile = Profile {
    name: KIND,
    devices: &[
        // A TUN device if the packet engine encapsulates.
        Device {
            name: config::DEVICE,
            is_numbered: true,
            kinds: &["vxlan", "tun"],
            family: Some(Family::V4),
        },
        Device {
            name: config::DEVICE_V6,
            is_numbered: true,
            kinds: &["vxlan", "tun"],
            family: Some(Family::V6),
        },
    ],
    overhead: config::OVERHEAD,
    encapsulation: Encapsulation::udp(PORT),
    keys: Keys { port: Some("Port"), has_mtu: true },
    ..Profile::DEFAULT
};

/// The backend before the node has a lease.
pub struct Vxlan {
    setup: Setup,
    config: Config,
    macs: Option<Dual<Mac, Mac>>,
    /// The packet engine encapsulates packets, instead of the kernel. In mode `auto`, the
    /// announcement sets this if the kernel does not support vxlan.
    userspace: bool,
}

impl Vxlan {
    pub fn new(setup: &Setup) -> Result<Self, Problem> {
        let config = Config::parse(setup.config.backend_config.as_str(), &setup.config.networks)?;
        if config.vni == 0 {
            tracing::warn!(
                remedy = "leave VNI out of the Backend, or set it to the same number above 0 for all nodes",
                "VNI is 0: flannel uses it, but a template may have made it of a text"
            );
        }
        let userspace = config.mode == Implementation::Userspace;
        if userspace && (config.gbp || config.learning) {
            tracing::warn!(
                "GBP and Learning in the Backend have no effect with \"Mode\": \"userspace\": only the kernel supports them"
            );
        }
        Ok(Self { setup: setup.clone(), config, macs: None, userspace })
    }

    /// UDP.
    fn port(&self) -> u16 {
        self.config.port.unwrap_or_else(default_port)
    }

    /// The MAC of the previous lease or of the existing device, otherwise one derived from the
    /// node's id.
    fn mac(
        &self,
        kernel: &mut NetlinkKernel,
        stored: Option<&LeaseAttrs>,
        family: Family,
    ) -> Result<Mac, Problem> {
        let data = stored.and_then(|attrs| family.pick(&attrs.data, &attrs.v6_data).as_ref());
        if let Some(mac) = data.and_then(|data| mac_in(data).ok()) {
            return Ok(mac);
        }
        let existing = kernel.mac_of(self.config.link(family))?;
        Ok(existing
            .filter(Mac::is_station)
            .unwrap_or_else(|| derived_mac(&self.setup.node_id, self.config.vni, family)))
    }
}

impl Backend for Vxlan {
    fn profile(&self) -> &'static Profile {
        &PROFILE
    }

    fn takes(&self, kernel_vxlan: bool) -> Takes {
        let networks = self.setup.config.networks;
        let kernel = self.config.mode == Implementation::Kernel
            || self.config.mode == Implementation::Auto && kernel_vxlan;
        let (vni, port) = (self.config.vni, self.port());
        let tunnel = |family| format!("VNI {vni} on UDP port {port} over {family}");
        Takes {
            devices: networks
                .families()
                .map(|family| self.config.link(family).to_string())
                .collect(),
            tunnels: networks.families().filter(|_| kernel).map(tunnel).collect(),
            ports: vec![port],
            shares_ports: kernel,
        }
    }

    fn encapsulation(&self) -> Encapsulation {
        let port = self.port();
        Encapsulation::Udp {
            ports: self.setup.config.networks.map(|_| port, |_| port),
            outer: None,
        }
    }

    fn overlay(&self) -> Option<Overlay> {
        let config = self.config.clone();
        Some(Overlay::new(KIND, move |underlay, family| config.device_mtu(underlay, family)))
    }

    fn announce(
        &mut self,
        underlay: &Underlay,
        stored: Option<&LeaseAttrs>,
    ) -> Result<Announced, Problem> {
        let networks = self.setup.config.networks;
        if networks
            .families()
            .any(|family| !underlay.public.has(family) || underlay.tunnel_source(family).is_none())
        {
            let Underlay { name, addresses, .. } = underlay;
            let text = format!(
                "vxlan over {name} needs an address for each family of the network {networks} on the interface {name}, which has {addresses}; choose another interface with --iface"
            );
            return Err(Problem::new("underlay-address-missing", text));
        }
        let mut kernel = NetlinkKernel::open()?;
        if self.config.mode == Implementation::Auto
            && !self.userspace
            && !kernel.supports_vxlan()?
        {
            tracing::warn!(
                remedy = "to use the kernel, install its module vxlan: on Ubuntu for Raspberry Pi the package linux-modules-extra-raspi",
                "the kernel does not support vxlan; encapsulating in userspace"
            );
            self.userspace = true;
        }
        if self.config.port.is_none() && !self.userspace {
            // This loads the module, which has the default port as a parameter.
            let _ = kernel.supports_vxlan();
        }
        let mut mac = |family| self.mac(&mut kernel, stored, family);
        let macs = match networks {
            Dual::V4(_) => Dual::V4(mac(Family::V4)?),
            Dual::V6(_) => Dual::V6(mac(Family::V6)?),
            Dual::Both(..) => Dual::Both(mac(Family::V4)?, mac(Family::V6)?),
        };
        self.macs = Some(macs);
        if let Some(mtu) = self.config.mtu.filter(|mtu| *mtu > underlay.mtu) {
            tracing::warn!(
                interface = %underlay.name,
                from = mtu,
                to = underlay.mtu,
                "the MTU of the Backend exceeds the interface's MTU; using the interface's MTU"
            );
        }
        Ok(announced(&self.config, &macs, underlay.mtu))
    }

    fn hands_over(&self) -> bool {
        self.userspace
    }

    fn rules(&self) -> Arc<dyn PeerRules> {
        Arc::new(Rules { networks: self.setup.config.networks, vni: self.config.vni })
    }

    fn plan(&self, own: Subnets) -> Result<Arc<dyn Plan>, Problem> {
        let macs = self.macs.ok_or_else(|| unannounced_backend(KIND))?;
        self.setup.check_families(&own)?;
        // The device of a family that the network no longer has is also ours. It is not desired, so it is removed.
        let networks = self.setup.config.networks;
        let used = self.setup.former.map_or(networks, |former| networks.or(former));
        let links = used.families().map(|family| self.config.link(family)).collect();
        let scope = Scope {
            checksum_offload: self.config.checksum_offload.is_some(),
            ..self.setup.scope(own, links)
        };
        Ok(Arc::new(VxlanPlan {
            scope,
            config: self.config.clone(),
            port: self.port(),
            macs,
            userspace: self.userspace,
        }))
    }

    fn datapath(&self, scope: &Scope, _underlay: &Underlay) -> Result<Datapath, Problem> {
        if !self.userspace {
            return Datapath::of_kernel();
        }
        let mut kernel = UserspaceKernel::open(&self.setup.files)?;
        // As in the kernel, each family has its own device, MAC and outer family.
        for family in scope.own.families() {
            let Some(mac) = self.macs.as_ref().and_then(|macs| macs.of(family)) else { continue };
            let link = self.config.link(family);
            let config = EngineConfig {
                device: link.to_string(),
                framing: Framing::Vxlan { vni: self.config.vni, mac: mac.0 },
                port: self.port(),
                spread: true,
                features: self.setup.features,
                sources: scope.own.only(|of| of == family).map(|own| own.network_addresses()),
            };
            kernel.engine(link, config, family, scope, self.config.checks);
        }
        Ok(kernel.datapath())
    }
}

/// The backend data in a lease, in Go flannel's format.
#[derive(Serialize)]
struct Data {
    #[serde(rename = "VNI")]
    vni: u32,
    #[serde(rename = "VtepMAC")]
    vtep_mac: String,
}

fn announced(config: &Config, macs: &Dual<Mac, Mac>, underlay_mtu: u32) -> Announced {
    let data = |mac: Option<&Mac>| {
        mac.map(|mac| RawJson::of(&Data { vni: config.vni, vtep_mac: mac.to_string() }))
    };
    let mtu =
        config.device_mtu(underlay_mtu, if macs.has(Family::V4) { Family::V4 } else { Family::V6 });
    Announced { backend: KIND.to_owned(), data: data(macs.v4()), v6_data: data(macs.v6()), mtu }
}

/// The JSON key in the backend data.
const VTEP_MAC: &str = "VtepMAC";

fn mac_in(data: &RawJson) -> Result<Mac, Problem> {
    let (_, text) = read_lease_data(data, VTEP_MAC)?;
    let mac = Mac::parse(&text)
        .ok_or_else(|| unusable_lease("the lease's VtepMAC is not a MAC address"))?;
    if mac.is_station() {
        return Ok(mac);
    }
    Err(unusable_lease(format!("the lease's VtepMAC {mac} is not a valid device address")))
}

/// The lease's MAC in canonical form. No two leases may have the same one.
pub(crate) fn identity(attrs: &LeaseAttrs, family: Family) -> Option<String> {
    let data = family.pick(&attrs.data, &attrs.v6_data).as_ref()?;
    // Fast path for the usual spelling, because every change checks ten thousand of them.
    const MAC: &str = "\"VtepMAC\":\"";
    if let Some(at) = data.as_str().find(MAC)
        && let Some(mac) = data.as_str().get(at + MAC.len()..at + MAC.len() + 17)
        && mac
            .bytes()
            .all(|byte| byte == b':' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    {
        return Some(mac.to_owned());
    }
    let (_, text) = read_lease_data(data, VTEP_MAC).ok()?;
    Some(text.to_ascii_lowercase().replace('-', ":"))
}

/// A lease's backend data must be valid, and present for at least one family of the networks.
struct Rules {
    networks: Subnets,
    vni: u32,
}

impl PeerRules for Rules {
    fn accepts(&self, lease: &Lease) -> Result<(), Problem> {
        if lease.attrs.backend != KIND {
            return Ok(());
        }
        let networks = self.networks;
        let v4 = networks.v4().and(lease.subnets.v4()).and(lease.attrs.data.as_ref());
        let v6 = networks.v6().and(lease.subnets.v6()).and(lease.attrs.v6_data.as_ref());
        let mut usable = false;
        for data in [v4, v6].into_iter().flatten().filter(|data| data.as_str() != "null") {
            mac_in(data)?;
            usable = true;
        }
        if usable { Ok(()) } else { Err(absent_lease_key(VTEP_MAC)) }
    }

    fn identity(&self, attrs: &LeaseAttrs, family: Family) -> Option<String> {
        identity(attrs, family)
    }

    fn derived(&self, node: &NodeId, family: Family) -> Option<String> {
        Some(derived_mac(&node.id, self.vni, family).to_string())
    }
}

/// Locally administered and not multicast.
fn derived_mac(node: &str, vni: u32, family: Family) -> Mac {
    let mut hash = Sha256::new();
    for part in ["flannel vxlan mac", node, &vni.to_string(), family.pick("v4", "v6")] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest = hash.finalize();
    let mut mac = [0; 6];
    mac.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
    mac[0] = mac[0] & 0xfe | 0x02;
    Mac(mac)
}

struct VxlanPlan {
    scope: Scope,
    config: Config,
    port: u16,
    macs: Dual<Mac, Mac>,
    userspace: bool,
}

impl VxlanPlan {
    /// The announced MAC, unless another program keeps changing the MAC of the device.
    fn mac(&self, family: Family, facts: &Facts) -> Option<Mac> {
        self.macs
            .of(family)
            .map(|own| facts.accepted_macs.get(&self.config.link(family)).copied().unwrap_or(*own))
    }
}

impl Plan for VxlanPlan {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn kinds(&self) -> Kinds {
        Kinds::Only(KIND)
    }

    fn needs_on_link(&self) -> bool {
        self.config.direct_routing
    }

    fn base(&self, facts: &Facts) -> KernelState {
        let mut state = KernelState::default();
        for own in self.scope.own.nets() {
            let family = Family::from(own);
            let name = self.config.link(family);
            let mtu = self.config.device_mtu(facts.underlay.mtu, family);
            let link = if self.userspace {
                LinkSpec::new(LinkKind::Tun { held: true }, mtu)
            } else {
                let kind = LinkKind::Vxlan(VxlanSpec {
                    vni: self.config.vni,
                    port: self.port,
                    local: facts.underlay.tunnel_source(family),
                    lower: facts.underlay.index,
                    learning: self.config.learning,
                    gbp: self.config.gbp,
                });
                LinkSpec {
                    mac: self.mac(family, facts),
                    checksum_offload: self.config.checksum_offload,
                    ..LinkSpec::new(kind, mtu)
                }
            };
            state.set_device(name, LinkSpec { accept_ra: Some(false), ..link }, [own]);
        }
        state
    }

    fn of_peer(&self, peer: &Peer<'_>, facts: &Facts) -> Vec<(Key, Value)> {
        let family = Family::from(peer.subnet);
        let route = |via, dev, onlink| {
            let forwarding = RouteSpec::forwarding(Some(via), dev, self.scope.protocol);
            RouteSpec { onlink, ..forwarding }.leading_to(peer.subnet)
        };
        let direct = self.config.direct_routing && facts.on_link.contains(&peer.public_ip);
        if let Some(dev) = LinkName::parse(&facts.underlay.name).filter(|_| direct) {
            return vec![route(peer.public_ip, dev, false)];
        }
        let Some(mac) = peer
            .data
            .and_then(|data| mac_in(data).ok())
            .filter(|mac| Some(*mac) != self.mac(family, facts))
        else {
            return Vec::new();
        };
        let name = self.config.link(family);
        let via = peer.subnet.network();
        let into_tunnel = route(via, name, true);
        if self.userspace {
            // A TUN device has no neighbours. The engine knows the MACs.
            return vec![into_tunnel];
        }
        // An FDB entry has one destination. If two peers have the same MAC, the older lease wins.
        vec![
            (Key::Fdb(name, mac), Value::Fdb(peer.public_ip)),
            (Key::Neighbor(name, via), Value::Neighbor(mac)),
            into_tunnel,
        ]
    }

    fn forwarding(&self, leases: &LeaseTable, facts: &Facts) -> Vec<Forwarding> {
        if !self.userspace {
            return Vec::new();
        }
        let all: Vec<Peer<'_>> = peers(self, leases, &facts.underlay).collect();
        let family = |own: IpNet| {
            let family = Family::from(own);
            let reached =
                all.iter().filter(|peer| Family::from(peer.subnet) == family).filter_map(|peer| {
                    let mac = peer.data.and_then(|data| mac_in(data).ok())?;
                    let address = SocketAddr::new(peer.public_ip, self.port);
                    Some((
                        peer.subnet,
                        NextHop { address, mac: Some(mac), carries_v6: true, outer_ecn: true },
                    ))
                });
            let mtu = self.config.device_mtu(facts.underlay.mtu, family);
            Forwarding { device: self.config.link(family), mtu, peers: reached.collect() }
        };
        self.scope.own.nets().map(family).collect()
    }

    fn announced(&self, facts: &Facts) -> Announced {
        let macs = self.macs.map(
            |own| self.mac(Family::V4, facts).unwrap_or(own),
            |own| self.mac(Family::V6, facts).unwrap_or(own),
        );
        announced(&self.config, &macs, facts.underlay.mtu)
    }
}

#[cfg(test)]
mod tests;
