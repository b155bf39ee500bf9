//! The daemon's health: conditions, heartbeats and figures.

pub mod condition;
mod datapath;
mod figures;
mod last_hour;
mod probes;

use condition::Condition;
use doctor::Report;
pub use figures::Figures;

use jiff::Timestamp;
use node_api::{Kernel, Node, Notice, Reason, Rules};
use run_dir::status_file::Pods;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use subnet_lease::manager::Counters;
use tokio::sync::{Notify, watch};

/// How long a round of the doctor may take for whoever asks.
const PATIENCE: Duration = Duration::from_secs(2);
/// Default limit for the time between two heartbeats of a task.
const SILENCE: Duration = Duration::from_secs(60);

/// The daemon's health. Cheap to clone: all clones share one state.
#[derive(Clone, Debug)]
pub struct Health(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    started: Instant,
    conditions: BTreeMap<Condition, String>,
    heartbeats: BTreeMap<String, Heartbeat>,
    facts: BTreeMap<String, serde_json::Value>,
    unused: Arc<Vec<Unused>>,
    figures: Figures,
    /// The doctor's report, and when its round began.
    report: watch::Sender<Option<(Instant, Arc<Report>)>>,
    /// Somebody wants a new one.
    wanted: Arc<Notify>,
    /// What the document says of the process and of its store, whichever network it serves.
    process: Node,
    /// The same, with what is known of the network.
    node: Node,
    notices: BTreeMap<&'static str, String>,
    /// What the lease publishes of the device: its name and hardware address.
    vtep: Option<(String, String)>,
    /// The devices that carry packets of pods to other nodes.
    devices: Vec<String>,
    /// Another node took this node's subnet.
    lost: Option<String>,
    /// Conditions changed, or what is published.
    changed: Arc<Notify>,
}

/// A lease in the store that this node does not use: there is no route to its holder.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unused {
    /// The subnets, or the key if it names none.
    pub lease: String,
    /// The reason, as in the metrics.
    pub reason: &'static str,
    /// The reason in words.
    pub text: String,
}

impl Unused {
    fn shown(&self) -> node_api::Unused {
        node_api::Unused { lease: self.lease.clone(), reason: self.reason.to_owned(), text: self.text.clone() }
    }
}

#[derive(Clone, Copy, Debug)]
struct Heartbeat {
    last: Instant,
    limit: Duration,
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// A daemon that has just started: alive, and not ready until [`Condition::Start`] is cleared.
    pub fn new() -> Self {
        let health = Self(Arc::new(Mutex::new(Inner {
            started: Instant::now(),
            conditions: BTreeMap::new(),
            heartbeats: BTreeMap::new(),
            facts: BTreeMap::new(),
            unused: Arc::default(),
            figures: Figures::default(),
            report: watch::channel(None).0,
            wanted: Arc::default(),
            process: Node::default(),
            node: Node::default(),
            notices: BTreeMap::new(),
            vtep: None,
            devices: Vec::new(),
            lost: None,
            changed: Arc::default(),
        })));
        health.condition(Condition::Start, Some("starting"));
        health.fact("version", env!("CARGO_PKG_VERSION"));
        health
    }

    // A task that panics while it holds the lock leaves consistent values: each change is one assignment.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a condition with its reason, or clears it. The daemon is ready when no condition is set.
    pub fn condition(&self, condition: Condition, reason: Option<&str>) {
        let mut inner = self.inner();
        let news = match reason {
            Some(reason) => inner.conditions.insert(condition, reason.to_owned()).as_deref() != Some(reason),
            None => inner.conditions.remove(&condition).is_some(),
        };
        if news {
            inner.changed.notify_one();
        }
    }

    /// Notes the hardware address that the lease publishes, with the device's name.
    pub fn publishes(&self, vtep: Option<(String, String)>) {
        let mut inner = self.inner();
        if inner.vtep != vtep {
            inner.vtep = vtep;
            inner.changed.notify_one();
        }
    }

    /// Waits until conditions, or what is published, may have changed. One task waits.
    pub async fn changed(&self) {
        let changed = self.inner().changed.clone();
        changed.notified().await;
    }

    /// The hardware address that the lease publishes, with the device's name.
    pub fn vtep(&self) -> Option<(String, String)> {
        self.inner().vtep.clone()
    }

    /// Notes the devices that carry packets of pods to other nodes.
    pub fn carried_by(&self, devices: Vec<String>) {
        self.inner().devices = devices;
    }

    /// Notes that another node took this node's subnet.
    pub fn lost(&self, why: &str) {
        let mut inner = self.inner();
        inner.lost = Some(why.to_owned());
        inner.changed.notify_one();
    }

