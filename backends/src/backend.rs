//! The interface between the daemon and the backends: announce, join, run.

pub use crate::error::BackendError;
use crate::error::{LEAST_MTU_V6, UnderlayError};
use crate::handover::Files;
use crate::status::NetworkHandle;
use async_trait::async_trait;
use ipnet::IpNet;
use netstate::names::LinkName;
use netstate::plan::Announced;
use netstate::reconcile::questions::KernelAudit;
use netstate::reconcile::{Inputs, Options};
use netstate::scope::Scope;
use netstate::underlay::Underlay;
use packet_engine::features::Features;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use subnet_lease::{Kinds, Lease, LeaseAttrs, LeaseTable, NetworkConfig, PeerRules};
use tokio::sync::{Notify, watch};
use types::{Encapsulation, Family, Profile, Subnets};

/// Input of a backend at its start.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The network configuration from the store.
    pub config: NetworkConfig,
    /// This node's stable id, from which the backend derives MACs.
    pub node_id: String,
    /// The protocol number of flannel's routes.
    pub route_protocol: u8,
    /// Open files that outlive the process, if a store for such files exists.
    pub files: Files,
    /// Options of the reconciler.
    pub options: Options,
    /// The pod networks of the previous run of flanneld on this host. The backend removes the kernel objects of the previous networks.
    pub former: Option<Subnets>,
    /// Devices of earlier backends on this host. flanneld removes the devices when the new backend works, because
    /// routes through old devices would divert packets.
    pub left_behind: Vec<LinkName>,
    /// Whether secrets that other users can read cause an error. If false, secrets that other users can read cause only a warning.
    pub refuse_insecure: bool,
    /// The file of WireGuard's private key, if the environment names one. An empty path names no file, as in Go flannel.
    pub key_file: Option<PathBuf>,
    /// The file of WireGuard's preshared key, if the environment names one.
    pub preshared_file: Option<PathBuf>,
    /// The method by which the packet engine reads and sends packets in userspace.
    pub features: Features,
}

impl Setup {
    /// Creates the setup of a backend that only parses its configuration, or that runs in a test.
    pub fn of(config: NetworkConfig) -> Self {
        Self {
            config,
            node_id: String::new(),
            route_protocol: netstate::protocols::FLANNEL,
            files: Files::default(),
            options: Options::default(),
            former: None,
            left_behind: Vec::new(),
            refuse_insecure: false,
            key_file: None,
            preshared_file: None,
            features: Features::default(),
        }
    }

    /// Returns the criteria that identify the kernel objects of a backend with these subnets and links.
    pub(crate) fn scope(&self, own: Subnets, mut links: Vec<LinkName>) -> Scope {
        let left: Vec<LinkName> =
            self.left_behind.iter().filter(|name| !links.contains(name)).copied().collect();
        for name in &left {
            tracing::info!(
                device = %name,
                "found a device of an earlier backend; flanneld removes the device when the new backend works"
            );
        }
        links.extend(left);
        Scope {
            links,
            networks: self.config.networks,
            own,
            former: self.former,
            protocol: self.route_protocol,
            checksum_offload: false,
        }
    }
}

/// Resources of a network that no other network on the same host can use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// The names of the network's devices.
    pub devices: Vec<String>,
    /// VNI and port of the kernel's vxlan interface for each family.
    pub tunnels: Vec<String>,
    /// The UDP ports on which the network listens.
    pub ports: Vec<u16>,
    /// Whether other networks on the host can listen on the same ports. Several vxlan interfaces of the kernel can share a port.
    pub shares_ports: bool,
}

/// Parameters of the probes between nodes, over the overlay of a backend and over the underlay.
#[derive(Clone)]
pub struct Overlay {
    /// The backend types whose leases belong to the overlay.
    pub kinds: Kinds,
    /// Whether each node has a device with the first address of its subnet. If false, only the pods' bridge has an address in the subnet.
    pub device: bool,
    /// The outer address family of the tunnel, if packets of both inner families have the same outer family.
    pub outer: Option<Family>,
    /// The family whose packets the overlay carries, if the overlay carries only one family.
    pub family: Option<Family>,
    /// Whether the overlay sends packets unencrypted from node to node.
    pub clear: bool,
    /// Computes the MTU of the network in bytes from the underlay's MTU and the family.
    pub mtu: Arc<dyn Fn(u32, Family) -> u32 + Send + Sync>,
}

impl Overlay {
    /// Returns the subnets of the families that the overlay carries. Nodes probe each other only in families that the overlay carries.
    pub fn carried(&self, own: Subnets) -> Subnets {
        own.only(|family| self.family.is_none_or(|only| only == family)).unwrap_or(own)
    }

