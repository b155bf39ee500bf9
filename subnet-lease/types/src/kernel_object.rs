//! Kernel objects in the form that an inspection reports and the status API serves.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// An object that the daemon needs in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The object in the format of `ip` or `bridge`.
    pub text: String,
    /// The node for which the object exists; `None` if the object belongs to this node.
    #[serde(rename = "for")]
    pub holder: Option<Holder>,
    /// State of the object in the kernel.
    pub state: ObjectState,
    /// The object that the kernel has instead of the desired object, if the two objects differ.
    pub found: Option<String>,
    /// The kernel's error about the object, and the remedy.
    pub why: Option<String>,
}

/// Another node for which an object exists, in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Name of the node; `None` for Go flannel, which writes no name into the store.
    pub node: Option<String>,
    /// A subnet of the node's lease.
    pub subnet: IpNet,
    /// The public address in the node's lease.
    pub address: IpAddr,
}

impl Holder {
    /// Returns the name of the node. For a node without a name, the function returns the node's subnet.
    pub fn title(&self) -> String {
        self.node.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| self.subnet.to_string())
    }
}

/// Kind of a kernel object, with the name that operators use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectKind {
    /// A network interface.
    Link,
    /// An address of an interface.
    Address,
    /// An FDB entry: the destination of frames to a MAC.
    Fdb,
    /// A neighbour entry: the MAC of an address.
    Neighbour,
    /// A WireGuard peer.
    WireguardPeer,
    /// An allowed IP of a WireGuard peer.
    AllowedIp,
    /// A route that forwards packets.
    Route,
    /// A route that drops packets.
    Blackhole,
}

/// Whether a desired object is in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectState {
    /// Object that the kernel has in the desired form.
    #[serde(rename = "as-wanted")]
    InSync,
    /// Object that the kernel does not have.
    Missing,
    /// Object in the kernel that differs from the desired object.
    Different,
    /// Object that the kernel refused.
    Refused,
}

/// An object of another program, or an object of flannel that the daemon no longer needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The object in the format of `ip`, `bridge` or `wg`.
    pub text: String,
    /// Description of the program that created the object.
    pub by: String,
    /// Whether the object is a route inside this node's own subnets, like the routes to the node's pods.
    pub own_subnet: bool,
    /// Desired objects with which this object conflicts: subnets with their nodes, or devices. Usually empty.
    #[serde(rename = "in_the_way_of")]
    pub conflicts_with: Vec<String>,
}
