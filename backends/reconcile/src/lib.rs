//! The reconciler's loop keeps the kernel's objects in sync with the leases. It is one task with
//! one `select!` and no lock.
//!
//! A full pass reads all of flannel's objects from the kernel. After a pass that leaves the kernel
//! in sync, the reconciler knows the kernel state and applies changes of leases incrementally. An
//! unexpected notification, a failure, the audit timer or a new underlay causes a full pass.

#![warn(clippy::must_use_candidate)]

mod adopt;
mod deletion_guard;
pub mod desired;
pub mod failures;
mod goal;
mod mac_conflicts;
pub mod plan;
pub mod progress;
pub mod questions;
pub mod repairs;
mod report;
mod schedule;

use crate::desired::{Desired, on_link_queries};
pub use crate::plan::{Announced, Plan, peers};
use adopt::adopt_leftovers;
use deletion_guard::DeletionGuard;
use goal::Goal;
pub use goal::Options;
use mac_conflicts::MacConflicts;
use netstate::diff::{diff, preserve_objects};
use netstate::report::sighting::Sighting;
use netstate::{Facts, FailureKind, Kernel, KernelError, KernelState, Key, Op, OpError, Underlay};
use plan::holders;
use progress::Progress;
use questions::{KernelAudit, Question};
use report::Report;
use schedule::{CONFLICT_PAUSE, MAX_DELAY, QUIET, Schedule, retry_pause};
use std::sync::Arc;
use subnet_lease::LeaseTable;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use types::Problem;

/// Attempts at the first pass.
const FIRST_TRIES: u32 = 6;

/// What may change while a network runs.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The leases in force.
    pub leases: watch::Receiver<Arc<LeaseTable>>,
    pub underlay: watch::Receiver<Underlay>,
    /// Its cancellation ends [`Reconciler::run`].
    pub stop: CancellationToken,
}

/// Keeps the kernel's objects in sync with a plan.
pub struct Reconciler {
    goal: Goal,
    kernel: Box<dyn Kernel>,
    observed: Observed,
    schedule: Schedule,
    guard: DeletionGuard,
    mac_conflicts: MacConflicts,
    report: Report,
    questions: (KernelAudit, mpsc::Receiver<Question>),
}

/// What the last pass found.
#[derive(Default)]
struct Observed {
    /// The facts of the last pass. A change that follows from new facts is not a repair.
    facts: Option<Facts>,
    /// The last pass left the kernel in sync.
    settled: bool,
    /// `None` if the reconciler must read the objects first.
    known: Option<Known>,
    /// The errors of the last pass.
    errors: Vec<OpError>,
    /// The announcement after the last full pass.
    announced: Option<Announced>,
}

/// Flannel's objects in the kernel, and the leases from which they follow.
struct Known {
    desired: Desired,
    leases: Arc<LeaseTable>,
}

struct Comparison {
    facts: Facts,
    announced: Announced,
    desired: Desired,
    ops: Vec<Op>,
}

/// What ended a wait of the loop.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    /// New inputs arrived.
    fresh: bool,
    full_pass: bool,
}

impl Reconciler {
    /// Makes the first pass. Fails if the kernel refuses links or their addresses, or cannot be
    /// read.
    pub async fn join(
        plan: Arc<dyn Plan>,
        kernel: Box<dyn Kernel>,
        underlay: &Underlay,
        leases: &LeaseTable,
        options: Options,
    ) -> Result<Self, KernelError> {
        let mut reconciler = Self {
            goal: Goal::new(plan, underlay, options),
            kernel,
            observed: Observed::default(),
            schedule: Schedule::new(),
            guard: DeletionGuard::Armed,
            mac_conflicts: MacConflicts::default(),
            report: Report::default(),
            questions: questions::question_channel(),
        };
        let mut tries = 0;
        loop {
            let (error, may_be_temporary) = match reconciler.pass(leases, true).await {
                Ok(_) => {
                    let mut errors = reconciler.observed.errors.iter();
                    let Some(error) = errors.find(|error| reconciler.goal.needs(&error.key)) else {
                        return Ok(reconciler);
                    };
                    (error.clone().into(), error.kind != FailureKind::Unsupported)
                }
                Err(error) => {
                    reconciler.report.unreadable(&error);
                    (error, true)
                }
            };
            tries += 1;
            if tries == FIRST_TRIES || !may_be_temporary {
                return Err(error);
            }
            sleep(retry_pause(tries)).await;
        }
    }

