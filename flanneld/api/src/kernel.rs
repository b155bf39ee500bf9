//! The state of this network in the kernel.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Links, addresses, routes, neighbours, FDB entries and peers of WireGuard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Whether all are as wanted, apart from those of `failed_peers`.
    pub in_sync: bool,
    /// What is not, in words; empty if all are.
    pub trouble: String,
    /// Peers that the kernel refuses, each for a reason of its own. They cost this node no readiness.
    pub failed_peers: Vec<FailedPeer>,
    /// Number of routes that the leases in force ask for.
    pub routes: u64,
    /// Number of permanent neighbours wanted.
    pub neighbours: u64,
    /// Number of FDB entries wanted.
    pub fdb: u64,
    /// How many were put back within the last hour after another program had changed them.
    pub put_back: u64,
    /// The peers of WireGuard; absent with another backend.
    pub wireguard: Option<Wireguard>,
}

/// A peer whose objects the kernel refuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedPeer {
    /// The name of its node, if its lease has one.
    pub node: Option<String>,
    /// The subnet of the peer.
    pub subnet: IpNet,
    /// The address that it publishes.
    pub address: IpAddr,
    /// What the kernel refused, and the remedy.
    pub text: String,
}

/// Counts of the peers of WireGuard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wireguard {
    /// How many peers there are.
    pub peers: u64,
    /// To how many of them this node sends without a completed handshake.
    pub silent: u64,
}

/// The traffic rules of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// What they are written with: `nftables`, `iptables (nf_tables)`, `iptables (legacy)`.
    pub with: String,
    /// What they do: `masquerade`, `forward`, `guard`.
    pub what: Vec<String>,
    /// Whether they are in place.
    pub in_place: bool,
    /// Why not; empty if they are.
    pub trouble: String,
    /// How often they were put back since the daemon started.
    pub put_back: u64,
}
