//! The seam between the daemon and what carries packets: announce, join, run.

use crate::handover::Files;
use crate::status::Observer;
use async_trait::async_trait;
use netstate::kernel::KernelError;
use netstate::names::LinkName;
use netstate::plan::Announced;
use netstate::reconcile::{Inputs, Options};
use netstate::scope::{FormerNetworks, Scope};
use netstate::underlay::Underlay;
use packet_engine::features::Features;
use std::sync::Arc;
use subnet_lease::{Lease, LeaseAttrs, LeaseTable, NetworkConfig};
use tokio::sync::watch;

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
    /// Open files that outlive the process, where somebody keeps them.
    pub files: Files,
    /// How the kernel is kept in step.
    pub options: Options,
    /// The networks of the former run on this host: what it left of them goes.
    pub former: FormerNetworks,
    /// How packets are moved in userspace.
    pub features: Features,
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

impl From<KernelError> for Error {
    fn from(error: KernelError) -> Self {
        Error::Host { what: error.what, why: error.why }
    }
}

impl Setup {
    /// Which kernel objects belong to a backend with these links.
    pub(crate) fn scope(&self, links: Vec<LinkName>) -> Scope {
        Scope { links, networks: self.config.networks, former: self.former, protocol: self.route_protocol, checksum_offload: false }
    }
}

/// What a network takes of a host that no other network can have beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// The names of its devices.
    pub devices: Vec<String>,
    /// VNI and port of the kernel's vxlan interfaces, a family each.
    pub tunnels: Vec<String>,
    /// Its UDP ports.
    pub ports: Vec<u16>,
    /// Whether other networks can use these ports, too: the kernel's vxlan interfaces share one.
    pub shares_ports: bool,
}

/// A way to carry packets between nodes, before the node has its lease.
#[async_trait]
pub trait Backend: Send {
    /// What the network takes of this host. `kernel_vxlan` tells whether the kernel knows vxlan, for those that leave the choice to it.
    fn takes(&self, _kernel_vxlan: bool) -> Takes {
        Takes::default()
    }

    /// The UDP ports on which encapsulated packets travel that anybody could forge: those that traffic rules can guard.
    fn guarded_ports(&self) -> Vec<u16> {
        Vec::new()
    }

    /// Whether nodes may have one public address in common, because something else tells them apart.
    fn shares_address(&self) -> bool {
        false
    }

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

    /// How it stands, for people and metrics; asked while it runs.
    fn observer(&self) -> Observer;
}
