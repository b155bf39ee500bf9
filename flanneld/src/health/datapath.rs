//! The counters of the userspace datapath, for /metrics and /status.

use backends::status::{EngineStatus, Traffic};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::{Serialize, Serializer};
use types::printable;

type Labels = Vec<(&'static str, String)>;

/// Name and help text of the counters that exist for both directions, sent and received.
const COUNTED: [(&str, &str); 5] = [
    ("packets", "Packets forwarded by the packet engine, by direction"),
    ("bytes", "Bytes forwarded by the packet engine, including inner headers, by direction"),
    (
        "batches",
        "Batches of packets: one per receive call, and one per round of the sending thread",
    ),
    ("units", "GSO packets and single packets forwarded"),
    ("read_errors", "Failed reads; the thread pauses after each failed read"),
];

/// Name, help text, and the function that reads the counter.
type EngineCounter = (&'static str, &'static str, fn(&EngineStatus) -> u64);

/// Counters without a direction.
const WITHOUT_DIRECTION: [EngineCounter; 3] = [
    (
        "icmp_errors",
        "ICMP errors that the packet engine sent to pods whose packets the engine could not forward",
        |engine| engine.icmp_errors,
    ),
    ("unsegmented_sends", "Batches whose packets the engine had to send one by one", |engine| {
        engine.unsegmented_sends
    }),
    ("budgets_spent", "Number of times that a thread used up its real-time budget", |engine| {
        engine.budgets_spent
    }),
];

fn directions(engine: &EngineStatus) -> [(&'static str, &Traffic); 2] {
    [("sent", &engine.sent), ("received", &engine.received)]
}

fn counted(traffic: &Traffic) -> [u64; 5] {
    [traffic.packets, traffic.bytes, traffic.batches, traffic.units, traffic.read_errors]
}

/// Makes the value fit on one line of the metrics text.
fn label(text: &str) -> String {
    printable::value(text).into_owned()
}

pub(super) fn register(registry: &mut Registry, engines: &[EngineStatus]) {
    for (index, (name, help)) in COUNTED.into_iter().enumerate() {
        let family = Family::<Labels, Counter>::default();
        for engine in engines {
            for (direction, counts) in directions(engine) {
                let value = counted(counts).get(index).copied().unwrap_or(0);
                family
                    .get_or_create(&vec![
                        ("device", label(&engine.device)),
                        ("direction", direction.to_owned()),
                    ])
                    .inc_by(value);
            }
        }
        registry.register(format!("datapath_{name}"), help, family);
    }
    let dropped = Family::<Labels, Counter>::default();
    let info = Family::<Labels, Gauge>::default();
    for engine in engines {
        for (direction, counts) in directions(engine) {
            for (reason, drops) in &counts.dropped {
                let labels = vec![
                    ("device", label(&engine.device)),
                    ("direction", direction.to_owned()),
                    ("reason", (*reason).to_owned()),
                ];
                dropped.get_or_create(&labels).inc_by(*drops);
            }
        }
        info.get_or_create(&vec![("device", label(&engine.device)), ("mode", label(&engine.mode))])
            .set(1);
    }
    let handshakes = Family::<Labels, Counter>::default();
    for engine in engines {
        for (event, count) in engine.handshakes.into_iter().flatten() {
            handshakes
                .get_or_create(&vec![
                    ("device", label(&engine.device)),
                    ("event", event.to_owned()),
                ])
                .inc_by(count);
        }
    }
    registry.register(
        "datapath_handshakes",
        "Handshakes of WireGuard in user space, by event",
        handshakes,
    );
    registry.register(
        "datapath_dropped_packets",
        "Packets dropped by the packet engine, by direction and reason",
        dropped,
    );
    for (name, help, value) in WITHOUT_DIRECTION {
        let family = Family::<Labels, Counter>::default();
        for engine in engines {
            family.get_or_create(&vec![("device", label(&engine.device))]).inc_by(value(engine));
        }
        registry.register(format!("datapath_{name}"), help, family);
    }
    registry.register("datapath_info", "Mode of the packet engine", info);
}

/// As a map by device name.
pub(super) fn serialize<S: Serializer>(
    engines: &[EngineStatus],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    json(engines).serialize(serializer)
}

fn json(engines: &[EngineStatus]) -> serde_json::Value {
    let direction = |direction: &Traffic| {
        let mut out: serde_json::Map<_, _> = COUNTED
            .into_iter()
            .zip(counted(direction))
            .map(|((name, _), value)| (name.to_owned(), value.into()))
            .collect();
        out.insert(
            "dropped".to_owned(),
            direction
                .dropped
                .iter()
                .map(|(reason, drops)| ((*reason).to_owned(), (*drops).into()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        );
        serde_json::Value::from(out)
    };
    let engine = |engine: &EngineStatus| {
        let mut value = serde_json::json!({
            "mode": engine.mode,
            "sent": direction(&engine.sent),
            "received": direction(&engine.received),
            "icmp_errors": engine.icmp_errors,
            "unsegmented_sends": engine.unsegmented_sends,
            "budgets_spent": engine.budgets_spent,
        });
        if let (Some(counts), Some(fields)) = (engine.handshakes, value.as_object_mut()) {
            let counts: serde_json::Map<_, _> =
                counts.into_iter().map(|(event, count)| (event.to_owned(), count.into())).collect();
            fields.insert("handshakes".to_owned(), counts.into());
        }
        (engine.device.clone(), value)
    };
    engines.iter().map(engine).collect::<serde_json::Map<_, _>>().into()
}
