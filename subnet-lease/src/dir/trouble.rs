//! Errors of operations on the directory.

use nix::errno::Errno;
use std::path::Path;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The directory is away: its contents are unknown.
    Away(String),
    /// Only this operation failed.
    Failed(String),
}

impl Trouble {
    /// What, on which file.
    pub fn failed(what: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::Failed(format!("cannot {what} {}: {}", path.display(), words(error)))
    }
}

/// An error in words.
pub fn words(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(code) if code == Errno::ELOOP as i32 => "it is a symbolic link".to_owned(),
        _ => error.to_string(),
    }
}
