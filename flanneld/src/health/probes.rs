//! The counters of the prober, for /metrics. Only the metrics that `--metrics-per-peer` adds have a label for the
//! peer.

use super::recorded::Recorded;
use probing::pods::PodState;
use probing::prober::Figures;
use probing::target::Path;
use probing::view::{PathState, PeerView};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use types::printable;
use types::reachability::State;

type Labels = Vec<(&'static str, &'static str)>;

pub(super) fn register_pod_paths(registry: &mut Registry, counts: &BTreeMap<PodState, u32>) {
    let paths = Family::<Labels, Gauge>::default();
    for state in PodState::ALL {
        paths
            .get_or_create(&vec![("state", state.as_str())])
            .set(counts.get(&state).copied().unwrap_or(0).into());
    }
    registry.register(
        "pod_paths",
        "Address families by state of the pod path: well, some or all packets lost, or unknown",
        paths,
    );
}

pub(super) fn register(registry: &mut Registry, figures: &Figures) {
    let Figures { traffic, states, .. } = figures;
    for (name, help, value) in [
        ("probe_sent", "Probes sent to peers", traffic.sent),
        ("probe_pings", "Pings sent to peers", traffic.pings),
        ("probe_answered", "Probes and pings that got a reply", traffic.answered),
        ("probe_questions", "Probes of other nodes that this node replied to", traffic.questions),
    ] {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    let dropped = Family::<Labels, Counter>::default();
    for (reason, value) in
        [("junk", traffic.junk), ("limit", traffic.limited), ("stranger", traffic.strangers)]
    {
        dropped.get_or_create(&vec![("reason", reason)]).inc_by(value);
    }
    registry.register(
        "probe_dropped",
        "Datagrams on the probe port that got no reply, by reason",
        dropped,
    );
    register_outcomes(registry, figures);
    let peers = Family::<Labels, Gauge>::default();
    for state in State::ALL {
        peers
            .get_or_create(&vec![("state", state.name())])
            .set(states.get(&state).copied().unwrap_or(0).into());
    }
    registry.register(
        "probe_peers",
        "Peers, one for each address family, by verdict of the probes",
        peers,
    );
}

/// By outcome, the round trips, and the number of peers by path.
fn register_outcomes(registry: &mut Registry, figures: &Figures) {
    let Figures { traffic, paths, round_trips, .. } = figures;
    let outcomes = Family::<Labels, Counter>::default();
    for (outcome, value) in
        [("answered", traffic.answered), ("lost", traffic.lost), ("refused", traffic.refused)]
    {
        outcomes.get_or_create(&vec![("outcome", outcome)]).inc_by(value);
    }
    registry.register(
        "probe_outcomes",
        "Probes and pings by outcome; the peer's host rejected the refused probes",
        outcomes,
    );
    registry.register(
        "probe_rtt_seconds",
        "Round trips of probes over the overlay",
        Recorded(*round_trips),
    );
    let by_path = Family::<Labels, Gauge>::default();
    for (path, path_name) in [(Path::Overlay, "overlay"), (Path::Underlay, "underlay")] {
        for (state, state_name) in [
            (PathState::Replies, "replies"),
            (PathState::Silent, "silent"),
            (PathState::Unknown, "unknown"),
        ] {
            by_path
                .get_or_create(&vec![("path", path_name), ("state", state_name)])
                .set(paths.get(&(path, state)).copied().unwrap_or(0).into());
        }
    }
    registry.register(
        "probe_paths",
        "Peers, one for each address family, by path and by whether they reply over that path",
        by_path,
    );
}

pub(super) fn register_peers(registry: &mut Registry, peers: &[PeerView]) {
    if peers.is_empty() {
        return;
    }
    let states = Family::<Vec<(&'static str, String)>, Gauge>::default();
    let round_trips = Family::<Vec<(&'static str, String)>, Gauge<f64, AtomicU64>>::default();
    let lost = Family::<Vec<(&'static str, String)>, Gauge<f64, AtomicU64>>::default();
    for peer in peers {
        let labels = vec![
            ("peer", printable::value(&peer.title()).into_owned()),
            ("subnet", peer.subnet.to_string()),
        ];
        if let Some(us) = peer.rtt_us {
            round_trips.get_or_create(&labels).set(f64::from(us) / 1_000_000.0);
        }
        if peer.asked > 0 {
            lost.get_or_create(&labels).set(f64::from(peer.lost) / f64::from(peer.asked));
        }
        let state = ("state", peer.state.name().to_owned());
        states.get_or_create(&[labels, vec![state]].concat()).set(1);
    }
    registry.register(
        "peer_state",
        "1 for the state of each peer, by the verdict of the probes",
        states,
    );
    registry.register(
        "peer_rtt_seconds",
        "Median of the last round trips to each peer over the overlay",
        round_trips,
    );
    registry.register(
        "peer_lost_ratio",
        "Share of the last 16 probes to each peer over the overlay that got no reply",
        lost,
    );
}
