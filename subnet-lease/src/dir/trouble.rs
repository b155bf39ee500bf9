//! Errors of the directory store. This module classifies the system's errors about the directory's files by errno.

use super::worker::{Silence, TIMEOUT};
use crate::config::ConfigError;
use crate::reason::Lasting;
use nix::errno::Errno;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use types::problem::{ConfigPlace, StoreCause};
use types::{Coded, Detail};

/// Error of a system call on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileFault {
    /// File that is a symbolic link.
    Link,
    /// File that is not a regular file.
    NotRegular,
    /// Another error.
    System {
        /// The errno; `None` for errors that the standard library or this crate created.
        errno: Option<i32>,
        /// Text of the error.
        words: String,
    },
}

impl From<&std::io::Error> for FileFault {
    fn from(error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(code) if code == Errno::ELOOP as i32 => Self::Link,
            None if error.kind() == ErrorKind::InvalidInput => Self::NotRegular,
            errno => Self::System { errno, words: error.to_string() },
        }
    }
}

impl From<Errno> for FileFault {
    fn from(error: Errno) -> Self {
        Self::System { errno: Some(error as i32), words: error.to_string() }
    }
}

impl FileFault {
    /// Converts an errno through `io::Error`, which recognises symbolic links.
    pub(super) fn of(error: Errno) -> Self {
        Self::from(&std::io::Error::from(error))
    }

    fn is_denied(&self) -> bool {
        matches!(self, Self::System { errno: Some(code), .. } if *code == Errno::EACCES as i32 || *code == Errno::EPERM as i32)
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link => f.write_str("the path is a symbolic link"),
            Self::NotRegular => f.write_str("the path is not a regular file"),
            Self::System { words, .. } => f.write_str(words),
        }
    }
}

/// Error for an unreadable lease file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseFile(pub FileFault);

impl Coded for LeaseFile {
    fn code(&self) -> &'static str {
        "lease-file-unreadable"
    }
}

impl fmt::Display for LeaseFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read the file of the lease: {}", self.0)
    }
}

/// Operation on a file that an error message names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Creation of the directory of the leases.
    Make,
    /// Opening the lock.
    Open,
    /// Touching a lease.
    Touch,
    /// Writing a lease.
    Write,
    /// Deleting a lease.
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

/// Reason why an operation on the directory store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Missing directory of the store.
    Missing(PathBuf),
    /// Refusal of the system to open the store's directory.
    Closed(PathBuf, FileFault),
    /// Another directory at the path of the store's directory.
    Replaced(PathBuf),
    /// Directory without a configuration at the path of the store's directory.
    Unmounted(PathBuf),
    /// Directory whose configuration is not a regular file.
    ConfigNotRegular(PathBuf),
    /// Directory whose configuration is gone.
    ConfigGone(PathBuf),
    /// Failed check whether the directory has a configuration.
    ConfigUnknown(PathBuf, FileFault),
    /// Unreadable metadata of the store's directory.
    Unreadable(PathBuf, FileFault),
    /// Refusal of the system to open the directory of the leases.
    SubnetsClosed(PathBuf, FileFault),
    /// Refusal of the system to list the directory of the leases.
    SubnetsUnlisted(PathBuf, FileFault),
    /// Directory whose file system hangs.
    Hangs(PathBuf),
    /// Unusable thread for file access.
    NoThread(Silence),
    /// Missing network configuration.
    NoConfig(PathBuf),
    /// Unreadable network configuration.
    ConfigUnread(PathBuf, FileFault),
    /// Unusable network configuration.
    Config(PathBuf, ConfigError),
    /// Lock that another process holds.
    Locked(PathBuf, Duration),
    /// Lease with this node's address that another node wrote after this node listed the leases.
    Overtaken,
    /// Failed operation on one file.
    File(Act, PathBuf, FileFault),
}

impl Trouble {
    /// Creates the error of an operation on one file.
    pub(super) fn failed(act: Act, path: &Path, error: &std::io::Error) -> Self {
        Self::File(act, path.to_owned(), error.into())
    }

    /// Creates the error of an operation to which the worker thread did not reply.
    pub(super) fn silent(silence: Silence, root: &Path) -> Self {
        match silence {
            Silence::Late => Self::Hangs(root.to_owned()),
            silence => Self::NoThread(silence),
        }
    }

