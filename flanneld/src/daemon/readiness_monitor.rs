//! The health of the node, checked every second: readiness is set and cleared promptly.

use crate::health::condition::Condition;
use crate::health::{Health, UNREADABLE, Unused};
use crate::logging;
use crate::network::RunningNetwork;
use crate::problem::DaemonProblem;
use std::sync::Arc;
use std::time::{Duration, Instant};
use subnet_lease::feed::Reading;
use subnet_lease::json::excerpt;
use subnet_lease::manager::{Held, boot_time};
use subnet_lease::reason::LogOnce;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use types::Problem;

/// How old the knowledge of the other nodes may be.
const MAX_AGE: Duration = Duration::from_secs(60);
/// How long the node may be without a usable lease of another node.
const CUT_OFF: Duration = Duration::from_secs(10);
/// How long the kernel may be out of sync.
const OUT_OF_SYNC: Duration = Duration::from_secs(10);
/// How long publishing a change of this node may take.
const UNPUBLISHED: Duration = Duration::from_secs(1);
/// How long a problem with the lease may last before the node is not ready.
const LEASE_GRACE: Duration = Duration::from_secs(60);

/// Watches what readiness depends on.
pub(super) struct ReadinessMonitor {
    /// The running network.
    pub network: RunningNetwork,
    /// Whether the kernel is audited at least every 20 s, even without an event.
    pub audits: bool,
    /// Learns whether the kernel is in sync with the leases, apart from peers that failed by themselves.
    pub programmed: watch::Sender<bool>,
    /// Where the results go.
    pub health: Health,
}

impl ReadinessMonitor {
    /// Checks every second until `stop`.
    pub(super) async fn watch(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut in_sync_at = Instant::now();
        let mut well_at = Instant::now();
        let mut told = LogOnce::default();
        let mut seen = 0;
        let mut in_touch_at = Instant::now();
        let mut unused = Arc::default();
        let mut ready = true;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            self.health.heartbeat("vitals");
            if let Some(lines) = logging::lost() {
                warn!(
                    "{lines} log lines could not be written and are lost ({} in total)",
                    logging::dropped()
                );
            }
            // A loop that audits runs a pass now and then; one that only waits for events may be silent forever.
            let kernel = self.network.observer.status().kernel;
            if self.audits && kernel.passes != seen {
                self.health.heartbeat("kernel");
                seen = kernel.passes;
            }
            self.health
                .figures(|figures| figures.put_back.note(kernel.repairs));
            self.programmed.send_if_modified(|present| {
                std::mem::replace(present, kernel.in_step) != kernel.in_step
            });
            if kernel.in_step {
                in_sync_at = Instant::now();
            }
            let late = in_sync_at.elapsed() > OUT_OF_SYNC;
            self.health
                .condition(Condition::Kernel, kernel.trouble.filter(|_| late));
            let reading = self.network.readings.borrow().clone();
            let stale = reading
                .interrupted
                .map(|since| boot_time().saturating_sub(since))
                .filter(|since| *since > MAX_AGE);
            self.health.condition(
                Condition::Watch,
                stale.map(|since| DaemonProblem::NoNews { since }.into()),
            );
            if reading.cut_off.is_none() {
                in_touch_at = Instant::now();
            }
            let cut_off = reading.cut_off.filter(|_| in_touch_at.elapsed() > CUT_OFF);
            self.health.condition(
                Condition::Peers,
                cut_off.map(|nodes| DaemonProblem::CutOff { nodes }.into()),
            );
            let now = self.unused(&reading);
            if now != *unused {
                unused = Arc::new(now);
                self.health.set_unused(unused.clone());
            }
            self.health
                .condition(Condition::Store, self.network.store.why_away());
            let held = self.network.held.borrow().clone();
            if held.trouble.is_none() {
                well_at = Instant::now();
            }
            if told.news(held.trouble.as_ref()) {
                match &held.trouble {
                    None => info!("resolved: the lease is in order again"),
                    Some(why) => warn!(code = %why.problem.code, "the lease: {why}"),
                }
            }
            self.health
                .condition(Condition::Lease, self.lease_trouble(&held, well_at));
            if ready != self.health.ready() {
                ready = self.health.ready();
                if ready {
                    info!("ready");
                } else {
                    let tell = |(condition, reason): (Condition, Problem)| match condition
                        .is_logged_by_its_finder()
                    {
                        true => condition.to_string(),
                        false => format!("{condition}: {reason}"),
                    };
                    let reasons: Vec<String> =
                        self.health.reasons().into_iter().map(tell).collect();
                    warn!("not ready: {}", reasons.join("; "));
                }
            }
        }
    }

    fn lease_trouble(&self, held: &Held, well_at: Instant) -> Option<Problem> {
        let trouble = held.trouble.clone().map(Problem::from);
        let left = held.until.map(|until| until.saturating_sub(boot_time()));
        if let Some(left) = left.filter(|left| *left < self.network.margin) {
            return Some(
                DaemonProblem::LeaseEnds {
                    left,
                    trouble: trouble.map(Box::new),
                }
                .into(),
            );
        }
        // Peers that send to an address that is gone do not reach this node, even if all else works.
        if let Some(unpublished) = held
            .unpublished
            .as_ref()
            .filter(|unpublished| boot_time().saturating_sub(unpublished.since) >= UNPUBLISHED)
        {
            return Some(
                DaemonProblem::Unpublished {
                    what: Box::new(unpublished.what.clone()),
                    trouble: trouble.map(Box::new),
                }
                .into(),
            );
        }
        trouble.filter(|_| held.grave || well_at.elapsed() > LEASE_GRACE)
    }

    /// Leases in the store that this node does not use: refused, or unreadable.
    fn unused(&self, reading: &Reading) -> Vec<Unused> {
        let refused = reading.refused.iter();
        let refused = refused.map(|refused| Unused {
            lease: refused.subnets.to_string(),
            reason: refused.reason().label(),
            text: refused.to_string(),
        });
        let unreadable = self.network.store.unreadable_keys().into_iter();
        let unreadable = unreadable.map(|(key, why)| {
            let key = excerpt(&key);
            Unused {
                text: format!("the key {key} cannot be read: {why}"),
                lease: key,
                reason: UNREADABLE,
            }
        });
        refused.chain(unreadable).collect()
    }
}

/// While the node waits for a lease, reports the reason to health and the log. Ends when the result is dropped.
pub(super) fn tell_trouble(mut held: watch::Receiver<Held>, health: Health) -> impl Drop {
    struct Telling(tokio::task::JoinHandle<()>);
    impl Drop for Telling {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    Telling(tokio::spawn(async move {
        let mut told = LogOnce::default();
        while held.changed().await.is_ok() {
            let trouble = held.borrow_and_update().trouble.clone();
            if told.news(trouble.as_ref())
                && let Some(why) = &trouble
            {
                warn!(code = %why.problem.code, "waiting for a lease: {why}");
            }
            health.condition(Condition::Lease, trouble.map(Problem::from));
        }
    }))
}
