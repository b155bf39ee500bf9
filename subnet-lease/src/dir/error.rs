//! Errors of the directory store. Errors of the system about the directory's files are classified by errno.

use super::worker::{TIMEOUT, WorkerError};
use crate::config::ConfigError;
use crate::reason::Lasting;
use nix::errno::Errno;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use types::problem::{ConfigPlace, StoreCause};
use types::{Coded, Detail};

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

    fn is_denied(&self) -> bool {
        matches!(self, Self::System { errno: Some(code), .. } if *code == Errno::EACCES as i32 || *code == Errno::EPERM as i32)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[error("cannot read the file of the lease: {0}")]
#[code("lease-file-unreadable")]
pub(super) struct LeaseFileError(pub FileError);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Creates the directory of the leases.
    Make,
    /// Opens the lock.
    Open,
    Touch,
    Write,
    Delete,
}

impl Act {
    fn as_str(self) -> &'static str {
        match self {
            Act::Make => "create the directory",
            Act::Open => "open",
            Act::Touch => "touch",
            Act::Write => "write",
            Act::Delete => "delete",
        }
    }
}

/// A path is the store's directory, or the file or directory that the text names.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[detail(Detail::Store { cause: self.cause(), status: None, server: None })]
pub(super) enum DirError {
    #[error(
        "the directory of leases {0} does not exist; mount the directory, or move the directory back"
    )]
    #[code("directory-missing")]
    Missing(PathBuf),
    #[error("the directory of leases {0} cannot be opened: {1}")]
    #[code("directory-not-opened")]
    Closed(PathBuf, FileError),
    /// Another directory is at the path.
    #[error(
        "the directory of leases {0} is not the directory that flanneld found at its start; restore the former directory, or restart flanneld to use this directory"
    )]
    #[code("directory-replaced")]
    Replaced(PathBuf),
    #[error(
        "the directory of leases {0} is missing, and a directory without a config is in its place; mount the missing directory, or move it back"
    )]
    #[code("directory-unmounted")]
    Unmounted(PathBuf),
    #[error(
        "the directory of leases {0} has a config that is not a regular file; put the file back"
    )]
    #[code("directory-config-not-regular")]
    ConfigNotRegular(PathBuf),
    #[error("the directory of leases {0} no longer has a config; put the config back")]
    #[code("directory-config-gone")]
    ConfigGone(PathBuf),
    #[error("the directory of leases {0} cannot be read: config: {1}")]
    #[code("directory-unreadable")]
    ConfigUnknown(PathBuf, FileError),
    #[error("the directory of leases {0} cannot be read: {1}")]
    #[code("directory-unreadable")]
    Unreadable(PathBuf, FileError),
    #[error("cannot open the directory {0}: {1}")]
    #[code("directory-subnets-not-opened")]
    SubnetsClosed(PathBuf, FileError),
    #[error("cannot read the directory {0}: {1}")]
    #[code("directory-subnets-unlisted")]
    SubnetsUnlisted(PathBuf, FileError),
    #[error(
        "the directory of leases {0} does not respond within {TIMEOUT:?}: its file system hangs"
    )]
    #[code("directory-hangs")]
    Hangs(PathBuf),
    #[error(transparent)]
    #[code("directory-no-thread")]
    NoThread(WorkerError),
    #[error("the network configuration {0} does not exist; create the file, e.g. with {EXAMPLE}")]
    #[code("config-missing")]
    #[detail(Detail::ConfigMissing { place: ConfigPlace::File(_0.clone()), example: EXAMPLE.to_owned() })]
    NoConfig(PathBuf),
    #[error("cannot read the network configuration {0}: {1}")]
    #[code("config-unreadable")]
    #[detail(Detail::ConfigInvalid { place: Some(ConfigPlace::File(_0.clone())) })]
    ConfigUnread(PathBuf, FileError),
    #[error("{0}: {1}")]
    #[code(_1.code())]
    #[detail(Detail::ConfigInvalid { place: Some(ConfigPlace::File(_0.clone())) })]
    Config(PathBuf, ConfigError),
    #[error("another process has held the lock {0} for {1:?}; find the process with `fuser {0}`")]
    #[code("directory-locked")]
    Locked(PathBuf, Duration),
    /// After this node listed the leases.
    #[error(
        "another node wrote a lease with this node's address at the same time: flanneld lists the leases again"
    )]
    #[code("directory-overtaken")]
    Overtaken,
    #[error("cannot {act} {1}: {2}", act = .0.as_str())]
    #[code("directory-file")]
    File(Act, PathBuf, FileError),
}

impl DirError {
    pub(super) fn failed(act: Act, path: &Path, error: &std::io::Error) -> Self {
        Self::File(act, path.to_owned(), error.into())
    }

    pub(super) fn silent(silence: WorkerError, root: &Path) -> Self {
        match silence {
            WorkerError::Late => Self::Hangs(root.to_owned()),
            silence => Self::NoThread(silence),
        }
    }

    /// The whole directory is unavailable, and not only one operation affected.
    pub(super) fn is_unavailable(&self) -> bool {
        !matches!(
            self,
            Self::NoConfig(_)
                | Self::ConfigUnread(..)
                | Self::Config(..)
                | Self::Locked(..)
                | Self::Overtaken
                | Self::File(..)
        )
    }
}

impl DirError {
    fn cause(&self) -> StoreCause {
        match self {
            Self::Hangs(_) => StoreCause::Silent,
            Self::Closed(_, fault)
            | Self::ConfigUnknown(_, fault)
            | Self::Unreadable(_, fault)
            | Self::SubnetsClosed(_, fault)
            | Self::SubnetsUnlisted(_, fault)
            | Self::File(_, _, fault)
                if fault.is_denied() =>
            {
                StoreCause::Role
            }
            _ => StoreCause::Other,
        }
    }
}

const EXAMPLE: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;

impl Lasting for DirError {}
