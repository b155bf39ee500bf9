//! What the loop tells people: counters, the present trouble, and log lines of which no fault can make a flood.

use super::progress::Progress;
use crate::kernel::{KernelError, OpError};
use crate::object::{Key, Op};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::Instant;

/// How often the same trouble is logged.
const AGAIN: Duration = Duration::from_secs(60);
/// How many repairs of one object within a minute are a fight.
const FIGHT: u32 = 5;
/// How many objects are looked at for fights: a fight over more shows in those, too.
const WATCHED: usize = 64;

/// The loop's voice.
#[derive(Default)]
pub struct Report {
    progress: Arc<Progress>,
    said: Option<(String, Instant)>,
    repaired: BTreeMap<Key, (u32, Instant)>,
    repair_said: Option<Instant>,
    unsaid: usize,
}

impl Report {
    /// How the loop stands, shared.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// A pass begins.
    pub fn pass(&self) {
        self.progress.passes.fetch_add(1, Relaxed);
    }

    /// Operations were applied.
    pub fn applied(&mut self, ops: &[Op], errors: &[OpError], repair: bool, routes: impl FnOnce() -> usize) {
        let done = ops.len().saturating_sub(errors.len());
        self.progress.writes.fetch_add(done as u64, Relaxed);
        self.progress.failures.fetch_add(errors.len() as u64, Relaxed);
        if done == 0 {
            return;
        }
        if repair {
            self.progress.repairs.fetch_add(done as u64, Relaxed);
            self.repairs(ops, done);
            return;
        }
        let failed: BTreeSet<&Key> = errors.iter().map(|error| &error.key).collect();
        let (mut added, mut changed, mut removed, mut other) = (0, 0, 0, 0);
        for op in ops.iter().filter(|op| !failed.contains(op.key())) {
            match op {
                Op::Add(Key::Route(..), _) => added += 1,
                Op::Replace(Key::Route(..), _) => changed += 1,
                Op::Delete(Key::Route(..), _) => removed += 1,
                _ => other += 1,
            }
        }
        tracing::info!(added, changed, removed, other, "{} routes to peers; the kernel was brought in step", routes());
    }

    /// Whether somebody undoes what we repair, again and again.
    pub fn fighting(&self) -> bool {
        self.repaired.values().any(|(times, last)| *times >= FIGHT && last.elapsed() < AGAIN / 6)
    }

    fn repairs(&mut self, ops: &[Op], done: usize) {
        let now = Instant::now();
        self.repaired.retain(|_, (_, last)| now.duration_since(*last) < AGAIN);
        for op in ops.iter().take(WATCHED) {
            if self.repaired.len() >= WATCHED && !self.repaired.contains_key(op.key()) {
                continue;
            }
            let (times, last) = self.repaired.entry(*op.key()).or_insert((0, now));
            (*times, *last) = (*times + 1, now);
            if *times == FIGHT {
                tracing::warn!("somebody keeps undoing it: {} had to be repaired {FIGHT} times within a minute; who else manages it?", op.key());
            }
        }
        self.unsaid += done;
        // The first repair is told at once, a series every ten seconds.
        if self.repair_said.is_none_or(|last| now.duration_since(last) >= AGAIN / 6) {
            tracing::warn!("repaired what somebody else changed: {}", summary(ops, self.unsaid));
            self.repair_said = Some(now);
            self.unsaid = 0;
        }
    }

    /// The state after a pass.
    pub fn state(&mut self, errors: &[OpError], held: bool) {
        let mut trouble = String::new();
        if held {
            trouble.push_str("many routes have no lease any more and are kept for a minute; ");
        }
        for error in errors.iter().take(3) {
            let _ = write!(trouble, "{error}; ");
        }
        if errors.len() > 3 {
            let _ = write!(trouble, "and {} more; ", errors.len() - 3);
        }
        self.tell(trouble.trim_end_matches("; ").to_owned(), errors.is_empty());
    }

    /// The kernel could not be read.
    pub fn unreadable(&mut self, error: &KernelError) {
        self.progress.failures.fetch_add(1, Relaxed);
        self.tell(error.to_string(), false);
    }

    fn tell(&mut self, trouble: String, in_step: bool) {
        self.progress.in_step.store(in_step, Relaxed);
        if trouble.is_empty() {
            if self.said.take().is_some() {
                tracing::info!("the kernel is in step again");
            }
        } else if self.said.as_ref().is_none_or(|(last, at)| *last != trouble || at.elapsed() >= AGAIN) {
            tracing::warn!("not as it should be: {trouble}");
            self.said = Some((trouble.clone(), Instant::now()));
        }
        *self.progress.trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = trouble;
    }
}

/// The operations in words: how many of each kind, and the first of them.
fn summary(ops: &[Op], total: usize) -> String {
    let mut kinds: BTreeMap<(&str, &str), (usize, &Key)> = BTreeMap::new();
    for op in ops {
        kinds.entry((op.key().kind(), op.verb())).or_insert((0, op.key())).0 += 1;
    }
    let parts: Vec<String> = kinds.iter().map(|((kind, verb), (count, first))| format!("{verb} {count} {kind} ({first})")).collect();
    format!("{} ({total} in all)", parts.join(", "))
}
