//! Failed requests to the kernel.

use std::borrow::Cow;
use thiserror::Error;
use types::{Coded, Errno, Problem};

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

pub fn kernel_refusal(errno: impl Into<Errno>) -> Problem {
    Problem::new("kernel-refused", errno.into().to_string())
}

#[must_use]
pub fn kernel_silence() -> Problem {
    Problem::new("kernel-silent", "the kernel does not respond")
}

/// The code of a problem that this process reports.
#[must_use]
pub fn static_code(problem: &Problem) -> &'static str {
    match problem.code {
        Cow::Borrowed(code) => code,
        // Only a problem of another process has such a code.
        Cow::Owned(_) => "userspace-device-failed",
    }
}