    /// Returns whether the error makes the whole directory unavailable. If the function returns false, the error affects only one operation.
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

impl Coded for Trouble {
    fn code(&self) -> &'static str {
        match self {
            Self::Missing(_) => "directory-missing",
            Self::Closed(..) => "directory-not-opened",
            Self::Replaced(_) => "directory-replaced",
            Self::Unmounted(_) => "directory-unmounted",
            Self::ConfigNotRegular(_) => "directory-config-not-regular",
            Self::ConfigGone(_) => "directory-config-gone",
            Self::ConfigUnknown(..) | Self::Unreadable(..) => "directory-unreadable",
            Self::SubnetsClosed(..) => "directory-subnets-not-opened",
            Self::SubnetsUnlisted(..) => "directory-subnets-unlisted",
            Self::Hangs(_) => "directory-hangs",
            Self::NoThread(_) => "directory-no-thread",
            Self::NoConfig(_) => "config-missing",
            Self::ConfigUnread(..) => "config-unreadable",
            Self::Config(_, error) => error.code(),
            Self::Locked(..) => "directory-locked",
            Self::Overtaken => "directory-overtaken",
            Self::File(..) => "directory-file",
        }
    }

    fn detail(&self) -> Detail {
        let place = |path: &PathBuf| ConfigPlace::File(path.clone());
        match self {
            Self::NoConfig(path) => {
                Detail::ConfigMissing { place: place(path), example: EXAMPLE.to_owned() }
            }
            Self::ConfigUnread(path, _) | Self::Config(path, _) => {
                Detail::ConfigInvalid { place: Some(place(path)) }
            }
            _ => Detail::Store { cause: self.cause(), status: None, server: None },
        }
    }
}

impl Trouble {
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

/// Example of a valid configuration, for messages.
const EXAMPLE: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// Formats an error about the store's directory.
fn of_root(f: &mut fmt::Formatter<'_>, root: &Path, what: fmt::Arguments<'_>) -> fmt::Result {
    write!(f, "the directory of leases {} {what}", root.display())
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(root) => of_root(
                f,
                root,
                format_args!("does not exist; mount the directory, or move the directory back"),
            ),
            Self::Closed(root, fault) => {
                of_root(f, root, format_args!("cannot be opened: {fault}"))
            }
            Self::Replaced(root) => of_root(
                f,
                root,
                format_args!(
                    "is not the directory that flanneld found at its start; restore the former directory, or restart flanneld to use this directory"
                ),
            ),
            Self::Unmounted(root) => of_root(
                f,
                root,
                format_args!(
                    "is missing, and a directory without a config is in its place; mount the missing directory, or move it back"
                ),
            ),
            Self::ConfigNotRegular(root) => of_root(
                f,
                root,
                format_args!("has a config that is not a regular file; put the file back"),
            ),
            Self::ConfigGone(root) => {
                of_root(f, root, format_args!("no longer has a config; put the config back"))
            }
            Self::ConfigUnknown(root, fault) => {
                of_root(f, root, format_args!("cannot be read: config: {fault}"))
            }
            Self::Unreadable(root, fault) => {
                of_root(f, root, format_args!("cannot be read: {fault}"))
            }
            Self::SubnetsClosed(path, fault) => {
                let path = path.display();
                write!(f, "cannot open the directory {path}: {fault}")
            }
            Self::SubnetsUnlisted(path, fault) => {
                write!(f, "cannot read the directory {}: {fault}", path.display())
            }
            Self::Hangs(root) => of_root(
                f,
                root,
                format_args!("does not respond within {TIMEOUT:?}: its file system hangs"),
            ),
            Self::NoThread(silence) => silence.fmt(f),
            Self::NoConfig(path) => {
                write!(
                    f,
                    "the network configuration {} does not exist; create the file, e.g. with {EXAMPLE}",
                    path.display()
                )
            }
            Self::ConfigUnread(path, fault) => write!(
                f,
                "cannot read the network configuration {}: {fault}",
                path.display()
            ),
            Self::Config(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Locked(path, patience) => {
                write!(
                    f,
                    "another process has held the lock {} for {patience:?}; find the process with `fuser {0}`",
                    path.display()
                )
            }
            Self::Overtaken => f.write_str(
                "another node wrote a lease with this node's address at the same time: flanneld lists the leases again",
            ),
            Self::File(act, path, fault) => {
                write!(f, "cannot {} {}: {fault}", act.as_str(), path.display())
            }
        }
    }
}

impl Lasting for Trouble {}
