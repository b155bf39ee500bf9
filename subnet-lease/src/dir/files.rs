//! The directory's files: listed, changed under a lock by rename, touched, watched by inotify.

use crate::protocol::registry::{Answer, Compare, Entry, Failure, Listing, Write, key_text};
use crate::wire::{self, VALUE_LIMIT};
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::unix::AsyncFd;

const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Where inotify tells nothing (network file systems), the directory is looked at this often.
const LOOK: Duration = Duration::from_secs(10);

/// The files of one directory.
pub struct Files {
    root: PathBuf,
}

impl Files {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn subnets(&self) -> PathBuf {
        self.root.join("subnets")
    }

    /// All leases. A directory that is not there yet is empty.
    pub fn list(&self) -> Result<Listing, Failure> {
        let folder = self.subnets();
        let mut listing = Listing { revision: now(), entries: Vec::new() };
        let files = match fs::read_dir(&folder) {
            Ok(files) => files,
            Err(error) if error.kind() == ErrorKind::NotFound && self.root.is_dir() => return Ok(listing),
            Err(error) => return Err(complaint("read the directory", &folder, &error)),
        };
        for file in files {
            let file = file.map_err(|error| complaint("read the directory", &folder, &error))?;
            let name = file.file_name();
            let entry = match name.to_str() {
                Some(key) => self.read(key),
                // No lease, but somebody put it there: it is told of.
                None => Some(Entry { key: key_text(name.as_bytes()), value: Vec::new(), created: i64::MAX, modified: 0, lease: 0 }),
            };
            listing.entries.extend(entry);
        }
        listing.entries.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(listing)
    }

    /// One lease's file.
    pub fn read(&self, key: &str) -> Option<Entry> {
        if key.starts_with('.') || key.contains('/') {
            return None;
        }
        let mut value = Vec::new();
        // A pipe that somebody put there shall not hold us up.
        let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(self.subnets().join(key)).ok()?;
        let meta = file.metadata().ok()?;
        if !meta.is_file() {
            return None;
        }
        let limit = u64::try_from(VALUE_LIMIT).unwrap_or(u64::MAX) + 1;
        file.take(limit).read_to_end(&mut value).ok()?;
        // Who signs no rank touches no file either: what an operator wrote is as old as the file, or it would precede every node.
        let rank = wire::parse_value(&value).ok().and_then(|attrs| attrs.node).map(|node| node.rank);
        let created = rank.or_else(|| Some(nanoseconds(meta.modified().ok()?))).unwrap_or(i64::MAX);
        let modified = mark(&value);
        Some(Entry { key: key.to_owned(), value, created, modified, lease: 0 })
    }

    /// How long ago the holder touched its file.
    pub fn heard(&self, key: &str) -> Option<Duration> {
        let modified = fs::metadata(self.subnets().join(key)).ok()?.modified().ok()?;
        Some(SystemTime::now().duration_since(modified).unwrap_or_default())
    }

