//! Document of `GET /api/v1/node`.

use crate::kernel::{Kernel, Rules};
use crate::peer::{Peer, Unused};
use doctor::Finding;
use doctor::finding::Unknown;
use ipnet::IpNet;
use jiff::Timestamp;
use probing::pods::{LostPackets, PodState};
use probing::view::Mesh;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
use types::Family;

/// State of a node, as its daemon knows it. Fields that the daemon has not determined yet are absent.
///
/// ```
/// use node_api::{Node, Readiness, SCHEMA};
///
/// let node = Node {
///     schema: SCHEMA.to_owned(),
///     node: "node-1".to_owned(),
///     readiness: Readiness { ready: true, ..Readiness::default() },
///     ..Node::default()
/// };
/// let document = serde_json::to_value(&node)?;
/// assert_eq!(document["schema"], "flannel.node/1");
/// assert_eq!(document["ready"], true);
/// assert_eq!(serde_json::from_value::<Node>(document)?, node);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Always [`crate::SCHEMA`].
    pub schema: String,
    /// By the node's clock.
    pub at: Timestamp,
    /// On Kubernetes the Node's name, otherwise the hostname.
    pub node: String,
    /// The node recognises its own lease by it.
    pub node_id: Option<String>,
    pub version: String,
    /// Since the daemon started.
    pub uptime_seconds: u64,
    #[serde(flatten)]
    pub readiness: Readiness,
    #[serde(flatten)]
    pub network: NodeNetwork,
    pub store: Option<Store>,
    pub kernel: Option<Kernel>,
    pub rules: Option<Rules>,
    /// The most severe first and causes before consequences; absent until the doctor's first run ends.
    pub findings: Option<Vec<Finding>>,
    /// Checks that could not run, with the reasons.
    pub unknown: Vec<Unknown>,
    /// Absent if probing is off.
    pub mesh: Option<Mesh>,
    /// One per address family; absent if flanneld does not probe the path of pod packets.
    pub pod_paths: Option<Vec<PodPath>>,
    /// URL of the status API on its TCP port; absent if it listens on none.
    pub page: Option<String>,
    /// Other nodes with a valid lease, ordered by subnet.
    pub peers: Vec<Peer>,
    /// Stored leases that this node does not use.
    pub unused: Vec<Unused>,
}

/// Results of probes on the path of pod packets in one address family (`--probe-pods`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPath {
    pub family: Family,
    /// Whether pod packets pass between this node and its peers.
    pub state: PodState,
    /// Source address of the probes, on the pods' bridge; absent if the subnet is too small.
    pub address: Option<IpAddr>,
    /// Why pod probes have no results: `no-bridge`, `small-subnet`, `taken`, `refused`, `nobody-answers`, `filtered`,
    /// `flooded`.
    pub obstacle: Option<String>,
    /// Error of the kernel, or the hardware address of the pod that has the source address.
    pub detail: Option<String>,
    /// Peers that flanneld probed in the last round and that reply to the node's own packets.
    pub asked: usize,
    /// Peers in `asked` that sent both a reply and the first packet of a new connection.
    pub answered: usize,
    pub lost: Vec<LostPods>,
}

/// A peer to or from which pod packets do not pass, while packets of the node itself pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostPods {
    pub subnet: IpNet,
    pub what: LostPackets,
}

/// Whether pods on a node have a network. In JSON, the fields of this struct are fields of [`Node`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    pub ready: bool,
    /// Empty if pods have a network.
    pub reasons: Vec<Reason>,
    /// Hanging tasks of the daemon.
    pub silent: Option<String>,
    pub notices: Vec<Notice>,
}

/// In JSON, the fields of this struct are fields of [`Node`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNetwork {
    /// One per address family.
    pub networks: Vec<IpNet>,
    /// Such as `vxlan`.
    pub backend: Option<String>,
    /// One per address family.
    pub subnets: Vec<IpNet>,
    pub lease: Option<Lease>,
    pub underlay: Option<Underlay>,
    /// Of pods, in bytes.
    pub mtu: Option<u32>,
    /// `subnet.env`, the file that the CNI plugin reads.
    pub subnet_env: Option<File>,
}

/// A condition that makes the node not ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// As in `/readyz`.
    pub condition: String,
    /// Stable between releases; empty if an earlier version wrote the document.
    #[serde(default)]
    pub code: String,
    /// Why the condition is not met, with the remedy.
    pub text: String,
}

/// An event that does not affect readiness but concerns the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Such as `port-taken`.
    pub name: String,
    /// With the remedy.
    pub text: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Expiry without a renewal; absent if leases do not expire.
    pub until: Option<Timestamp>,
    pub renewed: Option<Timestamp>,
    /// Problem with the lease.
    pub trouble: Option<String>,
}

/// The interface that carries packets between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Underlay {
    pub interface: String,
    /// Addresses that flanneld uses, one per address family.
    pub addresses: Vec<IpAddr>,
    /// Addresses that this node publishes.
    pub public: Vec<IpAddr>,
    /// Of the interface, in bytes.
    pub mtu: u32,
    /// Why flanneld chose the interface, as a phrase: `named by --iface=eth1`.
    pub why: String,
}

/// A file that the daemon maintains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    pub path: PathBuf,
    pub state: FileState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileState {
    /// The file has the right contents.
    Right,
    Missing,
    /// The file has other contents.
    Different,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Store and its address, as text.
    pub what: String,
    /// Absent if an earlier version wrote the document.
    pub kind: Option<StoreKind>,
    /// Time of the store's last response.
    pub heard: Option<Timestamp>,
    /// Why the store is unavailable; absent if it is available.
    pub trouble: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    Etcd,
    Directory,
    /// Nodes of Kubernetes hold the leases.
    Kubernetes,
}
