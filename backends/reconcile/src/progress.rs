//! The progress of the reconciler, which its loop writes and other tasks read.

use crate::failures::FailedPeer;
use crate::repairs::Repairs;
use netstate::{KernelState, Key, RouteKind, Value};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use types::{Durations, Histogram, Problem};

#[derive(Debug, Default)]
pub struct Progress {
    pub(super) pass_durations: Histogram,
    /// Without the durations.
    pub(super) state: Mutex<Snapshot>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub routes: u64,
    /// Permanent entries.
    pub neighbours: u64,
    pub fdb: u64,
    pub wireguard_peers: u64,
    allowed_ips: u64,
    unicast_routes: u64,
}

impl Counts {
    pub(super) fn of(state: &KernelState) -> Self {
        let mut counts = Self::default();
        for (key, value) in &state.0 {
            match key {
                Key::Route(..) => counts.routes += 1,
                Key::Neighbor(..) => counts.neighbours += 1,
                Key::Fdb(..) => counts.fdb += 1,
                Key::WireguardPeer(..) => counts.wireguard_peers += 1,
                Key::AllowedIp(..) => counts.allowed_ips += 1,
                _ => {}
            }
            if matches!(value, Value::Route(route) if route.kind == RouteKind::Unicast) {
                counts.unicast_routes += 1;
            }
        }
        counts
    }

    /// Routes to peers, or allowed IPs if one route leads to all peers.
    pub(super) fn routes_to_peers(&self) -> u64 {
        if self.allowed_ips > 0 { self.allowed_ips } else { self.unicast_routes }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Full and incremental passes since the start.
    pub passes: u64,
    /// Operations that the kernel accepted since the start.
    pub writes: u64,
    /// Operations and reads that failed since the start.
    pub failures: u64,
    /// Operations that reverted a change by another program.
    pub repairs: u64,
    /// The kinds are [`Key::label`]s.
    pub repairs_by_kind: BTreeMap<&'static str, u64>,
    pub pass_durations: Durations,
    /// True even with `failed_peers`.
    pub in_sync: bool,
    /// A full pass holds both the desired and the actual kernel state in memory, which is much with
    /// thousands of peers.
    pub comparing: bool,
    /// Its details are the kernel's first refusals. `None` while the kernel is in sync.
    pub trouble: Option<Problem>,
    /// Peers whose objects the kernel refuses, each for a reason that concerns only this peer.
    pub failed_peers: Vec<FailedPeer>,
    /// Counts of the desired state.
    pub wanted: Counts,
    pub repaired: Repairs,
}

impl Snapshot {
    /// Empty while the kernel is in sync.
    #[must_use]
    pub fn trouble_text(&self) -> &str {
        self.trouble.as_ref().map_or("", |trouble| &trouble.text)
    }
}

impl Progress {
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { pass_durations: self.pass_durations.snapshot(), ..self.state.lock().clone() }
    }
}
