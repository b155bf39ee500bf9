//! What this host does to pods' packets without flannel: sysctls and firewalls, seen, named with the remedy, and told again once it is mended.
//!
//! Nothing here changes readiness or the packets' way, unless `--set-sysctls` asks for it.

pub mod firewalls;
pub mod judge;
mod look;
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

/// How often the sysctls are read: a few small files.
const SYSCTLS: Duration = Duration::from_secs(10);
/// How often the firewalls are listed where nothing tells that they changed: a few processes.
const FIREWALLS: Duration = Duration::from_secs(30);
/// The same where there are rules whose changes nobody tells: the old tables of iptables.
const SILENT: Duration = Duration::from_secs(10);
/// Changes of rules are collected this long, and the firewalls are listed no more often than this because of them.
const QUIET: Duration = Duration::from_millis(500);
const BUSY: Duration = Duration::from_secs(3);
/// How often it is logged that the same sysctl had to be set again.
const AGAIN: Duration = Duration::from_secs(60);

/// The task that looks.
pub struct Checks {
    subject: Subject,
    underlay: watch::Receiver<Underlay>,
    leases: watch::Receiver<Arc<LeaseTable>>,
    leads: Leads,
    health: Health,
    /// How often our own rules were written.
    written: watch::Receiver<u64>,
    /// The last look at the firewalls.
    firewalls: (firewalls::Firewalls, Option<Instant>),
    programs: look::Programs,
    module: look::Module,
    findings: BTreeMap<(&'static str, String), Finding>,
    settings: Settings,
}

impl Checks {
    /// Nothing is looked at yet.
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
            programs: look::Programs::default(),
            module: look::Module::default(),
            findings: BTreeMap::new(),
            settings: Settings::default(),
        }
    }

    /// Sets the sysctls where that is asked for: before the first pods, and without waiting for anything.
    pub fn begin(&mut self) {
        if self.subject.set {
            let facts = self.sysctls();
            self.settings.make(&corrections(&self.subject, &facts));
        }
    }

    /// Looks until `stop`: at times, and at the firewalls when rules changed, ours or others'.
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
        if self.subject.set && self.settings.make(&corrections(&self.subject, &facts)) {
            facts = self.sysctls();
        }
        facts.firewalls = self.firewalls.0.clone();
        self.tell(judge(&self.subject, &facts));
    }

    fn sysctls(&mut self) -> Facts {
        let underlay = self.underlay.borrow_and_update().name.clone();
        let leases = self.leases.borrow().clone();
        let mut facts = look::sysctls(&underlay, &self.subject.own, &leases, &self.leads);
        facts.module.clone_from(&self.module.complaint);
        facts
    }

    /// Logs what is new and what is mended; the whole goes to /status and /metrics.
    fn tell(&mut self, found: Vec<Finding>) {
        let found: BTreeMap<_, _> = found.into_iter().map(|finding| ((finding.check, finding.about.clone()), finding)).collect();
        for (key, finding) in &found {
            if !self.findings.contains_key(key) {
                warn!("this host: {finding}");
            }
        }
        for (key, finding) in &self.findings {
            if !found.contains_key(key) {
                info!("this host: mended: it is no longer so that {}", finding.what);
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

/// The sysctls that we set, and how often.
#[derive(Default)]
struct Settings {
    made: BTreeMap<String, Made>,
}

/// What became of one sysctl.
struct Made {
    times: u32,
    told: Instant,
    failed: bool,
}

impl Settings {
    /// Writes them; whether any was written. The first time and the second are told, then once a minute at most.
    fn make(&mut self, corrections: &[Correction]) -> bool {
        let mut wrote = false;
        for correction in corrections {
            let Correction { name, path, old, new, why } = correction;
            let result = std::fs::write(path, new.to_string());
            wrote |= result.is_ok();
            let now = Instant::now();
            let last = self.made.get(name);
            let times = last.map_or(1, |last| last.times.saturating_add(1));
            let failed = result.is_err();
            // The second time is the first that somebody undid it.
            let due = times == 2 || last.is_none_or(|last| last.failed != failed || now.duration_since(last.told) >= AGAIN);
            let told = if due { now } else { last.map_or(now, |last| last.told) };
            match &result {
                Err(error) if due => warn!(
                    "--set-sysctls: {name} is {old} and cannot be set to {new}: {error}; is /proc/sys writable here, and does the daemon have CAP_NET_ADMIN?"
                ),
                Ok(()) if times == 1 => info!("--set-sysctls: {name} was {old} and is {new} now: {why}"),
                Ok(()) if due => warn!("--set-sysctls: somebody set {name} to {old}: it is {new} again ({times} times in all); who else manages it?"),
                _ => {}
            }
            self.made.insert(name.clone(), Made { times, told, failed });
        }
        wrote
    }
}