    /// Returns an error if the underlay leaves too little room for the IPv6 packets of pods. Linux has no IPv6 on such a device,
    /// nor on the pods' bridge, so every new pod would fail.
    ///
    /// # Errors
    /// Returns an error with the MTU that is left.
    pub fn has_room_for_v6(&self, underlay: &Underlay) -> Result<(), UnderlayError> {
        let left = (self.mtu)(underlay.mtu, Family::V6);
        if left >= LEAST_MTU_V6 {
            return Ok(());
        }
        Err(UnderlayError::MtuForIpv6 { interface: underlay.name.clone(), mtu: underlay.mtu, left })
    }
}

/// Requests another identity from a running network, because an older node has the same identity.
#[derive(Clone, Debug, Default)]
pub struct Renewal(Arc<Notify>);

impl Renewal {
    /// Requests a new private key.
    pub fn ask(&self) {
        self.0.notify_one();
    }

    /// Waits until the daemon requests another identity.
    ///
    /// # Cancel safety
    /// Dropping the future loses no request.
    pub(crate) async fn asked(&self) {
        self.0.notified().await;
    }
}

/// A backend before the node has its lease. A backend carries packets between nodes.
#[async_trait]
pub trait Backend: Send {
    /// Returns the properties of the backend that do not depend on a configuration.
    fn profile(&self) -> &'static Profile;

    /// Returns the devices, VNIs and ports that the network uses on this host. `kernel_vxlan` is true if the kernel supports
    /// vxlan.
    fn takes(&self, _kernel_vxlan: bool) -> Takes {
        Takes::default()
    }

    /// Returns the encapsulation of pod packets with this configuration.
    fn encapsulation(&self) -> Encapsulation {
        self.profile().encapsulation
    }

    /// Returns the encapsulation if other senders can forge its packets, so that traffic rules can filter these packets. A backend that encrypts returns
    /// `Encapsulation::None`.
    fn guarded(&self) -> Encapsulation {
        if self.profile().encrypts { Encapsulation::None } else { self.encapsulation() }
    }

    /// Returns the parameters with which nodes probe each other over this network. Backends that carry no packets return `None`.
    fn overlay(&self) -> Option<Overlay> {
        None
    }

    /// Returns the identity of this node in its leases: its public key, if the backend uses keys. The daemon reads the identity
    /// before it acquires the lease. Returns `None` if the backend has no identity, or does not know its identity yet.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Returns a handle that requests another identity from the running network. Returns `None` if the network cannot change its identity.
    fn renewal(&self) -> Option<Renewal> {
        None
    }

    /// Returns the attributes for this node's announcement, based on the attributes of the node's previous lease. The announcement changes no device.
    ///
    /// # Errors
    /// Returns an error if the underlay does not suit the backend, if the kernel lacks a feature, or if the secrets are unusable.
    async fn announce(
        &mut self,
        underlay: &Underlay,
        stored: Option<&LeaseAttrs>,
    ) -> Result<Announced, BackendError>;

    /// Returns whether the backend adopts the open files of the previous process. The result is valid only after the announcement.
    fn hands_over(&self) -> bool {
        false
    }

    /// Returns the rules that decide which leases of peers are usable. flanneld applies the rules before leases enter the lease table.
    fn rules(&self) -> Arc<dyn PeerRules> {
        Arc::new(())
    }

    /// Returns the MAC or public key that each peer's subnet has in the kernel, from an earlier run. Empty if the kernel does not encapsulate, or
    /// if it cannot be read.
    async fn in_kernel(&mut self, _own: Subnets) -> BTreeMap<IpNet, String> {
        BTreeMap::new()
    }

    /// Makes the reconciler's first pass and returns the running network.
    ///
    /// # Errors
    /// Returns an error if the reconciler cannot set up the data plane at all.
    async fn join(
        self: Box<Self>,
        own: Lease,
        underlay: &Underlay,
        leases: &LeaseTable,
    ) -> Result<Box<dyn Network>, BackendError>;
}

/// A running data plane.
#[async_trait]
pub trait Network: Send {
    /// Keeps the kernel in sync with the leases and the underlay until `inputs` signals a stop. Sends changed announcements of this node to `out`.
    ///
    /// # Errors
    /// Returns an error if the reconciler cannot repair the data plane.
    async fn run(
        self: Box<Self>,
        inputs: Inputs,
        out: watch::Sender<Announced>,
    ) -> Result<(), BackendError>;

    /// Returns a handle that provides the network's status while the network runs.
    fn observer(&self) -> Arc<dyn NetworkHandle>;

    /// Returns a handle for audits of the kernel state while the network runs.
    fn kernel_audit(&self) -> KernelAudit;
}
