//! Reasons for which the daemon ends, with their exit codes.

use types::{Detail, Problem};

/// Why the daemon or its network ends without a stop request.
#[derive(Debug, thiserror::Error)]
pub(super) enum EndError {
    /// Waiting does not resolve the failure.
    #[error("{0}")]
    Failed(Box<Problem>),
    /// Another node has the lease. A supervisor restarts the daemon.
    #[error("{0}")]
    LeaseLost(Box<Problem>),
    /// The network restarts inside this process.
    #[error("{0}")]
    StartOver(Box<Problem>),
    /// The network restarts inside this process, without this node's previous subnet.
    #[error("{0}")]
    Moved(Box<Problem>),
}

impl EndError {
    pub(super) fn failed(problem: impl Into<Problem>) -> Self {
        Self::Failed(Box::new(problem.into()))
    }

    /// For a network that did not come up. Only a taken port is worth another start.
    pub(super) fn not_joined(problem: impl Into<Problem>) -> Self {
        let problem = problem.into();
        match taken_port(&problem) {
            Some(_) => Self::start_over(problem),
            None => Self::failed(problem),
        }
    }

    pub(super) fn start_over(problem: impl Into<Problem>) -> Self {
        Self::StartOver(Box::new(problem.into()))
    }

    pub(super) fn moved(problem: impl Into<Problem>) -> Self {
        Self::Moved(Box::new(problem.into()))
    }

    pub(super) fn problem(&self) -> &Problem {
        match self {
            EndError::Failed(problem)
            | EndError::LeaseLost(problem)
            | EndError::StartOver(problem)
            | EndError::Moved(problem) => problem,
        }
    }

    pub(super) fn code(&self) -> u8 {
        match self {
            EndError::Failed(_) | EndError::StartOver(_) | EndError::Moved(_) => 1,
            EndError::LeaseLost(_) => 5,
        }
    }
}

/// The port that a problem reports as taken.
pub(super) fn taken_port(problem: &Problem) -> Option<u16> {
    problem.details().find_map(|detail| match detail {
        Detail::PortTaken { number, .. } => Some(*number),
        _ => None,
    })
}
