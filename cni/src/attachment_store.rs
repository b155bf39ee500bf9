//! Stores the delegate's configuration from ADD until DEL: one file per interface, in a directory that only root can read.
//!
//! | file | content |
//! |---|---|
//! | `<containerID>` | the configuration for `eth0`; Go flannel's plugin uses this file name, so that either plugin can replace the other |
//! | `<containerID>:<interface>` | the configuration for an interface with this name, except `eth0` |
//! | `+<file>` | empty; shows that the ADD for `<file>` is running, or that a signal killed it |
//! | `.<file>` | a temporary file, which is then renamed to `<file>` |
//!
//! A container ID contains no colon and begins with a letter or digit, so two attachments never share a file.
//!
//! The files remain usable if a signal kills the plugin at any time. The mark (`+<file>`) is created before the file, and
//! removed after the delegate succeeds; a file is replaced by a rename. Nothing is synced to disk, because no container
//! survives a power failure, and DEL works without the files.

use crate::attachment::Attachment;
use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Its file has only the container ID as its name, as in Go flannel's plugin.
pub const FIRST: &str = "eth0";
/// Between container ID and interface name in a file name. Neither can contain this character.
const SEPARATOR: char = ':';
/// First character of a temporary file's name. No container ID begins with it.
const TEMPORARY: char = '.';
/// First character of a mark's name, which shows that an ADD is unfinished. No container ID begins with it.
const MARK: char = '+';
/// The mode of all files in the store: only the owner can read and write.
const PRIVATE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);
/// Bytes that are read from a file in the store.
const LIMIT: u64 = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The call is running, or a signal killed the plugin during it.
    Begun,
    /// The call succeeded, or Go flannel's plugin wrote the file.
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The configuration that the delegate got.
    pub text: Vec<u8>,
    pub progress: Progress,
}

/// A file of the store, or the mark or temporary file that a killed plugin left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file itself may be missing if its mark or its temporary file exists.
    pub name: String,
    pub container: String,
    /// `None` if the file name contains only a container ID.
    pub interface: Option<String>,
}

/// The open directory. All file operations are relative to it and do not follow symbolic links.
#[derive(Debug)]
pub struct AttachmentStore {
    folder: OwnedFd,
    path: PathBuf,
}

/// The name of the file for an attachment.
pub fn name(attachment: &Attachment) -> String {
    if attachment.interface == FIRST {
        attachment.container.clone()
    } else {
        format!("{}{SEPARATOR}{}", attachment.container, attachment.interface)
    }
}

fn mark_of(name: &str) -> String {
    format!("{MARK}{name}")
}

fn temporary_of(name: &str) -> String {
    format!("{TEMPORARY}{name}")
}

impl AttachmentStore {
    /// Creates a missing directory.
    pub fn create(path: &Path) -> io::Result<Self> {
        match Self::open(path)? {
            Some(attachment_store) => Ok(attachment_store),
            None => {
                DirBuilder::new().recursive(true).mode(0o700).create(path)?;
                Self::open(path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
            }
        }
    }

    /// `None` if the directory does not exist.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
        match nix::fcntl::open(path, flags, Mode::empty()) {
            Ok(folder) => Ok(Some(Self { folder, path: path.to_owned() })),
            Err(nix::Error::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// For messages.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// `None` if the file does not exist. Fails if it is a symbolic link, a pipe or a directory.
    pub fn read(&self, name: &str) -> io::Result<Option<Saved>> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(&self.folder, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            // The plugin cannot have written a file whose name is too long.
            Err(nix::Error::ENOENT | nix::Error::ENAMETOOLONG) => return Ok(None),
            Err(nix::Error::ELOOP) => {
                return Err(irregular(
                    "the path is a symbolic link, which the plugin does not follow",
                ));
            }
            Err(errno) => return Err(errno.into()),
        };
        if !file.metadata()?.is_file() {
            return Err(irregular("the path is not a regular file"));
        }
        let mut text = Vec::new();
        file.take(LIMIT).read_to_end(&mut text)?;
        Ok(Some(Saved {
            text,
            progress: if self.is_marked(name)? { Progress::Begun } else { Progress::Done },
        }))
    }

    /// Creates or replaces a file, and creates or removes its mark according to `progress`. If the write
    /// fails, an existing file stays unchanged.
    pub fn write(&self, name: &str, text: &str, progress: Progress) -> io::Result<()> {
        match progress {
            // The mark comes first: a kill in between must not leave a file that looks finished.
            Progress::Begun => {
                let is_new = self.mark(name)?;
                let written = self.replace(name, text);
                if written.is_err() && is_new {
                    // Report the first error, not one of this cleanup.
                    let _ = self.finish(name);
                }
                written
            }
            Progress::Done => {
                self.replace(name, text)?;
                self.finish(name)
            }
        }
    }

    /// Removes the mark of a file: ADD succeeded.
    pub fn finish(&self, name: &str) -> io::Result<()> {
        self.unlink(&mark_of(name))
    }

    /// Removes the file of an attachment, its mark, and its temporary file. It does not matter if none
    /// exists.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        // The file comes first: a mark without a file has no effect.
        self.unlink(name)?;
        self.unlink(&mark_of(name))?;
        self.unlink(&temporary_of(name))
    }

    /// Sorted by file name. Attachments of which only a mark or a temporary file exists are included.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut folder = Dir::openat(
            &self.folder,
            ".",
            OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        let mut found = BTreeMap::new();
        for file in folder.iter() {
            let file = file?;
            let Some((name, entry)) =
                file.file_name().to_str().ok().and_then(|name| Some((name, parse(name)?)))
            else {
                continue;
            };
            let kind = fstatat(&self.folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)
                .map(|stat| stat.st_mode & libc::S_IFMT);
            if kind == Ok(libc::S_IFREG) {
                found.insert(entry.name.clone(), entry);
            }
        }
        Ok(found.into_values().collect())
    }

