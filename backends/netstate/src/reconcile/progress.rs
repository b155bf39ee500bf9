//! How the reconciler stands: written by its loop, read by whoever wants to know.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// How the reconciler stands.
#[derive(Debug, Default)]
pub struct Progress {
    pub(super) passes: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) repairs: AtomicU64,
    pub(super) in_step: AtomicBool,
    pub(super) trouble: Mutex<String>,
}

/// How the reconciler stood when it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Passes made.
    pub passes: u64,
    /// Operations that changed the kernel.
    pub writes: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Operations that undid somebody else's change.
    pub repairs: u64,
    /// Whether the kernel is as wanted.
    pub in_step: bool,
    /// What is wrong at present, for people; empty while in step.
    pub trouble: String,
}

impl Progress {
    /// How it stands now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            passes: self.passes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            failures: self.failures.load(Relaxed),
            repairs: self.repairs.load(Relaxed),
            in_step: self.in_step.load(Relaxed),
            trouble: self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
