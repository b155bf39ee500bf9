//! Whether the node is well, looked at every second: readiness tells the truth in both directions.

use crate::health::condition::Condition;
use crate::health::{Health, Unused};
use crate::logging;
use backends::status::Observer;
use run_dir::subnet_env::SubnetEnv;
use std::sync::Arc;
use std::time::{Duration, Instant};
use subnet_lease::LeaseTable;
use subnet_lease::feed::Reading;
use subnet_lease::json::excerpt;
use subnet_lease::manager::{Held, SubnetManager, boot_time};
use subnet_lease::reason::Told;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How old what is known of the other nodes may be.
const FRESH: Duration = Duration::from_secs(60);
/// How long no lease of the other nodes may be in force.
const CUT_OFF: Duration = Duration::from_secs(10);
/// How long the kernel may differ from what is wanted.
const OUT_OF_STEP: Duration = Duration::from_secs(10);
/// How long it may take to tell the peers what changed here.
const UNTOLD: Duration = Duration::from_secs(1);
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
    /// The running network.
    pub network: Observer,
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
        let mut told = Told::default();
        let mut seen = 0;
        let mut in_touch_at = Instant::now();
        let mut unused = Arc::default();
        let mut ready = true;
        self.health.figures(|figures| {
            figures.network = Some(self.network.clone());
            figures.store = Some(self.manager.counters());
        });
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            self.health.beat("vitals");
            if let Some(lines) = logging::lost() {
                warn!("{lines} lines of this log could not be written and are lost: {} in all", logging::dropped());
            }
            // A loop that audits makes a pass now and then; one that waits for events alone may be silent for ever.
            let kernel = self.network.status().kernel;
            if self.audits && kernel.passes != seen {
                self.health.beat("kernel");
                seen = kernel.passes;
            }
            if kernel.in_step {
                in_step_at = Instant::now();
            }
            let late = in_step_at.elapsed() > OUT_OF_STEP;
            self.health.condition(Condition::Kernel, late.then_some(kernel.trouble.as_str()));
            let reading = self.readings.borrow().clone();
            let stale = reading.interrupted.map(|since| boot_time().saturating_sub(since)).filter(|since| *since > FRESH);
            let stale = stale.map(|since| {
                format!("nothing is known of the other nodes for {} s: the store does not answer, or does not tell changes", since.as_secs())
            });
            self.health.condition(Condition::Watch, stale.as_deref());
            if reading.cut_off.is_none() {
                in_touch_at = Instant::now();
            }
            let cut_off = reading.cut_off.filter(|_| in_touch_at.elapsed() > CUT_OFF);
            let cut_off = cut_off.map(|nodes| format!("of {nodes} other nodes none can be reached: none of their leases can be used here"));
            self.health.condition(Condition::Peers, cut_off.as_deref());
            let now = self.unused(&reading);
            if now != *unused {
                unused = Arc::new(now);
                self.health.set_unused(unused.clone());
            }
            self.health.condition(Condition::Store, self.manager.counters().why_away().as_deref());
            let held = self.held.borrow().clone();
            if held.trouble.is_none() {
                well_at = Instant::now();
            }
            if told.news(held.trouble.as_ref()) {
                match &held.trouble {
                    None => info!("the lease is well again"),
                    Some(why) => warn!("the lease: {why}"),
                }
            }
            self.health.condition(Condition::Lease, self.lease_trouble(&held, well_at).as_deref());
            if ready != self.health.ready() {
                ready = self.health.ready();
                if ready {
                    info!("ready");
                } else {
                    let tell = |(condition, reason): (Condition, String)| match condition.is_logged_by_its_finder() {
                        true => condition.to_string(),
                        false => format!("{condition}: {reason}"),
                    };
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
            return Some(format!("the lease ends in {} s and could not be renewed: {}", left.as_secs(), held.trouble.as_deref().unwrap_or_default()));
        }
        // Peers that send to an address that is gone do not reach this node, whatever else is well.
        if let Some(untold) = held.untold.as_ref().filter(|untold| boot_time().saturating_sub(untold.since) >= UNTOLD) {
            return Some(match &held.trouble {
                Some(trouble) => format!("{}: {trouble}", untold.what),
                None => untold.what.clone(),
            });
        }
        held.trouble.as_ref().filter(|_| held.grave || well_at.elapsed() > TROUBLE).map(ToString::to_string)
    }

    /// What the store has and this node does not use: refused, or unreadable.
    fn unused(&self, reading: &Reading) -> Vec<Unused> {
        let refused = reading.refused.iter();
        let refused =
            refused.map(|refused| Unused { lease: refused.subnets.to_string(), reason: refused.reason.label(), text: refused.text.clone() });
        let unreadable = self.manager.counters().unreadable_keys().into_iter();
        let unreadable = unreadable.map(|(key, why)| {
            let key = excerpt(&key);
            Unused { text: format!("the key {key} cannot be read: {why}"), lease: key, reason: "unreadable" }
        });
        refused.chain(unreadable).collect()
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
        let mut told = Told::default();
        while held.changed().await.is_ok() {
            let trouble = held.borrow_and_update().trouble.clone();
            if told.news(trouble.as_ref())
                && let Some(why) = &trouble
            {
                warn!("waiting for a lease: {why}");
            }
            health.condition(Condition::Lease, trouble.as_deref());
        }
    }))
}
