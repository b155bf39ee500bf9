//! The loop that keeps the kernel in sync with the leases: facts, desired state, actual state, difference. One task, one select, no lock.
//!
//! A full pass reads the whole kernel state. After a pass that leaves the kernel in sync, the state is known, and changes of leases are
//! applied incrementally. An unexpected notification, a failure, the audit or a new underlay cause a full pass.

mod adopt;
pub mod failures;
mod mac_conflicts;
pub mod progress;
pub mod questions;
mod repairs;
mod report;
mod trouble;
pub mod tunnels;

use crate::blackhole;
use crate::desired::{Desired, new_on_link_queries, on_link_queries};
use crate::diff::{diff, preserve};
use crate::encrypted::Encrypted;
use crate::failure::{Failure, Request};
use crate::kernel::{Facts, FailureKind, Kernel, KernelError, OpError};
use crate::link::LinkKind;
use crate::object::{KernelState, Key, Op, Value};
use crate::plan::{Announced, Plan};
use crate::route::RouteKind;
use crate::scope::Scope;
use crate::sighting::{Sighting, holders};
use crate::underlay::Underlay;
use adopt::adopt;
use failures::Failures;
use mac_conflicts::MacConflicts;
use progress::Progress;
use questions::{KernelAudit, Question};
use rand::Rng;
use report::Report;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::LeaseTable;
use tokio::sync::Notify;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tunnels::Tunnels;
use types::Subnets;
use types::backoff::Backoff;

/// Notifications are collected until none has arrived for this long ...
const QUIET: Duration = Duration::from_millis(20);
/// ... but for no longer than this.
const MAX_DELAY: Duration = Duration::from_millis(200);
/// The pause after a full pass and after a change, as a multiple of the time they took.
const PAUSE_FACTORS: (u32, u32) = (2, 40);
/// The pause between repairs while another program keeps undoing them.
const CONFLICT_PAUSE: Duration = Duration::from_millis(500);
/// Backoff after failures.
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
/// How long a first pass delays the deletion of many routes: the store may just have been emptied.
const DELETION_DELAY: Duration = Duration::from_secs(60);
/// How often WireGuard's peers are read, whose changes the kernel does not announce ...
const TUNNEL_READ_INTERVAL: Duration = Duration::from_secs(5);
/// ... or less often, so that reading takes no more than this part of the time.
const LOOK_FACTOR: u32 = 20;
/// ... but at least this often, which is how often a pass is made while it is not known what should be there.
const LOOK_LIMIT: Duration = Duration::from_secs(20);
/// The number of attempts at the first pass before it fails.
const FIRST_TRIES: u32 = 6;

/// The inputs that change while a network runs.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The current leases.
    pub leases: watch::Receiver<Arc<LeaseTable>>,
    /// The current underlay.
    pub underlay: watch::Receiver<Underlay>,
    /// Ends the run.
    pub stop: CancellationToken,
}

/// Options of the reconciler.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The interval of the audit, which compares the kernel with the desired state. None: never.
    pub audit: Option<Duration>,
    /// Whether this node's own subnets get blackhole routes, for any plan.
    pub blackhole: bool,
}

/// Keeps a kernel in the state that a plan demands.
pub struct Reconciler<P, K> {
    plan: P,
    /// The plan's scope. The former networks are dropped once nothing of them is left.
    scope: Scope,
    kernel: K,
    underlay: Underlay,
    options: Options,
    report: Report,
    /// The facts of the last pass. Changes that follow from new facts are not repairs.
    facts: Option<Facts>,
    /// Whether the last pass left the kernel in sync.
    settled: bool,
    guard: DeletionGuard,
    mac_conflicts: MacConflicts,
    /// The peers of WireGuard, and when they are read next. None: there is no such interface.
    tunnels: Tunnels,
    look: Option<Instant>,
    /// The last pass that was made for want of knowledge.
    looked: Option<Instant>,
    /// What follows from the last full pass, for peers.
    announced: Option<Announced>,
    /// Told when the plan has changed, as it does with a new key.
    replanned: Arc<Notify>,
    /// Our objects in the kernel, as long as they are known without reading it.
    known: Option<Known>,
    /// What failed in the last pass, and whether it delayed deletions.
    failed: (Vec<OpError>, bool),
    questions: (KernelAudit, mpsc::Receiver<Question>),
    /// The earliest times for the next full pass and the next change, so that frequent events cannot use up a CPU.
    pass_after: Instant,
    changes_after: Instant,
}