    /// Gives the desired state. `fresh` is true if new inputs caused the pass.
    async fn pass(&mut self, leases: &LeaseTable, fresh: bool) -> Result<Desired, KernelError> {
        let began = Instant::now();
        self.observed.known = None;
        self.report.progress.state.lock().comparing = true;
        self.report.pass();
        let comparison = self.compare(leases).await;
        self.report.progress.state.lock().comparing = false;
        let Comparison { facts, announced, desired, ops } = comparison?;
        let repair =
            self.observed.settled && !fresh && self.observed.facts.as_ref() == Some(&facts);
        // Forwarding comes before the routes that direct packets to it.
        self.kernel.forward(self.goal.plan.forwarding(leases, &facts));
        let (ops, errors) = self.apply(ops, &desired.state).await;
        let repair = repair.then_some(&self.observed.errors);
        self.report.applied(&ops, &errors, repair, &desired.state);
        let failures = self.goal.failures(&errors, leases, &facts);
        let holds = self.guard.due().is_some();
        self.report.state(&failures, holds);
        // The failure of a single peer may last for days. It must not hide changes that other programs make meanwhile.
        self.observed.settled = failures.node.is_empty() && !holds;
        if self.observed.settled {
            self.goal.forget_former(&desired.state);
        }
        self.observed.facts = Some(facts);
        self.schedule.passed(began);
        self.report.progress.pass_durations.record(began.elapsed());
        if !errors.iter().any(|error| matches!(error.key, Key::Link(_))) {
            self.observed.announced = Some(announced);
        }
        self.observed.errors = errors;
        Ok(desired)
    }

    async fn compare(&mut self, leases: &LeaseTable) -> Result<Comparison, KernelError> {
        // What the kernel announced before is in what it reports from now on. It announces some changes before they take effect, but under the lock
        // for which the first request of `facts` waits.
        self.kernel.change_pending(&self.goal.scope, None);
        let queries = on_link_queries(&*self.goal.plan, &LeaseTable::default(), leases);
        let mut facts = self.kernel.facts(&self.goal.underlay, &queries).await?;
        facts.accepted_macs = self.mac_conflicts.accepted_macs.clone();
        // Computed before the state: the device must never have an older key than the announced one.
        let mut announced = self.goal.plan.announced(&facts);
        // Computed before the kernel is read: this computation needs the most memory.
        let mut desired = self.goal.desired(leases, &facts);
        let found = self.kernel.read(&self.goal.scope, &desired.state).await?;
        let mut have = found.ours;
        if self.mac_conflicts.accept_rewritten(&desired.state, &have) {
            facts.accepted_macs = self.mac_conflicts.accepted_macs.clone();
            announced = self.goal.plan.announced(&facts);
            desired = self.goal.desired(leases, &facts);
        }
        let want = &mut desired.state;
        adopt_leftovers(
            &mut have,
            want,
            &found.leftovers,
            leases,
            &self.goal.scope.own,
            &facts,
            self.observed.settled,
        );
        preserve_objects(want, &have, leases.unreadable());
        let mut ops = diff(want, &have);
        self.guard.hold_back(&mut ops, want, &have, &self.goal.scope);
        Ok(Comparison { facts, announced, desired, ops })
    }

    /// The attempted operations and the errors.
    async fn apply(&mut self, mut ops: Vec<Op>, want: &KernelState) -> (Vec<Op>, Vec<OpError>) {
        let mut unwanted = unwanted_links(&mut ops, want);
        let mut errors = self.kernel.apply(&ops).await;
        // Devices of an earlier backend stay until their replacement works. A conflict does not keep them: they may be its cause.
        let works_without = |error: &OpError| {
            !matches!(error.key, Key::Link(_) | Key::Address(..))
                || error.kind == FailureKind::Conflict
        };
        if errors.iter().all(works_without) {
            errors.extend(self.kernel.apply(&unwanted).await);
            ops.append(&mut unwanted);
        }
        (ops, errors)
    }

