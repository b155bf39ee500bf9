//! The loop that keeps the kernel as the leases demand: facts, desired, actual, difference; one task, one select, no lock.
//!
//! A pass reads the kernel whole. Once one has left the kernel in step, what is in the kernel is known, and a change of leases is
//! applied by itself; a notice that does not fit, a failure, the audit or a new underlay lead to a whole pass again.

mod adopt;
mod mac_conflicts;
pub mod progress;
mod report;

use crate::blackhole;
use crate::desired::{Desired, asks, new_asks};
use crate::diff::{diff, spare};
use crate::kernel::{Facts, Failure, Kernel, KernelError, OpError};
use crate::object::{KernelState, Key, Op, Value};
use crate::plan::{Announced, Plan};
use crate::route::RouteKind;
use crate::scope::Scope;
use crate::underlay::Underlay;
use adopt::adopt;
use mac_conflicts::MacConflicts;
use progress::Progress;
use rand::Rng;
use report::Report;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::backoff::Backoff;
use subnet_lease::{LeaseTable, Subnets};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// Notices are collected until none came for this long ...
const QUIET: Duration = Duration::from_millis(20);
/// ... and at most this long.
const PATIENCE: Duration = Duration::from_millis(200);
/// How much longer than the work the pause after it is: after a whole pass, and after a change.
const REST: (u32, u32) = (2, 40);
/// The pause between repairs while somebody undoes them again and again.
const TRUCE: Duration = Duration::from_millis(500);
/// Back-off after failures.
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
/// How long a first pass that would delete many routes waits: the snapshot may be of a store that was just emptied.
const RESERVE: Duration = Duration::from_secs(60);
/// How often the first pass is tried before the data plane counts as impossible.
const FIRST_TRIES: u32 = 6;

/// What changes while a network runs.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The leases in force.
    pub leases: watch::Receiver<Arc<LeaseTable>>,
    /// The underlay as it is.
    pub underlay: watch::Receiver<Underlay>,
    /// Ends the run.
    pub stop: CancellationToken,
}

/// How the kernel is kept in step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How often the kernel is compared with what is wanted, beside events; `None` never.
    pub audit: Option<Duration>,
    /// Whether this node's own subnets end in blackhole routes, whatever the plan.
    pub blackhole: bool,
}

/// Keeps a kernel as a plan demands.
pub struct Reconciler<P, K> {
    plan: P,
    /// The plan's; the former networks only until nothing of them is left.
    scope: Scope,
    kernel: K,
    underlay: Underlay,
    options: Options,
    report: Report,
    /// Facts of the last pass; what follows from new ones is no repair.
    facts: Option<Facts>,
    /// Whether the last pass left the kernel in step.
    settled: bool,
    guard: Guard,
    macs: MacConflicts,
    /// What the kernel holds of ours, while that is known without a look.
    known: Option<Known>,
    /// Whole passes wait until then, and changes of the leases until then: whoever makes noise, it shall not fill a processor.
    looks_after: Instant,
    changes_after: Instant,
}

/// What the kernel holds, and from which leases that follows.
struct Known {
    desired: Desired,
    leases: Arc<LeaseTable>,
}

/// Whether many deletions at once are still suspicious.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    Armed,
    Waiting(Instant),
    Off,
}

/// What a pass ended with.
struct Pass {
    facts: Facts,
    errors: Vec<OpError>,
    /// When deletions that were held back are due.
    held: Option<Instant>,
    /// What was wanted.
    desired: Desired,
}

/// What ended a pause.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    /// New inputs.
    fresh: bool,
    /// Something that a look at the whole kernel has to answer.
    look: bool,
}

