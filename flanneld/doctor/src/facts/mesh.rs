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
