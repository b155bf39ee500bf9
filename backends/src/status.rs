//! The status of a running network. It shares no data with the threads that count packets.

use crate::wireguard::sessions::TunnelPeers;
use netstate::{Facts, Key, Value};
use packet_engine::Counters;
use packet_engine::counters::Direction;
use packet_engine::drop_error::DropError;
use parking_lot::Mutex;
use reconcile::progress::{Progress, Snapshot};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use subnet_lease::Peer;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub kernel: Snapshot,
    /// The packet engines of the userspace data plane.
    pub engines: Vec<EngineStatus>,
    /// Empty if the backend is not WireGuard.
    pub tunnels: TunnelPeers,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStatus {
    pub device: String,
    /// `offload`, `mmsg` or `plain`, and the granted offloads.
    pub mode: String,
    /// From pods to peers.
    pub sent: Traffic,
    /// From peers to pods.
    pub received: Traffic,
    /// Sent to pods.
    pub icmp_errors: u64,
    /// Segmented (GSO) sends that the engine had to repeat one datagram at a time.
    pub unsegmented_sends: u64,
    /// How often a thread lost its raised priority because it had used up its time budget.
    pub budgets_spent: u64,
    /// The number of each result, if the engine encrypts.
    pub handshakes: Option<[(&'static str, u64); 5]>,
}

/// The traffic of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Inner packets that the engine forwarded.
    pub packets: u64,
    /// The bytes in these packets, including inner headers.
    pub bytes: u64,
    /// System calls that transferred packets.
    pub batches: u64,
    /// GSO packets and single packets that carried the forwarded packets.
    pub units: u64,
    /// Failed reads since the engine started.
    pub read_errors: u64,
    /// The number for each reason that dropped packets.
    pub dropped: Vec<(&'static str, u64)>,
}

/// What a network's status is read from, besides the reconciler's progress.
#[derive(Default)]
pub(crate) struct StatusSources {
    /// The counters of the packet engines, by device.
    pub engines: Vec<(String, Arc<Counters>)>,
    pub tunnels: Arc<Mutex<TunnelPeers>>,
}

pub trait NetworkHandle: Send + Sync {
    fn status(&self) -> Status;

    /// The kernel objects that the network needs for one family of a peer. Does not read the kernel
    /// state.
    fn needs(&self, peer: &Peer<'_>, facts: &Facts) -> Vec<(Key, Value)>;
}

impl Status {
    pub(crate) fn of(kernel: &Progress, sources: &StatusSources) -> Self {
        let engines = sources.engines.iter();
        Self {
            kernel: kernel.snapshot(),
            engines: engines.map(|(device, counters)| engine_status(device, counters)).collect(),
            tunnels: sources.tunnels.lock().clone(),
        }
    }
}

fn engine_status(device: &str, counters: &Counters) -> EngineStatus {
    EngineStatus {
        device: device.to_owned(),
        mode: counters.mode.lock().clone(),
        sent: engine_traffic(&counters.sent),
        received: engine_traffic(&counters.received),
        icmp_errors: counters.icmp.load(Relaxed),
        unsegmented_sends: counters.unsegmented.load(Relaxed),
        budgets_spent: counters.budgets_spent.load(Relaxed),
        handshakes: counters.handshakes.named_counts_if_encrypting(),
    }
}

fn engine_traffic(direction: &Direction) -> Traffic {
    let load = |counter: &AtomicU64| counter.load(Relaxed);
    let dropped =
        DropError::ALL.into_iter().map(|reason| (reason.as_str(), direction.drops(reason)));
    Traffic {
        packets: load(&direction.packets),
        bytes: load(&direction.bytes),
        batches: load(&direction.batches),
        units: load(&direction.units),
        read_errors: load(&direction.errors),
        dropped: dropped.filter(|(_, packets)| *packets > 0).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_an_engine_has_its_counts() {
        let counters = Arc::new(Counters::default());
        counters.sent.packets.store(7, Relaxed);
        counters.received.count_dropped_packets(DropError::Spoofed, 3);
        *counters.mode.lock() = "plain".to_owned();
        let engines = vec![("flannel0".to_owned(), counters)];
        let sources = StatusSources { engines, ..StatusSources::default() };
        let status = Status::of(&Progress::default(), &sources);
        let received = Traffic { dropped: vec![("spoofed", 3)], ..Traffic::default() };
        let sent = Traffic { packets: 7, ..Traffic::default() };
        let expected = EngineStatus {
            device: "flannel0".to_owned(),
            mode: "plain".to_owned(),
            sent,
            received,
            ..EngineStatus::default()
        };
        assert_eq!(status.engines, [expected]);
        assert_eq!(status.kernel, Snapshot::default());
    }
}
