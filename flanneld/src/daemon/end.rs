//! Why the daemon ends, and with which exit code.

/// Why the daemon ends without being stopped.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// A failure that waiting does not resolve.
    #[error("{0}")]
    Failed(String),
    /// Another node holds the lease: a supervisor restarts the daemon.
    #[error("{0}")]
    LeaseLost(String),
    /// The network has to be restarted, inside this process.
    #[error("{0}")]
    StartOver(String),
    /// The same, without the subnet that this node had.
    #[error("{0}")]
    Moved(String),
}

impl End {
    /// A failure that waiting does not resolve.
    pub fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            End::Failed(_) | End::StartOver(_) | End::Moved(_) => 1,
            End::LeaseLost(_) => 5,
        }
    }
}