/// Our objects in the kernel, and the leases from which they follow.
struct Known {
    desired: Desired,
    leases: Arc<LeaseTable>,
}

/// Whether a pass that deletes many objects is still delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeletionGuard {
    Armed,
    Waiting(Instant),
    Off,
}

/// The result of a pass.
struct Pass {
    /// What peers may be told.
    announced: Option<Announced>,
    errors: Vec<OpError>,
    /// The time at which delayed deletions are due.
    held: Option<Instant>,
    /// The desired state.
    desired: Desired,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    /// There are new inputs.
    fresh: bool,
    /// A full pass is needed.
    full_pass: bool,
}

impl<P: Plan, K: Kernel> Reconciler<P, K> {
    /// Makes the first pass.
    ///
    /// # Errors
    /// Links or their addresses cannot be created, or the kernel cannot be read.
    pub async fn join(
        plan: P,
        kernel: K,
        underlay: &Underlay,
        leases: &LeaseTable,
        options: Options,
    ) -> Result<Self, KernelError> {
        let mut reconciler = Self {
            scope: plan.scope().clone(),
            plan,
            kernel,
            underlay: underlay.clone(),
            options,
            report: Report::default(),
            facts: None,
            settled: false,
            guard: DeletionGuard::Armed,
            mac_conflicts: MacConflicts::default(),
            tunnels: Tunnels::default(),
            look: None,
            looked: None,
            replanned: Arc::new(Notify::new()),
            announced: None,
            known: None,
            failed: Default::default(),
            questions: questions::channel(),
            pass_after: Instant::now(),
            changes_after: Instant::now(),
        };
        let mut tries = 0;
        loop {
            let fatal = match reconciler.pass(leases, true).await {
                Ok(pass) => pass
                    .errors
                    .into_iter()
                    .find(|error| reconciler.needs(&error.key)),
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
            let Some(error) = fatal else {
                return Ok(reconciler);
            };
            tries += 1;
            // An unsupported operation will not work a second later. Other failures may be temporary.
            if tries == FIRST_TRIES || error.kind == FailureKind::Unsupported {
                return Err(error.into());
            }
            sleep(backoff(tries)).await;
        }
    }

    /// Whether the data plane cannot work without this object. With two families, one may fail.
    fn needs(&self, key: &Key) -> bool {
        match key {
            Key::Link(_) => true,
            Key::Address(..) => !matches!(self.plan.own(), Subnets::Both(..)),
            Key::Fdb(..)
            | Key::Neighbor(..)
            | Key::WireguardPeer(..)
            | Key::AllowedIp(..)
            | Key::Route(..) => false,
        }
    }

    /// The desired state: the plan's, and what all networks share.
    fn desired(&self, leases: &LeaseTable, facts: &Facts) -> Desired {
        let mut desired = Desired::whole(&self.plan, leases, facts);
        if self.options.blackhole {
            blackhole::want(&mut desired.state, self.plan.own(), self.plan.scope());
        }
        desired
    }

    /// Whose failures these are.
    fn failures(&self, errors: &[OpError], leases: &LeaseTable, facts: &Facts) -> Failures {
        if errors.is_empty() {
            return Failures::default();
        }
        let own = self.desired(&LeaseTable::default(), facts).state;
        let (holders, owners) = holders(&self.plan, leases, facts);
        Failures::of(errors.to_vec(), &own, &holders, &owners)
    }

    /// A full pass. `fresh` is set if it follows from new inputs.
    async fn pass(&mut self, leases: &LeaseTable, fresh: bool) -> Result<Pass, KernelError> {
        let began = Instant::now();
        self.known = None;
        self.report.pass();
        let comparing = self.report.compares();
        let mut facts = self
            .kernel
            .facts(&self.underlay, &on_link_queries(&self.plan, leases))
            .await?;
        facts.accepted_macs = self.mac_conflicts.accepted_macs.clone();
        // Before the state: the device must never have an older key than peers are told.
        let announced = self.plan.announced(&facts);
        // Before the kernel's answer: the most memory is needed while the state is computed.
        let mut desired = self.desired(leases, &facts);
        let found = self.kernel.read(&self.scope).await?;
        let mut have = found.ours;
        if self.mac_conflicts.accept_rewritten(&desired.state, &have) {
            facts.accepted_macs = self.mac_conflicts.accepted_macs.clone();
            desired = self.desired(leases, &facts);
        }
        let want = &mut desired.state;
        self.tunnels.note(&found.sessions, Instant::now());
        let moved = self.tunnels.accept(&mut have, want, Instant::now());
        leave_to_operators(&mut have, want, &found.mixed);
        adopt(
            &mut have,
            want,
            &found.leftovers,
            leases,
            self.plan.own(),
            &facts,
            self.settled,
        );
        preserve(want, &have, leases.unreadable());
        let mut ops = diff(want, &have);
        leave_endpoints(&mut ops, &moved);
        let held = self.hold_back(&mut ops, want, &have);
        drop(have);
        drop(comparing);
        let repair = self.settled && !fresh && self.facts.as_ref() == Some(&facts);
        // Forwarding comes before the routes that direct packets to it.
        self.kernel.forward(self.plan.forwarding(leases, &facts));
        let mut unwanted = unwanted_links(&mut ops, &desired.state);
        let mut errors = self.kernel.apply(&ops).await;
        // Devices of an earlier backend stay until there is something in their place. One may be in the way of the new device.
        let stands = |error: &OpError| {
            !matches!(error.key, Key::Link(_) | Key::Address(..))
                || error.kind == FailureKind::Conflict
        };
        if errors.iter().all(stands) {
            errors.extend(self.kernel.apply(&unwanted).await);
            ops.append(&mut unwanted);
        }
        self.greet(&ops).await;
        self.tunnels.applied(&ops);
        self.tunnels.follow(&desired.state);
        self.report.tunnels(&self.tunnels);
        self.plan_look(&desired.state);
        self.report
            .applied(&ops, &errors, repair.then_some(&self.failed.0), || {
                peers_of(&desired.state)
            });
        let failures = self.failures(&errors, leases, &facts);
        self.report.state(&failures, held.is_some());
        self.report.wanted(&desired.state);
        // A peer that failed by itself may do so for days, and must not hide what other programs change meanwhile.
        self.settled = failures.node.is_empty() && held.is_none();
        if self.settled {
            // Nothing of the former run is left. Objects that appear in its networks from now on belong to others.
            self.scope.former = Default::default();
            self.scope
                .links
                .retain(|name| desired.state.link(*name).is_some());
        }
        self.facts = Some(facts.clone());
        self.pass_after = rest(began, PAUSE_FACTORS.0);
        self.changes_after = self.pass_after;
        let announced = if errors.iter().any(|error| matches!(error.key, Key::Link(_))) {
            self.announced.clone()
        } else {
            Some(announced)
        };
        self.announced = announced.clone();
        Ok(Pass {
            errors,
            held,
            desired,
            announced,
        })
    }

    /// Applies only the changed leases. None if a full pass is needed instead.
    async fn change(&mut self, leases: &Arc<LeaseTable>) -> Option<Pass> {
        let began = Instant::now();
        let known = self.known.as_ref()?;
        if !leases.unreadable().is_empty()
            || self
                .kernel
                .change_pending(&self.scope, Some(&known.desired.state))
        {
            return None;
        }
        let mut facts = self.facts.take()?;
        let queries = new_on_link_queries(&self.plan, &known.leases, leases);
        if !queries.is_empty() {
            let near = self.kernel.on_link(&queries).await;
            facts
                .on_link
                .retain(|ip| queries.binary_search(ip).is_err());
            facts.on_link.extend(near);
        }
        let change = known
            .desired
            .change(&self.plan, &known.leases, leases, &facts)?;
        let mut desired = self.known.take()?.desired;
        self.report.pass();
        let ops = diff(&change.after, &change.before);
        self.kernel.forward(self.plan.forwarding(leases, &facts));
        let errors = self.kernel.apply(&ops).await;
        self.report.changed(&change);
        desired.take(change);
        self.tunnels.applied(&ops);
        self.report
            .applied(&ops, &errors, None, || peers_of(&desired.state));
        let failures = self.failures(&errors, leases, &facts);
        self.report.state(&failures, false);
        self.settled = failures.node.is_empty();
        self.facts = Some(facts.clone());
        self.changes_after = rest(began, PAUSE_FACTORS.1);
        Some(Pass {
            errors,
            held: None,
            desired,
            announced: self.announced.clone(),
        })
    }

    /// Removes deletions from a first pass that would delete many of the existing routes, until they are due.
    fn hold_back(
        &mut self,
        ops: &mut Vec<Op>,
        want: &KernelState,
        have: &KernelState,
    ) -> Option<Instant> {
        if self.guard == DeletionGuard::Off {
            return None;
        }
        let scope = &self.scope;
        let encrypted = Encrypted::by(want);
        // Objects of former networks do not come back with the store. What would go in the clear is never worth the wait.
        let stale = |key: &Key, value: &Value| match (key, value) {
            (Key::Route(net, _), Value::Route(route)) => {
                scope.covered(net) || encrypted.is_bypassed_by(net, route)
            }
            (Key::Neighbor(_, ip), _) => scope.covered(&ipnet::IpNet::from(*ip)),
            (Key::AllowedIp(_, net), _) => scope.covered(net),
            _ => false,
        };
        let counts = |value: &Value| match value {
            Value::Route(route) => route.protocol == scope.protocol,
            value => matches!(value, Value::WireguardPeer(_)),
        };
        let ours = |key: &Key, value: &Value| counts(value) && !stale(key, value);
        let marked = have
            .0
            .iter()
            .filter(|(key, value)| ours(key, value))
            .count();
        let going = ops.iter().filter(|op| matches!(op, Op::Delete(key, value) if ours(key, value) && !want.0.contains_key(key))).count();
        let now = Instant::now();
        let due = if let DeletionGuard::Waiting(due) = self.guard {
            due
        } else {
            now + DELETION_DELAY
        };
        if going <= 3 || going * 5 <= marked || now >= due {
            self.guard = DeletionGuard::Off;
            return None;
        }
        if self.guard == DeletionGuard::Armed {
            tracing::warn!(
                "{going} of {marked} routes and peers in the kernel have no lease; keeping them for {} s in case the store is incomplete",
                DELETION_DELAY.as_secs()
            );
        }
        self.guard = DeletionGuard::Waiting(due);
        // A deletion of a desired object makes room for its replacement.
        let of_peers = |key: &Key| !matches!(key, Key::Link(_) | Key::Address(..));
        let waits = |key: &Key, value: &Value| {
            of_peers(key) && !stale(key, value) && !want.0.contains_key(key)
        };
        ops.retain(|op| !matches!(op, Op::Delete(key, value) if waits(key, value)));
        Some(due)
    }

    /// Waits until no more notifications arrive. New leases wait only for the pause after the last pass or change.
    async fn settle(&mut self, inputs: &mut Inputs, woken: &mut Woken) {
        let now = Instant::now();
        let stop = inputs.stop.clone();
        let end = match self.report.has_conflict() {
            true => now + CONFLICT_PAUSE,
            false if woken.full_pass => self.pass_after.max(now + MAX_DELAY),
            false => self.changes_after,
        };
        loop {
            let quiet = if woken.full_pass && !self.report.has_conflict() {
                self.pass_after.max(Instant::now() + QUIET)
            } else {
                end
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep_until(end.min(quiet)) => return,
                more = self.woken(inputs, None) => {
                    woken.fresh |= more.fresh;
                    woken.full_pass |= more.full_pass;
                }
            }
        }
    }

    /// Waits for an event.
    async fn woken(&mut self, inputs: &mut Inputs, timer: Option<Instant>) -> Woken {
        let known = self.known.as_ref().map(|known| &known.desired.state);
        tokio::select! {
            () = changed(&mut inputs.leases) => Woken { fresh: true, full_pass: false },
            () = changed(&mut inputs.underlay) => Woken { fresh: true, full_pass: true },
            () = self.replanned.notified() => Woken { fresh: true, full_pass: true },
            () = self.kernel.wait_for_change(&self.scope, known) => Woken { fresh: false, full_pass: true },
            () = at(timer) => Woken { fresh: false, full_pass: true },
        }
    }

    /// Keeps the kernel in sync with the inputs until `stop`. New announcements are sent to `out`.
    pub async fn run(mut self, mut inputs: Inputs, out: watch::Sender<Announced>) {
        let stop = inputs.stop.clone();
        let (_inspector, mut questions) =
            std::mem::replace(&mut self.questions, questions::channel());
        let mut failures = 0;
        // Inputs may have changed since `join`.
        let mut woken = Woken {
            fresh: true,
            full_pass: true,
        };
        let mut audit = None;
        loop {
            // Inputs that arrived since they were last read are fresh, no matter what ended the wait.
            woken.fresh |= inputs.leases.has_changed().unwrap_or(false)
                || inputs.underlay.has_changed().unwrap_or(false);
            let underlay = inputs.underlay.borrow_and_update().clone();
            woken.full_pass |= self.underlay != underlay;
            self.underlay = underlay;
            let leases = inputs.leases.borrow_and_update().clone();
            let change = if woken.full_pass {
                None
            } else {
                self.change(&leases).await
            };
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
                    if let Some(announced) = pass.announced {
                        publish(&out, announced);
                    }
                    wake = wake.into_iter().chain(pass.held).min();
                    // Objects of an unreadable lease are in the kernel but do not follow from any lease.
                    let known = pass.errors.is_empty()
                        && pass.held.is_none()
                        && leases.unreadable().is_empty();
                    self.known = known.then_some(Known {
                        desired: pass.desired,
                        leases: leases.clone(),
                    });
                    self.failed = (pass.errors, pass.held.is_some());
                    !self.failed.0.is_empty()
                }
                Err(error) => {
                    self.report.unreadable(&error);
                    self.settled = false;
                    true
                }
            };
            failures = if retry && !woken.fresh {
                failures + 1
            } else {
                u32::from(retry)
            };
            if retry {
                wake = wake
                    .into_iter()
                    .chain([Instant::now() + backoff(failures)])
                    .min();
            }
            // Who asks while somebody else keeps changing things is answered, too.
            if let Ok(question) = questions.try_recv() {
                self.answer(question, &leases).await;
            }
            woken = loop {
                let look = self.look;
                // What is to be done comes first: an answer tells of what was finished.
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    woken = self.woken(&mut inputs, wake) => break woken,
                    () = at(look) => {
                        if self.peers_differ().await {
                            break Woken { fresh: false, full_pass: true };
                        }
                    }
                    Some(question) = questions.recv() => self.answer(question, &leases).await,
                }
            };
            self.settle(&mut inputs, &mut woken).await;
            if stop.is_cancelled() {
                return;
            }
        }
    }

    /// Begins sessions with the peers that a full pass added. Peers of new leases begin them by themselves.
    async fn greet(&mut self, ops: &[Op]) {
        let added = ops.iter().filter_map(|op| match op {
            Op::Add(Key::WireguardPeer(name, key), Value::WireguardPeer(peer))
                if peer.keepalive == 0 =>
            {
                Some((*name, *key))
            }
            _ => None,
        });
        let added: Vec<_> = added.collect();
        if !added.is_empty() {
            self.kernel.greet(&added).await;
        }
    }

    /// Plans when to read the peers of WireGuard.
    fn plan_look(&mut self, want: &KernelState) {
        let mut links = want.0.values().map_while(|value| {
            if let Value::Link(spec) = value {
                Some(spec)
            } else {
                None
            }
        });
        let any = links.any(|spec| matches!(spec.kind, LinkKind::Wireguard(_)));
        self.look = any.then(|| Instant::now() + TUNNEL_READ_INTERVAL);
    }

    /// Reads the peers of WireGuard. True if they are not as wanted.
    async fn peers_differ(&mut self) -> bool {
        let began = Instant::now();
        let found = self.kernel.read_peers(&self.scope).await;
        self.look = Some(
            Instant::now()
                + (began.elapsed() * LOOK_FACTOR).clamp(TUNNEL_READ_INTERVAL, LOOK_LIMIT),
        );
        // A full pass tells the error.
        let Ok(mut found) = found else {
            return self.known.is_some();
        };
        self.tunnels.note(&found.sessions, began);
        self.report.tunnels(&self.tunnels);
        let Some(known) = &self.known else {
            // Something failed, or a lease cannot be read: a pass finds out what differs.
            let due = self.looked.is_none_or(|last| last.elapsed() >= LOOK_LIMIT);
            self.looked = if due { Some(began) } else { self.looked };
            return due;
        };
        self.tunnels
            .accept(&mut found.ours, &known.desired.state, began);
        leave_to_operators(&mut found.ours, &known.desired.state, &found.mixed);
        let of_peers =
            |(key, _): &(&Key, &Value)| matches!(key, Key::WireguardPeer(..) | Key::AllowedIp(..));
        !known
            .desired
            .state
            .0
            .iter()
            .filter(of_peers)
            .eq(found.ours.0.iter().filter(of_peers))
    }

    /// Reads the kernel for somebody who asks, and changes nothing.
    async fn answer(&mut self, question: Question, leases: &LeaseTable) {
        if !question.is_closed() {
            let _ = question.send(self.look(leases).await);
        }
    }

    /// What follows from the leases and the facts of the last pass, and what is there now.
    async fn look(&mut self, leases: &LeaseTable) -> Result<Sighting, KernelError> {
        let Some(facts) = &self.facts else {
            return Err(KernelError {
                what: Request::Compare,
                why: Failure::Unread,
            });
        };
        let mut want = self.desired(leases, facts).state;
        let (holders, owners) = holders(&self.plan, leases, facts);
        let found = self.kernel.read(&self.scope).await?;
        let mut have = found.ours;
        self.tunnels.accept(&mut have, &want, Instant::now());
        leave_to_operators(&mut have, &want, &found.mixed);
        preserve(&mut want, &have, leases.unreadable());
        let survey = self.kernel.survey(&self.scope).await?;
        let (errors, held) = self.failed.clone();
        Ok(Sighting {
            want,
            have,
            errors,
            held,
            survey,
            own: *self.plan.own(),
            holders,
            owners,
        })
    }

    /// To be told when the plan has changed.
    pub fn replanned(&self) -> Arc<Notify> {
        self.replanned.clone()
    }

    /// Asks the loop while it runs.
    pub fn kernel_audit(&self) -> KernelAudit {
        self.questions.0.clone()
    }

    /// The progress of the loop, which can be read while it runs.
    pub fn progress(&self) -> Arc<Progress> {
        self.report.progress()
    }
}

