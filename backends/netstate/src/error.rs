//! Failed requests to the kernel.

use crate::object::{Key, Op};
use std::borrow::Cow;
use thiserror::Error;
use types::{Coded, Errno, Problem};

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

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[error("{what}: {why}")]
#[code(static_code(why))]
#[detail(why.detail.clone())]
pub struct KernelError {
    /// The request, as an infinitive with its object.
    pub what: String,
    pub why: Problem,
}

impl KernelError {
    pub fn new(what: impl Into<String>, why: Problem) -> Self {
        Self { what: what.into(), why }
    }
}

impl From<OpError> for KernelError {
    fn from(error: OpError) -> Self {
        Self::new(format!("cannot {} {}", error.verb, error.key), error.why)
    }
}

fn static_code(problem: &Problem) -> &'static str {
    match problem.code {
        Cow::Borrowed(code) => code,
        // Only a problem of another process has such a code.
        Cow::Owned(_) => "userspace-device-failed",
    }
}

pub(crate) fn kernel_refusal(errno: impl Into<Errno>) -> Problem {
    Problem::new("kernel-refused", errno.into().to_string())
}

pub(crate) fn kernel_silence() -> Problem {
    Problem::new("kernel-silent", "the kernel does not respond")
}

pub(crate) fn vanished_interface() -> Problem {
    Problem::new("interface-missing", "the interface no longer exists")
}
