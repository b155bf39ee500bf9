//! Open files that outlive the process. A store (systemd's file descriptor store) passes the queues
//! and sockets of a device to the next process. The device and the packets that wait in them
//! survive a restart of flanneld.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The files have names.
pub trait Store: Send + Sync {
    /// The files that a previous process stored. Later calls for the same name give none.
    fn take(&self, name: &str) -> Vec<OwnedFd>;

    /// Adds to the files stored under this name.
    fn keep(&self, name: &str, file: BorrowedFd<'_>);

    fn forget(&self, name: &str);
}

/// Does nothing without a store.
#[derive(Clone, Default)]
pub struct Files(Option<Arc<dyn Store>>);

impl Files {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(Some(store))
    }

    /// The files that a previous process stored.
    pub fn take(&self, name: &str) -> Vec<OwnedFd> {
        self.0.as_ref().map(|store| store.take(name)).unwrap_or_default()
    }

    /// Replaces all files stored under the name.
    pub fn keep<'a>(&self, name: &str, files: impl Iterator<Item = BorrowedFd<'a>>) {
        let Some(store) = &self.0 else { return };
        store.forget(name);
        files.for_each(|file| store.keep(name, file));
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Files" } else { "no Files" })
    }
}