impl<P: Plan, K: Kernel> Reconciler<P, K> {
    /// Makes the first pass.
    ///
    /// # Errors
    /// When links or their addresses cannot be made, or the kernel cannot be read.
    pub async fn join(plan: P, kernel: K, underlay: &Underlay, leases: &LeaseTable, options: Options) -> Result<Self, KernelError> {
        let mut reconciler = Self {
            scope: plan.scope().clone(),
            plan,
            kernel,
            underlay: underlay.clone(),
            options,
            report: Report::default(),
            facts: None,
            settled: false,
            guard: Guard::Armed,
            macs: MacConflicts::default(),
            known: None,
            looks_after: Instant::now(),
            changes_after: Instant::now(),
        };
        let mut tries = 0;
        loop {
            let fatal = match reconciler.pass(leases, true).await {
                Ok(pass) => pass.errors.into_iter().find(|error| reconciler.needs(&error.key)),
                Err(error) => {
                    reconciler.report.unreadable(&error);
                    tries += 1;
                    if tries == FIRST_TRIES {
                        return Err(error);
                    }
                    sleep(backoff(tries)).await;
                    continue;
                }
            };
            let Some(error) = fatal else { return Ok(reconciler) };
            tries += 1;
            // What the kernel cannot do it cannot do a second later either; anything else may be in motion.
            if tries == FIRST_TRIES || error.failure == Failure::Unsupported {
                return Err(KernelError { what: format!("cannot {} {}", error.verb, error.key), why: error.why });
            }
            sleep(backoff(tries)).await;
        }
    }

    /// Whether there is no data plane without this object. Of two families one may fail: the other goes on.
    fn needs(&self, key: &Key) -> bool {
        match key {
            Key::Link(_) => true,
            Key::Address(..) => !matches!(self.plan.own(), Subnets::Both(..)),
            Key::Fdb(..) | Key::Neighbor(..) | Key::Route(..) => false,
        }
    }

    /// What the kernel should hold: the plan's, and what every network has.
    fn desired(&self, leases: &LeaseTable, facts: &Facts) -> Desired {
        let mut desired = Desired::whole(&self.plan, leases, facts);
        if self.options.blackhole {
            blackhole::want(&mut desired.state, self.plan.own(), self.plan.scope());
        }
        desired
    }

    /// One pass over everything; `fresh` when it follows from new inputs.
    async fn pass(&mut self, leases: &LeaseTable, fresh: bool) -> Result<Pass, KernelError> {
        let began = Instant::now();
        self.known = None;
        self.report.pass();
        let mut facts = self.kernel.facts(&self.underlay, &asks(&self.plan, leases)).await?;
        facts.conceded = self.macs.conceded.clone();
        let found = self.kernel.read(&self.scope).await?;
        let mut have = found.ours;
        let mut desired = self.desired(leases, &facts);
        if self.macs.give_in(&desired.state, &have) {
            facts.conceded = self.macs.conceded.clone();
            desired = self.desired(leases, &facts);
        }
        let want = &mut desired.state;
        adopt(&mut have, want, &found.leftovers, leases, self.plan.own(), &facts);
        spare(want, &have, leases.unreadable());
        let mut ops = diff(want, &have);
        let held = self.hold_back(&mut ops, want, &have);
        drop(have);
        let repair = self.settled && !fresh && self.facts.as_ref() == Some(&facts);
        // Before the routes that lead packets there.
        self.kernel.forward(self.plan.forwarding(leases, &facts));
        let errors = self.kernel.apply(&ops).await;
        self.report.applied(&ops, &errors, repair, || routes_to_peers(&desired.state));
        self.report.state(&errors, held.is_some());
        self.settled = errors.is_empty() && held.is_none();
        if self.settled {
            // What the former run left is gone. Whatever comes into its networks from now on is somebody else's.
            self.scope.former = Default::default();
            self.scope.links.retain(|name| desired.state.link(*name).is_some());
        }
        self.facts = Some(facts.clone());
        self.looks_after = rest(began, REST.0);
        self.changes_after = self.looks_after;
        Ok(Pass { facts, errors, held, desired })
    }

