//! Errors of the directory store. Errors of the system about the directory's files are classified by errno.

use super::worker::{TIMEOUT, WorkerError};
use nix::errno::Errno;
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::Path;
use thiserror::Error;
use types::problem::StoreCause;
use types::{Detail, Problem};

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum FileError {
    #[error("the path is a symbolic link")]
    Link,
    #[error("the path is not a regular file")]
    NotRegular,
    /// `errno` is `None` for errors that the standard library or this crate created.
    #[error("{words}")]
    System { errno: Option<i32>, words: String },
}

impl From<&std::io::Error> for FileError {
    fn from(error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(code) if code == Errno::ELOOP as i32 => Self::Link,
            None if error.kind() == ErrorKind::InvalidInput => Self::NotRegular,
            errno => Self::System { errno, words: error.to_string() },
        }
    }
}

impl From<Errno> for FileError {
    fn from(error: Errno) -> Self {
        Self::System { errno: Some(error as i32), words: error.to_string() }
    }
}

impl FileError {
    /// Goes through `io::Error`, which recognises symbolic links.
    pub(super) fn of(error: Errno) -> Self {
        Self::from(&std::io::Error::from(error))
    }

    fn cause(&self) -> StoreCause {
        match self {
            Self::System { errno: Some(code), .. }
                if *code == Errno::EACCES as i32 || *code == Errno::EPERM as i32 =>
            {
                StoreCause::Role
            }
            _ => StoreCause::Other,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DirError {
    /// The whole directory is unavailable, and not only one operation affected.
    Unavailable(Problem),
    Failed(Problem),
}

impl DirError {
    pub(super) fn unavailable(code: &'static str, text: impl Into<String>) -> Self {
        Self::Unavailable(store_problem(code, text, StoreCause::Other))
    }

    /// `what` failed because of `why`.
    pub(super) fn unreadable(
        code: &'static str,
        what: impl Display,
        why: impl Into<FileError>,
    ) -> Self {
        let why = why.into();
        Self::Unavailable(store_problem(code, format!("{what}: {why}"), why.cause()))
    }

    pub(super) fn failed(code: &'static str, text: impl Into<String>) -> Self {
        Self::Failed(store_problem(code, text, StoreCause::Other))
    }

    /// `act` is a verb.
    pub(super) fn of_file(act: &str, path: &Path, why: impl Into<FileError>) -> Self {
        let why = why.into();
        let text = format!("cannot {act} {}: {why}", path.display());
        Self::Failed(store_problem("directory-file", text, why.cause()))
    }

    pub(super) fn silent(silence: &WorkerError, root: &Path) -> Self {
        let text = format!(
            "the directory of leases {} does not respond within {TIMEOUT:?}: its file system hangs",
            root.display()
        );
        match silence {
            WorkerError::Late => {
                Self::Unavailable(store_problem("directory-hangs", text, StoreCause::Silent))
            }
            silence => Self::unavailable("directory-no-thread", silence.to_string()),
        }
    }
}

fn store_problem(code: &'static str, text: impl Into<String>, cause: StoreCause) -> Problem {
    Problem::new(code, text).with(Detail::Store { cause, status: None, server: None })
}
