//! Objects in the kernel, as an inspection reports them and the API serves them.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// An object that the daemon wants in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The object as `ip` and `bridge` print it.
    pub text: String,
    /// The node that it is for; absent where it is this node's own.
    #[serde(rename = "for")]
    pub holder: Option<Holder>,
    /// Whether the kernel has it.
    pub state: ObjectState,
    /// What is there in its place.
    pub found: Option<String>,
    /// The kernel's error, and the remedy.
    pub why: Option<String>,
}

/// Another node that objects are for, in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its name; Go flannel writes none into the store.
    pub node: Option<String>,
    /// A subnet of its lease.
    pub subnet: IpNet,
    /// The public address in the lease.
    pub address: IpAddr,
}

impl Holder {
    /// Its name, else its subnet.
    pub fn title(&self) -> String {
        self.node
            .clone()
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| self.subnet.to_string())
    }
}

/// A kind of object, as an operator names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectKind {
    /// A network interface.
    Link,
    /// An address of an interface.
    Address,
    /// The destination of frames to a MAC.
    Fdb,
    /// The MAC of an address.
    Neighbour,
    /// A peer of WireGuard.
    WireguardPeer,
    /// An allowed IP of such a peer.
    AllowedIp,
    /// A route that forwards.
    Route,
    /// A route that drops.
    Blackhole,
}

/// Whether a wanted object is in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectState {
    /// The kernel has it.
    #[serde(rename = "as-wanted")]
    InSync,
    /// The kernel does not have it.
    Missing,
    /// Something else is there in its place.
    Different,
    /// The kernel refused it.
    Refused,
}

/// An object of another program, or one of ours that is not wanted any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The object as `ip`, `bridge` or `wg` prints it.
    pub text: String,
    /// Who made it, in words.
    pub by: String,
    /// Whether it is a route inside this node's own subnets, as those to its pods are.
    pub own_subnet: bool,
    /// Wanted objects that it conflicts with: subnets with their nodes, devices. Usually none.
    #[serde(rename = "in_the_way_of")]
    pub conflicts_with: Vec<String>,
}
