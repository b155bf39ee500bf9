//! Results of this node's probes of its peers.

use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;
use types::Family;
use types::reachability::Impact;
pub use types::reachability::{State, Verdict};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// One for each peer and address family.
    pub paths: Vec<Path>,
    /// This node sends probes to this UDP port.
    pub port: u16,
    /// Faults that the failing peers of a family have in common.
    pub faults: Vec<CommonOutage>,
    /// Lost probes and all recent probes to all peers. `None` unless the losses are significant and not limited to single peers.
    pub lost_everywhere: Option<(u32, u32)>,
    /// Senders that probe this node by its id, but have no lease in the store.
    pub strangers: Vec<IpAddr>,
    /// Probes of other nodes arrived lately.
    pub hears: bool,
}

impl Mesh {
    /// The paths of a family on which the probes allow a verdict.
    pub fn judged(&self, family: Family) -> Vec<&Path> {
        let is_judged = |path: &&Path| {
            Family::from(path.address) == family && path.verdict.state != State::Unknown
        };
        self.paths.iter().filter(is_judged).collect()
    }
}

/// A fault of all peers of a family, except for those that respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonOutage {
    pub state: State,
    /// Peers that this node has probed since the fault began.
    pub asked: usize,
    /// Probed peers that have the fault.
    pub failed: usize,
    /// All peers of the family.
    pub peers: usize,
}

impl CommonOutage {
    pub fn share(&self) -> String {
        let CommonOutage { asked, failed, peers, .. } = self;
        if failed == asked {
            format!("all {asked} probed peers (of {peers}) have the same fault")
        } else {
            format!("{failed} of {asked} probed peers (of {peers}) have the same fault")
        }
    }
}

/// The path to a peer over one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The peer's name; untrusted text.
    pub node: Arc<str>,
    /// Its lease shows that it runs flannel-rs. A peer with Go flannel replies only to ping.
    pub ours: bool,
    /// Of the path's family.
    pub subnet: IpNet,
    /// On the underlay.
    pub address: IpAddr,
    pub verdict: Verdict,
    /// The verdict comes from other peers with the same fault; this one was not probed.
    pub inferred: bool,
    /// Another node that replies at the peer's address; untrusted text.
    pub answered_by: Option<String>,
    /// The peer's host rejects the probes, as if the port were closed.
    pub refuses: bool,
    /// A packet from the peer has arrived since flanneld started.
    pub ever: bool,
    /// The peer responds over the underlay.
    pub underlay: bool,
    /// The MTU of the path, in bytes of a packet inside the overlay.
    pub carries: Option<u32>,
    /// Median round-trip time, in microseconds.
    pub rtt: Option<u32>,
    /// Lost probes, and the probes in this count.
    pub losses: (u16, u16),
    /// In milliseconds; positive if the peer's clock is ahead of this node's.
    pub clock_ahead: Option<i64>,
    /// How many of the queried nodes reach the peer, and how many do not.
    pub others: Option<(u16, u16)>,
    /// Seconds since the current state began. For a peer that replies only to ping, at most the time since it last received a probe, as it reported.
    pub since: Option<u64>,
}

impl Path {
    /// It has a verdict, but none of its packets arrives over the overlay.
    pub fn is_lost(&self) -> bool {
        self.verdict.state.impact() == Impact::All
    }

    /// A reply arrives over the overlay or the underlay.
    pub fn is_heard(&self) -> bool {
        self.underlay || self.verdict.ping_only || self.verdict.state.passes()
    }
}
