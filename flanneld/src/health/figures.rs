//! The counters and gauges behind /metrics and /status.

use super::condition::Condition;
use super::datapath;
use super::last_hour::LastHour;
use super::probes;
use super::unused::{Unused, refused_by_reason};
use crate::logging;
use crate::network::RunningNetwork;
use backends::status::Status;
use node_api::{FailedPeer, Wireguard};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::time::Duration;
use subnet_lease::manager::{Counters, boot_time};
use types::Problem;

/// Counters and gauges: the tasks set them, the server reads them.
#[derive(Debug, Default)]
pub struct Figures {
    /// Number of writes of traffic rules.
    pub rule_writes: u64,
    /// Number of repairs of traffic rules that another program had changed.
    pub rule_repairs: u64,
    /// Whether another program keeps changing them.
    pub rules_contended: bool,
    /// Number of gateway addresses of previous subnets that were removed from bridges.
    pub bridge_addresses_removed: u64,
    /// Packets to the encapsulation port from senders that are no peers, where they are counted.
    pub unknown_senders: Option<u64>,
    /// Number of findings that no other one explains, by check; empty before the first round.
    pub findings: BTreeMap<&'static str, u64>,
    /// How many objects of the kernel were put back lately.
    pub put_back: LastHour,
}

impl Figures {
    /// The OpenMetrics text.
    pub(super) fn render(
        &self,
        conditions: &BTreeMap<Condition, Problem>,
        uptime: Duration,
        network: Option<&RunningNetwork>,
        store: Option<&Counters>,
        unused: &[Unused],
    ) -> String {
        let ready = conditions.is_empty();
        let (status, now) = (network.map(|network| network.observer.status()), network.map(Now::of).unwrap_or_default());
        let mut registry = Registry::with_prefix("flannel");
        registry.register("build", "Version of the daemon", Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]));
        let mut gauge = |name: &str, help: &str, value: u64| {
            let gauge: Gauge = Gauge::default();
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            registry.register(name, help, gauge);
        };
        gauge("ready", "1 while the node is ready", u64::from(ready));
        gauge("uptime_seconds", "Seconds since the daemon started", uptime.as_secs());
        gauge("peers", "Peers that the backend serves", now.peers);
        gauge("leases", "Leases of other nodes in the store", now.leases);
        gauge("leases_unreadable", "Keys in the store that cannot be read", unreadable(store));
        gauge("mtu_bytes", "MTU of pods", u64::from(now.mtu));
        if let Some(left) = now.lease_left {
            gauge("lease_expiry_seconds", "Seconds until this node's lease expires unless renewed", left);
        }
        if let Some(status) = &status {
            gauge(
                "kernel_in_step",
                "1 while the kernel is in sync with the desired state, apart from peers that failed by themselves",
                u64::from(status.kernel.in_step),
            );
            gauge("peers_failed", "Peers that the kernel refuses, each for a reason of its own", number(status.kernel.failed_peers.len()));
        }
        gauge("rules_at_war", "1 while another program keeps changing the traffic rules", u64::from(self.rules_contended));
        if let Some(unknown) = self.unknown_senders {
            gauge("encap_stranger_packets", "Packets to the encapsulation port from unknown senders, by the counter of the rule", unknown);
        }
        let refused = Family::<Vec<(String, String)>, Gauge>::default();
        for (reason, count) in &refused_by_reason(unused) {
            refused.get_or_create(&vec![("reason".to_owned(), (*reason).to_owned())]).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
        let findings = Family::<Vec<(String, String)>, Gauge>::default();
        for (check, count) in &self.findings {
            findings.get_or_create(&vec![("check".to_owned(), (*check).to_owned())]).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
        registry.register("findings", "Problems of this node that no other one explains, by check", findings);
        if let Some(prober) = network.and_then(|network| network.prober.as_ref()) {
            probes::register(&mut registry, prober);
        }
        registry.register("leases_refused", "Leases not in use, by reason", refused);
        let problems = Family::<Vec<(String, String)>, Gauge>::default();
        for (condition, problem) in conditions {
            let labels = vec![("condition".to_owned(), condition.to_string()), ("code".to_owned(), problem.code.to_string())];
            problems.get_or_create(&labels).set(1);
        }
        registry.register("problems", "1 for each problem that keeps the node from being ready, by condition and code", problems);
        registry.register("store_requests", "Requests to the store, by kind", by_kind(&requests(store)));
        for (name, help, value) in [
            ("rule_writes", "Writes of traffic rules", self.rule_writes),
            ("rule_repairs", "Repairs of traffic rules that another program had changed", self.rule_repairs),
            ("bridge_addresses_removed", "Gateway addresses of previous subnets removed from bridges", self.bridge_addresses_removed),
            ("log_lines_dropped", "Log lines that could not be written to standard error", logging::dropped()),
        ] {
            let counter: Counter = Counter::default();
            counter.inc_by(value);
            registry.register(name, help, counter);
        }
        if let Some(peers) = status.as_ref().and_then(wireguard) {
            let family = Family::<Vec<(String, String)>, Gauge>::default();
            for (state, count) in [("working", peers.peers - peers.silent), ("silent", peers.silent)] {
                family.get_or_create(&vec![("state".to_owned(), state.to_owned())]).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
            registry.register("wireguard_peers", "Peers of WireGuard; those that are sent to and complete no handshake are silent", family);
        }
        if let Some(status) = &status {
            for (name, help, value) in [
                ("kernel_passes", "Comparisons of the kernel with the desired state", status.kernel.passes),
                ("kernel_writes", "Operations that changed the kernel", status.kernel.writes),
                ("kernel_failures", "Operations that the kernel refused", status.kernel.failures),
                ("kernel_repairs", "Operations that reverted a change by another program", status.kernel.repairs),
            ] {
                let counter: Counter = Counter::default();
                counter.inc_by(value);
                registry.register(name, help, counter);
            }
            if !status.engines.is_empty() {
                datapath::register(&mut registry, &status.engines);
            }
        }
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut out, &registry);
        out
    }

    /// The counters and gauges for /status.
    pub(super) fn json(&self, network: Option<&RunningNetwork>, store: Option<&Counters>, unused: &[Unused]) -> serde_json::Value {
        let now = network.map(Now::of).unwrap_or_default();
        let mut out = serde_json::json!({
            "peers": now.peers,
            "leases": now.leases,
            "refused": refused_by_reason(unused),
            "unreadable": unreadable(store),
            "store_requests": requests(store),
            "lease_expiry_seconds": now.lease_left,
            "mtu": now.mtu,
            "rules": { "writes": self.rule_writes, "repairs": self.rule_repairs, "at_war": self.rules_contended },
        });
        if let (Some(network), Some(out)) = (network, out.as_object_mut()) {
            let status = network.observer.status();
            let kernel = serde_json::json!({
                "in_step": status.kernel.in_step,
                "trouble": status.kernel.trouble_text(),
                "failed_peers": status.kernel.failed_peers.iter().map(failed_peer).collect::<Vec<_>>(),
                "passes": status.kernel.passes,
                "writes": status.kernel.writes,
                "failures": status.kernel.failures,
                "repairs": status.kernel.repairs,
            });
            out.insert("kernel".to_owned(), kernel);
            if let Some(peers) = wireguard(&status) {
                out.insert("wireguard".to_owned(), serde_json::json!({ "peers": peers.peers, "silent": peers.silent }));
            }
            if !status.engines.is_empty() {
                out.insert("datapath".to_owned(), datapath::json(&status.engines));
            }
        }
        out
    }
}

