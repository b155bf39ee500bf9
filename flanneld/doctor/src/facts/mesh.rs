//! What this node's probes of its peers found.

use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;
use types::reachability::Impact;
pub use types::reachability::{State, Verdict};

/// The mesh, as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// One entry a peer and family.
    pub paths: Vec<Path>,
    /// The UDP port of the probes.
    pub port: u16,
    /// Faults that all peers of a family have in common.
    pub faults: Vec<CommonFault>,
    /// How many questions to all peers were lost lately, of how many, where that is no chance and no fault of single peers.
    pub lost_everywhere: Option<(u32, u32)>,
    /// The addresses that ask for this node by its id, and have no lease in the store.
    pub strangers: Vec<IpAddr>,
}

/// A fault that all peers of a family have in common, but for those that answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonFault {
    /// The state of those that fail.
    pub state: State,
    /// How many peers were asked since it began,
    pub asked: usize,
    /// and how many of these fail.
    pub failed: usize,
    /// How many peers of the family there are.
    pub peers: usize,
}

impl CommonFault {
    /// Returns which share of the peers it was found from.
    pub fn share(&self) -> String {
        let CommonFault {
            asked,
            failed,
            peers,
            ..
        } = self;
        if failed == asked {
            format!("all {asked} that were asked of {peers} peers fail alike")
        } else {
            format!("{failed} of {asked} that were asked of {peers} peers fail alike")
        }
    }
}

/// The path to a peer in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The peer's name; foreign text.
    pub node: Arc<str>,
    /// Whether it runs this program, according to its lease; Go flannel answers only ping.
    pub ours: bool,
    /// Its subnet of this family.
    pub subnet: IpNet,
    /// Its address on the underlay.
    pub address: IpAddr,
    /// The verdict of the probes.
    pub verdict: Verdict,
    /// Whether it is judged by others that fail alike, and was not asked itself.
    pub inferred: bool,
    /// The node that answers in the peer's place, where one does; foreign text.
    pub answered_by: Option<String>,
    /// Whether its host refuses the probes.
    pub refuses: bool,
    /// Whether any packet from it has arrived since the daemon started.
    pub ever: bool,
    /// Whether its underlay address answers anything.
    pub underlay: bool,
    /// The MTU of the path in bytes of a packet inside the overlay; `None` where it is not known.
    pub carries: Option<u32>,
    /// Median round trip in microseconds.
    pub rtt: Option<u32>,
    /// How many of the last sixteen questions were lost.
    pub lost: u8,
    /// How far its clock is ahead of ours, in milliseconds.
    pub clock_ahead: Option<i64>,
    /// Other nodes that were asked and reach it, and those that do not.
    pub others: Option<(u16, u16)>,
    /// Seconds since this state began; for a peer that answers only ping, at most since it answered anything else.
    pub since: Option<u64>,
}

impl Path {
    /// Returns whether probes judged it, and nothing from the peer arrives over the overlay.
    pub fn is_lost(&self) -> bool {
        self.verdict.state.impact() == Impact::All
    }

    /// Returns whether any answer from the peer arrives.
    pub fn is_heard(&self) -> bool {
        self.underlay || self.verdict.ping_only || self.verdict.state.passes()
    }
}
