//! State of a network's objects in the kernel.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// State of links, addresses, routes, neighbours, FDB entries and WireGuard peers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Leaves out the objects of `failed_peers`.
    pub in_sync: bool,
    /// About the objects that are not in sync; empty if all are.
    pub trouble: String,
    /// Peers whose objects the kernel refuses. They do not affect this node's readiness.
    pub failed_peers: Vec<FailedPeer>,
    /// Routes that the valid leases require.
    pub routes: u64,
    /// Desired permanent neighbours.
    pub neighbours: u64,
    /// Desired FDB entries.
    pub fdb: u64,
    /// Objects that flanneld restored within the last hour after another program had changed them.
    pub put_back: u64,
    /// Absent with another backend.
    pub wireguard: Option<Wireguard>,
}

/// A peer whose objects the kernel refuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedPeer {
    /// Absent if the lease contains no name.
    pub node: Option<String>,
    pub subnet: IpNet,
    /// Address that the peer publishes.
    pub address: IpAddr,
    /// Why the kernel refuses the objects, with the remedy.
    pub text: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wireguard {
    pub peers: u64,
    /// Peers to which this node sends packets without a completed handshake.
    pub silent: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// `nftables`, `iptables (nf_tables)` or `iptables (legacy)`.
    pub with: String,
    /// `masquerade`, `forward`, `guard`.
    pub what: Vec<String>,
    pub in_place: bool,
    /// Why the rules are not in place; empty if they are.
    pub trouble: String,
    /// Number of times that flanneld restored the rules since it started.
    pub put_back: u64,
}
