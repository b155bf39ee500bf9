//! The node's document and what the daemon counts, as the OpenMetrics text of /metrics.

use super::figures::Counts;
use super::{datapath, probes};
use crate::logging;
use node_api::Node;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;

/// The text.
pub(super) fn text(node: &Node, counts: &Counts) -> String {
    let mut registry = Registry::with_prefix("flannel");
    registry.register(
        "build",
        "Version of the daemon",
        Info::new(vec![("version", node.version.clone())]),
    );
    let mut gauge = |name: &str, help: &str, value: u64| {
        let gauge: Gauge = Gauge::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    };
    gauge("ready", "1 while the node is ready", u64::from(node.ready));
    gauge(
        "uptime_seconds",
        "Seconds since the daemon started",
        node.uptime_seconds,
    );
    gauge("peers", "Peers that the backend serves", counts.peers);
    gauge(
        "leases",
        "Leases of other nodes in the store",
        counts.leases,
    );
    gauge(
        "leases_unreadable",
        "Keys in the store that cannot be read",
        counts.unreadable,
    );
    gauge("mtu_bytes", "MTU of pods", u64::from(counts.mtu));
    if let Some(left) = counts.lease_expiry_seconds {
        gauge(
            "lease_expiry_seconds",
            "Seconds until this node's lease expires unless renewed",
            left,
        );
    }
    if let Some(kernel) = &counts.kernel {
        gauge(
            "kernel_in_step",
            "1 while the kernel is in sync with the desired state, apart from peers that failed by themselves",
            u64::from(kernel.in_step),
        );
        gauge(
            "peers_failed",
            "Peers that the kernel refuses, each for a reason of its own",
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
            "Packets to the encapsulation port from unknown senders, by the counter of the rule",
            unknown,
        );
    }
    let refused = Family::<Vec<(String, String)>, Gauge>::default();
    for (reason, count) in &counts.refused {
        refused
            .get_or_create(&vec![("reason".to_owned(), (*reason).to_owned())])
            .set(i64::try_from(*count).unwrap_or(i64::MAX));
    }
    let findings = Family::<Vec<(String, String)>, Gauge>::default();
    for (check, count) in &counts.findings {
        findings
            .get_or_create(&vec![("check".to_owned(), (*check).to_owned())])
            .set(i64::try_from(*count).unwrap_or(i64::MAX));
    }
    registry.register(
        "findings",
        "Problems of this node that no other one explains, by check",
        findings,
    );
    if let Some((traffic, peers)) = &counts.probes {
        probes::register(&mut registry, traffic, peers);
    }
    registry.register("leases_refused", "Leases not in use, by reason", refused);
    let problems = Family::<Vec<(String, String)>, Gauge>::default();
    for reason in &node.reasons {
        let labels = vec![
            ("condition".to_owned(), reason.condition.clone()),
            ("code".to_owned(), reason.code.clone()),
        ];
        problems.get_or_create(&labels).set(1);
    }
    registry.register(
        "problems",
        "1 for each problem that keeps the node from being ready, by condition and code",
        problems,
    );
    registry.register(
        "store_requests",
        "Requests to the store, by kind",
        by_kind(&counts.store_requests),
    );
    for (name, help, value) in [
        (
            "rule_writes",
            "Writes of traffic rules",
            counts.rules.writes,
        ),
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
            "Log lines that could not be written to standard error",
            logging::dropped(),
        ),
    ] {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
    if let Some(peers) = &counts.wireguard {
        let family = Family::<Vec<(String, String)>, Gauge>::default();
        for (state, count) in [
            ("working", peers.peers - peers.silent),
            ("silent", peers.silent),
        ] {
            family
                .get_or_create(&vec![("state".to_owned(), state.to_owned())])
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        registry.register(
            "wireguard_peers",
            "Peers of WireGuard; those that are sent to and complete no handshake are silent",
            family,
        );
    }
    if let Some(kernel) = &counts.kernel {
        for (name, help, value) in [
            (
                "kernel_passes",
                "Comparisons of the kernel with the desired state",
                kernel.passes,
            ),
            (
                "kernel_writes",
                "Operations that changed the kernel",
                kernel.writes,
            ),
            (
                "kernel_failures",
                "Operations that the kernel refused",
                kernel.failures,
            ),
            (
                "kernel_repairs",
                "Operations that reverted a change by another program",
                kernel.repairs,
            ),
        ] {
            let counter: Counter = Counter::default();
            counter.inc_by(value);
            registry.register(name, help, counter);
        }
    }
    if !counts.datapath.is_empty() {
        datapath::register(&mut registry, &counts.datapath);
    }
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = encode(&mut out, &registry);
    out
}

/// A family with one counter per kind.
fn by_kind(counts: &BTreeMap<&'static str, u64>) -> Family<Vec<(String, String)>, Counter> {
    let family = Family::<Vec<(String, String)>, Counter>::default();
    for (kind, count) in counts {
        family
            .get_or_create(&vec![("kind".to_owned(), (*kind).to_owned())])
            .inc_by(*count);
    }
    family
}
