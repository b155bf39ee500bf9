//! The doctor's rounds, which gather facts, evaluate them, log new and resolved findings, and pass the report to /status, /metrics and the API.
//!
//! Findings of checks never change readiness. The rounds change the host in only two cases: if they correct sysctls
//! (`--set-sysctls`), and if they load a missing br_netfilter. For nftables, the rounds do not load br_netfilter.

mod budget;
mod gather;
pub mod known;
mod mesh;
mod module;
pub mod silence;
pub mod sysctls;
#[cfg(test)]
mod tests;
mod wireguard;

use crate::health::Health;
use crate::memory;
use crate::network::RunningNetwork;
use budget::Budget;
use doctor::Finding;
use doctor::fact::Fact;
use doctor::facts::Facts;
use doctor::finding::HERE;
use doctor::firewalls::Firewalls;
use doctor::ledger::Ledger;
use doctor::look::Look;
use doctor::table::judge;
pub use gather::{network, vni};
use known::Known;
use netlink::Subscription;
use probing::pods::PodPaths;
use probing::prober::Prober;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use sysctls::SysctlWriter;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use traffic_rules::notices::{is_apart_from_services, subscribe_to_rules};
use traffic_rules::pace;
use types::{DaemonPod, printable};

/// Interval between two passes of the checks while no event occurs. A pass reads only a few small files.
const FILES_INTERVAL: Duration = Duration::from_secs(10);
/// Interval at which the task lists the firewall rules while the kernel reports no change of rules. A listing starts
/// a few processes.
const FIREWALLS: Duration = Duration::from_secs(30);
/// The same if the kernel does not report changes of some rules (iptables-legacy).
const LEGACY_RULES_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum time for which the task collects changes of rules before it lists the firewall rules.
const QUIET: Duration = Duration::from_millis(500);
/// Minimum time from a listing of the firewall rules to the next one that a change of rules causes.
const BUSY: Duration = Duration::from_secs(3);
/// Other tasks log these findings, so that this one does not log them again.
const LOGGED_BY_THEIR_TASKS: [&str; 8] = [
    "config",
    "lease",
    "lease-refused",
    "no-interface",
    "port-taken",
    "rules",
    "store-unreachable",
    "subnet-env",
];
/// Age up to which the task reuses a firewall listing for a client's request.
const RECENT: Duration = Duration::from_secs(1);
/// Interval at which the task asks the store for the flannel pods on this node.
const PODS: Duration = Duration::from_secs(300);
const RECENT_PODS: Duration = Duration::from_secs(5);
const PODS_ANSWER: Duration = Duration::from_secs(1);

enum Wake {
    /// The next pass of the checks is due.
    Look,
    RulesChanged,
    /// A listing of the firewall rules is due.
    ListingDue,
}

pub struct Checks {
    known: watch::Receiver<Known>,
    networks: watch::Receiver<Option<RunningNetwork>>,
    /// The network that ran in the last round.
    running: Option<RunningNetwork>,
    subnet_file: PathBuf,
    health: Health,
    look: Look,
    module: module::Module,
    /// A new number when the prober changes a verdict on a peer.
    verdicts: Option<watch::Receiver<u64>>,
    pod_paths: Option<watch::Receiver<PodPaths>>,
    /// The last listing, with its time.
    firewalls: (Fact<Firewalls>, Option<Instant>),
    /// Time that the last listing of the firewall rules took.
    cost: Duration,
    /// The bridge that the last round found for this node's pods.
    bridge: Option<String>,
    /// The last list, with its time.
    pods: (Fact<Vec<DaemonPod>>, Option<Instant>),
    ledger: Ledger,
    budget: Budget,
    sysctl_writer: Arc<SysctlWriter>,
}

impl Checks {
    /// [`Checks::keep`] runs them.
    pub fn new(
        known: watch::Receiver<Known>,
        subnet_file: PathBuf,
        health: Health,
        sysctl_writer: Arc<SysctlWriter>,
    ) -> Self {
        Self {
            known,
            networks: health.networks(),
            running: None,
            verdicts: None,
            pod_paths: None,
            subnet_file,
            health,
            look: Look::default(),
            module: module::Module::default(),
            firewalls: (Fact::default(), None),
            cost: Duration::ZERO,
            bridge: None,
            pods: (Fact::Absent, None),
            ledger: Ledger::default(),
            budget: Budget::default(),
            sysctl_writer,
        }
    }