    fn is_marked(&self, name: &str) -> io::Result<bool> {
        let mark = mark_of(name);
        match fstatat(&self.folder, mark.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(nix::Error::ENOENT | nix::Error::ENAMETOOLONG) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Marks ADD as unfinished. False if the mark already exists.
    fn mark(&self, name: &str) -> io::Result<bool> {
        match self.create_new(&mark_of(name)) {
            Ok(_) => Ok(true),
            Err(nix::Error::EEXIST) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes a temporary file and renames it to `name`.
    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let temporary = temporary_of(name);
        // A killed plugin may have left a file there, or the name may be a symbolic link that must not be followed.
        self.unlink(&temporary)?;
        let mut file = File::from(self.create_new(&temporary)?);
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| Ok(renameat(&self.folder, temporary.as_str(), &self.folder, name)?));
        if written.is_err() {
            // Report the first error, not one of this cleanup.
            let _ = self.unlink(&temporary);
        }
        written
    }

    fn create_new(&self, name: &str) -> nix::Result<OwnedFd> {
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        openat(&self.folder, name, flags, PRIVATE)
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.folder, name, UnlinkatFlags::NoRemoveDir) {
            // The plugin cannot have written a file whose name is too long.
            Ok(()) | Err(nix::Error::ENOENT | nix::Error::ENAMETOOLONG) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The name of a file, a mark or a temporary file. `None` if the plugin uses no such name.
fn parse(name: &str) -> Option<Entry> {
    let name = name.strip_prefix([TEMPORARY, MARK]).unwrap_or(name);
    let (container, interface) = name
        .split_once(SEPARATOR)
        .map_or((name, None), |(container, interface)| (container, Some(interface)));
    let attachment = Attachment {
        container: container.to_owned(),
        interface: interface.unwrap_or(FIRST).to_owned(),
    };
    crate::attachment::is_valid(&attachment).then(|| Entry {
        name: name.to_owned(),
        container: attachment.container,
        interface: interface.map(str::to_owned),
    })
}

fn irregular(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{why}: delete it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn attachment(container: &str, interface: &str) -> Attachment {
        Attachment { container: container.to_owned(), interface: interface.to_owned() }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// For files of Go flannel's plugin, and for all combinations of files that a killed plugin leaves.
    #[test]
    fn progress_is_read_from_every_state_on_disk() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        assert!(AttachmentStore::open(&folder).unwrap().is_none());
        let attachment_store = AttachmentStore::create(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        let path = |name: &str| folder.join(name);
        let progress = || attachment_store.read("c0ffee").unwrap().map(|saved| saved.progress);
        // States after a kill: after the mark, while the file is written, and after it. A mark without a file is not an attachment.
        fs::write(path("+c0ffee"), "").unwrap();
        assert_eq!(progress(), None);
        fs::write(path(".c0ffee"), "{").unwrap();
        assert_eq!(progress(), None);
        fs::rename(path(".c0ffee"), path("c0ffee")).unwrap();
        assert_eq!(progress(), Some(Progress::Begun));
        attachment_store.finish("c0ffee").unwrap();
        assert_eq!(progress(), Some(Progress::Done));
        attachment_store.write("c0ffee", "{}", Progress::Begun).unwrap();
        assert_eq!(
            (progress(), mode(&path("c0ffee")), mode(&path("+c0ffee"))),
            (Some(Progress::Begun), 0o600, 0o600)
        );
        attachment_store.write("c0ffee", "{}", Progress::Done).unwrap();
        assert_eq!(progress(), Some(Progress::Done));
        assert!(!path("+c0ffee").exists());
        // Go flannel's plugin writes no mark.
        attachment_store.remove("c0ffee").unwrap();
        fs::write(path("c0ffee"), "{}").unwrap();
        assert_eq!(progress(), Some(Progress::Done));
        attachment_store.remove("c0ffee").unwrap();
        attachment_store.remove("c0ffee").unwrap();
        // A name that is too long for any file system leaves nothing.
        let long = "a".repeat(4096);
        assert_eq!(attachment_store.read(&long).unwrap(), None);
        assert!(attachment_store.write(&long, "{}", Progress::Begun).is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn links_and_pipes_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let secret = root.path().join("secret");
        fs::write(&secret, "mine").unwrap();
        let folder = root.path().join("data");
        let attachment_store = AttachmentStore::create(&folder).unwrap();
        symlink(&secret, folder.join("c0ffee")).unwrap();
        symlink(&secret, folder.join(".c0ffee")).unwrap();
        symlink(&secret, folder.join("+cafe")).unwrap();
        nix::unistd::mkfifo(&folder.join("pipe"), Mode::S_IRUSR).unwrap();
        fs::create_dir(folder.join("folder")).unwrap();
        for (name, why) in [("c0ffee", "symbolic link"), ("pipe", "regular"), ("folder", "regular")]
        {
            assert!(attachment_store.read(name).unwrap_err().to_string().contains(why), "{name}");
        }
        assert!(attachment_store.entries().unwrap().is_empty());
        attachment_store.write("cafe", "{}", Progress::Begun).unwrap();
        attachment_store.finish("cafe").unwrap();
        assert_eq!(attachment_store.read("cafe").unwrap().unwrap().progress, Progress::Done);
        attachment_store.write("c0ffee", "{}", Progress::Done).unwrap();
        assert_eq!(
            (
                fs::read_to_string(&secret).unwrap(),
                attachment_store.read("c0ffee").unwrap().unwrap().text
            ),
            ("mine".to_owned(), b"{}".to_vec())
        );
        assert!(attachment_store.write("folder", "{}", Progress::Done).is_err());
        let left: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(!left.iter().any(|name| name.starts_with(['.', '+'])), "{left:?}");
    }

    #[test]
    fn foreign_names_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        let attachment_store = AttachmentStore::create(root.path()).unwrap();
        for name in [
            "c0ffee",
            "c0ffee:net1",
            ".c0ffee:net1",
            ".cafe",
            "+beef:net1",
            "-x",
            "..x",
            "+.x",
            "a b",
            "c0ffee:",
            "c0ffee:a:b",
            "~",
        ] {
            fs::write(root.path().join(name), "{}").unwrap();
        }
        let names: Vec<_> =
            attachment_store.entries().unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["beef:net1", "c0ffee", "c0ffee:net1", "cafe"]);
    }

    proptest! {
        #[test]
        fn interfaces_never_share_a_file(a in "[a-c0][a-c0_.-]{0,3}", b in "[a-c0][a-c0_.-]{0,3}", i in "(eth0|[a-c0.-]{1,4})", j in "(eth0|[a-c0.-]{1,4})") {
            let (one, other) = (attachment(&a, &i), attachment(&b, &j));
            prop_assert_eq!(name(&one) == name(&other), one == other);
            if crate::attachment::is_valid(&one) {
                let file = name(&one);
                for on_disk in [file.clone(), mark_of(&file), temporary_of(&file)] {
                    prop_assert_eq!(on_disk == name(&other), on_disk == file && one == other);
                    let entry = parse(&on_disk).unwrap();
                    prop_assert_eq!((entry.name, entry.container, entry.interface.unwrap_or(FIRST.to_owned())), (file.clone(), a.clone(), i.clone()));
                }
            }
        }
    }
}
