//! Errors that occur when the doctor reads this host's files and kernel state.

use netstate::kernel::KernelError;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use types::problem::Coded;

/// Error that occurs when the doctor reads a file, a folder or the kernel state of this host.
#[derive(Debug)]
pub(super) enum Unread {
    /// A file is unreadable.
    File(PathBuf, io::Error),
    /// A folder is unreadable.
    Folder(PathBuf, io::Error),
    /// Failure to open a netlink socket.
    Netlink(KernelError),
    /// Failure to list the network interfaces over netlink.
    Interfaces(KernelError),
    /// Failure to list the routes over netlink.
    Routes(KernelError),
    /// Failure to list the policy routing rules over netlink.
    PolicyRules(KernelError),
    /// Failure to list the neighbour entries over netlink.
    Neighbours(KernelError),
}

impl Coded for Unread {
    fn code(&self) -> &'static str {
        match self {
            Unread::File(..) => "file-unreadable",
            Unread::Folder(..) => "folder-unreadable",
            Unread::Netlink(_) => "netlink-unavailable",
            Unread::Interfaces(_) => "interfaces-unreadable",
            Unread::Routes(_) => "routes-unreadable",
            Unread::PolicyRules(_) => "policy-rules-unreadable",
            Unread::Neighbours(_) => "neighbours-unreadable",
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::File(path, error) => write!(f, "{}: {error}", path.display()),
            Unread::Folder(path, error) => write!(f, "{} cannot be read: {error}", path.display()),
            Unread::Netlink(error) => write!(f, "no netlink socket: {error}"),
            Unread::Interfaces(error) => {
                write!(f, "cannot read the interfaces (netlink): {error}")
            }
            Unread::Routes(error) => write!(f, "cannot read the routes (netlink): {error}"),
            Unread::PolicyRules(error) => {
                write!(f, "cannot read the policy routing rules (netlink): {error}")
            }
            Unread::Neighbours(error) => {
                write!(f, "cannot read the neighbours (netlink): {error}")
            }
        }
    }
}

impl Error for Unread {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Unread::File(_, error) | Unread::Folder(_, error) => Some(error),
            Unread::Netlink(error)
            | Unread::Interfaces(error)
            | Unread::Routes(error)
            | Unread::PolicyRules(error)
            | Unread::Neighbours(error) => Some(error),
        }
    }
}
