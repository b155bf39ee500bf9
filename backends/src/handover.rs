//! Files that outlive the process. A store (systemd's file descriptor store) passes a device's open files to
//! the next process. The device and its packets thus survive a restart.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Stores open files by name.
pub trait Store: Send + Sync {
    /// Takes the files that a previous process stored under this name. Later calls return no files.
    fn take(&self, name: &str) -> Vec<OwnedFd>;

    /// Stores one more file under this name.
    fn keep(&self, name: &str, file: BorrowedFd<'_>);

    /// Removes all files under this name.
    fn forget(&self, name: &str);
}

/// The store of this process, if any.
#[derive(Clone, Default)]
pub struct Files(Option<Arc<dyn Store>>);

impl Files {
    /// Creates a handle of this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(Some(store))
    }

    /// Takes the files of a previous process.
    pub fn take(&self, name: &str) -> Vec<OwnedFd> {
        self.0
            .as_ref()
            .map(|store| store.take(name))
            .unwrap_or_default()
    }

    /// Replaces the files under the name by exactly these files.
    pub fn keep<'a>(&self, name: &str, files: impl Iterator<Item = BorrowedFd<'a>>) {
        let Some(store) = &self.0 else { return };
        store.forget(name);
        files.for_each(|file| store.keep(name, file));
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Files"
        } else {
            "no Files"
        })
    }
}
