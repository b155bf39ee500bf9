//! Reasons for which the daemon ends, with their exit codes.

use types::{Detail, Problem};

/// Reason for which the daemon or its network ends without a stop request.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// A failure that waiting does not resolve.
    #[error("{0}")]
    Failed(Box<Problem>),
    /// Loss of the lease to another node. A supervisor restarts the daemon.
    #[error("{0}")]
    LeaseLost(Box<Problem>),
    /// A restart of the network inside this process.
    #[error("{0}")]
    StartOver(Box<Problem>),
    /// A restart of the network inside this process, without this node's previous subnet.
    #[error("{0}")]
    Moved(Box<Problem>),
}

impl End {
    /// Creates an [`End`] for a failure that waiting does not resolve.
    pub(super) fn failed(problem: impl Into<Problem>) -> Self {
        Self::Failed(Box::new(problem.into()))
    }

    /// Creates an [`End`] for a network that did not come up. Only a taken port is worth another start.
    pub(super) fn not_joined(problem: impl Into<Problem>) -> Self {
        let problem = problem.into();
        match taken_port(&problem) {
            Some(_) => Self::start_over(problem),
            None => Self::failed(problem),
        }
    }

    /// Creates an [`End`] that makes the daemon restart the network.
    pub(super) fn start_over(problem: impl Into<Problem>) -> Self {
        Self::StartOver(Box::new(problem.into()))
    }

    /// Creates an [`End`] that makes the daemon restart the network without this node's previous subnet.
    pub(super) fn moved(problem: impl Into<Problem>) -> Self {
        Self::Moved(Box::new(problem.into()))
    }

    pub(super) fn problem(&self) -> &Problem {
        match self {
            End::Failed(problem)
            | End::LeaseLost(problem)
            | End::StartOver(problem)
            | End::Moved(problem) => problem,
        }
    }

    pub(super) fn code(&self) -> u8 {
        match self {
            End::Failed(_) | End::StartOver(_) | End::Moved(_) => 1,
            End::LeaseLost(_) => 5,
        }
    }
}

/// Returns the port that a problem reports as taken.
pub(super) fn taken_port(problem: &Problem) -> Option<u16> {
    problem.details().find_map(|detail| match detail {
        Detail::PortTaken { number, .. } => Some(*number),
        _ => None,
    })
}