    /// Applies what a change of leases alone changes; nothing where that is not known, and a whole pass has to find out.
    async fn change(&mut self, leases: &Arc<LeaseTable>) -> Option<Pass> {
        let began = Instant::now();
        let known = self.known.as_ref()?;
        if !leases.unreadable().is_empty() || self.kernel.is_disturbed(&self.scope, Some(&known.desired.state)) {
            return None;
        }
        let mut facts = self.facts.take()?;
        let asks = new_asks(&self.plan, &known.leases, leases);
        if !asks.is_empty() {
            let near = self.kernel.on_link(&asks).await;
            facts.on_link.retain(|ip| asks.binary_search(ip).is_err());
            facts.on_link.extend(near);
        }
        let change = known.desired.change(&self.plan, &known.leases, leases, &facts)?;
        let mut desired = self.known.take()?.desired;
        self.report.pass();
        let ops = diff(&change.after, &change.before);
        self.kernel.forward(self.plan.forwarding(leases, &facts));
        let errors = self.kernel.apply(&ops).await;
        desired.take(change);
        self.report.applied(&ops, &errors, false, || routes_to_peers(&desired.state));
        self.report.state(&errors, false);
        self.settled = errors.is_empty();
        self.facts = Some(facts.clone());
        self.changes_after = rest(began, REST.1);
        Some(Pass { facts, errors, held: None, desired })
    }

    /// Takes deletions out of a first pass that would remove much of what it finds, until they are due.
    fn hold_back(&mut self, ops: &mut Vec<Op>, want: &KernelState, have: &KernelState) -> Option<Instant> {
        if self.guard == Guard::Off {
            return None;
        }
        let scope = &self.scope;
        // What a former network left is not the store's to bring back.
        let stale = |key: &Key| match key {
            Key::Route(net, _) => scope.covered(net),
            Key::Neighbor(_, ip) => scope.covered(&ipnet::IpNet::from(*ip)),
            _ => false,
        };
        let ours = |key: &Key, value: &Value| matches!(value, Value::Route(route) if route.protocol == scope.protocol) && !stale(key);
        let marked = have.0.iter().filter(|(key, value)| ours(key, value)).count();
        let going = ops.iter().filter(|op| matches!(op, Op::Delete(key, value) if ours(key, value) && !want.0.contains_key(key))).count();
        let now = Instant::now();
        let due = if let Guard::Waiting(due) = self.guard { due } else { now + RESERVE };
        if going <= 3 || going * 5 <= marked || now >= due {
            self.guard = Guard::Off;
            return None;
        }
        if self.guard == Guard::Armed {
            tracing::warn!(
                "{going} of the {marked} routes in the kernel have no lease any more: they are kept for {} s, in case the store is not complete",
                RESERVE.as_secs()
            );
        }
        self.guard = Guard::Waiting(due);
        // A delete of what is wanted makes room for what follows it.
        let waits = |key: &Key| matches!(key, Key::Route(..) | Key::Neighbor(..) | Key::Fdb(..)) && !stale(key) && !want.0.contains_key(key);
        ops.retain(|op| !matches!(op, Op::Delete(key, _) if waits(key)));
        Some(due)
    }

