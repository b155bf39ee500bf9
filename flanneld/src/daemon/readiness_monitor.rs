//! Checks the health of the node every second, so that readiness changes promptly.

use crate::health::condition::Condition;
use crate::health::{Health, UNREADABLE, Unused};
use crate::logging;
use crate::network::RunningNetwork;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::admission::UnusedLeaseError;
use subnet_lease::feed::Reading;
use subnet_lease::json::excerpt;
use subnet_lease::manager::{Held, boot_time};
use subnet_lease::reason::LogOnce;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};
use types::Problem;

/// Time after which an interrupted watch of the leases makes the node not ready.
const MAX_AGE: Duration = Duration::from_secs(60);
/// The same without usable leases of other nodes.
const CUT_OFF: Duration = Duration::from_secs(10);
/// The same for a kernel that is out of sync.
const OUT_OF_SYNC: Duration = Duration::from_secs(10);
/// The same for an unpublished change of this node.
const UNPUBLISHED: Duration = Duration::from_secs(1);
/// The same for a problem with the lease.
const LEASE_GRACE: Duration = Duration::from_secs(60);

/// Sets the conditions on which readiness depends.
pub(super) struct ReadinessMonitor {
    pub network: RunningNetwork,
    /// Whether flanneld audits the kernel at least every 20 s, even without an event.
    pub audits: bool,
    /// Takes whether the kernel is in sync with the leases, apart from peers that failed individually.
    pub programmed: watch::Sender<bool>,
    pub health: Health,
}

/// What the monitor keeps from one check to the next.
struct LastCheck {
    /// Time at which the kernel was last in sync; `None` if it never was. A first pass that fails gets no time.
    in_sync_at: Option<Instant>,
    /// Time at which a lease of another node was last usable.
    in_touch_at: Instant,
    /// Time at which the lease was last without a problem.
    lease_well_at: Instant,
    lease_log: LogOnce,
    passes: u64,
    unused: Arc<Vec<Unused>>,
    ready: bool,
}

impl LastCheck {
    fn new() -> Self {
        Self {
            in_sync_at: None,
            in_touch_at: Instant::now(),
            lease_well_at: Instant::now(),
            lease_log: LogOnce::default(),
            passes: 0,
            unused: Arc::default(),
            ready: true,
        }
    }
}

