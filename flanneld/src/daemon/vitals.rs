//! Whether the node is well, looked at every second: readiness tells the truth in both directions.

use crate::health::Health;
use crate::subnet_env::{self, SubnetEnv};
use crate::{logging, traffic};
use backends::backend::Status;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use subnet_lease::LeaseTable;
use subnet_lease::feed::Reading;
use subnet_lease::manager::{Held, SubnetManager, boot_time};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How old what is known of the other nodes may be.
const FRESH: Duration = Duration::from_secs(60);
/// How long the kernel may differ from what is wanted.
const OUT_OF_STEP: Duration = Duration::from_secs(10);
/// How long trouble with the lease may last before the node is not ready.
const TROUBLE: Duration = Duration::from_secs(60);

/// Everything that readiness rests on.
pub struct Vitals {
    /// The own lease.
    pub held: watch::Receiver<Held>,
    /// The watch of the others' leases.
    pub readings: watch::Receiver<Reading>,
    /// The leases in force.
    pub leases: watch::Receiver<Arc<LeaseTable>>,
    /// The kernel.
    pub status: Arc<Status>,
    /// Whether the kernel is compared now and then without an event, at least every 20 s.
    pub audits: bool,
    /// For its counters.
    pub manager: Arc<dyn SubnetManager>,
    /// For the MTU.
    pub mtu: watch::Receiver<SubnetEnv>,
    /// Not ready once the lease has less than this left.
    pub margin: Duration,
    /// Where it is told.
    pub health: Health,
}

impl Vitals {
    /// Looks every second until `stop`.
    pub async fn watch(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut in_step_at = Instant::now();
        let mut well_at = Instant::now();
        let mut told = String::new();
        let mut seen = 0;
        let mut since = None;
        let mut ready = true;
        self.health.figures(|figures| {
            figures.network = Some(self.status.clone());
            figures.store = Some(self.manager.counters());
        });
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            self.health.beat("vitals");
            if let Some(lines) = logging::lost() {
                warn!("{lines} lines of this log were lost, since nobody read them: {} in all", logging::dropped());
            }
            // A loop that audits makes a pass now and then; one that waits for events alone may be silent for ever.
            let passes = self.status.passes.load(Ordering::Relaxed);
            if self.audits && passes != seen {
                self.health.beat("kernel");
                seen = passes;
            }
            if self.status.in_step.load(Ordering::Relaxed) {
                in_step_at = Instant::now();
            }
            let late = in_step_at.elapsed() > OUT_OF_STEP;
            let trouble = late.then(|| self.status.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone());
            self.health.condition("kernel", trouble.as_deref());
            let reading = self.readings.borrow().clone();
            let stale = reading.interrupted.map(|since| boot_time().saturating_sub(since)).filter(|since| *since > FRESH);
            let stale = stale.map(|since| format!("nothing is known of the other nodes since {} s: the store does not answer", since.as_secs()));
            self.health.condition("watch", stale.as_deref());
            self.health.condition("store", self.manager.counters().why_away().as_deref());
            let held = self.held.borrow().clone();
            if held.trouble.is_none() {
                well_at = Instant::now();
            }
            if held.trouble.clone().unwrap_or_default() != told {
                told = held.trouble.clone().unwrap_or_default();
                if told.is_empty() {
                    info!("the lease is well again");
                } else {
                    warn!("the lease: {told}");
                }
            }
            if let Some(lease) = &held.lease {
                if since.is_some_and(|since| since != lease.since) {
                    warn!("the lease {} had been deleted from the store and was put back", lease.subnets);
                }
                since = Some(lease.since);
            }
            self.health.condition("lease", self.lease_trouble(&held, well_at).as_deref());
            if ready != self.health.ready() {
                ready = self.health.ready();
                if ready {
                    info!("ready");
                } else {
                    // Why the rules or subnet.env are not there was told where it was found.
                    let told = [traffic::CONDITION, subnet_env::keep::CONDITION];
                    let tell = |(name, reason): (String, String)| if told.contains(&name.as_str()) { name } else { format!("{name}: {reason}") };
                    let reasons: Vec<String> = self.health.reasons().into_iter().map(tell).collect();
                    warn!("not ready: {}", reasons.join("; "));
                }
            }
            self.figures(&held, &reading);
        }
    }

    fn lease_trouble(&self, held: &Held, well_at: Instant) -> Option<String> {
        let left = held.until.map(|until| until.saturating_sub(boot_time()));
        if let Some(left) = left.filter(|left| *left < self.margin) {
            return Some(format!("the lease ends in {} s and could not be renewed: {}", left.as_secs(), held.trouble.clone().unwrap_or_default()));
        }
        held.trouble.clone().filter(|_| held.grave || well_at.elapsed() > TROUBLE)
    }

    fn figures(&self, held: &Held, reading: &Reading) {
        let peers = self.leases.borrow().len();
        self.health.figures(|figures| {
            figures.peers = u64::try_from(peers).unwrap_or(0);
            figures.reading(reading);
            figures.lease_ends = held.until;
            figures.mtu = self.mtu.borrow().mtu;
        });
    }
}

/// While a lease is awaited: why it takes long, told to health and the log. Ends when it is dropped.
pub fn tell_trouble(mut held: watch::Receiver<Held>, health: Health) -> impl Drop {
    struct Telling(tokio::task::JoinHandle<()>);
    impl Drop for Telling {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    Telling(tokio::spawn(async move {
        while held.changed().await.is_ok() {
            let trouble = held.borrow_and_update().trouble.clone();
            if let Some(text) = &trouble {
                warn!("waiting for a lease: {text}");
            }
            health.condition("lease", trouble.as_deref());
        }
    }))
}
