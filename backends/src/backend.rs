//! The interface between the daemon and the backends: announce, plan, and carry packets.

use crate::error::LEAST_MTU_V6;
use crate::status::StatusSources;
use crate::userspace::handover::Store;
use netstate::{Kernel, LinkName, NetlinkKernel, Scope, Underlay};
use packet_engine::{Counters, Features};
use reconcile::{Announced, Plan};
use std::path::PathBuf;
use std::sync::Arc;
use subnet_lease::{Kinds, Lease, LeaseAttrs, NetworkConfig, PeerRules};
use tokio::sync::Notify;
use types::{Encapsulation, Family, Problem, Profile, Subnets};

#[derive(Clone, Debug)]
pub struct Setup {
    /// The configuration in the store.
    pub config: NetworkConfig,
    /// This node's stable id, from which the backend derives MACs.
    pub node_id: String,
    /// The number of flannel's routes.
    pub route_protocol: u8,
    /// Keeps open files for the next process.
    pub files: Option<Arc<dyn Store>>,
    /// The pod networks of the previous run of flanneld on this host. The backend removes their
    /// kernel objects.
    pub former: Option<Subnets>,
    /// Devices of earlier backends on this host. They go when the new backend works, because routes
    /// through them would divert packets.
    pub left_behind: Vec<LinkName>,
    /// Secrets that other users can read are an error; otherwise, only a warning.
    pub refuse_insecure: bool,
    /// WireGuard's private key, if the environment names a file. An empty path names none, as in Go
    /// flannel.
    pub key_file: Option<PathBuf>,
    /// WireGuard's preshared key, if the environment names a file.
    pub preshared_file: Option<PathBuf>,
    /// Without effect on a backend that has no keys.
    pub key_requests: KeyRequests,
    /// How the packet engine reads and sends packets.
    pub features: Features,
}

impl Setup {
    /// Serves a backend that only parses its configuration, and tests.
    pub fn of(config: NetworkConfig) -> Self {
        Self {
            config,
            node_id: String::new(),
            route_protocol: netstate::report::protocols::FLANNEL,
            files: None,
            former: None,
            left_behind: Vec::new(),
            refuse_insecure: false,
            key_file: None,
            preshared_file: None,
            key_requests: KeyRequests::default(),
            features: Features::default(),
        }
    }

    /// What identifies the kernel objects of a backend with these subnets and links.
    pub(crate) fn scope(&self, own: Subnets, mut links: Vec<LinkName>) -> Scope {
        for name in &self.left_behind {
            if !links.contains(name) {
                tracing::info!(
                    device = %name,
                    "found a device of an earlier backend; flanneld removes the device when the new backend works"
                );
                links.push(*name);
            }
        }
        Scope {
            links,
            networks: self.config.networks,
            own,
            former: self.former,
            protocol: self.route_protocol,
            checksum_offload: false,
        }
    }

    /// Fails if they are not those of the network.
    pub(crate) fn check_families(&self, lease: &Subnets) -> Result<(), Problem> {
        let networks = &self.config.networks;
        if lease.same_families(networks) {
            return Ok(());
        }
        let text =
            format!("the address families of the lease {lease} and the network {networks} differ");
        Err(Problem::new("lease-of-other-families", text))
    }
}

/// What no other network on the same host can use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    pub devices: Vec<String>,
    /// VNI and port of the kernel's vxlan interface for each family.
    pub tunnels: Vec<String>,
    /// The UDP ports on which the network listens.
    pub ports: Vec<u16>,
    /// Other networks on the host can listen on the same ports. Several vxlan interfaces of the
    /// kernel can share one.
    pub shares_ports: bool,
}

/// Parameters of the probes between nodes, over the overlay of a backend and over the underlay.
#[derive(Clone)]
pub struct Overlay {
    /// Leases of these kinds belong to the overlay.
    pub kinds: Kinds,
    /// Each node has a device with the first address of its subnet. Otherwise, only the pods'
    /// bridge has an address in the subnet.
    pub device: bool,
    /// The tunnel's family, if packets of both inner families have the same one.
    pub outer: Option<Family>,
    /// The only family that the overlay carries, if it carries one.
    pub family: Option<Family>,
    /// The overlay sends packets unencrypted from node to node.
    pub clear: bool,
    /// The MTU of the network in bytes, from the underlay's and the family.
    pub mtu: Arc<dyn Fn(u32, Family) -> u32 + Send + Sync>,
}

impl Overlay {
    /// The network has devices, encrypts nothing, and carries both families, each by itself.
    pub(crate) fn new(
        kind: &'static str,
        mtu: impl Fn(u32, Family) -> u32 + Send + Sync + 'static,
    ) -> Self {
        Self {
            kinds: Kinds::Only(kind),
            device: true,
            outer: None,
            family: None,
            clear: true,
            mtu: Arc::new(mtu),
        }
    }

