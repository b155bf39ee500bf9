//! Why something in the directory was not done.

use nix::errno::Errno;
use std::path::Path;

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The directory is away: nothing is known of what is in it.
    Away(String),
    /// This alone did not work.
    Failed(String),
}

impl Trouble {
    /// What, on which file.
    pub fn failed(what: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::Failed(format!("cannot {what} {}: {}", path.display(), words(error)))
    }
}

/// An error as people read it.
pub fn words(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(code) if code == Errno::ELOOP as i32 => "it is a symbolic link".to_owned(),
        _ => error.to_string(),
    }
}
