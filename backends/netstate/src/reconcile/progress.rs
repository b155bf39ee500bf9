//! The progress of the reconciler: written by its loop, read by others.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The progress of the reconciler.
#[derive(Debug, Default)]
pub struct Progress {
    pub(super) passes: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) repairs: AtomicU64,
    pub(super) in_step: AtomicBool,
    pub(super) trouble: Mutex<String>,
}

/// The progress of the reconciler at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Completed passes.
    pub passes: u64,
    /// Successful operations.
    pub writes: u64,
    /// Failed operations.
    pub failures: u64,
    /// Operations that reverted a change of another program.
    pub repairs: u64,
    /// Whether the kernel is in the desired state.
    pub in_step: bool,
    /// The current problem, in words. Empty while the kernel is in sync.
    pub trouble: String,
}

impl Progress {
    /// The current progress.
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
