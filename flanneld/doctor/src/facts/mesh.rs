//! Results of this node's probes of its peers.

use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;
use types::Family;
use types::reachability::Impact;
pub use types::reachability::{State, Verdict};

/// Results of all probes that this node sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// The paths to the peers, one for each peer and address family.
    pub paths: Vec<Path>,
    /// The UDP port to which this node sends probes.
    pub port: u16,
    /// Faults that the failing peers of an address family have in common.
    pub faults: Vec<CommonFault>,
    /// Number of lost probes, and number of all recent probes to all peers. `None` unless the losses are significant and not limited to single peers.
    pub lost_everywhere: Option<(u32, u32)>,
    /// Addresses of senders that probe this node by its id, but have no lease in the store.
    pub strangers: Vec<IpAddr>,
    /// Whether probes of other nodes arrived lately.
    pub hears: bool,
}

impl Mesh {
    /// Returns the paths of an address family on which the probes allow a verdict.
    pub fn judged(&self, family: Family) -> Vec<&Path> {
        let is_judged = |path: &&Path| {
            Family::from(path.address) == family && path.verdict.state != State::Unknown
        };
        self.paths.iter().filter(is_judged).collect()
    }
}

/// A fault that all peers of an address family have in common, except for peers that respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonFault {
    /// The state of the peers with the fault.
    pub state: State,
    /// The number of peers that this node has probed since the fault began.
    pub asked: usize,
    /// The number of probed peers that have the fault.
    pub failed: usize,
    /// The number of all peers of the address family.
    pub peers: usize,
}

impl CommonFault {
    /// Returns text about the share of probed peers with the fault.
    pub fn share(&self) -> String {
        let CommonFault { asked, failed, peers, .. } = self;
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
    /// Whether the peer's lease shows that the peer runs flannel-rs. A peer with Go flannel replies only to ping.
    pub ours: bool,
    /// The peer's subnet of the path's address family.
    pub subnet: IpNet,
    /// The peer's address on the underlay.
    pub address: IpAddr,
    /// The verdict that flanneld derives from the probes.
    pub verdict: Verdict,
    /// Whether flanneld inferred the verdict from other peers with the same fault, without a probe of this peer.
    pub inferred: bool,
    /// The name of another node that replies at the peer's address, if any; untrusted text.
    pub answered_by: Option<String>,
    /// Whether the peer's host rejects the probes, as if the port were closed.
    pub refuses: bool,
    /// Whether any packet from the peer has arrived since flanneld started.
    pub ever: bool,
    /// Whether the peer responds over the underlay.
    pub underlay: bool,
    /// The MTU of the path, in bytes of a packet inside the overlay; `None` if unknown.
    pub carries: Option<u32>,
    /// Median round-trip time of the path, in microseconds.
    pub rtt: Option<u32>,
    /// The number of lost probes, and the number of probes in this count.
    pub losses: (u16, u16),
    /// The offset of the peer's clock from this node's clock, in milliseconds; positive if the peer's clock is ahead.
    pub clock_ahead: Option<i64>,
    /// The number of queried nodes that reach the peer, and the number of queried nodes that do not reach the peer.
    pub others: Option<(u16, u16)>,
    /// Seconds since the path's current state began. For a peer that replies only to ping, the number is at most the time since the peer
    /// last received a probe of this node, as the peer reported.
    pub since: Option<u64>,
}

impl Path {
    /// Returns whether the peer has a verdict, but no packet from the peer arrives over the overlay.
    pub fn is_lost(&self) -> bool {
        self.verdict.state.impact() == Impact::All
    }

    /// Returns whether any reply from the peer arrives over the overlay or the underlay.
    pub fn is_heard(&self) -> bool {
        self.underlay || self.verdict.ping_only || self.verdict.state.passes()
    }
}
