//! The daemon's health: conditions, heartbeats and figures.

pub mod condition;
mod datapath;
mod devices;
mod figures;
mod last_hour;
mod metrics;
mod probes;
mod process;
pub(crate) mod prometheus_text;
mod recorded;
pub mod samples;
mod unused;

use crate::error::report_restart;
use crate::network::RunningNetwork;
use condition::Condition;
use doctor::Report;
use figures::Counts;
pub use figures::Figures;
use parking_lot::{Mutex, MutexGuard};
use samples::{Samples, Totals};

use jiff::Timestamp;
use netlink::link::Counters as DeviceCounters;
use node_api::view::Charts;
use node_api::{Kernel, Node, Notice, Readiness, Reason, Rules};
use run_dir::status_file::{self, Pods};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use subnet_lease::manager::Counters;
use tokio::sync::{Notify, watch};
use types::Problem;
pub use unused::{UNREADABLE, Unused};

/// Maximum time between two heartbeats of a task.
const SILENCE: Duration = Duration::from_secs(60);

/// A clone is cheap, because all clones share one state.
#[derive(Clone, Debug)]
pub struct Health(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    started: Instant,
    conditions: BTreeMap<Condition, Problem>,
    /// Of the lease manager.
    store: Option<Arc<Counters>>,
    /// `None` until this node has a lease.
    network: watch::Sender<Option<RunningNetwork>>,
    /// The doctor's report, with the time at which its checks began.
    report: watch::Sender<Option<(Instant, Arc<Report>)>>,
    /// A client wants a new report of the doctor.
    wanted: Arc<Notify>,
    /// A client waits for a report whose checks have not begun yet.
    is_report_asked: bool,
    /// The part of the node's status document about the process and the store. The daemon keeps it when the network
    /// restarts.
    process: Node,
    /// Includes the part about the network.
    node: Node,
    notices: BTreeMap<&'static str, Problem>,
    /// Of the last five minutes, for the charts of the status page.
    samples: Samples,
    /// Whether /metrics contains series for each peer.
    metrics_per_peer: bool,
    run: Run,
    changed: Arc<Notify>,
}

/// The daemon discards this when the network restarts.
#[derive(Debug, Default)]
struct Run {
    /// Last heartbeats by task.
    heartbeats: BTreeMap<String, Instant>,
    unused: Arc<Vec<Unused>>,
    figures: Figures,
    /// The devices that carry pod packets to other nodes.
    devices: Vec<String>,
    /// Set if another node took this node's subnet.
    lost: Option<Problem>,
}

