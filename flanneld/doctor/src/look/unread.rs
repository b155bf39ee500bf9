//! Errors of reads from this host.

use netstate::kernel::KernelError;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use types::problem::{Coded, text};

/// Error of a read from this host.
#[derive(Debug)]
pub(super) enum Unread {
    /// A file is unreadable.
    File(PathBuf, io::Error),
    /// A folder is unreadable.
    Folder(PathBuf, io::Error),
    /// The kernel provides no netlink socket.
    Netlink(KernelError),
    /// The kernel does not list the interfaces.
    Interfaces(KernelError),
    /// The kernel does not list the routes.
    Routes(KernelError),
    /// The kernel does not list the policy routing rules.
    PolicyRules(KernelError),
    /// The kernel does not list the neighbours.
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
        text(f, self, |f| match self {
            Unread::File(path, error) => write!(f, "{}: {error}", path.display()),
            Unread::Folder(path, error) => write!(f, "{} cannot be read: {error}", path.display()),
            Unread::Netlink(error) => write!(f, "no netlink socket: {error}"),
            Unread::Interfaces(error) => {
                write!(f, "the interfaces cannot be read (netlink): {error}")
            }
            Unread::Routes(error) => write!(f, "the routes cannot be read (netlink): {error}"),
            Unread::PolicyRules(error) => {
                write!(
                    f,
                    "the policy routing rules cannot be read (netlink): {error}"
                )
            }
            Unread::Neighbours(error) => {
                write!(f, "the neighbours cannot be read (netlink): {error}")
            }
        })
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