    /// Waits until the notices have calmed down. New leases wait only for the rest that the work before them earned.
    async fn settle(&mut self, inputs: &mut Inputs, woken: &mut Woken) {
        let now = Instant::now();
        let stop = inputs.stop.clone();
        let end = match self.report.fighting() {
            true => now + TRUCE,
            false if woken.look => self.looks_after.max(now + PATIENCE),
            false => self.changes_after,
        };
        loop {
            let quiet = if woken.look && !self.report.fighting() { self.looks_after.max(Instant::now() + QUIET) } else { end };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep_until(end.min(quiet)) => return,
                more = self.woken(inputs, None) => {
                    woken.fresh |= more.fresh;
                    woken.look |= more.look;
                }
            }
        }
    }

    /// Waits for something to do.
    async fn woken(&mut self, inputs: &mut Inputs, timer: Option<Instant>) -> Woken {
        let timer = async {
            match timer {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let known = self.known.as_ref().map(|known| &known.desired.state);
        tokio::select! {
            () = changed(&mut inputs.leases) => Woken { fresh: true, look: false },
            () = changed(&mut inputs.underlay) => Woken { fresh: true, look: true },
            () = self.kernel.disturbed(&self.scope, known) => Woken { fresh: false, look: true },
            () = timer => Woken { fresh: false, look: true },
        }
    }

    /// Keeps the kernel as the inputs demand until they say stop. What must be announced anew goes out through `out`.
    pub async fn run(mut self, mut inputs: Inputs, out: watch::Sender<Announced>) {
        let stop = inputs.stop.clone();
        let mut failures = 0;
        // What came between joining and now.
        let mut woken = Woken { fresh: true, look: true };
        let mut audit = None;
        loop {
            // What came after the last look at them is new too, whatever woke us.
            woken.fresh |= inputs.leases.has_changed().unwrap_or(false) || inputs.underlay.has_changed().unwrap_or(false);
            let underlay = inputs.underlay.borrow_and_update().clone();
            woken.look |= self.underlay != underlay;
            self.underlay = underlay;
            let leases = inputs.leases.borrow_and_update().clone();
            let change = if woken.look { None } else { self.change(&leases).await };
            let pass = match change {
                Some(pass) => Ok(pass),
                None => {
                    audit = self.options.audit.map(|audit| Instant::now() + audit);
                    self.pass(&leases, woken.fresh).await
                }
            };
            let mut wake = audit;
            let retry = match pass {
                Ok(pass) => {
                    publish(&out, self.plan.announced(&pass.facts));
                    wake = wake.into_iter().chain(pass.held).min();
                    // What an unreadable lease has is in the kernel without following from any lease.
                    let known = pass.errors.is_empty() && pass.held.is_none() && leases.unreadable().is_empty();
                    self.known = known.then_some(Known { desired: pass.desired, leases });
                    !pass.errors.is_empty()
                }
                Err(error) => {
                    self.report.unreadable(&error);
                    self.settled = false;
                    true
                }
            };
            failures = if retry && !woken.fresh { failures + 1 } else { u32::from(retry) };
            if retry {
                wake = wake.into_iter().chain([Instant::now() + backoff(failures)]).min();
            }
            woken = tokio::select! {
                () = stop.cancelled() => return,
                woken = self.woken(&mut inputs, wake) => woken,
            };
            self.settle(&mut inputs, &mut woken).await;
            if stop.is_cancelled() {
                return;
            }
        }
    }

    /// How it stands; asked while it runs.
    pub fn progress(&self) -> Arc<Progress> {
        self.report.progress()
    }
}

/// Passes on what the world has to be told, when that is new.
fn publish(out: &watch::Sender<Announced>, announced: Announced) {
    out.send_if_modified(|last| {
        let new = *last != announced;
        if new {
            *last = announced;
        }
        new
    });
}

/// Waits for a new value; for ever, when nobody can send one any more.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// After some work there is a rest of a multiple of its time.
fn rest(began: Instant, times: u32) -> Instant {
    Instant::now() + (began.elapsed() * times).clamp(QUIET, PATIENCE)
}

/// 50 ms, doubled with each failure up to 5 s, a quarter more or less.
fn backoff(failures: u32) -> Duration {
    RETRY.after(failures.saturating_sub(1)).mul_f64(rand::rng().random_range(0.75..1.25))
}

/// The lowest network there is: routes begin here.
fn subnet_floor() -> ipnet::IpNet {
    ipnet::IpNet::V4(ipnet::Ipv4Net::default())
}

fn routes_to_peers(state: &KernelState) -> usize {
    let to_peer = |value: &Value| matches!(value, Value::Route(route) if route.kind == RouteKind::Unicast);
    state.0.range(Key::Route(subnet_floor(), 0)..).filter(|(_, value)| to_peer(value)).count()
}

#[cfg(test)]
mod tests;