/// For the status document.
fn reason(condition: Condition, problem: &Problem) -> Reason {
    Reason {
        condition: condition.to_string(),
        code: problem.code.to_string(),
        text: problem.to_string(),
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// A daemon that has just started: alive, but not ready until [`Condition::Start`] is cleared.
    pub fn new() -> Self {
        process::started();
        let health = Self(Arc::new(Mutex::new(Inner {
            started: Instant::now(),
            conditions: BTreeMap::new(),
            store: None,
            network: watch::channel(None).0,
            report: watch::channel(None).0,
            wanted: Arc::default(),
            is_report_asked: false,
            process: Node::default(),
            node: Node::default(),
            notices: BTreeMap::new(),
            samples: Samples::default(),
            metrics_per_peer: false,
            run: Run::default(),
            changed: Arc::default(),
        })));
        health.fail(Condition::Start, Problem::new("starting", "starting"));
        health
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    /// The daemon is not ready until a task clears the condition.
    pub fn fail(&self, condition: Condition, problem: impl Into<Problem>) {
        self.condition(condition, Some(problem.into()));
    }

    pub fn clear(&self, condition: Condition) {
        self.condition(condition, None);
    }

    /// `None` clears the condition. The daemon is ready when none is set.
    pub fn condition(&self, condition: Condition, problem: Option<Problem>) {
        let mut inner = self.inner();
        let news = inner.conditions.get(&condition) != problem.as_ref();
        match problem {
            Some(problem) => inner.conditions.insert(condition, problem),
            None => inner.conditions.remove(&condition),
        };
        if news {
            inner.changed.notify_one();
        }
    }

    /// Waits until the conditions may have changed. Only one task may call this.
    pub async fn changed(&self) {
        let changed = self.inner().changed.clone();
        changed.notified().await;
    }

    /// The devices carry pod packets to other nodes.
    pub fn carried_by(&self, devices: Vec<String>) {
        self.inner().run.devices = devices;
    }

    /// They carry pod packets to other nodes.
    pub fn devices(&self) -> Vec<String> {
        self.inner().run.devices.clone()
    }

    /// Since the network started.
    pub fn rule_repairs(&self) -> u64 {
        self.inner().run.figures.rule_repairs
    }

    /// `elapsed` is the time since the previous sample. Also records the counters of the devices.
    pub fn sampled(
        &self,
        totals: Totals,
        elapsed: Duration,
        devices: BTreeMap<String, DeviceCounters>,
    ) {
        let mut inner = self.inner();
        inner.samples.add(totals, elapsed);
        inner.run.figures.devices = devices;
    }

    /// Of the last five minutes.
    pub fn charts(&self) -> Charts {
        self.inner().samples.charts()
    }

    pub fn add_metrics_per_peer(&self) {
        self.inner().metrics_per_peer = true;
    }

    /// Records that another node took this node's subnet.
    pub fn lost(&self, why: impl Into<Problem>) {
        let mut inner = self.inner();
        inner.run.lost = Some(why.into());
        inner.changed.notify_one();
    }

    /// Why new pods get no working network. `None` during a start, because the previous daemon's network is still in
    /// the kernel.
    pub fn pods(&self) -> Option<Pods> {
        let inner = self.inner();
        if inner.conditions.contains_key(&Condition::Start) {
            return None;
        }
        let lost = inner.run.lost.iter().map(|why| (Condition::Lease, why.clone()));
        let others = inner.conditions.iter().filter(|(condition, _)| condition.stops_new_pods());
        let reasons = lost.chain(others.map(|(condition, why)| (*condition, why.clone())));
        let reasons = reasons
            .map(|(condition, why)| status_file::Reason::new(condition.as_str(), why))
            .collect();
        Some(Pods { reasons, devices: inner.run.devices.clone() })
    }

    /// Discards the data about the network when it restarts. Afterwards, the node is not ready.
    pub fn start_over(&self, why: &Problem) {
        let mut inner = self.inner();
        inner.conditions.clear();
        inner.conditions.insert(Condition::Start, report_restart(why));
        inner.run = Run::default();
        inner.network.send_replace(None);
        inner.node = inner.process.clone();
        inner.changed.notify_one();
    }

    /// After its first heartbeat, a task must send one every minute.
    pub fn heartbeat(&self, name: &str) {
        let (task, now) = (name.to_owned(), Instant::now());
        self.inner().run.heartbeats.insert(task, now);
    }

    /// The tasks whose last heartbeat is more than a minute old.
    pub fn silent_tasks(&self) -> Vec<String> {
        let inner = self.inner();
        let heartbeats = inner.run.heartbeats.iter().map(|(task, last)| (task, last.elapsed()));
        heartbeats
            .filter(|(_, since)| *since > SILENCE)
            .map(|(task, since)| {
                let (since, limit) = (since.as_secs(), SILENCE.as_secs());
                format!("no heartbeat from {task} for {since} s (limit {limit} s)")
            })
            .collect()
    }

    /// Empty if the daemon is ready.
    pub fn reasons(&self) -> Vec<(Condition, Problem)> {
        self.inner()
            .conditions
            .iter()
            .map(|(condition, reason)| (*condition, reason.clone()))
            .collect()
    }

    pub fn ready(&self) -> bool {
        self.inner().conditions.is_empty()
    }

    /// Unused leases never affect readiness, because any node may write a bad lease.
    pub fn set_unused(&self, unused: Arc<Vec<Unused>>) {
        self.inner().run.unused = unused;
    }

    pub fn unused(&self) -> Arc<Vec<Unused>> {
        self.inner().run.unused.clone()
    }

    /// The report never affects readiness.
    pub fn set_report(&self, began: Instant, report: Arc<Report>) {
        let mut inner = self.inner();
        inner.run.figures.findings = doctor::table::tally(&report);
        inner.run.figures.doctor_round = Some(began);
        inner.report.send_replace(Some((began, report)));
    }

    /// `None` before the first report.
    pub fn report(&self) -> Option<Arc<Report>> {
        self.inner().report.borrow().as_ref().map(|(_, report)| report.clone())
    }

    /// Requests a new report of the doctor. The previous one if the checks take longer than `patience`.
    pub async fn fresh_report(&self, patience: Duration) -> Option<Arc<Report>> {
        let (mut reports, wanted, asked) = {
            let mut inner = self.inner();
            inner.is_report_asked = true;
            (inner.report.subscribe(), inner.wanted.clone(), Instant::now())
        };
        wanted.notify_one();
        let made =
            reports.wait_for(|report| report.as_ref().is_some_and(|(began, _)| *began >= asked));
        let _ = tokio::time::timeout(patience, made).await.map(|_| ());
        self.report()
    }

    pub async fn report_wanted(&self) {
        let wanted = self.inner().wanted.clone();
        wanted.notified().await;
    }

    /// When the checks begin, and whether a client waits for them.
    pub fn begin_report(&self) -> (Instant, bool) {
        let mut inner = self.inner();
        (Instant::now(), std::mem::take(&mut inner.is_report_asked))
    }

    pub fn uptime(&self) -> Duration {
        self.inner().started.elapsed()
    }

    /// Changes the part of the status document that the daemon keeps when the network restarts.
    pub fn process(&self, change: impl Fn(&mut Node)) {
        let mut inner = self.inner();
        change(&mut inner.process);
        change(&mut inner.node);
    }

    /// Changes the part of the status document about the network.
    pub fn node(&self, change: impl FnOnce(&mut Node)) {
        change(&mut self.inner().node);
    }

    pub fn stores(&self, counters: Arc<Counters>) {
        self.inner().store = Some(counters);
    }

    /// `None` until the lease manager exists.
    pub fn store(&self) -> Option<Arc<Counters>> {
        self.inner().store.clone()
    }

    /// Records the network when it starts.
    pub fn serves(&self, network: RunningNetwork) {
        self.inner().network.send_replace(Some(network));
    }

    /// `None` until this node has a lease.
    pub fn network(&self) -> Option<RunningNetwork> {
        self.inner().network.borrow().clone()
    }

    /// Follows the networks as they start and end.
    pub fn networks(&self) -> watch::Receiver<Option<RunningNetwork>> {
        self.inner().network.subscribe()
    }

    /// Empty until the name is known.
    pub fn name(&self) -> String {
        self.inner().node.node.clone()
    }

    /// A problem that does not affect readiness; `None` clears it.
    pub fn notice(&self, name: &'static str, problem: Option<Problem>) {
        let mut inner = self.inner();
        match problem {
            Some(problem) => inner.notices.insert(name, problem),
            None => inner.notices.remove(name),
        };
    }

    /// Problems that do not affect readiness.
    pub fn notices(&self) -> Vec<Problem> {
        self.inner().notices.values().cloned().collect()
    }

    /// Without peers and file states; the status API adds both.
    pub fn document(&self) -> Node {
        let silent = self.silent_tasks();
        let unused = self.unused();
        let inner = self.inner();
        let reasons: Vec<Reason> = inner
            .conditions
            .iter()
            .map(|(condition, problem)| reason(*condition, problem))
            .collect();
        let kernel = inner.network.borrow().as_ref().map(|network| {
            let status = network.observer.status();
            let wireguard = figures::wireguard(&status);
            let now = status.kernel;
            let put_back = inner.run.figures.put_back.within(now.repairs);
            let wanted = now.wanted;
            Kernel {
                in_sync: now.in_sync,
                trouble: now.trouble_text().to_owned(),
                failed_peers: now.failed_peers.iter().map(figures::failed_peer).collect(),
                routes: wanted.routes,
                neighbours: wanted.neighbours,
                fdb: wanted.fdb,
                put_back,
                wireguard,
            }
        });
        let trouble =
            inner.conditions.get(&Condition::Rules).map(ToString::to_string).unwrap_or_default();
        let put_back = inner.run.figures.rule_repairs;
        let rules = inner.node.rules.clone().map(|rules| Rules {
            in_place: trouble.is_empty(),
            trouble,
            put_back,
            ..rules
        });
        Node {
            schema: node_api::SCHEMA.to_owned(),
            at: Timestamp::now(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: inner.started.elapsed().as_secs(),
            readiness: Readiness {
                ready: reasons.is_empty(),
                reasons,
                silent: (!silent.is_empty()).then(|| silent.join("\n")),
                notices: inner
                    .notices
                    .iter()
                    .map(|(name, text)| Notice { name: (*name).to_owned(), text: text.to_string() })
                    .collect(),
            },
            kernel,
            rules,
            unused: unused.iter().map(Unused::shown).collect(),
            ..inner.node.clone()
        }
    }

    /// Changes the figures that /metrics renders.
    pub fn figures(&self, change: impl FnOnce(&mut Figures)) {
        change(&mut self.inner().run.figures);
    }

    fn counted(&self) -> Counts {
        let inner = self.inner();
        let network = inner.network.borrow();
        inner.run.figures.counts(
            network.as_ref(),
            inner.store.as_deref(),
            &inner.run.unused,
            inner.metrics_per_peer,
        )
    }

    /// The text of /metrics, in the OpenMetrics format 1.0.
    pub fn metrics(&self) -> String {
        metrics::text(&self.document(), &self.counted())
    }

    /// /status for clients that do not connect over loopback, without peers, addresses and rules.
    pub fn counts(&self) -> serde_json::Value {
        let alive = self.silent_tasks().is_empty();
        let inner = self.inner();
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for ((check, _), count) in &inner.run.figures.findings.findings {
            if *count > 0 {
                *counts.entry(check).or_default() += count;
            }
        }
        serde_json::json!({ "ready": inner.conditions.is_empty(), "alive": alive, "counts": counts })
    }

    /// /status for clients over loopback or the socket: the status document in the JSON structure of earlier
    /// versions, with the counters.
    pub fn status(&self) -> serde_json::Value {
        let node = self.document();
        let reasons: BTreeMap<&str, &str> = node
            .readiness
            .reasons
            .iter()
            .map(|reason| (reason.condition.as_str(), reason.text.as_str()))
            .collect();
        let subnets: Vec<String> = node.network.subnets.iter().map(ToString::to_string).collect();
        let mut status = serde_json::json!({
            "ready": node.readiness.ready,
            "alive": node.readiness.silent.is_none(),
            "reasons": reasons,
            "uptime_seconds": node.uptime_seconds,
            "version": node.version,
            "refused": node.unused,
            "figures": self.counted(),
        });
        let findings = self.report().map(|report| {
            report
                .causes()
                .filter_map(|finding| serde_json::to_value(finding).ok())
                .collect::<Vec<_>>()
        });
        let known = [
            ("silent", node.readiness.silent.map(Into::into)),
            ("node_id", node.node_id.map(Into::into)),
            (
                "subnet",
                Some(subnets.join(" and ")).filter(|subnet| !subnet.is_empty()).map(Into::into),
            ),
            ("interface", node.network.underlay.map(|underlay| underlay.interface.into())),
            ("findings", findings.map(Into::into)),
        ];
        if let Some(status) = status.as_object_mut() {
            status.extend(known.into_iter().filter_map(
                |(name, value): (_, Option<serde_json::Value>)| Some((name.to_owned(), value?)),
            ));
        }
        status
    }
}

#[cfg(test)]
mod tests;
