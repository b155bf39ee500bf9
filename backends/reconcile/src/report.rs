//! The counters, the current problem and the rate-limited log lines of the reconciler's loop.

use crate::failures::{FailedPeer, Failures};
use crate::progress::{Counts, Progress};
use crate::repairs::{CONFLICT, CONFLICT_GAP};
use netstate::object::route::BOOT;
use netstate::{KernelError, KernelState, Key, Op, OpError, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::{Coded, Detail, Problem};

/// How often the log line of an unchanged problem is repeated.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// How often repairs are logged, and how long after its last repair an object is in conflict.
const REPAIR_INTERVAL: Duration = Duration::from_secs(10);
/// Peers that the loop logs one by one.
const LOGGED_PEERS: usize = 20;
/// Refusals of the kernel that the problem names.
const NAMED: usize = 3;

#[derive(Default)]
pub(super) struct Report {
    /// Other tasks can read it.
    pub progress: Arc<Progress>,
    logged: Option<(Problem, Instant)>,
    repair_logged: Option<Instant>,
    unlogged: usize,
}

impl Report {
    pub(super) fn pass(&self) {
        self.progress.state.lock().passes += 1;
    }

    /// Counts and logs operations. `repair` is set if only changes by other programs explain the
    /// operations, which then count as repairs. It contains the errors of the previous pass:
    /// operations on objects that failed there are retries, not repairs.
    pub(super) fn applied(
        &mut self,
        ops: &[Op],
        errors: &[OpError],
        repair: Option<&Vec<OpError>>,
        wanted: &KernelState,
    ) {
        let wanted = Counts::of(wanted);
        let done = ops.len().saturating_sub(errors.len());
        let mut progress = self.progress.state.lock();
        progress.writes += done as u64;
        progress.failures += errors.len() as u64;
        progress.wanted = wanted;
        drop(progress);
        if done == 0 {
            return;
        }
        let failed: BTreeSet<&Key> = errors.iter().map(|error| &error.key).collect();
        let mut ops: Vec<&Op> = ops.iter().filter(|op| !failed.contains(op.key())).collect();
        let boot = |value: &Value| matches!(value, Value::Route(route) if route.protocol == BOOT);
        let left: Vec<&Op> = ops
            .iter()
            .filter(|op| matches!(op, Op::Delete(_, value) if boot(value)))
            .copied()
            .collect();
        if !left.is_empty() {
            tracing::info!(
                routes = %summarize_pass(&left, left.len()),
                "removed routes that an earlier flannel left"
            );
        }
        if let Some(before) = repair {
            let before: BTreeSet<&Key> = before.iter().map(|error| &error.key).collect();
            let (tried_again, repairs): (Vec<&Op>, Vec<&Op>) =
                ops.into_iter().partition(|op| before.contains(op.key()));
            if !repairs.is_empty() {
                self.repairs(&repairs);
            }
            if tried_again.is_empty() {
                return;
            }
            ops = tried_again;
        }
        let (mut added, mut changed, mut removed, mut other) = (0, 0, 0, 0);
        for op in ops {
            match op {
                Op::Add(Key::Route(..), _) => added += 1,
                Op::Replace(Key::Route(..), _) => changed += 1,
                Op::Delete(Key::Route(..), _) => removed += 1,
                _ => other += 1,
            }
        }
        let routes = wanted.routes_to_peers();
        tracing::info!(added, changed, removed, other, routes, "kernel state updated");
    }

    /// Another program keeps undoing flanneld's repairs.
    pub(super) fn has_conflict(&self) -> bool {
        self.progress.state.lock().repaired.has_conflict(Instant::now(), REPAIR_INTERVAL)
    }

    fn repairs(&mut self, ops: &[&Op]) {
        let now = Instant::now();
        let keys = ops.iter().map(|op| op.key());
        let conflicts = {
            let mut progress = self.progress.state.lock();
            progress.repairs += ops.len() as u64;
            for key in keys.clone() {
                *progress.repairs_by_kind.entry(key.label()).or_default() += 1;
            }
            progress.repaired.note(keys, now)
        };
        for key in conflicts {
            tracing::warn!(
                object = %key,
                count = CONFLICT,
                seconds = CONFLICT_GAP.as_secs(),
                remedy = "stop the other program from managing the object",
                "another program keeps changing an object that flanneld repairs"
            );
        }
        self.unlogged += ops.len();
        // The first repair is logged at once, further ones every ten seconds.
        if self.repair_logged.is_none_or(|last| now.duration_since(last) >= REPAIR_INTERVAL) {
            tracing::warn!(
                objects = %summarize_pass(ops, self.unlogged),
                "repaired changes made by another program"
            );
            self.repair_logged = Some(now);
            self.unlogged = 0;
        }
    }

    /// `held` tells whether the loop delays deletions.
    pub(super) fn state(&mut self, failures: &Failures, held: bool) {
        let errors = &failures.node;
        self.set_problem(unfinished_work(held, errors), errors.is_empty());
        self.peers(&failures.peers);
    }

    /// Logs each failure once, because it lasts until an operator acts.
    fn peers(&mut self, failed: &[FailedPeer]) {
        let last = std::mem::replace(&mut self.progress.state.lock().failed_peers, failed.to_vec());
        let new: Vec<&FailedPeer> = failed.iter().filter(|failed| !last.contains(failed)).collect();
        for FailedPeer { peer, why } in new.iter().take(LOGGED_PEERS) {
            let node = peer.node.as_deref().unwrap_or_default();
            tracing::warn!(
                code = why.code(),
                peer = node,
                subnet = %peer.subnet,
                address = %peer.address,
                error = %why,
                "cannot program a peer"
            );
        }
        if new.len() > LOGGED_PEERS {
            tracing::warn!(
                count = new.len() - LOGGED_PEERS,
                "cannot program further peers; /status lists them"
            );
        }
        if failed.is_empty() && !last.is_empty() {
            tracing::info!("all peers are programmed again");
        }
    }

    pub(super) fn unreadable(&mut self, error: &KernelError) {
        self.progress.state.lock().failures += 1;
        self.set_problem(Some(Problem::of(error)), false);
    }

    fn set_problem(&mut self, trouble: Option<Problem>, in_sync: bool) {
        match &trouble {
            None => {
                if self.logged.take().is_some() {
                    tracing::info!("the kernel is in sync again");
                }
            }
            Some(trouble)
                if self.logged.as_ref().is_none_or(|(last, at)| {
                    last != trouble || at.elapsed() >= REPEAT_INTERVAL
                }) =>
            {
                tracing::warn!(code = %trouble.code, error = %trouble, "the kernel is not in sync");
                self.logged = Some((trouble.clone(), Instant::now()));
            }
            Some(_) => {}
        }
        let mut progress = self.progress.state.lock();
        (progress.in_sync, progress.trouble) = (in_sync, trouble);
    }
}

/// What a pass left undone. `held` tells whether the loop delays deletions.
fn unfinished_work(held: bool, errors: &[OpError]) -> Option<Problem> {
    let code = if errors.is_empty() { "deletions-held" } else { "kernel-not-in-sync" };
    let named = errors.iter().take(NAMED);
    let held = held.then(|| "flanneld keeps many routes without a lease for a minute".to_owned());
    let more = errors.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!("and {more} more"));
    let texts: Vec<String> =
        held.into_iter().chain(named.clone().map(ToString::to_string)).chain(more).collect();
    let parts = named.map(Problem::of).collect();
    let problem =
        Problem { code: code.into(), text: texts.join("; "), detail: Detail::None, parts };
    (!texts.is_empty()).then_some(problem)
}