    /// Periodically, when known facts change, and whenever flanneld or another program changes the rules of a
    /// firewall.
    pub async fn keep(mut self, stop: CancellationToken) {
        let work = async {
            // Changes of Services wait for the next listing: they are frequent, and drop no pod packets.
            let mut notices = subscribe_to_rules();
            let mut due = None;
            loop {
                self.pass().await;
                memory::trim();
                loop {
                    match self.wait(&mut notices, due).await {
                        Wake::Look => break,
                        // If a listing takes seconds, the next one may be minutes away. The other checks continue meanwhile.
                        Wake::RulesChanged => {
                            let busy = self.firewalls.1.map_or(Duration::ZERO, |last| {
                                pace::interval(BUSY, self.cost).saturating_sub(last.elapsed())
                            });
                            due = Some(Instant::now() + busy.max(QUIET));
                        }
                        Wake::ListingDue => {
                            due = None;
                            notices.take_queued(is_apart_from_services);
                            self.firewalls.1 = None;
                            break;
                        }
                    }
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// `due` is the time at which the task has to list changed rules.
    async fn wait(&mut self, notices: &mut Subscription, due: Option<Instant>) -> Wake {
        let begun = Instant::now();
        let tunnels = tunnels(self.running.clone());
        let (mut written, mut underlay) = match &mut self.running {
            Some(running) => (Some(&mut running.written), Some(&mut running.underlay)),
            None => (None, None),
        };
        let mut verdicts = self.verdicts.as_mut();
        let mut pod_paths = self.pod_paths.as_mut();
        tokio::select! {
            () = news(&mut self.known, &mut self.networks) => {
                self.firewalls.1 = None;
                Wake::Look
            }
            () = change(&mut underlay) => Wake::Look,
            () = change(&mut verdicts) => {
                // A fault often concerns several peers at the same moment.
                let quiet = BUSY.saturating_sub(begun.elapsed()).max(QUIET);
                // A client that requests a report does not have to wait for the others.
                let _ = tokio::time::timeout(quiet, self.health.report_wanted()).await;
                Wake::Look
            }
            () = change(&mut pod_paths) => Wake::Look,
            () = tunnels => Wake::Look,
            () = change(&mut written), if due.is_none() => Wake::RulesChanged,
            () = notices.wait(is_apart_from_services), if due.is_none() => Wake::RulesChanged,
            () = tokio::time::sleep_until(due.unwrap_or(begun)), if due.is_some() => Wake::ListingDue,
            () = self.health.report_wanted() => Wake::Look,
            () = tokio::time::sleep(FILES_INTERVAL) => Wake::Look,
        }
    }

    async fn pass(&mut self) {
        let (began, asked) = self.health.begin_report();
        // A recent listing is good enough, and clients cannot make the daemon list without a pause.
        if asked && self.firewalls.1.is_some_and(|last| last.elapsed() >= RECENT) {
            self.firewalls.1 = None;
        }
        if asked && self.pods.1.is_some_and(|last| last.elapsed() >= RECENT_PODS) {
            self.pods.1 = None;
        }
        let known = self.known.borrow_and_update().clone();
        self.running.clone_from(&self.networks.borrow_and_update());
        self.verdicts =
            self.running.as_ref().and_then(|running| running.prober.as_ref()).map(Prober::verdicts);
        self.pod_paths = self.running.as_ref().and_then(|running| running.pod_paths.clone());
        if let Some(pod_paths) = &mut self.pod_paths {
            pod_paths.mark_unchanged();
        }
        if let Some(running) = &mut self.running {
            running.underlay.mark_unchanged();
            running.written.mark_unchanged();
            if !running.network.nftables {
                self.module.load().await;
            }
            let every =
                if self.look.programs.has_silent() { LEGACY_RULES_INTERVAL } else { FIREWALLS };
            if self
                .firewalls
                .1
                .is_none_or(|last| last.elapsed() >= pace::interval(every, self.cost))
            {
                let cost = pace::Cost::begin();
                let listed = self
                    .look
                    .programs
                    .firewalls(
                        &running.network,
                        &gather::surroundings(running, self.bridge.clone()),
                    )
                    .await;
                self.firewalls = (listed, Some(Instant::now()));
                self.cost = cost.so_far();
            }
            if running.set_sysctls {
                self.sysctl_writer.apply(&running.network, &running.underlay.borrow().name.clone());
            }
        }
        self.list_pods(&known).await;
        let mut facts = gather::facts(
            &known,
            self.running.as_ref(),
            &mut self.look,
            &self.subnet_file,
            &self.health,
        )
        .await;
        if let Fact::Known(sysctls) = &mut facts.host.sysctls {
            sysctls.module.clone_from(&self.module.complaint);
        }
        facts.daemon.pods.clone_from(&self.pods.0);
        facts.host.firewalls = match self.running {
            Some(_) => self.firewalls.0.clone(),
            None => Fact::unavailable("the network of this node is not known yet"),
        };
        self.bridge = facts
            .network
            .known()
            .zip(facts.host.interfaces.known())
            .and_then(|(network, interfaces)| doctor::pod_path::bridge(interfaces, network))
            .map(|bridge| bridge.name.clone());
        self.report(began, &facts);
    }

    /// Asks the store, if this daemon runs in a pod and the last list is old.
    async fn list_pods(&mut self, known: &Known) {
        let (Some(manager), Some(namespace)) = (&known.manager, &known.namespace) else {
            return;
        };
        // The API server is busy enough while all daemons of a cluster start.
        if self.health.uptime() < gather::STARTUP
            || self.pods.1.is_some_and(|last| last.elapsed() < PODS)
        {
            return;
        }
        let listed = match tokio::time::timeout(PODS_ANSWER, manager.daemon_pods(namespace)).await {
            Ok(Some(Ok(pods))) => Fact::Known(pods),
            Ok(Some(Err(why))) => Fact::unavailable(why),
            Ok(None) => Fact::Absent,
            Err(_) => {
                Fact::unavailable("the store did not list the pods of flannel on this node in time")
            }
        };
        self.pods = (listed, Some(Instant::now()));
    }

    /// Logs new and resolved findings, and passes all current findings to /status, /metrics and the API.
    fn report(&mut self, began: std::time::Instant, facts: &Facts) {
        let mut report = judge(facts, jiff::Timestamp::now());
        let news = self.ledger.enter(&mut report);
        let is_logged_here = |finding: &&Finding| {
            finding.explained_by.is_none()
                && !LOGGED_BY_THEIR_TASKS.contains(&finding.check.as_str())
        };
        let (came, went): (Vec<_>, Vec<_>) = (
            news.came.iter().filter(is_logged_here).collect(),
            news.went.iter().filter(is_logged_here).collect(),
        );
        let lines = self.budget.take(Instant::now(), came.len() + went.len());
        if let Some(unlogged) = self.budget.summary(Instant::now()) {
            warn!(
                unlogged,
                "many problems of this node appeared or were resolved: flannelctl doctor lists them"
            );
        }
        // New findings take precedence over resolved ones.
        for finding in came.iter().take(lines) {
            let commands = finding.remedy.commands.join("; ");
            warn!(
                check = finding.check,
                severity = finding.severity.as_str(),
                error = %printable::line(&finding.what),
                reason = %printable::line(&finding.why),
                remedy = (!commands.is_empty()).then(|| display(printable::line(&commands))),
                on = (finding.remedy.on != HERE).then_some(finding.remedy.on.as_str()),
                "this node has a problem"
            );
        }
        for finding in went.iter().take(lines.saturating_sub(came.len())) {
            info!(
                check = finding.check,
                error = %printable::line(&finding.what),
                "a problem of this node is resolved"
            );
        }
        self.health.set_report(began, Arc::new(report));
    }
}

/// Waits until the set of silent WireGuard peers changes. With another backend, waits forever. Polls, because the
/// kernel does not report changes of WireGuard sessions.
async fn tunnels(running: Option<RunningNetwork>) {
    let Some(running) = running.filter(wireguard::is_used) else {
        return std::future::pending().await;
    };
    let before = wireguard::silent(&running);
    while wireguard::silent(&running) == before {
        tokio::time::sleep(QUIET).await;
    }
}

/// Waits until the known facts or the running network change.
async fn news(
    known: &mut watch::Receiver<Known>,
    networks: &mut watch::Receiver<Option<RunningNetwork>>,
) {
    let ended = tokio::select! {
        changed = known.changed() => changed.is_err(),
        changed = networks.changed() => changed.is_err(),
    };
    if ended {
        // The daemon ends.
        std::future::pending::<()>().await;
    }
}

/// Waits forever if the channel is `None` or closed.
async fn change<T>(value: &mut Option<&mut watch::Receiver<T>>) {
    if let Some(value) = value
        && value.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}
