//! Results of this node's probes of its peers.

use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;
use types::reachability::Impact;
pub use types::reachability::{State, Verdict};

/// All probe results of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// The paths to the peers, one for each peer and family.
    pub paths: Vec<Path>,
    /// The UDP port of the probes.
    pub port: u16,
    /// Faults that all peers of a family have in common.
    pub faults: Vec<CommonFault>,
    /// Numbers of lost probes and of all recent probes to all peers. The value is `None` unless the losses
    /// are significant and single peers do not explain them.
    pub lost_everywhere: Option<(u32, u32)>,
    /// Addresses of unknown senders, which probe this node by its id but have no lease in the store.
    pub strangers: Vec<IpAddr>,
}

/// A fault that all peers of a family have in common, except for peers that respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonFault {
    /// The state of the failing peers.
    pub state: State,
    /// The number of peers that this node has probed since the fault began.
    pub asked: usize,
    /// The number of probed peers with the fault.
    pub failed: usize,
    /// The number of peers of the family.
    pub peers: usize,
}

impl CommonFault {
    /// Returns text about the share of failing peers among the peers that this node probed.
    pub fn share(&self) -> String {
        let CommonFault {
            asked,
            failed,
            peers,
            ..
        } = self;
        if failed == asked {
            format!("all {asked} probed peers (of {peers}) have the same fault")
        } else {
            format!("{failed} of {asked} probed peers (of {peers}) have the same fault")
        }
    }
}

/// The path to a peer in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The peer's name; untrusted text.
    pub node: Arc<str>,
    /// Whether the peer runs flannel-rs, according to its lease. Go flannel replies only to ping.
    pub ours: bool,
    /// The peer's subnet of this family.
    pub subnet: IpNet,
    /// The peer's address on the underlay.
    pub address: IpAddr,
    /// The verdict of the probes.
    pub verdict: Verdict,
    /// Whether flanneld inferred the verdict from other peers with the same fault, without a probe of this peer.
    pub inferred: bool,
    /// The node that replies instead of the peer, if any; untrusted text.
    pub answered_by: Option<String>,
    /// Whether the peer's host rejects the probes, as for a closed port.
    pub refuses: bool,
    /// Whether any packet from the peer has arrived since the daemon started.
    pub ever: bool,
    /// Whether the peer responds over the underlay.
    pub underlay: bool,
    /// The MTU of the path, in bytes of a packet inside the overlay; `None` if unknown.
    pub carries: Option<u32>,
    /// Median round-trip time in microseconds.
    pub rtt: Option<u32>,
    /// The number of lost probes among the last 16.
    pub lost: u8,
    /// The offset of the peer's clock from this node's clock, in milliseconds; positive if the peer's clock is ahead.
    pub clock_ahead: Option<i64>,
    /// The number of other queried nodes that reach the peer, and the number of queried nodes that do not reach it.
    pub others: Option<(u16, u16)>,
    /// Seconds since this state began. For a peer that replies only to ping, this time is at most the time since its last reply to a probe.
    pub since: Option<u64>,
}

impl Path {
    /// Returns whether the probes have judged the peer and no packet from it arrives over the overlay.
    pub fn is_lost(&self) -> bool {
        self.verdict.state.impact() == Impact::All
    }

    /// Returns whether any reply from the peer arrives.
    pub fn is_heard(&self) -> bool {
        self.underlay || self.verdict.ping_only || self.verdict.state.passes()
    }
}
