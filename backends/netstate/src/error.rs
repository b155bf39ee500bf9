//! Failed requests to the kernel.

use crate::object::{Key, Op};
pub use netlink::KernelError;
use netlink::static_code;
use thiserror::Error;
use types::{Coded, Problem};

/// How the reconciler handles a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The kernel refuses only this object: a foreign object conflicts with it, or the kernel cannot use its address.
    Conflict,
    Unsupported,
    /// The reconciler retries the operation.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[error("cannot {verb} {key}: {why}")]
#[code(static_code(why))]
#[detail(why.detail.clone())]
pub struct OpError {
    /// An infinitive.
    pub verb: &'static str,
    pub key: Key,
    pub kind: FailureKind,
    pub why: Problem,
}

impl OpError {
    pub fn new(op: &Op, kind: FailureKind, why: impl Into<Problem>) -> Self {
        Self { verb: op.verb(), key: *op.key(), kind, why: why.into() }
    }
}

impl From<OpError> for KernelError {
    fn from(error: OpError) -> Self {
        Self::new(format!("cannot {} {}", error.verb, error.key), error.why)
    }
}

pub(crate) fn vanished_interface() -> Problem {
    Problem::new("interface-missing", "the interface no longer exists")
}
