//! The document of `GET /api/v1/node`.

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

/// A node, as its daemon knows it. What the daemon does not know yet is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Always [`crate::SCHEMA`], by which readers recognise the format.
    pub schema: String,
    /// When this was true, by the node's clock.
    pub at: Timestamp,
    /// The node's name: on Kubernetes the Node's, else the hostname.
    pub node: String,
    /// The identity by which its lease is recognised.
    pub node_id: Option<String>,
    /// The version of the daemon.
    pub version: String,
    /// How long the daemon has been running.
    pub uptime_seconds: u64,
    /// Whether pods have a network, and why not.
    #[serde(flatten)]
    pub readiness: Readiness,
    /// The network of this node.
    #[serde(flatten)]
    pub network: NodeNetwork,
    /// The store of the leases.
    pub store: Option<Store>,
    /// The state of this network in the kernel.
    pub kernel: Option<Kernel>,
    /// What flanneld's traffic rules do, and whether they are in place.
    pub rules: Option<Rules>,
    /// The doctor's findings, the most severe first, causes before their consequences; absent before its first round.
    pub findings: Option<Vec<Finding>>,
    /// Checks that could not be made.
    pub unknown: Vec<Unknown>,
    /// The results of probes of the peers; absent where nothing is probed.
    pub mesh: Option<Mesh>,
    /// What the probes on the path of pods' packets found, one a family; absent where that path is not probed.
    #[serde(default)]
    pub pod_paths: Option<Vec<PodPath>>,
    /// The URL of the status API on its port, if it has one.
    pub page: Option<String>,
    /// The other nodes whose leases are in force, by subnet.
    pub peers: Vec<Peer>,
    /// Leases in the store that this node does not use.
    pub unused: Vec<Unused>,
}

/// What the probes on the path of pods' packets found in one address family (`--probe-pods`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPath {
    /// The address family.
    pub family: Family,
    /// Whether packets of pods pass.
    pub state: PodState,
    /// The address that asks, at the pods' bridge; absent where the subnet is too small.
    pub address: Option<IpAddr>,
    /// Why nobody is asked: `no-bridge`, `small-subnet`, `taken`, `refused`, `nobody-answers`, `filtered`, `flooded`.
    pub obstacle: Option<String>,
    /// The kernel's error, or the hardware address of the pod that has the address.
    pub detail: Option<String>,
    /// How many peers were asked last.
    pub asked: usize,
    /// How many of them answered, and reached the address that asked.
    pub answered: usize,
    /// The peers from or to which packets of pods are lost, while those of the node itself pass.
    pub lost: Vec<LostPods>,
}

/// A peer from or to which packets of pods are lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostPods {
    /// Its subnet.
    pub subnet: IpNet,
    /// What is lost.
    pub what: Lost,
}

/// Whether pods on a node have a network, and why not. Its fields are fields of [`Node`] in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// Whether pods on this node have a network.
    pub ready: bool,
    /// Why not; empty if they have.
    pub reasons: Vec<Reason>,
    /// Tasks of the daemon that hang, if any.
    pub silent: Option<String>,
    /// Events that do not affect readiness but should be known.
    pub notices: Vec<Notice>,
}

/// The network of a node. Its fields are fields of [`Node`] in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNetwork {
    /// The cluster's networks, one a family.
    pub networks: Vec<IpNet>,
    /// The type of the backend.
    pub backend: Option<String>,
    /// This node's subnets, one a family.
    pub subnets: Vec<IpNet>,
    /// The lease of these subnets.
    pub lease: Option<Lease>,
    /// The interface for packets between nodes.
    pub underlay: Option<Underlay>,
    /// The MTU of pods in bytes.
    pub mtu: Option<u32>,
    /// The file for the CNI plugin.
    pub subnet_env: Option<File>,
}

/// A condition that keeps the node from being ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The name of the condition, as in `/readyz`.
    pub condition: String,
    /// The code of the problem, which stays the same between releases; empty from an earlier daemon.
    #[serde(default)]
    pub code: String,
    /// Why the condition is not met, and the remedy.
    pub text: String,
}

/// An event that does not affect readiness but should be known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Its name, such as `port-taken`.
    pub name: String,
    /// What happened, and what to do.
    pub text: String,
}

/// The lease of this node's subnets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// When it ends unless it is renewed; absent where leases do not end.
    pub until: Option<Timestamp>,
    /// When it was renewed last.
    pub renewed: Option<Timestamp>,
    /// What is wrong with it.
    pub trouble: Option<String>,
}

/// The interface for packets between nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Underlay {
    /// The name of the interface.
    pub interface: String,
    /// Its addresses in use, one a family.
    pub addresses: Vec<IpAddr>,
    /// The addresses that this node publishes.
    pub public: Vec<IpAddr>,
    /// The MTU of the interface in bytes.
    pub mtu: u32,
    /// Why this one, as a phrase: `named by --iface=eth1`.
    pub why: String,
}

/// A file that the daemon keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// The path of the file.
    pub path: PathBuf,
    /// Whether it has the right contents.
    pub state: FileState,
}

/// Whether a file has the right contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileState {
    /// It has the contents that it should have.
    Right,
    /// There is no file at the path.
    Missing,
    /// It has other contents than it should have.
    Different,
}

/// The store of the leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// The store and its address, as text.
    pub what: String,
    /// What kind of store it is; none from earlier versions.
    #[serde(default)]
    pub kind: Option<StoreKind>,
    /// When the store answered last.
    pub heard: Option<Timestamp>,
    /// Why it is away, if it is.
    pub trouble: Option<String>,
}

/// The kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// etcd.
    Etcd,
    /// A directory.
    Directory,
    /// The Nodes of Kubernetes.
    Kubernetes,
}
