//! The counters of the prober, for /metrics. None of them has a label for the peer.

use probing::pods::PodState;
use probing::view::Traffic;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use types::reachability::State;

type Labels = Vec<(&'static str, &'static str)>;

/// Registers the metric of the probes on the path of pod packets.
pub(super) fn register_pod_paths(registry: &mut Registry, counts: &BTreeMap<PodState, u32>) {
    let paths = Family::<Labels, Gauge>::default();
    for state in PodState::ALL {
        paths
            .get_or_create(&vec![("state", state.as_str())])
            .set(counts.get(&state).copied().unwrap_or(0).into());
    }
    registry.register(
        "pod_paths",
        "Address families by whether packets of pods pass: all or some are lost, all is well, or it is unknown",
        paths,
    );
}

/// Registers the metrics of the prober.
pub(super) fn register(registry: &mut Registry, traffic: &Traffic, counts: &BTreeMap<State, u32>) {
    for (name, help, value) in [
        ("probe_sent", "Probes sent to peers", traffic.sent),
        ("probe_pings", "Pings sent to peers", traffic.pings),
        (
            "probe_answered",
            "Probes and pings that were answered",
            traffic.answered,
        ),
        (
            "probe_questions",
            "Probes of other nodes that were answered",
            traffic.questions,
        ),
    ] {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    let dropped = Family::<Labels, Counter>::default();
    for (reason, value) in [
        ("junk", traffic.junk),
        ("limit", traffic.limited),
        ("stranger", traffic.strangers),
    ] {
        dropped
            .get_or_create(&vec![("reason", reason)])
            .inc_by(value);
    }
    registry.register(
        "probe_dropped",
        "Datagrams on the probe port that got no reply, by reason",
        dropped,
    );
    let peers = Family::<Labels, Gauge>::default();
    for state in State::ALL {
        peers
            .get_or_create(&vec![("state", state.name())])
            .set(counts.get(&state).copied().unwrap_or(0).into());
    }
    registry.register(
        "probe_peers",
        "Peers, one for each address family, by verdict of the probes",
        peers,
    );
}