    /// Shows that the holder lives; false where the file is gone.
    pub fn touch(&self, key: &str) -> Result<bool, Failure> {
        let path = self.subnets().join(key);
        match OpenOptions::new().append(true).open(&path) {
            Ok(file) => file.set_modified(SystemTime::now()).map(|()| true).map_err(|error| complaint("touch", &path, &error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(complaint("touch", &path, &error)),
        }
    }

    /// Compares and writes under the lock.
    pub fn txn(&self, compare: &[Compare], write: &[Write], key: &str) -> Result<Answer, Failure> {
        let folder = self.subnets();
        fs::create_dir_all(&folder).map_err(|error| complaint("make the directory", &folder, &error))?;
        let _lock = self.lock(&folder)?;
        let listing = self.list()?;
        let find = |key: &str| listing.entries.iter().find(|entry| entry.key == key);
        let holds = compare.iter().all(|compare| match compare {
            Compare::Unchanged { key, modified } => find(key).is_some_and(|entry| entry.modified == *modified),
            Compare::Holds { key, value } => find(key).is_some_and(|entry| entry.value == value.as_bytes()),
            Compare::HangsOn { key, lease } => find(key).is_some_and(|entry| entry.lease == *lease),
            Compare::NoneUnder(prefix) => !listing.entries.iter().any(|entry| entry.key.starts_with(prefix.as_str())),
        });
        if !holds {
            return Ok(Answer::Txn { done: false, revision: listing.revision, present: find(key).cloned() });
        }
        let mut revision = find(key).map_or(listing.revision, |entry| entry.modified);
        for write in write {
            match write {
                Write::Put { key, value, .. } => {
                    put(&folder, key, value)?;
                    revision = mark(value.as_bytes());
                }
                Write::Delete { key } => match fs::remove_file(folder.join(key)) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(complaint("delete", &folder.join(key), &error)),
                },
            }
        }
        if let Ok(folder) = File::open(&folder) {
            let _ = folder.sync_all();
        }
        Ok(Answer::Txn { done: true, revision, present: None })
    }

    fn lock(&self, folder: &Path) -> Result<Flock<File>, Failure> {
        let path = folder.join(".lock");
        let mut file =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o644).open(&path).map_err(|error| complaint("open", &path, &error))?;
        let begun = Instant::now();
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((_, _)) if begun.elapsed() > LOCK_PATIENCE => {
                    return Err(Failure(
                        format!("another process has held the lock {} for {LOCK_PATIENCE:?}; `fuser {0}` names it", path.display()).into(),
                    ));
                }
                Err((back, _)) => file = back,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A file appears whole or not at all.
fn put(folder: &Path, key: &str, value: &str) -> Result<(), Failure> {
    let temporary = folder.join(format!(".{key}.{:016x}", rand::random::<u64>()));
    let written = OpenOptions::new().create_new(true).write(true).mode(0o644).open(&temporary).and_then(|mut file| {
        file.write_all(value.as_bytes())?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&temporary, folder.join(key)));
    renamed.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        complaint("write", &folder.join(key), &error)
    })
}

/// A number that changes with the content: the store's revision of the file.
fn mark(value: &[u8]) -> i64 {
    let digest = Sha256::digest(value);
    let word = digest.iter().take(8).fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    i64::try_from(word >> 1).unwrap_or(i64::MAX)
}

/// Orders acquisitions among hosts, as a store's revision does.
fn now() -> i64 {
    nanoseconds(SystemTime::now())
}

fn nanoseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn complaint(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure(format!("cannot {what} {}: {error}", path.display()).into())
}

/// Gives tokio what it wants of an inotify instance.
struct Descriptor(Inotify);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[allow(unsafe_code)]
fn registered(inotify: Inotify) -> Option<AsyncFd<Descriptor>> {
    // SAFETY: the descriptor is owned by the `Inotify` that moves into the `AsyncFd`, is never replaced and closes with it.
    unsafe { AsyncFd::register(Descriptor(inotify)) }.ok()
}

/// Tells that something changed in the directory.
pub struct Changes {
    files: Arc<Files>,
    inotify: Option<AsyncFd<Descriptor>>,
    watched: Option<u64>,
}

impl Changes {
    pub fn of(files: Arc<Files>) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).ok().and_then(registered);
        let mut changes = Self { files, inotify, watched: None };
        changes.subscribe();
        changes
    }

    /// Follows the folder of that name, even when it is made (anew) later.
    fn subscribe(&mut self) {
        use std::os::unix::fs::MetadataExt;
        let folder = self.files.subnets();
        let inode = fs::metadata(&folder).ok().map(|meta| meta.ino());
        if inode.is_none() || inode == self.watched {
            return;
        }
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_DELETE_SELF;
        if let Some(inotify) = &self.inotify
            && inotify.get_ref().0.add_watch(&folder, flags).is_ok()
        {
            self.watched = inode;
        }
    }

    /// Returns after a change, or when it is time to look all the same.
    ///
    /// # Cancel safety
    /// A change that was told to a dropped future is not told again; callers read everything after each call.
    pub async fn next(&mut self) {
        self.subscribe();
        let patience = if self.watched.is_some() { LOOK } else { Duration::from_millis(500) };
        let Some(inotify) = &self.inotify else { return tokio::time::sleep(patience).await };
        let told = async {
            loop {
                let Ok(mut guard) = inotify.readable().await else { return };
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
        let _ = tokio::time::timeout(patience, told).await;
    }
}