    /// What a new pod needs of this node's network. `None` during a start: the network of the daemon before is still in the kernel.
    pub fn pods(&self) -> Option<Pods> {
        let inner = self.inner();
        if inner.conditions.contains_key(&Condition::Start) {
            return None;
        }
        let lost = inner.lost.iter().map(|why| (Condition::Lease, why.clone()));
        let others = inner.conditions.iter().filter(|(condition, _)| condition.stops_new_pods());
        let reasons = lost.chain(others.map(|(condition, why)| (*condition, why.clone())));
        Some(Pods { reasons: reasons.map(|(condition, why)| (condition.as_str(), why).into()).collect(), devices: inner.devices.clone() })
    }

    /// The network restarts: not ready, and nothing is known of the one before.
    pub fn start_over(&self, why: &str) {
        let mut inner = self.inner();
        inner.conditions.clear();
        inner.conditions.insert(Condition::Start, format!("restarting the network: {why}"));
        inner.heartbeats.clear();
        inner.facts.retain(|name, _| name == "version");
        inner.unused = Arc::default();
        inner.vtep = None;
        inner.devices.clear();
        inner.lost = None;
        inner.figures = Figures::default();
        inner.node = inner.process.clone();
        inner.changed.notify_one();
    }

    /// Records a heartbeat of a task. After its first one, a task must send one every minute.
    pub fn heartbeat(&self, name: &str) {
        let mut inner = self.inner();
        let limit = inner.heartbeats.get(name).map_or(SILENCE, |heartbeat| heartbeat.limit);
        inner.heartbeats.insert(name.to_owned(), Heartbeat { last: Instant::now(), limit });
    }

    /// Like [`Health::heartbeat`], with another limit.
    pub fn heartbeat_within(&self, name: &str, limit: Duration) {
        self.inner().heartbeats.insert(name.to_owned(), Heartbeat { last: Instant::now(), limit });
    }

    /// Forgets a task that ended as expected.
    pub fn forget_heartbeat(&self, name: &str) {
        self.inner().heartbeats.remove(name);
    }

    /// Whether every task with a heartbeat still sends it.
    ///
    /// # Errors
    /// Names the silent tasks, and for how long they have been silent.
    pub fn alive(&self) -> Result<(), String> {
        let inner = self.inner();
        let silent: Vec<String> = inner
            .heartbeats
            .iter()
            .filter(|(_, heartbeat)| heartbeat.last.elapsed() > heartbeat.limit)
            .map(|(name, heartbeat)| {
                format!("no heartbeat from {name} for {} s (limit {} s)", heartbeat.last.elapsed().as_secs(), heartbeat.limit.as_secs())
            })
            .collect();
        if silent.is_empty() { Ok(()) } else { Err(silent.join("\n")) }
    }

    /// Why the daemon is not ready; empty if it is.
    pub fn reasons(&self) -> Vec<(Condition, String)> {
        self.inner().conditions.iter().map(|(condition, reason)| (*condition, reason.clone())).collect()
    }

    /// Whether no condition is set.
    pub fn ready(&self) -> bool {
        self.inner().conditions.is_empty()
    }

    /// Sets the leases that are not used. They never affect readiness, since any node may write a bad lease.
    pub fn set_unused(&self, unused: Arc<Vec<Unused>>) {
        self.inner().unused = unused;
    }

    /// The leases that are not used.
    pub fn unused(&self) -> Arc<Vec<Unused>> {
        self.inner().unused.clone()
    }

    /// Sets what the doctor found. It never affects readiness.
    pub fn set_report(&self, began: Instant, report: Arc<Report>) {
        let mut inner = self.inner();
        inner.figures.findings = doctor::table::counts(&report);
        inner.report.send_replace(Some((began, report)));
    }

    /// What the doctor found; none before its first round.
    pub fn report(&self) -> Option<Arc<Report>> {
        self.inner().report.borrow().as_ref().map(|(_, report)| report.clone())
    }

    /// What a round finds that begins now; what the last one found if that takes too long.
    pub async fn fresh_report(&self) -> Option<Arc<Report>> {
        let asked = Instant::now();
        let (mut reports, wanted) = {
            let inner = self.inner();
            (inner.report.subscribe(), inner.wanted.clone())
        };
        wanted.notify_one();
        let made = reports.wait_for(|report| report.as_ref().is_some_and(|(began, _)| *began >= asked));
        let _ = tokio::time::timeout(PATIENCE, made).await.map(|_| ());
        self.report()
    }

    /// Waits until somebody wants a new report.
    pub async fn report_wanted(&self) {
        let wanted = self.inner().wanted.clone();
        wanted.notified().await;
    }

    /// For how long the daemon has run.
    pub fn uptime(&self) -> Duration {
        self.inner().started.elapsed()
    }

    /// Sets a fact of /status, e.g. `node_id`, `subnet`, `interface`.
    pub fn fact(&self, name: &str, value: impl Into<serde_json::Value>) {
        self.inner().facts.insert(name.to_owned(), value.into());
    }

