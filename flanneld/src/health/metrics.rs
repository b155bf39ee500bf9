//! Renders the node's status document and counters as the OpenMetrics text of /metrics.

use super::figures::{Counts, KernelCounts};
use super::recorded::Recorded;
use super::{datapath, devices, probes, process};
use crate::logging;
use node_api::{Node, Wireguard};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;

type Labels = Vec<(String, String)>;

/// The metrics are in the order of their registration.
pub(super) fn text(node: &Node, counts: &Counts) -> String {
    let mut registry = Registry::with_prefix("flannel");
    registry.register(
        "build",
        "Version of the daemon",
        Info::new(vec![("version", node.version.clone())]),
    );
    register_state(&mut registry, node, counts);
    register_findings(&mut registry, counts);
    if let Some(figures) = &counts.probes {
        probes::register(&mut registry, figures);
    }
    probes::register_peers(&mut registry, &counts.each_peer);
    if let Some(paths) = &counts.pod_paths {
        probes::register_pod_paths(&mut registry, paths);
    }
    registry.register(
        "leases_refused",
        "Leases not in use, by reason",
        gauges_by("reason", &counts.refused),
    );
    registry.register(
        "problems",
        "1 for each problem that keeps the node from being ready, by condition and code",
        problems(node),
    );
    registry.register(
        "store_requests",
        "Requests to the store, by kind",
        counters_by("kind", &counts.store_requests),
    );
    register_store(&mut registry, counts);
    register_counters(&mut registry, counts);
    devices::register(&mut registry, &counts.devices);
    if let Some(peers) = &counts.wireguard {
        register_wireguard(&mut registry, peers);
    }
    if let Some(kernel) = &counts.kernel {
        register_kernel(&mut registry, kernel);
        registry.register(
            "kernel_repaired_objects",
            "Kernel objects that flanneld restored, by kind",
            counters_by("kind", &counts.repairs_by_kind),
        );
        registry.register(
            "kernel_pass_duration_seconds",
            "Durations of the comparisons of the kernel with the desired state",
            Recorded(counts.pass_durations),
        );
    }
    if !counts.datapath.is_empty() {
        datapath::register(&mut registry, &counts.datapath);
    }
    let mut process = Registry::with_prefix("process");
    process::register(&mut process);
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = encode_registry(&mut out, &registry);
    let _ = encode_registry(&mut out, &process);
    let _ = encode_eof(&mut out);
    out
}