/// Sends an announcement if it is new.
fn publish(out: &watch::Sender<Announced>, announced: Announced) {
    out.send_if_modified(|last| {
        let new = *last != announced;
        if new {
            *last = announced;
        }
        new
    });
}

/// Waits for a new value. Without senders it never returns.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Takes peers to which an operator gave allowed IPs of other networks out of what is ours, unless they are wanted.
fn leave_to_operators(have: &mut KernelState, want: &KernelState, mixed: &BTreeSet<Key>) {
    let theirs: BTreeSet<Key> = mixed
        .iter()
        .filter(|key| !want.0.contains_key(key))
        .copied()
        .collect();
    if theirs.is_empty() {
        return;
    }
    have.0.retain(|key, value| match (key, value) {
        (Key::AllowedIp(name, _), Value::AllowedIp(peer)) => {
            !theirs.contains(&Key::WireguardPeer(*name, *peer))
        }
        (key, _) => !theirs.contains(key),
    });
}

/// Has changes of peers leave endpoints alone to which the peers moved.
fn leave_endpoints(ops: &mut [Op], moved: &BTreeSet<Key>) {
    for op in ops.iter_mut() {
        if let Op::Replace(key, Value::WireguardPeer(peer)) = op
            && moved.contains(key)
        {
            peer.endpoint = None;
        }
    }
}