    /// Changes what the document says of the process, whichever network it serves.
    pub fn process(&self, change: impl Fn(&mut Node)) {
        let mut inner = self.inner();
        change(&mut inner.process);
        change(&mut inner.node);
    }

    /// Changes what the document says of the network.
    pub fn node(&self, change: impl FnOnce(&mut Node)) {
        change(&mut self.inner().node);
    }

    /// The counters of the store's manager, once there is one.
    pub fn store(&self) -> Option<Arc<Counters>> {
        self.inner().figures.store.clone()
    }

    /// The name of this node.
    pub fn name(&self) -> String {
        self.inner().node.node.clone()
    }

    /// Sets or clears what costs no readiness and should be known.
    pub fn notice(&self, name: &'static str, text: Option<&str>) {
        let mut inner = self.inner();
        match text {
            Some(text) => inner.notices.insert(name, text.to_owned()),
            None => inner.notices.remove(name),
        };
    }

    /// The node's document, without what others have to add: peers, and the state of files.
    pub fn document(&self) -> Node {
        let silent = self.alive().err();
        let unused = self.unused();
        let inner = self.inner();
        let reasons: Vec<Reason> =
            inner.conditions.iter().map(|(condition, text)| Reason { condition: condition.to_string(), text: text.clone() }).collect();
        let kernel = inner.figures.network.as_ref().map(|network| {
            let status = network.status();
            let wireguard = figures::wireguard(&status);
            let now = status.kernel;
            let put_back = inner.figures.put_back.within(now.repairs);
            let wanted = now.wanted;
            Kernel {
                in_sync: now.in_step,
                trouble: now.trouble,
                failed_peers: now.failed_peers.iter().map(figures::failed_peer).collect(),
                routes: wanted.routes,
                neighbours: wanted.neighbours,
                fdb: wanted.fdb,
                put_back,
                wireguard,
            }
        });
        let trouble = inner.conditions.get(&Condition::Rules).cloned().unwrap_or_default();
        let put_back = inner.figures.rule_repairs;
        let rules = inner.node.rules.clone().map(|rules| Rules { in_place: trouble.is_empty(), trouble, put_back, ..rules });
        Node {
            schema: node_api::SCHEMA.to_owned(),
            at: Timestamp::now(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: inner.started.elapsed().as_secs(),
            ready: reasons.is_empty(),
            reasons,
            silent,
            notices: inner.notices.iter().map(|(name, text)| Notice { name: (*name).to_owned(), text: text.clone() }).collect(),
            kernel,
            rules,
            unused: unused.iter().map(Unused::shown).collect(),
            ..inner.node.clone()
        }
    }

    /// Changes the figures behind /metrics.
    pub fn figures(&self, change: impl FnOnce(&mut Figures)) {
        change(&mut self.inner().figures);
    }

    /// The text of /metrics.
    pub fn metrics(&self) -> String {
        let inner = self.inner();
        inner.figures.render(inner.conditions.is_empty(), inner.started.elapsed())
    }

    /// The document of /status for clients elsewhere: nothing of peers, addresses or rules.
    pub fn counts(&self) -> serde_json::Value {
        let alive = self.alive().is_ok();
        let inner = self.inner();
        let counts: BTreeMap<&str, u64> =
            inner.figures.findings.iter().filter(|(_, count)| **count > 0).map(|(check, count)| (*check, *count)).collect();
        serde_json::json!({ "ready": inner.conditions.is_empty(), "alive": alive, "counts": counts })
    }

    /// The document of /status for clients on this host.
    pub fn status(&self) -> serde_json::Value {
        let alive = self.alive();
        let inner = self.inner();
        let mut status = serde_json::Map::new();
        status.insert("ready".to_owned(), inner.conditions.is_empty().into());
        status.insert("alive".to_owned(), alive.is_ok().into());
        status.insert(
            "reasons".to_owned(),
            inner.conditions.iter().map(|(name, reason)| (name.to_string(), reason.as_str().into())).collect::<serde_json::Map<_, _>>().into(),
        );
        if let Err(silent) = alive {
            status.insert("silent".to_owned(), silent.into());
        }
        status.insert("uptime_seconds".to_owned(), inner.started.elapsed().as_secs().into());
        for (name, value) in &inner.facts {
            status.insert(name.clone(), value.clone());
        }
        let report = inner.report.borrow().as_ref().map(|(_, report)| report.clone());
        if let Some(report) = report {
            status.insert("findings".to_owned(), report.causes().filter_map(|finding| serde_json::to_value(finding).ok()).collect::<Vec<_>>().into());
        }
        status.insert("refused".to_owned(), serde_json::json!(*inner.unused));
        status.insert("figures".to_owned(), inner.figures.json());
        status.into()
    }
}

#[cfg(test)]
mod tests;
