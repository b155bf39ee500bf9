//! How a running network stands, as numbers and words: nothing of it is shared with the threads that count.

use netstate::reconcile::progress::{Progress, Snapshot};
use packet_engine::counters::{Counters, Direction};
use packet_engine::reason::Reason;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

/// How a network stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// How the kernel is kept in step.
    pub kernel: Snapshot,
    /// The engines that move packets in userspace.
    pub engines: Vec<EngineStatus>,
}

/// How an engine stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStatus {
    /// Its device.
    pub device: String,
    /// How it moves packets: `offload`, `mmsg` or `plain`, with what the kernel granted.
    pub mode: String,
    /// From pods to peers.
    pub sent: Traffic,
    /// From peers to pods.
    pub received: Traffic,
    /// ICMP errors sent to pods.
    pub icmp_errors: u64,
    /// Sends of many packets that had to be made one by one.
    pub unsegmented_sends: u64,
}

/// What one direction of an engine moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Inner packets that went on.
    pub packets: u64,
    /// Their bytes, inner headers included.
    pub bytes: u64,
    /// System calls that moved some of them.
    pub batches: u64,
    /// Super-packets and single packets in which they were moved.
    pub units: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Packets dropped, by reason; reasons for which none was are left out.
    pub dropped: Vec<(&'static str, u64)>,
}

/// Tells how a network stands, whenever it is asked.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn() -> Status + Send + Sync>);

impl Observer {
    /// Asks by calling `status`.
    pub fn new(status: impl Fn() -> Status + Send + Sync + 'static) -> Self {
        Self(Arc::new(status))
    }

    /// Of a reconciler and the engines, by device.
    pub(crate) fn of(kernel: Arc<Progress>, engines: Vec<(String, Arc<Counters>)>) -> Self {
        Self::new(move || Status { kernel: kernel.snapshot(), engines: engines.iter().map(|(device, counters)| engine(device, counters)).collect() })
    }

    /// How it stands now.
    pub fn status(&self) -> Status {
        (self.0)()
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status().fmt(f)
    }
}

fn engine(device: &str, counters: &Counters) -> EngineStatus {
    EngineStatus {
        device: device.to_owned(),
        mode: counters.mode.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        sent: traffic(&counters.sent),
        received: traffic(&counters.received),
        icmp_errors: counters.icmp.load(Relaxed),
        unsegmented_sends: counters.unsegmented.load(Relaxed),
    }
}

fn traffic(direction: &Direction) -> Traffic {
    let load = |counter: &AtomicU64| counter.load(Relaxed);
    let dropped = Reason::ALL.into_iter().map(|reason| (reason.as_str(), direction.drops(reason)));
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
    fn an_engine_is_told_by_what_it_counted() {
        let counters = Arc::new(Counters::default());
        counters.sent.packets.store(7, Relaxed);
        counters.received.dropped_many(Reason::Spoofed, 3);
        *counters.mode.lock().unwrap() = "plain".to_owned();
        let status = Observer::of(Arc::default(), vec![("flannel0".to_owned(), counters)]).status();
        let received = Traffic { dropped: vec![("spoofed", 3)], ..Traffic::default() };
        let sent = Traffic { packets: 7, ..Traffic::default() };
        let expected = EngineStatus { device: "flannel0".to_owned(), mode: "plain".to_owned(), sent, received, ..EngineStatus::default() };
        assert_eq!(status.engines, [expected]);
        assert_eq!(status.kernel, Snapshot::default());
    }
}
