//! Keeps subnet.env in place while the daemon runs: written anew when it is deleted or when what it says changes.

use crate::health::Health;
use crate::health::condition::Condition;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use run_dir::subnet_env::{SubnetEnv, says, write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// How often the file is looked for without an event: its folder may have been replaced, or inotify may be used up.
const AUDIT: Duration = Duration::from_secs(5);
/// How long after a failed writing the next is tried.
const RETRY: Duration = Duration::from_secs(1);
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
                    changed = env.changed() => if changed.is_err() { ended(&folder).await },
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
async fn ended(folder: &Folder) {
    tokio::select! {
        () = folder.changed() => {}
        () = tokio::time::sleep(AUDIT) => {}
    }
}

/// An inotify that tokio can wait for: nix gives it only the newer trait.
struct Events(Inotify);

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Events {
    /// Hands the descriptor to tokio.
    #[allow(unsafe_code)]
    fn registered(self) -> std::io::Result<AsyncFd<Self>> {
        // SAFETY: the descriptor belongs to `self`, which gives it to nobody and closes it only when it is dropped, after tokio let go of it.
        unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) }.map_err(Into::into)
    }
}

/// A watch on the file's folder.
#[derive(Default)]
struct Folder {
    inotify: Option<AsyncFd<Events>>,
    trouble: bool,
}

impl Folder {
    /// Watches the folder as it is now; watching the same folder twice is one watch.
    fn watch(&mut self, path: &Path) {
        if let Err(error) = self.try_watch(path) {
            self.inotify = None;
            if !self.trouble {
                debug!("the folder of {} cannot be watched, looking every {} s instead: {error}", path.display(), AUDIT.as_secs());
                self.trouble = true;
            }
        }
    }

    fn try_watch(&mut self, path: &Path) -> std::io::Result<()> {
        let inotify = match self.inotify.take() {
            Some(inotify) => inotify,
            None => Events(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?).registered()?,
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let events = AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        inotify.get_ref().0.add_watch(folder, events)?;
        self.inotify = Some(inotify);
        Ok(())
    }

    /// Returns when something was removed from the folder; never where it is not watched.
    async fn changed(&self) {
        let Some(inotify) = &self.inotify else { return std::future::pending().await };
        let Ok(mut ready) = inotify.readable().await else { return std::future::pending().await };
        // Which file it was does not matter: the loop looks at ours.
        while inotify.get_ref().0.read_events().is_ok_and(|events| !events.is_empty()) {}
        ready.clear_ready();
    }
}

#[cfg(test)]
mod tests;