/// Also registers the checks that the doctor could not run.
fn register_findings(registry: &mut Registry, counts: &Counts) {
    let findings = Family::<Labels, Gauge>::default();
    for ((check, severity), count) in &counts.findings.findings {
        let labels = [("check", *check), ("severity", severity.as_str())];
        findings
            .get_or_create(&labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
            .set(i64::try_from(*count).unwrap_or(i64::MAX));
    }
    registry.register(
        "findings",
        "Problems of this node that no other problem explains, by check and severity",
        findings,
    );
    registry.register(
        "checks_unknown",
        "1 for each check that the doctor could not run",
        gauges_by("check", &counts.findings.unknown),
    );
    if let Some(age) = counts.doctor_round_age {
        registry.register(
            "doctor_round_age_seconds",
            "Seconds since the doctor's last run began",
            gauge_of(age),
        );
    }
}

/// Gauges without labels.
fn register_state(registry: &mut Registry, node: &Node, counts: &Counts) {
    let mut gauge = |name: &str, help: &str, value: u64| {
        registry.register(name, help, gauge_of(value));
    };
    gauge("ready", "1 while the node is ready", u64::from(node.readiness.ready));
    gauge("uptime_seconds", "Seconds since the daemon started", node.uptime_seconds);
    gauge("peers", "Peers that the backend serves", counts.peers);
    gauge("leases", "Leases of other nodes in the store", counts.leases);
    gauge("leases_unreadable", "Unreadable keys in the store", counts.unreadable);
    gauge("mtu_bytes", "MTU of pods", u64::from(counts.mtu));
    if let Some(left) = counts.lease_expiry_seconds {
        gauge(
            "lease_expiry_seconds",
            "Seconds until this node's lease expires unless renewed",
            left,
        );
    }
    if let Some(kernel) = &counts.kernel {
        let in_sync = u64::from(kernel.in_sync);
        gauge(
            "kernel_in_sync",
            "1 while the kernel is in sync with the desired state, apart from peers in flannel_peers_failed",
            in_sync,
        );
        gauge(
            "peers_failed",
            "Peers whose objects the kernel refuses for a reason that concerns only the peer",
            u64::try_from(kernel.failed_peers.len()).unwrap_or(u64::MAX),
        );
    }
    gauge(
        "rules_at_war",
        "1 while another program keeps changing the traffic rules",
        u64::from(counts.rules.at_war),
    );
    if let Some(unknown) = counts.unknown_senders {
        gauge(
            "encap_stranger_packets",
            "Packets to the encapsulation port from unknown senders, as counted by the traffic rule",
            unknown,
        );
    }
}

/// Counters that exist even while no network runs.
fn register_counters(registry: &mut Registry, counts: &Counts) {
    for (name, help, value) in [
        ("rule_writes", "Writes of traffic rules", counts.rules.writes),
        (
            "rule_repairs",
            "Repairs of traffic rules that another program had changed",
            counts.rules.repairs,
        ),
        (
            "bridge_addresses_removed",
            "Gateway addresses of previous subnets removed from bridges",
            counts.bridge_addresses_removed,
        ),
        (
            "log_lines_dropped",
            "Log lines that flanneld did not write to standard error: it could not, or one message came too often",
            logging::dropped(),
        ),
    ] {
        registry.register(name, help, counter_of(value));
    }
}

fn register_wireguard(registry: &mut Registry, peers: &Wireguard) {
    let by_state =
        BTreeMap::from([("working", peers.peers - peers.silent), ("silent", peers.silent)]);
    registry.register(
        "wireguard_peers",
        "Peers of WireGuard by state; this node sends packets to silent peers, but they complete no handshake",
        gauges_by("state", &by_state),
    );
}

fn register_kernel(registry: &mut Registry, kernel: &KernelCounts) {
    for (name, help, value) in [
        ("kernel_passes", "Comparisons of the kernel with the desired state", kernel.passes),
        ("kernel_writes", "Operations that changed the kernel", kernel.writes),
        ("kernel_failures", "Operations that the kernel refused", kernel.failures),
        ("kernel_repairs", "Operations that reverted a change by another program", kernel.repairs),
    ] {
        registry.register(name, help, counter_of(value));
    }
}

fn problems(node: &Node) -> Family<Labels, Gauge> {
    let family = Family::<Labels, Gauge>::default();
    for reason in &node.readiness.reasons {
        let labels = vec![
            ("condition".to_owned(), reason.condition.clone()),
            ("code".to_owned(), reason.code.clone()),
        ];
        family.get_or_create(&labels).set(1);
    }
    family
}

fn gauge_of(value: u64) -> Gauge {
    let gauge: Gauge = Gauge::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    gauge
}

fn counter_of(value: u64) -> Counter {
    let counter: Counter = Counter::default();
    counter.inc_by(value);
    counter
}

/// One gauge per value of `label`.
fn gauges_by(label: &str, counts: &BTreeMap<&'static str, u64>) -> Family<Labels, Gauge> {
    let family = Family::<Labels, Gauge>::default();
    for (value, count) in counts {
        family
            .get_or_create(&vec![(label.to_owned(), (*value).to_owned())])
            .set(i64::try_from(*count).unwrap_or(i64::MAX));
    }
    family
}

/// One counter per value of `label`.
fn counters_by(label: &str, counts: &BTreeMap<&'static str, u64>) -> Family<Labels, Counter> {
    let family = Family::<Labels, Counter>::default();
    for (value, count) in counts {
        family.get_or_create(&vec![(label.to_owned(), (*value).to_owned())]).inc_by(*count);
    }
    family
}

/// The store, and this node's lease in it.
fn register_store(registry: &mut Registry, counts: &Counts) {
    registry.register(
        "errors",
        "Operations that failed, by class: requests to the store, operations of the kernel, writes of traffic rules",
        counters_by("class", &counts.errors),
    );
    if let Some(age) = counts.lease_age_seconds {
        registry.register(
            "lease_age_seconds",
            "Seconds since flanneld last renewed this node's lease",
            gauge_of(age),
        );
    }
    let Some(store) = &counts.store else { return };
    registry.register(
        "store_available",
        "1 while the store responds",
        gauge_of(u64::from(store.available)),
    );
    if let Some(age) = store.heard_age_seconds {
        registry.register(
            "store_heard_age_seconds",
            "Seconds since the store's last response or event",
            gauge_of(age),
        );
    }
    registry.register(
        "store_request_duration_seconds",
        "Durations of requests to the store, including failed requests",
        Recorded(store.durations),
    );
}

#[cfg(test)]
mod tests;