/// The number of operations and the first object, for each verb and kind of object.
fn summarize_pass(ops: &[&Op], total: usize) -> String {
    let mut kinds: BTreeMap<(&str, &str), (usize, &Key)> = BTreeMap::new();
    for op in ops {
        kinds.entry((op.key().kind(), op.verb())).or_insert((0, op.key())).0 += 1;
    }
    let parts: Vec<String> = kinds
        .iter()
        .map(|((kind, verb), (count, first))| format!("{verb} {count} {kind} ({first})"))
        .collect();
    format!("{} ({total} in all)", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstate::{FailureKind, LinkName};
    use types::problem::PortPurpose;

    fn error(name: &str, why: Problem) -> OpError {
        OpError {
            verb: "add",
            key: Key::Link(LinkName::parse(name).unwrap()),
            kind: FailureKind::Unsupported,
            why,
        }
    }

    #[test]
    fn unfinished_pass_names_the_first_refusals_with_what_others_act_on() {
        let module = Detail::ModuleMissing { name: "vxlan".to_owned() };
        let taken = Detail::PortTaken { number: 8472, udp: true, purpose: PortPurpose::Tunnel };
        let mut errors = vec![
            error("flannel.1", Problem::new("module-missing", "words").with(module.clone())),
            error("flannel.1", Problem::new("tunnel-port-taken", "words").with(taken.clone())),
        ];
        assert!(unfinished_work(false, &[]).is_none());
        let held = unfinished_work(true, &[]).unwrap();
        assert_eq!((held.code.as_ref(), held.parts.len()), ("deletions-held", 0));
        let problem = unfinished_work(true, &errors).unwrap();
        let details: Vec<Detail> = problem.details().cloned().collect();
        assert_eq!(details, [module, taken]);
        assert!(
            problem.has("module-missing")
                && problem.has("tunnel-port-taken")
                && problem.has("kernel-not-in-sync")
        );
        errors.extend(
            ["a", "b", "c"].map(|name| error(name, Problem::new("kernel-refused", "words"))),
        );
        let problem = unfinished_work(true, &errors).unwrap();
        assert_eq!(problem.parts.len(), NAMED);
    }
}
