//! Files that outlive the process: whoever keeps them (systemd's file descriptor store) gives them to the next one, and no packet
//! finds the device gone.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Keeps open files under a name.
pub trait Store: Send + Sync {
    /// What a former process left under this name; given once.
    fn take(&self, name: &str) -> Vec<OwnedFd>;

    /// Keeps one more file under this name.
    fn keep(&self, name: &str, file: BorrowedFd<'_>);

    /// Keeps none under this name any more.
    fn forget(&self, name: &str);
}

/// The store of this process, if any.
#[derive(Clone, Default)]
pub struct Files(Option<Arc<dyn Store>>);

impl Files {
    /// Somebody keeps files.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(Some(store))
    }

    /// What a former process left.
    pub fn take(&self, name: &str) -> Vec<OwnedFd> {
        self.0.as_ref().map(|store| store.take(name)).unwrap_or_default()
    }

    /// Keeps exactly these under the name.
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
