//! State of a network's objects in the kernel.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// State of links, addresses, routes, neighbours, FDB entries and WireGuard peers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Whether all objects are in sync, except the objects of `failed_peers`.
    pub in_sync: bool,
    /// Text about the objects that are not in sync; empty if all objects are in sync.
    pub trouble: String,
    /// Peers whose objects the kernel refuses, each with the reason. Refused peers do not affect this node's readiness.
    pub failed_peers: Vec<FailedPeer>,
    /// Number of routes that the valid leases require.
    pub routes: u64,
    /// Number of desired permanent neighbours.
    pub neighbours: u64,
    /// Number of desired FDB entries.
    pub fdb: u64,
    /// Number of objects that flanneld restored within the last hour after another program had changed them.
    pub put_back: u64,
    /// WireGuard peers; absent with another backend.
    pub wireguard: Option<Wireguard>,
}

/// A peer whose objects the kernel refuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedPeer {
    /// Name of the peer's node, if the peer's lease contains a name.
    pub node: Option<String>,
    /// Subnet of the peer.
    pub subnet: IpNet,
    /// Address that the peer publishes.
    pub address: IpAddr,
    /// Reason for the refusal by the kernel, with the remedy.
    pub text: String,
}

/// Number of WireGuard peers, and number of WireGuard peers without a handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wireguard {
    /// Number of all peers.
    pub peers: u64,
    /// Number of peers to which this node sends packets without a completed handshake.
    pub silent: u64,
}

/// Traffic rules of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Tool that writes the rules: `nftables`, `iptables (nf_tables)`, `iptables (legacy)`.
    pub with: String,
    /// Purposes of the rules: `masquerade`, `forward`, `guard`.
    pub what: Vec<String>,
    /// Whether the rules are in place.
    pub in_place: bool,
    /// Reason why the traffic rules are not in place; empty if the rules are in place.
    pub trouble: String,
    /// Number of times that flanneld restored the rules since it started.
    pub put_back: u64,
}
