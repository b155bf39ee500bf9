//! What our own packet engines count, for /metrics and /status.

use backends::datapath::counters::{Counters, Direction};
use backends::datapath::verdict::Reason;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use subnet_lease::printable;

/// An engine by its device.
type Engine = (String, Arc<Counters>);
type Labels = Vec<(&'static str, String)>;

/// What is counted in each direction: its name, and what it is.
const COUNTED: [(&str, &str); 5] = [
    ("packets", "Packets that our own engine moved, by direction"),
    ("bytes", "Their bytes, inner headers included"),
    ("batches", "System calls that moved some of them"),
    ("units", "Super-packets and single packets in which they were moved"),
    ("read_errors", "Reads that failed; the thread waits longer after each"),
];

fn directions(counters: &Counters) -> [(&'static str, &Direction); 2] {
    [("sent", &counters.sent), ("received", &counters.received)]
}

fn counted(direction: &Direction) -> [u64; 5] {
    [&direction.packets, &direction.bytes, &direction.batches, &direction.units, &direction.errors].map(load)
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// The reasons for which something was dropped.
fn drops(direction: &Direction) -> impl Iterator<Item = (&'static str, u64)> {
    Reason::ALL.into_iter().map(|reason| (reason.as_str(), direction.drops(reason))).filter(|(_, drops)| *drops > 0)
}

fn mode(counters: &Counters) -> String {
    counters.mode.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A label's value: one line, which the exposition format can hold.
fn label(text: &str) -> String {
    printable::value(text).into_owned()
}

/// Adds the engines' metrics.
pub fn register(registry: &mut Registry, engines: &[Engine]) {
    for (index, (name, help)) in COUNTED.into_iter().enumerate() {
        let family = Family::<Labels, Counter>::default();
        for (device, counters) in engines {
            for (direction, counts) in directions(counters) {
                let value = counted(counts).get(index).copied().unwrap_or(0);
                family.get_or_create(&vec![("device", label(device)), ("direction", direction.to_owned())]).inc_by(value);
            }
        }
        registry.register(format!("datapath_{name}"), help, family);
    }
    let dropped = Family::<Labels, Counter>::default();
    let info = Family::<Labels, Gauge>::default();
    let (icmp, unsegmented) = (Family::<Labels, Counter>::default(), Family::<Labels, Counter>::default());
    for (device, counters) in engines {
        for (direction, counts) in directions(counters) {
            for (reason, drops) in drops(counts) {
                let labels = vec![("device", label(device)), ("direction", direction.to_owned()), ("reason", reason.to_owned())];
                dropped.get_or_create(&labels).inc_by(drops);
            }
        }
        let labels = vec![("device", label(device))];
        icmp.get_or_create(&labels).inc_by(load(&counters.icmp));
        unsegmented.get_or_create(&labels).inc_by(load(&counters.unsegmented));
        info.get_or_create(&vec![("device", label(device)), ("mode", label(&mode(counters)))]).set(1);
    }
    registry.register("datapath_dropped_packets", "Packets that our own engine dropped, by direction and reason", dropped);
    registry.register("datapath_icmp_errors", "ICMP errors sent to pods whose packets could not be carried", icmp);
    registry.register("datapath_unsegmented_sends", "Sends of many packets that had to be made one by one", unsegmented);
    registry.register("datapath_info", "How our own engine moves packets", info);
}

/// The engines by device.
pub fn json(engines: &[Engine]) -> serde_json::Value {
    let direction = |direction: &Direction| {
        let mut out: serde_json::Map<_, _> =
            COUNTED.into_iter().zip(counted(direction)).map(|((name, _), value)| (name.to_owned(), value.into())).collect();
        out.insert(
            "dropped".to_owned(),
            drops(direction).map(|(reason, drops)| (reason.to_owned(), drops.into())).collect::<serde_json::Map<_, _>>().into(),
        );
        serde_json::Value::from(out)
    };
    let engine = |(device, counters): &Engine| {
        let value = serde_json::json!({
            "mode": mode(counters),
            "sent": direction(&counters.sent),
            "received": direction(&counters.received),
            "icmp_errors": load(&counters.icmp),
            "unsegmented_sends": load(&counters.unsegmented),
        });
        (device.clone(), value)
    };
    engines.iter().map(engine).collect::<serde_json::Map<_, _>>().into()
}
