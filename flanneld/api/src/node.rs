//! Document of `GET /api/v1/node`.

use crate::kernel::{Kernel, Rules};
use crate::peer::{Peer, Unused};
use doctor::Finding;
use doctor::finding::Unknown;
use ipnet::IpNet;
use jiff::Timestamp;
use probing::pods::{Lost, PodState};
use probing::view::Mesh;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
use types::Family;

/// State of a node, as its daemon knows it. Fields whose values the daemon has not determined yet are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Always [`crate::SCHEMA`]; identifies the format of the document.
    pub schema: String,
    /// Time of this state, by the node's clock.
    pub at: Timestamp,
    /// Name of the node: on Kubernetes the Node's name, otherwise the hostname.
    pub node: String,
    /// Identity by which the node recognises its own lease.
    pub node_id: Option<String>,
    /// Version of the daemon.
    pub version: String,
    /// Seconds since the daemon started.
    pub uptime_seconds: u64,
    /// Whether pods have a network, and the reasons if pods have no network.
    #[serde(flatten)]
    pub readiness: Readiness,
    /// Network of this node.
    #[serde(flatten)]
    pub network: NodeNetwork,
    /// Store of the leases.
    pub store: Option<Store>,
    /// State of this network's objects in the kernel.
    pub kernel: Option<Kernel>,
    /// Purposes of flanneld's traffic rules, and whether they are in place.
    pub rules: Option<Rules>,
    /// Findings of the doctor, the most severe findings first and causes before consequences; absent until the doctor's first run ends.
    pub findings: Option<Vec<Finding>>,
    /// Checks that could not run, with the reasons.
    pub unknown: Vec<Unknown>,
    /// Results of probes of the peers; absent if probing is off.
    pub mesh: Option<Mesh>,
    /// Results of probes on the path of pod packets, one per address family; absent if flanneld does not probe this path.
    pub pod_paths: Option<Vec<PodPath>>,
    /// URL of the status API on its TCP port; absent if the API listens on no port.
    pub page: Option<String>,
    /// Other nodes with a valid lease, ordered by subnet.
    pub peers: Vec<Peer>,
    /// Stored leases that this node does not use.
    pub unused: Vec<Unused>,
}

/// Results of probes on the path of pod packets in one address family (`--probe-pods`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPath {
    /// The address family.
    pub family: Family,
    /// Whether pod packets pass between this node and its peers.
    pub state: PodState,
    /// Source address of the probes, on the pods' bridge; absent if the subnet is too small.
    pub address: Option<IpAddr>,
    /// Reason why pod probes have no results: `no-bridge`, `small-subnet`, `taken`, `refused`, `nobody-answers`, `filtered`, `flooded`.
    pub obstacle: Option<String>,
    /// Error of the kernel, or the hardware address of the pod that has the source address of the probes.
    pub detail: Option<String>,
    /// Number of peers that flanneld probed in the last round of pod probes and that reply to the node's own packets.
    pub asked: usize,
    /// Number of peers in `asked` that sent both a reply and the first packet of a new connection.
    pub answered: usize,
    /// Peers to or from which pod packets do not pass, while packets of the node itself pass.
    pub lost: Vec<LostPods>,
}

/// A peer to or from which pod packets do not pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostPods {
    /// Subnet of the peer.
    pub subnet: IpNet,
    /// Kind of loss.
    pub what: Lost,
}

/// Whether pods on a node have a network, and the reasons if pods have no network. In JSON, the fields of this struct are fields of [`Node`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// Whether pods on this node have a network.
    pub ready: bool,
    /// Reasons why pods have no network; empty if pods have a network.
    pub reasons: Vec<Reason>,
    /// Hanging tasks of the daemon, as text.
    pub silent: Option<String>,
    /// Events that do not affect readiness but concern the operator.
    pub notices: Vec<Notice>,
}

/// Network of a node. In JSON, the fields of this struct are fields of [`Node`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNetwork {
    /// Networks of the cluster, one per address family.
    pub networks: Vec<IpNet>,
    /// Type of the backend, such as `vxlan`.
    pub backend: Option<String>,
    /// Subnets of this node, one per address family.
    pub subnets: Vec<IpNet>,
    /// Lease of this node's subnets.
    pub lease: Option<Lease>,
    /// Underlay interface, which carries packets between nodes.
    pub underlay: Option<Underlay>,
    /// MTU of pods in bytes.
    pub mtu: Option<u32>,
    /// `subnet.env`, the file that the CNI plugin reads.
    pub subnet_env: Option<File>,
}

/// A condition that makes the node not ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// Name of the condition, as in `/readyz`.
    pub condition: String,
    /// Code of the problem, stable between releases; empty if an earlier version wrote the document.
    #[serde(default)]
    pub code: String,
    /// Reason why the condition is not met, with the remedy.
    pub text: String,
}

/// An event that does not affect readiness but concerns the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Name of the event, such as `port-taken`.
    pub name: String,
    /// Text about the event, with the remedy.
    pub text: String,
}

/// Lease of this node's subnets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Time at which the lease expires without a renewal; absent if leases do not expire.
    pub until: Option<Timestamp>,
    /// Time of the last renewal.
    pub renewed: Option<Timestamp>,
    /// Problem with the lease, as text.
    pub trouble: Option<String>,
}

/// Underlay interface, which carries packets between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Underlay {
    /// Name of the interface.
    pub interface: String,
    /// Addresses of the interface that flanneld uses for the underlay, one per address family.
    pub addresses: Vec<IpAddr>,
    /// Addresses that this node publishes.
    pub public: Vec<IpAddr>,
    /// MTU of the interface in bytes.
    pub mtu: u32,
    /// Reason why flanneld chose the interface, as a phrase: `named by --iface=eth1`.
    pub why: String,
}

/// A file that the daemon maintains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Path of the file.
    pub path: PathBuf,
    /// Whether the file has the right contents.
    pub state: FileState,
}

/// Whether a file has the right contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileState {
    /// A file with the right contents.
    Right,
    /// A file that does not exist.
    Missing,
    /// A file with other contents.
    Different,
}

/// Store of the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Store and its address, as text.
    pub what: String,
    /// Kind of the store; absent if an earlier version wrote the document.
    pub kind: Option<StoreKind>,
    /// Time of the store's last response.
    pub heard: Option<Timestamp>,
    /// Reason why the store is unavailable; absent if the store is available.
    pub trouble: Option<String>,
}

/// Kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// etcd.
    Etcd,
    /// A directory.
    Directory,
    /// Nodes of Kubernetes.
    Kubernetes,
}