impl ReadinessMonitor {
    /// Checks the conditions every second until `stop`.
    pub(super) async fn watch(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last = LastCheck::new();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            self.health.heartbeat("vitals");
            log_lost_lines();
            self.check_kernel(&mut last);
            self.check_peers(&mut last);
            let away = self.network.store.why_unavailable();
            let away = away.and_then(|(why, is_unready)| is_unready.then_some(why));
            self.health.condition(Condition::Store, away);
            self.check_lease(&mut last);
            self.log_readiness(&mut last);
        }
    }

    fn check_kernel(&self, last: &mut LastCheck) {
        // A loop that audits makes a pass from time to time. A loop that only waits for events may be silent forever.
        let kernel = self.network.observer.status().kernel;
        if self.audits && kernel.passes != last.passes {
            self.health.heartbeat("kernel");
            last.passes = kernel.passes;
        }
        self.health.figures(|figures| figures.put_back.note(kernel.repairs));
        self.programmed.send_if_modified(|present| {
            std::mem::replace(present, kernel.in_sync) != kernel.in_sync
        });
        if kernel.in_sync {
            last.in_sync_at = Some(Instant::now());
        }
        let late = last.in_sync_at.is_none_or(|at| at.elapsed() > OUT_OF_SYNC);
        self.health.condition(Condition::Kernel, kernel.trouble.filter(|_| late));
    }

    fn check_peers(&self, last: &mut LastCheck) {
        let reading = self.network.readings.borrow().clone();
        let stale = reading
            .interrupted
            .map(|since| boot_time().saturating_sub(since))
            .filter(|since| *since > MAX_AGE);
        let no_news = |since: Duration| {
            let text = format!(
                "no news of the other nodes for {} s: the store does not respond, or reports no changes",
                since.as_secs()
            );
            Problem::new("no-news", text)
        };
        self.health.condition(Condition::Watch, stale.map(no_news));
        if reading.cut_off.is_none() {
            last.in_touch_at = Instant::now();
        }
        let cut_off = reading.cut_off.filter(|_| last.in_touch_at.elapsed() > CUT_OFF);
        let reaches_none = |nodes: usize| {
            let text = format!(
                "this node reaches none of the {nodes} other nodes: it can use none of their leases"
            );
            Problem::new("cut-off", text)
        };
        self.health.condition(Condition::Peers, cut_off.map(reaches_none));
        let unused = self.unused(&reading);
        if unused != *last.unused {
            last.unused = Arc::new(unused);
            self.health.set_unused(last.unused.clone());
        }
    }

    fn check_lease(&self, last: &mut LastCheck) {
        let held = self.network.held.borrow().clone();
        if held.trouble.is_none() {
            last.lease_well_at = Instant::now();
        }
        if last.lease_log.news(held.trouble.as_ref()) {
            match &held.trouble {
                None => info!("resolved: the lease has no problem"),
                Some(why) => {
                    warn!(code = %why.code, error = %why, "the lease has a problem");
                }
            }
        }
        self.health.condition(Condition::Lease, self.lease_trouble(&held, last.lease_well_at));
    }

    fn log_readiness(&self, last: &mut LastCheck) {
        if last.ready == self.health.ready() {
            return;
        }
        last.ready = self.health.ready();
        if last.ready {
            info!("ready");
            return;
        }
        let shown =
            |(condition, reason): (Condition, Problem)| match condition.is_logged_by_its_finder() {
                true => condition.to_string(),
                false => format!("{condition}: {reason}"),
            };
        let reasons: Vec<String> = self.health.reasons().into_iter().map(shown).collect();
        warn!(reason = %reasons.join("; "), "not ready");
    }

    fn lease_trouble(&self, held: &Held, well_at: Instant) -> Option<Problem> {
        let trouble = held.trouble.clone();
        let left = held.until.map(|until| until.saturating_sub(boot_time()));
        if let Some(left) = left.filter(|left| *left < self.network.margin) {
            let why = trouble.as_ref().map(ToString::to_string).unwrap_or_default();
            let left = left.as_secs();
            let text = format!("cannot renew the lease, which ends in {left} s: {why}");
            let parts = trouble.into_iter().collect();
            return Some(Problem { parts, ..Problem::new("lease-ends", text) });
        }
        // Peers that send to a former address do not reach this node, even if this node has no other fault.
        if let Some(unpublished) = held
            .unpublished
            .as_ref()
            .filter(|unpublished| boot_time().saturating_sub(unpublished.since) >= UNPUBLISHED)
        {
            let why = trouble.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let text = format!("{}{why}", unpublished.what);
            let parts = trouble.into_iter().collect();
            return Some(Problem { parts, ..Problem::new("unpublished", text) });
        }
        trouble.filter(|_| held.grave || well_at.elapsed() > LEASE_GRACE)
    }

    /// The leases in the store that this node refuses or cannot read.
    fn unused(&self, reading: &Reading) -> Vec<Unused> {
        let refused = reading.refused.iter();
        let refused = refused.map(|refused| Unused {
            lease: refused.subnets.to_string(),
            reason: refused.reason().label(),
            text: refused.to_string(),
            address: match &refused.why {
                UnusedLeaseError::OurAddress { address, .. } => Some(*address),
                _ => None,
            },
        });
        let unreadable = self.network.store.unreadable_keys().into_iter();
        let unreadable = unreadable.map(|(key, why)| {
            let key = excerpt(&key);
            Unused {
                text: format!("cannot read the key {key}: {why}"),
                lease: key,
                reason: UNREADABLE,
                address: None,
            }
        });
        refused.chain(unreadable).collect()
    }
}

fn log_lost_lines() {
    if let Some(lines) = logging::lost() {
        warn!(
            count = lines,
            total = logging::dropped(),
            "lost log lines, because flanneld could not write them, or one message came too often"
        );
    }
}

