//! Errors of reading this host's files and kernel state.

use netstate::kernel::KernelError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;
use types::Coded;

#[derive(Debug, Error, Coded)]
pub(super) enum ReadError {
    #[error("{}: {}", .0.display(), .1)]
    #[code("file-unreadable")]
    File(PathBuf, #[source] io::Error),
    #[error("{} cannot be read: {}", .0.display(), .1)]
    #[code("folder-unreadable")]
    Folder(PathBuf, #[source] io::Error),
    #[error("no netlink socket: {0}")]
    #[code("netlink-unavailable")]
    Netlink(#[source] KernelError),
    #[error("cannot read the interfaces (netlink): {0}")]
    #[code("interfaces-unreadable")]
    Interfaces(#[source] KernelError),
    #[error("cannot read the routes (netlink): {0}")]
    #[code("routes-unreadable")]
    Routes(#[source] KernelError),
    #[error("cannot read the policy routing rules (netlink): {0}")]
    #[code("policy-rules-unreadable")]
    PolicyRules(#[source] KernelError),
    #[error("cannot read the neighbours (netlink): {0}")]
    #[code("neighbours-unreadable")]
    Neighbours(#[source] KernelError),
}
