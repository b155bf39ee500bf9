//! Why the daemon ends, and with which exit code.

/// Why the daemon ends without having been asked to.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// Waiting does not mend it.
    #[error("{0}")]
    Failed(String),
    /// The lease is another's: a supervisor starts us anew.
    #[error("{0}")]
    LeaseLost(String),
}

impl End {
    /// Waiting does not mend it.
    pub fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            End::Failed(_) => 1,
            End::LeaseLost(_) => 5,
        }
    }
}