    /// Applies only the changes of leases, and gives the desired state; `None` if a full pass must
    /// follow instead.
    async fn change(&mut self, leases: &LeaseTable) -> Option<Desired> {
        let began = Instant::now();
        let known = self.observed.known.as_ref()?;
        if !leases.unreadable().is_empty()
            || !leases.barred().is_empty()
            || !known.leases.barred().is_empty()
            || self.kernel.change_pending(&self.goal.scope, Some(&known.desired.state))
        {
            return None;
        }
        let facts = self.observed.facts.as_mut()?;
        let queries = on_link_queries(&*self.goal.plan, &known.leases, leases);
        if !queries.is_empty() {
            let near = self.kernel.on_link(&queries).await;
            facts.on_link.retain(|ip| queries.binary_search(ip).is_err());
            facts.on_link.extend(near);
        }
        let change = known.desired.change(&*self.goal.plan, &known.leases, leases, facts)?;
        let mut desired = self.observed.known.take()?.desired;
        self.report.pass();
        let ops = diff(&change.after, &change.before);
        self.kernel.forward(self.goal.plan.forwarding(leases, facts));
        let errors = self.kernel.apply(&ops).await;
        desired.take(change);
        self.report.applied(&ops, &errors, None, &desired.state);
        let failures = self.goal.failures(&errors, leases, facts);
        self.report.state(&failures, false);
        self.observed.settled = failures.node.is_empty();
        self.schedule.changed(began);
        self.report.progress.pass_durations.record(began.elapsed());
        self.observed.errors = errors;
        Some(desired)
    }

