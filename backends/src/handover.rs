//! Open files that outlive the process. A store (systemd's file descriptor store) passes the queues and sockets of a device to
//! the next process. The device and the packets that wait in its queues and sockets survive a restart of flanneld.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Stores open files by name.
pub trait Store: Send + Sync {
    /// Returns the files that a previous process stored under this name. Later calls for the same name return no files.
    fn take(&self, name: &str) -> Vec<OwnedFd>;

    /// Adds an open file to the files stored under this name.
    fn keep(&self, name: &str, file: BorrowedFd<'_>);

    /// Removes all files under this name.
    fn forget(&self, name: &str);
}

/// The file store of this process, if any.
#[derive(Clone, Default)]
pub struct Files(Option<Arc<dyn Store>>);

impl Files {
    /// Creates a handle of this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(Some(store))
    }

    /// Returns the files that a previous process stored under the name.
    pub fn take(&self, name: &str) -> Vec<OwnedFd> {
        self.0.as_ref().map(|store| store.take(name)).unwrap_or_default()
    }

    /// Replaces all files stored under the name with the given files.
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
