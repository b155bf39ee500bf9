//! The document.

use crate::kernel::{Kernel, Rules};
use crate::peer::{Peer, Unused};
use doctor::Finding;
use doctor::finding::Unknown;
use ipnet::IpNet;
use jiff::Timestamp;
use probing::view::Mesh;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

/// A node, as its daemon knows it. What the daemon does not know yet is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// [`crate::SCHEMA`].
    pub schema: String,
    /// When this was true, by the node's clock.
    pub at: Timestamp,
    /// The node's name: on Kubernetes the Node's, else the hostname.
    pub node: String,
    /// The identity by which its lease is recognised.
    pub node_id: Option<String>,
    /// The daemon's version.
    pub version: String,
    /// How long the daemon has been running.
    pub uptime_seconds: u64,
    /// Whether pods on this node have a network.
    pub ready: bool,
    /// Why not; empty if they have.
    pub reasons: Vec<Reason>,
    /// Tasks of the daemon that hang, if any.
    pub silent: Option<String>,
    /// What costs no readiness and should be known.
    pub notices: Vec<Notice>,
    /// The cluster's networks, one a family.
    pub networks: Vec<IpNet>,
    /// The backend.
    pub backend: Option<String>,
    /// This node's subnets, one a family.
    pub subnets: Vec<IpNet>,
    /// The lease of these subnets.
    pub lease: Option<Lease>,
    /// The interface for packets between nodes.
    pub underlay: Option<Underlay>,
    /// The MTU of pods.
    pub mtu: Option<u32>,
    /// The file for the CNI plugin.
    pub subnet_env: Option<File>,
    /// Where leases are kept.
    pub store: Option<Store>,
    /// What the kernel has of this network.
    pub kernel: Option<Kernel>,
    /// The traffic rules.
    pub rules: Option<Rules>,
    /// What is wrong on this node, the gravest first, causes before what they explain; absent before the first look.
    pub findings: Option<Vec<Finding>>,
    /// Checks that could not be made.
    pub unknown: Vec<Unknown>,
    /// What probes tell of the peers; absent where nothing is probed.
    pub mesh: Option<Mesh>,
    /// The page's address, if there is one.
    pub page: Option<String>,
    /// The other nodes whose leases are in force, by subnet.
    pub peers: Vec<Peer>,
    /// Leases in the store that this node does not use.
    pub unused: Vec<Unused>,
}

/// A condition that keeps the node from being ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// Its name, as `/readyz` says it.
    pub condition: String,
    /// The code of the problem, which stays the same between releases; empty from a daemon of before.
    #[serde(default)]
    pub code: String,
    /// The reason in words.
    pub text: String,
}

/// Something that costs no readiness and should be known.
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
    /// Its name.
    pub interface: String,
    /// Its addresses in use, one a family.
    pub addresses: Vec<IpAddr>,
    /// The addresses that other nodes are told.
    pub public: Vec<IpAddr>,
    /// Its MTU.
    pub mtu: u32,
    /// Why this one, as a phrase: `named by --iface=eth1`.
    pub why: String,
}

/// A file that the daemon keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Where it is.
    pub path: PathBuf,
    /// How it is.
    pub state: FileState,
}

/// How a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileState {
    /// As it should be.
    Right,
    /// Not there.
    Missing,
    /// With other contents than it should have.
    Different,
}

/// Where leases are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// The store, in words.
    pub what: String,
    /// When it answered last.
    pub heard: Option<Timestamp>,
    /// Why it is away, if it is.
    pub trouble: Option<String>,
}
