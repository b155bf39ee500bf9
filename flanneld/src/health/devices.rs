//! The counters of the devices that carry packets between nodes, for /metrics.

use netlink::link::{Counters as DeviceCounters, DirectionCounters};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use types::printable;

type Labels = Vec<(&'static str, String)>;
/// Name, help text, and the function that reads the counter.
type DeviceCounter = (&'static str, &'static str, fn(&DirectionCounters) -> u64);

const COUNTED: [DeviceCounter; 4] = [
    (
        "device_packets",
        "Packets through the device between nodes; sent packets come from pods",
        |counts| counts.packets,
    ),
    ("device_bytes", "Bytes through the device between nodes, by direction", |counts| counts.bytes),
    ("device_errors", "Packets that the device lost to errors, by direction", |counts| {
        counts.errors
    }),
    ("device_dropped_packets", "Packets that the device dropped, by direction", |counts| {
        counts.dropped
    }),
];

pub(super) fn register(registry: &mut Registry, devices: &BTreeMap<String, DeviceCounters>) {
    if devices.is_empty() {
        return;
    }
    for (name, help, value) in COUNTED {
        let family = Family::<Labels, Counter>::default();
        for (device, counters) in devices {
            for (direction, counts) in [("sent", &counters.sent), ("received", &counters.received)]
            {
                let labels = vec![
                    ("device", printable::value(device).into_owned()),
                    ("direction", direction.to_owned()),
                ];
                family.get_or_create(&labels).inc_by(value(counts));
            }
        }
        registry.register(name, help, family);
    }
}
