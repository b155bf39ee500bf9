//! Keeps subnet.env in place while the daemon runs: written anew when it is deleted or when what it says changes.

use crate::health::Health;
use crate::health::condition::Condition;
use futures_util::future::FutureExt;
use futures_util::stream::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use run_dir::subnet_env::{SubnetEnv, says, write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// How often the file is looked for without an event: its folder may have been replaced, or inotify may be used up.
const AUDIT: Duration = Duration::from_secs(5);
/// How long after a failed writing the next is tried.
const RETRY: Duration = Duration::from_secs(1);
/// Room for some dozen events; what does not fit is read next.
const BUFFER: usize = 4096;
/// Least time between two writings, so that a fight with whoever deletes the file stays cheap.
const PAUSE: Duration = Duration::from_millis(100);

/// Writes the file at each change of `env` and when it is missing, until `stop`; trouble becomes a condition of `health`.
///
/// # Cancel safety
/// Each writing is atomic; it can be dropped at any time.
pub async fn keep(path: PathBuf, mut env: watch::Receiver<SubnetEnv>, health: Health, stop: CancellationToken) {
    let mut folder = Folder::default();
    let mut written = None;
    let mut trouble = String::new();
    let run = async {
        loop {
            let wanted = env.borrow_and_update().clone();
            let missing = !path.exists();
            if missing && written.is_some() && trouble.is_empty() {
                info!("{} was deleted by somebody: writing it again", path.display());
            }
            let stale = written.as_ref() != Some(&wanted) && !says(&path, &wanted);
            match if missing || stale { write(&path, &wanted) } else { Ok(()) } {
                Ok(()) => {
                    health.condition(Condition::SubnetEnv, None);
                    trouble.clear();
                    written = Some(wanted);
                }
                Err(error) => {
                    let text = error.to_string();
                    if text != trouble {
                        warn!("{text}");
                    }
                    health.condition(Condition::SubnetEnv, Some(&text));
                    trouble = text;
                }
            }
            // Watch first, look then: what happens in between is seen by one of them.
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

/// Waits as the loop does, once nobody can change the wanted text any more.
async fn ended(folder: &mut Folder) {
    tokio::select! {
        () = folder.changed() => {}
        () = tokio::time::sleep(AUDIT) => {}
    }
}

/// A watch on the file's folder.
#[derive(Default)]
struct Folder {
    events: Option<EventStream<Vec<u8>>>,
    trouble: bool,
}

impl Folder {
    /// Watches the folder as it is now; watching the same folder twice is one watch.
    fn watch(&mut self, path: &Path) {
        if let Err(error) = self.try_watch(path) {
            self.events = None;
            if !self.trouble {
                debug!("the folder of {} cannot be watched, looking every {} s instead: {error}", path.display(), AUDIT.as_secs());
                self.trouble = true;
            }
        }
    }

    fn try_watch(&mut self, path: &Path) -> std::io::Result<()> {
        let events = match self.events.take() {
            Some(events) => events,
            None => Inotify::init()?.into_event_stream(vec![0; BUFFER])?,
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mask = WatchMask::DELETE | WatchMask::MOVED_FROM | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF | WatchMask::ONLYDIR;
        events.watches().add(folder, mask)?;
        self.events = Some(events);
        Ok(())
    }

    /// Returns when something was removed from the folder; never where it is not watched.
    async fn changed(&mut self) {
        let Some(events) = &mut self.events else { return std::future::pending().await };
        let Some(Ok(_)) = events.next().await else { return std::future::pending().await };
        // Which file it was does not matter: the loop looks at ours.
        while let Some(Some(Ok(_))) = events.next().now_or_never() {}
    }
}

#[cfg(test)]
mod tests;