/// What the running network counts itself.
#[derive(Default)]
struct Now {
    peers: u64,
    leases: u64,
    /// Seconds until this node's lease expires; `None` for a reservation.
    lease_left: Option<u64>,
    mtu: u32,
}

impl Now {
    fn of(network: &RunningNetwork) -> Self {
        let reading = network.readings.borrow();
        Self {
            peers: number(network.leases.borrow().len()),
            leases: number(reading.seen),
            lease_left: network.held.borrow().until.map(|end| end.saturating_sub(boot_time()).as_secs()),
            mtu: network.env.borrow().mtu,
        }
    }
}

fn number(many: usize) -> u64 {
    u64::try_from(many).unwrap_or(u64::MAX)
}

/// Requests to the store since the start, by kind.
fn requests(store: Option<&Counters>) -> BTreeMap<&'static str, u64> {
    store.into_iter().flat_map(Counters::calls).collect()
}

/// Keys in the store that cannot be read.
fn unreadable(store: Option<&Counters>) -> u64 {
    store.map_or(0, |store| number(store.unreadable_keys().len()))
}

/// A peer that the kernel refuses, as the documents show it.
pub(super) fn failed_peer(failed: &backends::FailedPeer) -> FailedPeer {
    let backends::FailedPeer { peer, why } = failed;
    FailedPeer { node: peer.node.clone(), subnet: peer.subnet, address: peer.address, text: why.to_string() }
}

/// The peers of WireGuard; `None` where there are none, as with another backend.
pub(super) fn wireguard(status: &Status) -> Option<Wireguard> {
    let (peers, silent) = (number(status.kernel.tunnels.peers), number(status.kernel.tunnels.silent.len()));
    (peers > 0).then(|| Wireguard { peers, silent: silent.min(peers) })
}

/// A family with one counter per kind.
fn by_kind(counts: &BTreeMap<&'static str, u64>) -> Family<Vec<(String, String)>, Counter> {
    let family = Family::<Vec<(String, String)>, Counter>::default();
    for (kind, count) in counts {
        family.get_or_create(&vec![("kind".to_owned(), (*kind).to_owned())]).inc_by(*count);
    }
    family
}
