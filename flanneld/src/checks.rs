//! Checks this host's sysctls and firewalls for settings that drop pods' packets. Logs each finding with its remedy, and when it is resolved.
//!
//! Checks change neither readiness nor the host, unless `--set-sysctls` asks for it.

mod collect;
pub mod firewalls;
pub mod judge;
pub mod nftables;
pub mod subject;
#[cfg(test)]
mod tests;

use crate::health::Health;
use backends::Underlay;
use judge::{CHECKS, Correction, Facts, Finding, corrections, judge};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use subject::{Leads, Subject};
use subnet_lease::LeaseTable;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use traffic_rules::notices::{Notices, wait_for_notice};

/// How often the sysctls are read (a few small files).
const SYSCTLS: Duration = Duration::from_secs(10);
/// How often the firewalls are listed without a notice of a change (a few processes).
const FIREWALLS: Duration = Duration::from_secs(30);
/// The same if there are rules without change notices: iptables-legacy.
const SILENT: Duration = Duration::from_secs(10);
/// How long changes of rules are gathered, and the minimum time between two listings caused by them.
const QUIET: Duration = Duration::from_millis(500);
const BUSY: Duration = Duration::from_secs(3);
/// How often to log that the same sysctl had to be set again.
const AGAIN: Duration = Duration::from_secs(60);

/// The task that runs the checks.
pub struct Checks {
    subject: Subject,
    underlay: watch::Receiver<Underlay>,
    leases: watch::Receiver<Arc<LeaseTable>>,
    leads: Leads,
    health: Health,
    /// Number of writes of our own rules.
    written: watch::Receiver<u64>,
    /// The last listing of the firewalls.
    firewalls: (firewalls::Firewalls, Option<Instant>),
    programs: collect::Programs,
    module: collect::Module,
    findings: BTreeMap<(&'static str, String), Finding>,
    sysctl_writer: SysctlWriter,
}

impl Checks {
    /// Checks nothing yet.
    pub fn new(
        subject: Subject,
        underlay: watch::Receiver<Underlay>,
        leases: watch::Receiver<Arc<LeaseTable>>,
        leads: Leads,
        health: Health,
        written: watch::Receiver<u64>,
    ) -> Self {
        Self {
            subject,
            underlay,
            leases,
            leads,
            health,
            written,
            firewalls: (firewalls::Firewalls::default(), None),
            programs: collect::Programs::default(),
            module: collect::Module::default(),
            findings: BTreeMap::new(),
            sysctl_writer: SysctlWriter::default(),
        }
    }

    /// Sets the sysctls if requested: before the first pods, and without waiting.
    pub fn begin(&mut self) {
        if self.subject.set {
            let facts = self.sysctls();
            self.sysctl_writer.apply(&corrections(&self.subject, &facts));
        }
    }

    /// Runs until `stop`: periodically, and for the firewalls whenever rules change, ours or others'.
    pub async fn keep(mut self, stop: CancellationToken) {
        let work = async {
            let mut notices = Notices::open();
            let (mut here, mut writing) = (true, true);
            loop {
                self.pass().await;
                let noticed = tokio::select! {
                    changed = self.underlay.changed(), if here => {
                        here = changed.is_ok();
                        false
                    }
                    changed = self.written.changed(), if writing => {
                        writing = changed.is_ok();
                        writing
                    }
                    () = wait_for_notice(&mut notices) => true,
                    () = tokio::time::sleep(SYSCTLS) => false,
                };
                if noticed {
                    let busy = self.firewalls.1.map_or(Duration::ZERO, |last| BUSY.saturating_sub(last.elapsed()));
                    tokio::time::sleep(busy.max(QUIET)).await;
                    notices.iter_mut().for_each(Notices::drain);
                    self.firewalls.1 = None;
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    async fn pass(&mut self) {
        if !self.subject.nftables {
            self.module.load().await;
        }
        let every = if self.programs.has_silent() { SILENT } else { FIREWALLS };
        if self.firewalls.1.is_none_or(|last| last.elapsed() >= every) {
            self.firewalls = (self.programs.firewalls(&self.subject).await, Some(Instant::now()));
        }
        let mut facts = self.sysctls();
        if self.subject.set && self.sysctl_writer.apply(&corrections(&self.subject, &facts)) {
            facts = self.sysctls();
        }
        facts.firewalls = self.firewalls.0.clone();
        self.report(judge(&self.subject, &facts));
    }

    fn sysctls(&mut self) -> Facts {
        let underlay = self.underlay.borrow_and_update().name.clone();
        let leases = self.leases.borrow().clone();
        let mut facts = collect::sysctls(&underlay, &self.subject.own, &leases, &self.leads);
        facts.module.clone_from(&self.module.complaint);
        facts
    }

    /// Logs new and resolved findings; all current ones go to /status and /metrics.
    fn report(&mut self, found: Vec<Finding>) {
        let found: BTreeMap<_, _> = found.into_iter().map(|finding| ((finding.check, finding.about.clone()), finding)).collect();
        for (key, finding) in &found {
            if !self.findings.contains_key(key) {
                warn!("this host: {finding}");
            }
        }
        for (key, finding) in &self.findings {
            if !found.contains_key(key) {
                info!("this host: resolved: {}", finding.what);
            }
        }
        let listed: Vec<_> = found.values().map(Finding::json).collect();
        self.health.fact("findings", listed);
        let count = |check: &str| found.keys().filter(|(known, _)| *known == check).count();
        let counts = CHECKS.iter().map(|check| (*check, u64::try_from(count(check)).unwrap_or(u64::MAX))).collect();
        self.health.figures(|figures| figures.findings = counts);
        self.findings = found;
    }
}

/// Sets sysctls and remembers how often it had to.
#[derive(Default)]
struct SysctlWriter {
    written: BTreeMap<String, Written>,
}

/// The history of one sysctl.
struct Written {
    times: u32,
    logged: Instant,
    failed: bool,
}

impl SysctlWriter {
    /// Writes the sysctls. Returns whether any was written. Logs the first and second write, then at most one per minute.
    fn apply(&mut self, corrections: &[Correction]) -> bool {
        let mut wrote = false;
        for correction in corrections {
            let Correction { name, path, old, new, why } = correction;
            let result = std::fs::write(path, new.to_string());
            wrote |= result.is_ok();
            let now = Instant::now();
            let last = self.written.get(name);
            let times = last.map_or(1, |last| last.times.saturating_add(1));
            let failed = result.is_err();
            // The second write means that another program reverted the first.
            let due = times == 2 || last.is_none_or(|last| last.failed != failed || now.duration_since(last.logged) >= AGAIN);
            let logged = if due { now } else { last.map_or(now, |last| last.logged) };
            match &result {
                Err(error) if due => {
                    warn!("--set-sysctls: cannot set {name} to {new}: {error}; make /proc/sys writable and give the daemon CAP_NET_ADMIN");
                }
                Ok(()) if times == 1 => info!("--set-sysctls: set {name} from {old} to {new}: {why}"),
                Ok(()) if due => warn!(
                    "--set-sysctls: another program set {name} to {old}: set it to {new} again ({times} times in total); find out what else manages it"
                ),
                _ => {}
            }
            self.written.insert(name.clone(), Written { times, logged, failed });
        }
        wrote
    }
}