    /// Nodes probe each other only in families that the overlay carries.
    pub fn carried(&self, own: Subnets) -> Subnets {
        own.only(|family| self.family.is_none_or(|only| only == family)).unwrap_or(own)
    }

    /// Fails, with the MTU that is left, if the underlay leaves too little room for the IPv6
    /// packets of pods. Linux has no IPv6 on such a device, nor on the pods' bridge, so every new
    /// pod would fail.
    pub fn has_room_for_v6(&self, underlay: &Underlay) -> Result<(), Problem> {
        let Underlay { name, mtu, .. } = underlay;
        let left = (self.mtu)(*mtu, Family::V6);
        if left >= LEAST_MTU_V6 {
            return Ok(());
        }
        let text = format!(
            "MTU {mtu} of {name} leaves {left} bytes for packets of pods, and IPv6 needs {LEAST_MTU_V6}; set the MTU of {name} to {} or more, or EnableIPv6 to false in the network configuration",
            mtu + (LEAST_MTU_V6 - left)
        );
        Err(Problem::new("underlay-mtu-too-small", text))
    }
}

/// A lease needs a public address of the family of the tunnel's packets.
pub(crate) struct AddressRules {
    pub kinds: Kinds,
    pub backend: &'static str,
    pub family: Family,
}

impl PeerRules for AddressRules {
    fn accepts(&self, lease: &Lease) -> Result<(), Problem> {
        let Self { kinds, backend, family } = *self;
        if !kinds.include(lease) || lease.attrs.public_for(family).is_some() {
            return Ok(());
        }
        let text = format!("the lease has no public {family} address, which {backend} needs");
        Err(Problem::new("lease-without-address", text))
    }
}

/// Requests about the keys of a running network. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct KeyRequests {
    pub(crate) renewal: Arc<Notify>,
    pub(crate) reading: Arc<Notify>,
}

impl KeyRequests {
    /// This node needs another identity, because an older node has the same one.
    pub fn renew(&self) {
        self.renewal.notify_one();
    }

    /// The key files may have changed.
    pub fn read_again(&self) {
        self.reading.notify_one();
    }
}

/// What carries the packets of a network.
pub struct Datapath {
    pub(crate) kernel: Box<dyn Kernel>,
    pub(crate) sources: StatusSources,
}

impl Datapath {
    /// `engines` are the counters of the packet engines, by device.
    pub(crate) fn of(kernel: impl Kernel + 'static, engines: Vec<(String, Arc<Counters>)>) -> Self {
        let sources = StatusSources { engines, ..StatusSources::default() };
        Self { kernel: Box::new(kernel), sources }
    }

    pub(crate) fn of_kernel() -> Result<Self, Problem> {
        Ok(Self::of(NetlinkKernel::open()?, Vec::new()))
    }
}

/// A backend before the node joins its network. It carries packets between nodes.
pub trait Backend: Send + Sync {
    fn profile(&self) -> &'static Profile;

    /// What the network uses on this host. `kernel_vxlan` is true if the kernel supports vxlan.
    fn takes(&self, _kernel_vxlan: bool) -> Takes {
        Takes::default()
    }

    /// The encapsulation of pod packets with this configuration.
    fn encapsulation(&self) -> Encapsulation {
        self.profile().encapsulation
    }

    /// The encapsulation if other senders can forge its packets, so that traffic rules can filter
    /// them. `Encapsulation::None` for a backend that encrypts.
    fn guarded(&self) -> Encapsulation {
        if self.profile().encrypts { Encapsulation::None } else { self.encapsulation() }
    }

    /// How nodes probe each other over this network; `None` for backends that carry no packets.
    fn overlay(&self) -> Option<Overlay> {
        None
    }

    /// This node's public key in its leases, if the backend uses keys. The daemon reads it before
    /// it acquires the lease. `None` without an identity, or while it is unknown.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Based on the attributes of the node's previous lease. Changes no device. Fails if the
    /// underlay does not suit the backend, if the kernel lacks a feature, or if the secrets are
    /// unusable.
    fn announce(
        &mut self,
        underlay: &Underlay,
        stored: Option<&LeaseAttrs>,
    ) -> Result<Announced, Problem>;

    /// True if the backend adopts the open files of the previous process. Valid only after the
    /// announcement.
    fn hands_over(&self) -> bool {
        false
    }

    /// They decide which leases of peers are usable, before these enter the lease table.
    fn rules(&self) -> Arc<dyn PeerRules> {
        Arc::new(())
    }

    /// The plan of a node with these subnets. Valid only after the announcement.
    fn plan(&self, own: Subnets) -> Result<Arc<dyn Plan>, Problem>;

    /// Carries the packets of a plan with this scope. The kernel does it alone, unless the backend
    /// has a packet engine.
    fn datapath(&self, _scope: &Scope, _underlay: &Underlay) -> Result<Datapath, Problem> {
        Datapath::of_kernel()
    }
}
