//! Lists the directory, changes keys by rename under a lock, and updates modification times. Only the worker thread calls these functions.

use super::changes::Watch;
use super::error::{DirError, FileError};
use super::root::{Root, foreign, regular};
use crate::protocol::registry::{Answer, Compare, Entry, Listing, Write, key_text};
use crate::protocol::view::Item;
use crate::wire::{self, VALUE_LIMIT};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use types::problem::ConfigPlace;
use types::{Addresses, Detail, Problem};

const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK: &str = ".lock";
const EXAMPLE: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// In bytes.
const CONFIG_LIMIT: u64 = 1 << 20;

pub(super) struct Files {
    root: Root,
    /// Whether flanneld has removed the temporary files that a crash left.
    cleared: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Whole {
    /// A key whose file is unreadable has an empty value, but still occupies its subnets.
    pub listing: Listing,
    /// Keys whose files are unreadable.
    pub(crate) flawed: BTreeMap<String, Problem>,
    /// Whether inotify reports changes in the directory.
    pub watched: bool,
}

impl Files {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root: Root::new(root), cleared: AtomicBool::new(false) }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.root.path().join("subnets").join(key)
    }

    /// Reads the text of the network configuration. After the first success, only the directory that contained it is used.
    pub(super) fn config(&self) -> Result<Vec<u8>, DirError> {
        let path = self.root.path().join("config");
        let failed = |error: &std::io::Error| {
            let (place, path) = (ConfigPlace::File(path.clone()), path.display());
            let problem = match error.kind() {
                ErrorKind::NotFound => Problem::new(
                    "config-missing",
                    format!(
                        "the network configuration {path} does not exist; create the file, e.g. with {EXAMPLE}"
                    ),
                )
                .with(Detail::ConfigMissing { place, example: EXAMPLE.to_owned() }),
                _ => Problem::new(
                    "config-unreadable",
                    format!(
                        "cannot read the network configuration {path}: {}",
                        FileError::from(error)
                    ),
                )
                .with(Detail::ConfigInvalid { place: Some(place) }),
            };
            DirError::Failed(problem)
        };
        // Later, a directory that is gone is an outage of the store, not of the configuration.
        if !self.root.is_settled() && !self.root.path().exists() {
            return Err(failed(&ErrorKind::NotFound.into()));
        }
        let root = self.root.open()?;
        let mut text = Vec::new();
        root.config()
            .and_then(|file| file.take(CONFIG_LIMIT).read_to_end(&mut text))
            .map_err(|error| failed(&error))?;
        root.settle()?;
        Ok(text)
    }

    /// Checks that no other directory has replaced the store's directory.
    pub(super) fn present(&self) -> Result<(), DirError> {
        self.root.open().map(drop)
    }

    /// A directory of leases that does not exist yet counts as empty.
    pub(super) fn list(&self, watch: Option<&Watch>) -> Result<Whole, DirError> {
        match self.root.open()?.subnets()? {
            Some(folder) => {
                // Watch first, then read, so that a change in between is seen by at least one of them.
                let watched = watch.is_some_and(|watch| watch.follow(&folder));
                Ok(Whole { watched, ..self.whole(&folder)? })
            }
            None => Ok(Whole {
                listing: Listing { revision: now(), entries: Vec::new() },
                ..Whole::default()
            }),
        }
    }

    fn whole(&self, folder: &OwnedFd) -> Result<Whole, DirError> {
        let unreadable = |error: Errno| {
            let what = format!("cannot read the directory {}", self.path("").display());
            DirError::unreadable("directory-subnets-unlisted", what, error)
        };
        let mut whole =
            Whole { listing: Listing { revision: now(), entries: Vec::new() }, ..Whole::default() };
        let mut names = Dir::openat(
            folder,
            ".",
            OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .map_err(unreadable)?;
        for name in names.iter() {
            let name = name.map_err(unreadable)?;
            let Ok(key) = name.file_name().to_str() else {
                // Not a lease, but an operator put it there, so report it.
                let key = key_text(name.file_name().to_bytes());
                whole.listing.entries.push(Entry {
                    key,
                    value: Arc::default(),
                    created: i64::MAX,
                    modified: 0,
                    lease: 0,
                });
                continue;
            };
            match read(folder, key) {
                Ok(entry) => whole.listing.entries.extend(entry),
                Err(why) => {
                    whole.listing.entries.push(Entry {
                        key: key.to_owned(),
                        value: Arc::default(),
                        created: i64::MAX,
                        modified: mark(&[]),
                        lease: 0,
                    });
                    whole.flawed.insert(key.to_owned(), why);
                }
            }
        }
        whole.listing.entries.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(whole)
    }

    /// A hash of the key's content, `None` if its file does not exist; and whether inotify watches the directory.
    pub(super) fn mark_of(
        &self,
        key: &str,
        watch: &Watch,
    ) -> Result<(Option<i64>, bool), DirError> {
        let Some(folder) = self.root.open()?.subnets()? else {
            return Ok((None, false));
        };
        let watched = watch.follow(&folder);
        let entry = read(&folder, key).map(|entry| entry.map(|entry| entry.modified));
        Ok((entry.unwrap_or_else(|_| Some(mark(&[]))), watched))
    }

    /// Time since the holder last touched the lease's file.
    pub(super) fn last_seen(&self, key: &str) -> Result<Option<Duration>, DirError> {
        let Some(folder) = self.root.open()?.subnets()? else {
            return Ok(None);
        };
        let Ok(meta) = fstatat(&folder, key, AtFlags::AT_SYMLINK_NOFOLLOW) else {
            return Ok(None);
        };
        let since = Duration::new(
            u64::try_from(meta.st_mtime).unwrap_or(0),
            u32::try_from(meta.st_mtime_nsec).unwrap_or(0),
        );
        Ok(Some(
            SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default()
                .saturating_sub(since),
        ))
    }

    /// Shows that the holder is alive. False if the file is missing or not a regular file.
    pub(super) fn touch(&self, key: &str) -> Result<bool, DirError> {
        let Some(folder) = self.root.open()?.subnets()? else {
            return Ok(false);
        };
        let failed = |error: &std::io::Error| DirError::of_file("touch", &self.path(key), error);
        match regular(&folder, key, OFlag::O_WRONLY | OFlag::O_APPEND) {
            Ok(file) => {
                file.set_modified(SystemTime::now()).map(|()| true).map_err(|error| failed(&error))
            }
            Err(error) if error.kind() == ErrorKind::NotFound || foreign(&error) => Ok(false),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Compares and writes keys under the lock.
    pub(super) fn txn(
        &self,
        compare: &[Compare],
        write: &[Write],
        key: &str,
    ) -> Result<Answer, DirError> {
        let folder = self.root.open()?.subnets_made()?;
        let _lock = self.lock(&folder)?;
        if !self.cleared.swap(true, Ordering::Relaxed) {
            clear(&folder);
        }
        let listing = self.whole(&folder)?.listing;
        let find = |key: &str| listing.entries.iter().find(|entry| entry.key == key);
        let holds = compare.iter().all(|compare| match compare {
            Compare::Unchanged { key, modified } => {
                find(key).is_some_and(|entry| entry.modified == *modified)
            }
            Compare::Holds { key, value } => {
                find(key).is_some_and(|entry| *entry.value == *value.as_bytes())
            }
            Compare::HangsOn { key, lease } => find(key).is_some_and(|entry| entry.lease == *lease),
            Compare::NoneUnder(prefix) => {
                !listing.entries.iter().any(|entry| entry.key.starts_with(prefix.as_str()))
            }
            // Checked below: this store cannot answer it with the key's entry.
            Compare::NoneElseAt { .. } => true,
        });
        if !holds {
            return Ok(Answer::Txn {
                done: false,
                revision: listing.revision,
                present: find(key).cloned(),
            });
        }
        // Ranks are times of different clocks. So of two nodes with one address that start at once, the second writer has to see the first one's key
        // before it writes its own.
        let overtaken = |known: &BTreeSet<String>, public: &Addresses| {
            listing.entries.iter().any(|entry| {
                !known.contains(&entry.key)
                    && Item::of(entry.clone()).is_some_and(|item| item.publishes(public))
            })
        };
        if compare.iter().any(
            |compare| matches!(compare, Compare::NoneElseAt { known, public } if overtaken(known, public)),
        ) {
            return Err(DirError::failed(
                "directory-overtaken",
                "another node wrote a lease with this node's address at the same time: flanneld lists the leases again",
            ));
        }
        let mut revision = find(key).map_or(listing.revision, |entry| entry.modified);
        for write in write {
            match write {
                Write::Put { key, value, .. } => {
                    put(&folder, key, value)
                        .map_err(|error| DirError::of_file("write", &self.path(key), &error))?;
                    revision = mark(value.as_bytes());
                }
                Write::Delete { key } => {
                    match unlinkat(&folder, key.as_str(), UnlinkatFlags::NoRemoveDir) {
                        Ok(()) | Err(Errno::ENOENT) => {}
                        Err(error) => {
                            let why = FileError::of(error);
                            return Err(DirError::of_file("delete", &self.path(key), why));
                        }
                    }
                }
            }
        }
        // Every reader sees the new names. A power loss may undo them, as if they had never been written.
        let _ = fsync(&folder);
        Ok(Answer::Txn { done: true, revision, present: None })
    }

    fn lock(&self, folder: &OwnedFd) -> Result<Flock<File>, DirError> {
        let path = self.path(LOCK);
        let mut file = regular(folder, LOCK, OFlag::O_WRONLY | OFlag::O_CREAT)
            .map_err(|error| DirError::of_file("open", &path, &error))?;
        // A process that can read the file can lock it. Leave a file of another owner unchanged, because its mode is the owner's choice.
        if file.metadata().is_ok_and(|meta| {
            meta.mode() & 0o077 != 0 && meta.uid() == nix::unistd::geteuid().as_raw()
        }) {
            let _ = file.set_permissions(Permissions::from_mode(0o600));
        }
        let begun = Instant::now();
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((_, _)) if begun.elapsed() > LOCK_TIMEOUT => {
                    let path = path.display();
                    let text = format!(
                        "another process has held the lock {path} for {LOCK_TIMEOUT:?}; find the process with `fuser {path}`"
                    );
                    return Err(DirError::failed("directory-locked", text));
                }
                Err((back, _)) => file = back,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// `None` if the file is gone or its name is not a key.
fn read(folder: &OwnedFd, key: &str) -> Result<Option<Entry>, Problem> {
    if key.starts_with('.') || key.contains('/') {
        return Ok(None);
    }
    let read = || {
        let file = regular(folder, key, OFlag::O_RDONLY)?;
        let meta = file.metadata()?;
        let mut value = Vec::new();
        file.take(u64::try_from(VALUE_LIMIT).unwrap_or(u64::MAX) + 1).read_to_end(&mut value)?;
        Ok((value, meta.modified()?))
    };
    let (value, touched) = match read() {
        Ok(read) => read,
        Err(error) if std::io::Error::kind(&error) == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let text = format!("cannot read the file of the lease: {}", FileError::from(&error));
            return Err(Problem::new("lease-file-unreadable", text));
        }
    };
    // A writer without a rank does not touch files. The entry of an operator is therefore as old as the file; otherwise it would precede every node.
    let rank = wire::parse_value(&value).ok().and_then(|attrs| attrs.node).map(|node| node.rank);
    let created = rank.unwrap_or_else(|| nanoseconds(touched));
    let modified = mark(&value);
    Ok(Some(Entry { key: key.to_owned(), value: value.into(), created, modified, lease: 0 }))
}

/// Writes a file atomically, by rename.
fn put(folder: &OwnedFd, key: &str, value: &str) -> std::io::Result<()> {
    let temporary = format!(".{key}.{:016x}", rand::random::<u64>());
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let written = openat(folder, temporary.as_str(), flags, Mode::from_bits_truncate(0o644))
        .map_err(Into::into)
        .and_then(|file| {
            let mut file = File::from(file);
            file.write_all(value.as_bytes())?;
            file.sync_all()?;
            Ok(renameat(folder, temporary.as_str(), folder, key)?)
        });
    if written.is_err() {
        let _ = unlinkat(folder, temporary.as_str(), UnlinkatFlags::NoRemoveDir);
    }
    written
}

/// Removes temporary files that a crash in [`put`] left, on this or another host. The caller holds the lock, as all writers do.
fn clear(folder: &OwnedFd) {
    let Ok(mut names) = Dir::openat(
        folder,
        ".",
        OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    ) else {
        return;
    };
    let left: Vec<String> = names
        .iter()
        .flatten()
        .filter_map(|name| {
            name.file_name().to_str().ok().filter(|name| is_temporary(name)).map(str::to_owned)
        })
        .collect();
    for name in left {
        let meta = fstatat(folder, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        if meta.is_ok_and(|meta| {
            SFlag::from_bits_truncate(meta.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFREG
        }) && unlinkat(folder, name.as_str(), UnlinkatFlags::NoRemoveDir).is_ok()
        {
            tracing::info!(path = name, "removed a temporary file left by a killed flanneld");
        }
    }
}

/// Temporary files of [`put`] are named by a dot, a key, a dot and sixteen lower-case hexadecimal digits.
fn is_temporary(name: &str) -> bool {
    let parts = name.strip_prefix('.').and_then(|rest| rest.rsplit_once('.'));
    parts.is_some_and(|(key, random)| {
        wire::parse_key(key).is_some()
            && random.len() == 16
            && random.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// A hash of the content, which serves as the store's revision of the file.
fn mark(value: &[u8]) -> i64 {
    let digest = Sha256::digest(value);
    let word = digest.iter().take(8).fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    i64::try_from(word >> 1).unwrap_or(i64::MAX)
}

/// In nanoseconds since 1970. Times order the lease acquisitions of several hosts, like revisions in other stores.
fn now() -> i64 {
    nanoseconds(SystemTime::now())
}

fn nanoseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