/// Logs why the node waits for a lease, and sets [`Condition::Lease`]. The reports stop when the caller drops the
/// returned guard.
pub(super) fn report_lease_trouble(
    mut held: watch::Receiver<Held>,
    health: Health,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut log = LogOnce::default();
        while held.changed().await.is_ok() {
            let trouble = held.borrow_and_update().trouble.clone();
            if log.news(trouble.as_ref())
                && let Some(why) = &trouble
            {
                warn!(code = %why.code, error = %why, "waiting for a lease");
            }
            health.condition(Condition::Lease, trouble);
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use backends::status::{NetworkHandle, Status};
    use netstate::kernel::Facts;
    use netstate::object::{Key, Value};
    use reconcile::progress::Snapshot;
    use std::sync::Mutex;
    use subnet_lease::Peer;
    use subnet_lease::manager::Counters;

    struct Inputs {
        store: Arc<Counters>,
        kernel: Arc<Mutex<Snapshot>>,
        held: watch::Sender<Held>,
        readings: watch::Sender<Reading>,
    }

    struct Observer(Arc<Mutex<Snapshot>>);

    impl NetworkHandle for Observer {
        fn status(&self) -> Status {
            Status { kernel: self.0.lock().unwrap().clone(), ..Status::default() }
        }

        fn needs(&self, _peer: &Peer<'_>, _facts: &Facts) -> Vec<(Key, Value)> {
            Vec::new()
        }
    }

    impl Inputs {
        fn set_kernel(&self, trouble: Option<Problem>) {
            *self.kernel.lock().unwrap() =
                Snapshot { in_sync: trouble.is_none(), trouble, ..Snapshot::default() };
        }

        fn set_lease(&self, grave: bool) {
            self.held.send_modify(|held| {
                held.trouble = Some(Problem::in_words("no lease"));
                held.grave = grave;
            });
        }

        fn set_interrupted_for(&self, seconds: u64) {
            let since = boot_time().saturating_sub(Duration::from_secs(seconds));
            self.readings.send_modify(|reading| reading.interrupted = Some(since));
        }

        fn mend(&self) {
            self.set_kernel(None);
            self.store.set_available();
            self.held.send_replace(Held::default());
            self.readings.send_replace(Reading::default());
        }
    }

    type Case = (Condition, u64, fn(&Inputs));
    /// Each with its condition and the seconds after which the node is not ready.
    const CASES: [Case; 8] = [
        (Condition::Kernel, 10, |inputs| {
            inputs.set_kernel(Some(Problem::in_words("EPERM")));
        }),
        (Condition::Store, 0, |inputs| {
            inputs.store.set_unavailable(Problem::in_words("silent"), true);
        }),
        (Condition::Store, 1_000, |inputs| {
            inputs.store.set_unavailable(Problem::in_words("silent"), false);
        }),
        (Condition::Peers, 10, |inputs| {
            inputs.readings.send_modify(|reading| reading.cut_off = Some(3));
        }),
        (Condition::Lease, 60, |inputs| inputs.set_lease(false)),
        (Condition::Lease, 0, |inputs| inputs.set_lease(true)),
        // The watch has been interrupted for so long already.
        (Condition::Watch, 0, |inputs| inputs.set_interrupted_for(62)),
        (Condition::Watch, 1_000, |inputs| {
            inputs.set_interrupted_for(20);
        }),
    ];

    /// The monitor looks at the seconds 0, 1, 2 and so on, and the test looks between two of them.
    #[tokio::test(start_paused = true)]
    async fn trouble_ends_readiness_after_its_grace_period_and_ready_returns() {
        let (held, readings) =
            (watch::channel(Held::default()), watch::channel(Reading::default()));
        let inputs = Inputs {
            kernel: Arc::default(),
            store: Arc::default(),
            held: held.0,
            readings: readings.0,
        };
        inputs.set_kernel(Some(Problem::in_words("EPERM")));
        let (programmed, in_sync) = watch::channel(true);
        let health = Health::new();
        health.clear(Condition::Start);
        let monitor = ReadinessMonitor {
            network: RunningNetwork {
                held: held.1,
                readings: readings.1,
                store: inputs.store.clone(),
                observer: Arc::new(Observer(inputs.kernel.clone())),
                ..RunningNetwork::idle()
            },
            audits: false,
            programmed,
            health: health.clone(),
        };
        let stop = CancellationToken::new();
        let _stop = stop.clone().drop_guard();
        tokio::spawn(monitor.watch(stop));
        let conditions_after = async |seconds| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            let reasons = health.reasons().into_iter();
            reasons.map(|(condition, _)| condition).collect::<Vec<_>>()
        };
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(conditions_after(0).await, [Condition::Kernel], "the first pass failed");
        inputs.mend();
        assert_eq!(conditions_after(1).await, [], "the first pass succeeded");
        for (condition, grace, fail) in CASES {
            fail(&inputs);
            let none: [Condition; 0] = [];
            assert_eq!(conditions_after(grace).await, none, "{condition}, {grace} s");
            assert_eq!(*in_sync.borrow(), condition != Condition::Kernel || grace == 0);
            let expected: &[Condition] = if grace < 1_000 { &[condition] } else { &[] };
            assert_eq!(conditions_after(1).await, expected, "{condition}, {grace} s");
            inputs.mend();
            assert_eq!(conditions_after(1).await, none, "{condition} is over");
        }
    }
}
