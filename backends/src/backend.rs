//! The seam between the daemon and what carries packets: announce, join, run.

use crate::datapath::counters::Counters;
use crate::datapath::features::Features;
use crate::datapath::handover::Files;
use crate::kernel::state::Formerly;
use async_trait::async_trait;
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;
use subnet_lease::{Addresses, Lease, LeaseAttrs, LeaseTable, NetworkConfig, RawJson};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The interface that carries packets between nodes, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// Interface index; what identifies it while the daemon runs.
    pub index: u32,
    /// Its present name.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// The interface's own addresses, one a family at most: what sockets bind and devices use as local address.
    pub addresses: Addresses,
    /// What peers are told: `--public-ip` and kin, else the interface's addresses.
    pub public: Addresses,
    /// Every address of this host, on whatever interface: a public address that is not among them is not local.
    pub local: Vec<IpNet>,
}

impl Underlay {
    /// The local end of tunnels of a family: the public address where this host has it, else the interface's.
    pub fn tunnel_source(&self, ipv6: bool) -> Option<IpAddr> {
        let (public, own) = if ipv6 {
            (self.public.v6().copied().map(IpAddr::V6), self.addresses.v6().copied().map(IpAddr::V6))
        } else {
            (self.public.v4().copied().map(IpAddr::V4), self.addresses.v4().copied().map(IpAddr::V4))
        };
        match public {
            Some(public) if Some(public) == own || self.local.iter().any(|net| net.addr() == public) => Some(public),
            _ => own,
        }
    }
}

/// What the world is told: the lease's attributes (without addresses and node, which the daemon adds) and the pods' MTU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The backend's wire name, empty for `udp` and `alloc`.
    pub backend: String,
    /// The backend's IPv4 data.
    pub data: Option<RawJson>,
    /// The backend's IPv6 data.
    pub v6_data: Option<RawJson>,
    /// FLANNEL_MTU.
    pub mtu: u32,
}

/// Why a peer's lease cannot be used by the backend, in words for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Decides whether the backend can use a lease; pure.
pub type Accepts = Arc<dyn Fn(&Lease) -> Result<(), Refusal> + Send + Sync>;

/// What a backend needs to know from the start.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The network configuration.
    pub config: NetworkConfig,
    /// This node's stable id, from which lasting MACs are derived.
    pub node_id: String,
    /// Route protocol number that marks our routes.
    pub route_protocol: u8,
    /// How often the kernel is compared with what is wanted, beside events; `None` never.
    pub audit: Option<std::time::Duration>,
    /// Open files that outlive the process, where somebody keeps them.
    pub files: Files,
    /// Whether this node's own subnets end in blackhole routes.
    pub blackhole: bool,
    /// The networks of the former run on this host: what it left of them goes.
    pub former: Formerly,
    /// How packets are moved in userspace.
    pub features: Features,
}

/// What changes while a network runs.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The leases in force.
    pub leases: watch::Receiver<Arc<LeaseTable>>,
    /// The underlay as it is.
    pub underlay: watch::Receiver<Underlay>,
    /// Ends the run.
    pub stop: CancellationToken,
}

/// What a failing backend says.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration asks for what this backend cannot do.
    #[error("{0}")]
    Config(String),
    /// The host lacks something or refuses it.
    #[error("{what}: {why}")]
    Host {
        /// What was attempted, on what.
        what: String,
        /// What the host said, and the remedy.
        why: String,
    },
}

/// A way to carry packets between nodes, before the node has its lease.
#[async_trait]
pub trait Backend: Send {
    /// What this node will publish, given what it published last time; changes no device yet.
    ///
    /// # Errors
    /// When the underlay does not suit the backend.
    async fn announce(&mut self, underlay: &Underlay, stored: Option<&LeaseAttrs>) -> Result<Announced, Error>;

    /// Whether it takes over files that a former process left; known after the announcement.
    fn hands_over(&self) -> bool {
        false
    }

    /// Whether a peer's lease can be used; asked before it enters the table.
    fn accepts(&self) -> Accepts;

    /// Makes the first pass and returns the running network.
    ///
    /// # Errors
    /// When the data plane cannot be set up at all.
    async fn join(self: Box<Self>, own: Lease, underlay: &Underlay, leases: &LeaseTable) -> Result<Box<dyn Network>, Error>;
}

/// A running data plane.
#[async_trait]
pub trait Network: Send {
    /// Keeps the kernel as the inputs demand until `stop`. What must be told anew goes out through `out`.
    ///
    /// # Errors
    /// Only where nothing can be repaired any more.
    async fn run(self: Box<Self>, inputs: Inputs, out: watch::Sender<Announced>) -> Result<(), Error>;

    /// Counters and the present state for people and metrics.
    fn status(&self) -> Arc<Status>;
}

/// What a network tells about itself while it runs; written by the loop, read by health and metrics.
#[derive(Debug, Default)]
pub struct Status {
    /// Passes made.
    pub passes: std::sync::atomic::AtomicU64,
    /// Operations sent to the kernel that changed it.
    pub writes: std::sync::atomic::AtomicU64,
    /// Operations that failed.
    pub failures: std::sync::atomic::AtomicU64,
    /// Operations that undid somebody else's change.
    pub repairs: std::sync::atomic::AtomicU64,
    /// Set while the kernel is as wanted.
    pub in_step: std::sync::atomic::AtomicBool,
    /// The packet engines of our own, by device, with what they count.
    pub engines: std::sync::OnceLock<Vec<(String, Arc<Counters>)>>,
    /// What is wrong at present, for people; empty while in step.
    pub trouble: std::sync::Mutex<String>,
}