    /// Waits until the kernel sends no more notifications. If only leases changed, waits only for
    /// the pause after the last pass or change.
    async fn settle(&mut self, inputs: &mut Inputs, woken: &mut Woken) {
        let now = Instant::now();
        let stop = inputs.stop.clone();
        let end = match self.report.has_conflict() {
            true => now + CONFLICT_PAUSE,
            false if woken.full_pass => self.schedule.pass_after.max(now + MAX_DELAY),
            false => self.schedule.changes_after,
        };
        loop {
            let quiet = if woken.full_pass && !self.report.has_conflict() {
                self.schedule.pass_after.max(Instant::now() + QUIET)
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

    /// A sender that is gone and a missing timer wake nobody.
    async fn woken(&mut self, inputs: &mut Inputs, timer: Option<Instant>) -> Woken {
        let known = self.observed.known.as_ref().map(|known| &known.desired.state);
        tokio::select! {
            Ok(()) = inputs.leases.changed() => Woken { fresh: true, full_pass: false },
            Ok(()) = inputs.underlay.changed() => Woken { fresh: true, full_pass: true },
            () = self.goal.plan.replanned() => Woken { fresh: true, full_pass: true },
            () = self.kernel.wait_for_change(&self.goal.scope, known) => Woken { fresh: false, full_pass: true },
            Some(()) = async { sleep_until(timer?).await; Some(()) } => Woken { fresh: false, full_pass: true },
        }
    }

    /// Runs until `inputs.stop` is cancelled. Sends new announcements to `out`.
    pub async fn run(mut self, mut inputs: Inputs, out: watch::Sender<Announced>) {
        let stop = inputs.stop.clone();
        let (_kernel_audit, mut questions) =
            std::mem::replace(&mut self.questions, questions::question_channel());
        let mut failures = 0;
        // Inputs may have changed since `join`.
        let mut woken = Woken { fresh: true, full_pass: true };
        let mut audit = None;
        loop {
            let leases = self.take_inputs(&mut inputs, &mut woken);
            let change = if woken.full_pass { None } else { self.change(&leases).await };
            let pass = match change {
                Some(desired) => Ok(desired),
                None => {
                    audit = self.goal.options.audit.map(|interval| Instant::now() + interval);
                    self.pass(&leases, woken.fresh).await
                }
            };
            let (retry, held) = match pass {
                Ok(desired) => {
                    self.conclude(desired, &leases, &out);
                    (!self.observed.errors.is_empty(), self.guard.due())
                }
                Err(error) => {
                    self.report.unreadable(&error);
                    self.observed.settled = false;
                    (true, None)
                }
            };
            failures = if retry && !woken.fresh { failures + 1 } else { u32::from(retry) };
            let retry = retry.then(|| Instant::now() + retry_pause(failures));
            let wake = [audit, held, retry].into_iter().flatten().min();
            // Kernel audits are answered even while another program keeps changing objects.
            if let Ok(question) = questions.try_recv() {
                self.answer(question, &leases).await;
            }
            woken = loop {
                // Work takes precedence over kernel audits, which report finished work.
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    woken = self.woken(&mut inputs, wake) => break woken,
                    Some(question) = questions.recv() => self.answer(question, &leases).await,
                }
            };
            self.settle(&mut inputs, &mut woken).await;
            if stop.is_cancelled() {
                return;
            }
        }
    }

    /// Sets `woken.fresh` if an input changed since the last call, regardless of the event that
    /// ended the wait.
    fn take_inputs(&mut self, inputs: &mut Inputs, woken: &mut Woken) -> Arc<LeaseTable> {
        woken.fresh |= inputs.leases.has_changed().unwrap_or(false)
            || inputs.underlay.has_changed().unwrap_or(false);
        let underlay = inputs.underlay.borrow_and_update().clone();
        woken.full_pass |= self.goal.underlay != underlay;
        self.goal.underlay = underlay;
        inputs.leases.borrow_and_update().clone()
    }

    /// Sends the announcement of the pass to `out` if it is new.
    fn conclude(
        &mut self,
        desired: Desired,
        leases: &Arc<LeaseTable>,
        out: &watch::Sender<Announced>,
    ) {
        if let Some(announced) = &self.observed.announced {
            out.send_if_modified(|last| std::mem::replace(last, announced.clone()) != *announced);
        }
        // Objects of an unreadable lease are in the kernel but do not follow from any lease.
        let known = self.observed.errors.is_empty()
            && self.guard.due().is_none()
            && leases.unreadable().is_empty();
        self.observed.known = known.then(|| Known { desired, leases: leases.clone() });
    }

    /// Changes nothing in the kernel.
    async fn answer(&mut self, question: Question, leases: &LeaseTable) {
        if !question.is_closed() {
            let _ = question.send(self.sighting(leases).await);
        }
    }

    /// Reads the kernel state, and computes the desired state from the leases and the facts of the
    /// last pass.
    async fn sighting(&mut self, leases: &LeaseTable) -> Result<Sighting, KernelError> {
        let Some(facts) = &self.observed.facts else {
            let why = Problem::new("kernel-unread", "flanneld has not read the kernel state yet");
            return Err(KernelError::new("compare with the kernel", why));
        };
        let mut want = self.goal.desired(leases, facts).state;
        let (holders, owners) = holders(&*self.goal.plan, leases, facts);
        let have = self.kernel.read(&self.goal.scope, &want).await?.ours;
        preserve_objects(&mut want, &have, leases.unreadable());
        let survey = self.kernel.survey(&self.goal.scope).await?;
        Ok(Sighting {
            want,
            have,
            errors: self.observed.errors.clone(),
            held: self.guard.due().is_some(),
            survey,
            own: self.goal.scope.own,
            holders,
            owners,
        })
    }

    /// Other tasks use it while the reconciler runs.
    #[must_use]
    pub fn kernel_audit(&self) -> KernelAudit {
        self.questions.0.clone()
    }

    /// Other tasks can read it while the reconciler runs.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        self.report.progress.clone()
    }
}

/// Removes the deletions of undesired devices from the end of `ops`, and gives them back.
fn unwanted_links(ops: &mut Vec<Op>, want: &KernelState) -> Vec<Op> {
    let unwanted =
        |op: &&Op| matches!(op, Op::Delete(key @ Key::Link(_), _) if !want.0.contains_key(key));
    let count = ops.iter().rev().take_while(unwanted).count();
    ops.split_off(ops.len() - count)
}

#[cfg(test)]
mod tests;
