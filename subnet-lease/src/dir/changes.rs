//! Detects changes in the directory with inotify.

use futures_util::future::FutureExt;
use futures_util::stream::StreamExt;
use inotify::{EventStream, Inotify, WatchMask, Watches};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// In bytes, sufficient for a few dozen events. The next read returns the remaining events.
const BUFFER: usize = 4096;

/// Reads inotify's events of the directory; `None` if inotify is not available, so that the caller polls the directory.
pub(super) struct Changes(Option<EventStream<Vec<u8>>>);

/// With this, the thread for file access sets up the inotify watch.
#[derive(Clone)]
pub(super) struct Watch(Option<Watches>);

impl Watch {
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// A repeated call creates no second watch. True if inotify watches the directory.
    pub(super) fn follow(&self, folder: &OwnedFd) -> bool {
        let events = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::CLOSE_WRITE
            | WatchMask::DELETE_SELF;
        let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
        self.0.clone().is_some_and(|mut watches| watches.add(path, events).is_ok())
    }
}

impl Changes {
    /// If inotify's limits are exhausted, `Changes` detects no change, and callers poll the directory.
    pub(super) fn new() -> Self {
        Self(Inotify::init().and_then(|inotify| inotify.into_event_stream(vec![0; BUFFER])).ok())
    }

    pub(super) fn watch(&self) -> Watch {
        Watch(self.0.as_ref().map(EventStream::watches))
    }

    /// True after a change in the directory, false after the timeout.
    ///
    /// # Cancel safety
    /// A dropped future may have received a change, which later calls do not report. So callers read the whole directory after each call.
    pub(super) async fn within(&mut self, patience: Duration) -> bool {
        let Some(events) = &mut self.0 else {
            tokio::time::sleep(patience).await;
            return false;
        };
        let changed = async {
            loop {
                match events.next().await {
                    // Skip our own lock and temporary files.
                    Some(Ok(event))
                        if event
                            .name
                            .as_ref()
                            .is_none_or(|name| !name.as_encoded_bytes().starts_with(b".")) =>
                    {
                        break;
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => std::future::pending().await,
                }
            }
            // Drop the events that are ready: the caller reads the whole directory anyway.
            while let Some(Some(Ok(_))) = events.next().now_or_never() {}
        };
        tokio::time::timeout(patience, changed).await.is_ok()
    }
}
