//! Maintains subnet.env while the daemon runs: writes the file again after a deletion or a change of the desired
//! contents.

use crate::health::Health;
use crate::health::condition::Condition;
use futures_util::future::FutureExt;
use futures_util::stream::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use run_dir::subnet_env::{SubnetEnv, matches, write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// Interval at which the daemon checks subnet.env without an inotify event. A program may have replaced the
/// directory, or inotify may have reached its limit.
const AUDIT: Duration = Duration::from_secs(5);
/// Delay after a failed write.
const RETRY: Duration = Duration::from_secs(1);
/// Size in bytes. The buffer holds a few dozen inotify events; the daemon reads further ones later.
const BUFFER: usize = 4096;
/// Minimum time between two writes. A conflict with a program that deletes the file therefore uses little processor
/// time.
const PAUSE: Duration = Duration::from_millis(100);

/// Writes subnet.env after each change of `env`, and whenever the file is missing, until `stop`. A failure sets
/// [`Condition::SubnetEnv`].
///
/// # Cancel safety
/// The caller can drop the future at any time, because each write is atomic.
pub async fn keep(
    path: PathBuf,
    mut env: watch::Receiver<SubnetEnv>,
    health: Health,
    stop: CancellationToken,
) {
    let mut folder = Folder::default();
    let mut written = None;
    let mut trouble = String::new();
    let run = async {
        loop {
            let wanted = env.borrow_and_update().clone();
            // A directory or device at the path is useless for pods.
            let missing = !path.is_file();
            if missing && !path.exists() && written.is_some() && trouble.is_empty() {
                info!(path = %path.display(), "subnet.env was deleted, writing it again");
            }
            let stale = written.as_ref() != Some(&wanted) && !matches(&path, &wanted);
            match if missing || stale { write(&path, &wanted) } else { Ok(()) } {
                Ok(()) => {
                    health.clear(Condition::SubnetEnv);
                    trouble.clear();
                    written = Some(wanted);
                }
                Err(error) => {
                    if error.text != trouble {
                        warn!(code = &*error.code, error = %error, "cannot write subnet.env, retrying");
                        trouble.clone_from(&error.text);
                    }
                    health.fail(Condition::SubnetEnv, error);
                }
            }
            // Watch first, then check: one of them notices a change in between.
            folder.watch(&path);
            if path.exists() || !trouble.is_empty() {
                tokio::select! {
                    changed = env.changed() => if changed.is_err() { ended(&mut folder).await },
                    () = folder.changed() => {}
                    () = tokio::time::sleep(if trouble.is_empty() { AUDIT } else { RETRY }) => {}
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    stop.run_until_cancelled(run).await;
}

/// Waits for the next inotify event or check, after the sender of the desired contents has ended.
async fn ended(folder: &mut Folder) {
    tokio::select! {
        () = folder.changed() => {}
        () = tokio::time::sleep(AUDIT) => {}
    }
}

/// An inotify watch on the directory of subnet.env.
#[derive(Default)]
struct Folder {
    events: Option<EventStream<Vec<u8>>>,
    trouble: bool,
}

impl Folder {
    /// Watches the directory that currently exists at the path. Repeated calls are harmless, because inotify keeps a
    /// single watch per directory.
    fn watch(&mut self, path: &Path) {
        if let Err(error) = self.try_watch(path) {
            self.events = None;
            if !self.trouble {
                debug!(
                    path = %path.display(),
                    seconds = AUDIT.as_secs(),
                    error = %error,
                    "cannot watch the directory of subnet.env, checking at intervals instead"
                );
                self.trouble = true;
            }
        }
    }

    fn try_watch(&mut self, path: &Path) -> std::io::Result<()> {
        let events = match self.events.take() {
            Some(events) => events,
            None => Inotify::init()?.into_event_stream(vec![0; BUFFER])?,
        };
        let folder =
            path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mask = WatchMask::DELETE
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        events.watches().add(folder, mask)?;
        self.events = Some(events);
        Ok(())
    }

    /// Waits until a program removes a file from the directory; forever without a watch.
    async fn changed(&mut self) {
        let Some(events) = &mut self.events else {
            return std::future::pending().await;
        };
        let Some(Ok(_)) = events.next().await else {
            return std::future::pending().await;
        };
        // The loop checks its own file, so the removed file does not matter.
        while let Some(Some(Ok(_))) = events.next().now_or_never() {}
    }
}

#[cfg(test)]
mod tests;