/// Waits until then, or for ever.
async fn at(then: Option<Instant>) {
    match then {
        Some(then) => sleep_until(then).await,
        None => std::future::pending().await,
    }
}

/// The end of the pause after some work, as a multiple of the time it took.
fn rest(began: Instant, times: u32) -> Instant {
    Instant::now() + (began.elapsed() * times).clamp(QUIET, MAX_DELAY)
}

/// 50 ms, doubled with each failure up to 5 s, with 25 % jitter.
fn backoff(failures: u32) -> Duration {
    RETRY
        .after(failures.saturating_sub(1))
        .mul_f64(rand::rng().random_range(0.75..1.25))
}

/// The lowest network, at which the range of routes begins.
fn subnet_floor() -> ipnet::IpNet {
    ipnet::IpNet::V4(ipnet::Ipv4Net::default())
}

/// Takes the deletions of devices that are not wanted from the end of the operations: they come last.
fn unwanted_links(ops: &mut Vec<Op>, want: &KernelState) -> Vec<Op> {
    let unwanted =
        |op: &&Op| matches!(op, Op::Delete(key @ Key::Link(_), _) if !want.0.contains_key(key));
    let count = ops.iter().rev().take_while(unwanted).count();
    ops.split_off(ops.len() - count)
}

/// The number of routes to peers, or, where one route leads to all of them, of what they may send and receive.
fn peers_of(state: &KernelState) -> usize {
    let to_peer =
        |value: &Value| matches!(value, Value::Route(route) if route.kind == RouteKind::Unicast);
    let allowed = state
        .0
        .keys()
        .filter(|key| matches!(key, Key::AllowedIp(..)))
        .count();
    if allowed > 0 {
        return allowed;
    }
    state
        .0
        .range(Key::Route(subnet_floor(), 0)..)
        .filter(|(_, value)| to_peer(value))
        .count()
}

#[cfg(test)]
mod tests;
