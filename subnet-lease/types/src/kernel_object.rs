//! Kernel objects in the form that an inspection reports and the status API serves.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The daemon needs it in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    pub kind: ObjectKind,
    /// In the format of `ip` or `bridge`.
    pub text: String,
    /// `None` if the object belongs to this node.
    #[serde(rename = "for")]
    pub holder: Option<Holder>,
    pub state: ObjectState,
    /// What the kernel has instead of the desired object, if the two differ.
    pub found: Option<String>,
    /// The kernel's error about the object, and the remedy.
    pub why: Option<String>,
}

/// Another node for which an object exists, in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// `None` for Go flannel, which writes no name into the store.
    pub node: Option<String>,
    /// From the node's lease.
    pub subnet: IpNet,
    /// The public address in the node's lease.
    pub address: IpAddr,
}

impl Holder {
    /// The name, or the subnet of a node without one.
    #[must_use]
    pub fn title(&self) -> String {
        self.node.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| self.subnet.to_string())
    }
}

/// With the name that operators use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectKind {
    /// A network interface.
    Link,
    Address,
    /// The destination of frames to a MAC.
    Fdb,
    /// The MAC of an address.
    Neighbour,
    WireguardPeer,
    AllowedIp,
    /// It forwards packets.
    Route,
    /// A route that drops packets.
    Blackhole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectState {
    /// The kernel has it in the desired form.
    #[serde(rename = "as-wanted")]
    InSync,
    Missing,
    /// The kernel's object differs from the desired one.
    Different,
    /// The kernel refused it.
    Refused,
}

/// An object of another program, or one of flannel that the daemon no longer needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    pub kind: ObjectKind,
    /// In the format of `ip`, `bridge` or `wg`.
    pub text: String,
    /// Which program created the object.
    pub by: String,
    /// A route inside this node's own subnets, like those to its pods.
    pub own_subnet: bool,
    /// Desired objects with which it conflicts: subnets with their nodes, or devices. Usually empty.
    #[serde(rename = "in_the_way_of")]
    pub conflicts_with: Vec<String>,
}
