//! Tells that something changed in the directory, by inotify.

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// An inotify that tokio can wait for: nix gives it only the newer trait.
struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[allow(unsafe_code)]
fn registered(inotify: Inotify) -> Option<AsyncFd<Descriptor>> {
    // SAFETY: the descriptor is owned by the `Inotify` that moves into the `AsyncFd`, is never replaced and closes with it.
    unsafe { AsyncFd::register_with_interest(Descriptor(inotify), Interest::READABLE) }.ok()
}

/// What waits for changes.
pub struct Changes(Option<Arc<AsyncFd<Descriptor>>>);

/// What sets the watch up, on the thread that may touch files.
#[derive(Clone)]
pub struct Watch(Option<Arc<AsyncFd<Descriptor>>>);

impl Watch {
    /// Watches nothing.
    #[cfg(test)]
    pub fn none() -> Self {
        Self(None)
    }

    /// Watches an open folder from now on; watching it twice is one watch. Whether it is watched.
    pub fn follow(&self, folder: &OwnedFd) -> bool {
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_DELETE_SELF;
        let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
        self.0.as_ref().is_some_and(|inotify| inotify.get_ref().0.add_watch(path.as_str(), flags).is_ok())
    }
}

impl Changes {
    /// Where inotify is used up, nothing is told, and callers look now and then.
    pub fn new() -> Self {
        Self(Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).ok().and_then(registered).map(Arc::new))
    }

    pub fn watch(&self) -> Watch {
        Watch(self.0.clone())
    }

    /// Returns true after a change, false when the time is over.
    ///
    /// # Cancel safety
    /// A change that was told to a dropped future is not told again; callers read everything after each call.
    pub async fn within(&self, patience: Duration) -> bool {
        let Some(inotify) = &self.0 else {
            tokio::time::sleep(patience).await;
            return false;
        };
        let told = async {
            loop {
                let Ok(mut guard) = inotify.readable().await else { return std::future::pending().await };
                let events = inotify.get_ref().0.read_events();
                guard.clear_ready();
                match events {
                    // Our own lock and temporary files are nobody's business.
                    Ok(events) if events.iter().any(|event| event.name.as_ref().is_none_or(|name| !name.to_string_lossy().starts_with('.'))) => {
                        return;
                    }
                    _ => {}
                }
            }
        };
        tokio::time::timeout(patience, told).await.is_ok()
    }
}
