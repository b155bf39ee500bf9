//! What the delegate was given at ADD, kept until DEL: one file per interface, in a directory of root's.
//!
//! `eth0` has the file that Go flannel's plugin keeps, `<containerID>`, so that either can take over from the other; further interfaces
//! have `<containerID>:<interface>`. A container ID has no colon and begins with a letter or digit, so no two names collide.
//!
//! A file is replaced as a whole. It is not synced: after a power failure the containers are gone, and DEL manages without it.

use crate::attachment::Attachment;
use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The interface whose file Go flannel's plugin would find.
pub const FIRST: &str = "eth0";
/// Separates container and interface in a name: neither can contain it.
const SEPARATOR: char = ':';
/// Begins the name of a temporary file: no container ID does.
const TEMPORARY: char = '.';
/// A longer file is not the plugin's.
const LIMIT: u64 = 1024 * 1024;

/// How far ADD came: the mode of the file says it, which neither changes its text nor hinders root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// ADD runs, or was killed.
    Begun,
    /// ADD succeeded, or Go flannel's plugin wrote the file.
    Done,
}

impl Progress {
    fn mode(self) -> Mode {
        match self {
            Progress::Begun => Mode::S_IRUSR,
            Progress::Done => Mode::S_IRUSR | Mode::S_IWUSR,
        }
    }
}

/// A file's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The delegate's configuration, as it was given.
    pub text: Vec<u8>,
    /// How far ADD came.
    pub progress: Progress,
}

/// A name in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file.
    pub name: String,
    /// The container.
    pub container: String,
    /// The interface, if the name has one.
    pub interface: Option<String>,
    /// Whether it is a temporary file: what a killed plugin was writing.
    pub temporary: bool,
}

/// The directory. Every operation is relative to it, and follows no link.
#[derive(Debug)]
pub struct AttachmentStore {
    folder: OwnedFd,
    path: PathBuf,
}

/// The file of an interface.
pub fn name(attachment: &Attachment) -> String {
    if attachment.interface == FIRST {
        attachment.container.clone()
    } else {
        format!(
            "{}{SEPARATOR}{}",
            attachment.container, attachment.interface
        )
    }
}

impl AttachmentStore {
    /// Opens the directory, and makes it first if it does not exist.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(path: &Path) -> io::Result<Self> {
        match Self::open(path)? {
            Some(attachment_store) => Ok(attachment_store),
            None => {
                DirBuilder::new().recursive(true).mode(0o700).create(path)?;
                Self::open(path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
            }
        }
    }

    /// Opens the directory; none if it does not exist.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_RDONLY;
        match nix::fcntl::open(path, flags, Mode::empty()) {
            Ok(folder) => Ok(Some(Self {
                folder,
                path: path.to_owned(),
            })),
            Err(nix::Error::ENOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Where a file is, for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Reads a file; none if there is none.
    ///
    /// # Errors
    /// The system's error, or it is no file of the plugin.
    pub fn read(&self, name: &str) -> io::Result<Option<Saved>> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(&self.folder, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            // With a name that is too long, no file can have been written.
            Err(nix::Error::ENOENT | nix::Error::ENAMETOOLONG) => return Ok(None),
            Err(nix::Error::ELOOP) => {
                return Err(irregular("it is a symbolic link, which is not followed"));
            }
            Err(errno) => return Err(errno.into()),
        };
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(irregular("it is not a regular file"));
        }
        let mut text = Vec::new();
        file.take(LIMIT).read_to_end(&mut text)?;
        let writable = found.permissions().mode() & Mode::S_IWUSR.bits() != 0;
        Ok(Some(Saved {
            text,
            progress: if writable {
                Progress::Done
            } else {
                Progress::Begun
            },
        }))
    }

    /// Writes a file, or replaces it.
    ///
    /// # Errors
    /// The system's error; a file that was there is unchanged then.
    pub fn write(&self, name: &str, text: &str, progress: Progress) -> io::Result<()> {
        let temporary = format!("{TEMPORARY}{name}");
        // What a killed plugin left, or a trap.
        self.remove(&temporary)?;
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(
            &self.folder,
            temporary.as_str(),
            flags,
            Mode::S_IRUSR | Mode::S_IWUSR,
        )?);
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| Ok(fchmod(&file, progress.mode())?))
            .and_then(|()| {
                Ok(renameat(
                    &self.folder,
                    temporary.as_str(),
                    &self.folder,
                    name,
                )?)
            });
        if written.is_err() {
            // The first error is the one to report.
            let _ = self.remove(&temporary);
        }
        written
    }

    /// Notes that ADD succeeded.
    ///
    /// # Errors
    /// The system's error.
    pub fn finish(&self, name: &str) -> io::Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = openat(&self.folder, name, flags, Mode::empty())?;
        Ok(fchmod(&file, Progress::Done.mode())?)
    }

    /// Removes a file if it is there.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.folder, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(nix::Error::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The plugin's files, in no order. Others are left out.
    ///
    /// # Errors
    /// The system's error.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut folder = Dir::openat(
            &self.folder,
            ".",
            OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        let mut found = Vec::new();
        for entry in folder.iter() {
            let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
            let Some(entry) = name.to_str().and_then(parse) else {
                continue;
            };
            let kind = fstatat(
                &self.folder,
                entry.name.as_str(),
                AtFlags::AT_SYMLINK_NOFOLLOW,
            )
            .map(|stat| stat.st_mode & libc::S_IFMT);
            if kind == Ok(libc::S_IFREG) {
                found.push(entry);
            }
        }
        Ok(found)
    }
}

/// Takes a name apart; none if it is not the plugin's.
fn parse(name: &str) -> Option<Entry> {
    let (temporary, rest) = name
        .strip_prefix(TEMPORARY)
        .map_or((false, name), |rest| (true, rest));
    let (container, interface) = rest
        .split_once(SEPARATOR)
        .map_or((rest, None), |(container, interface)| {
            (container, Some(interface))
        });
    let attachment = Attachment {
        container: container.to_owned(),
        interface: interface.unwrap_or(FIRST).to_owned(),
    };
    crate::attachment::is_valid(&attachment).then(|| Entry {
        name: name.to_owned(),
        container: attachment.container,
        interface: interface.map(str::to_owned),
        temporary,
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
    use std::os::unix::fs::symlink;

    fn attachment(container: &str, interface: &str) -> Attachment {
        Attachment {
            container: container.to_owned(),
            interface: interface.to_owned(),
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn files_are_roots_and_tell_how_far_add_came() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        assert!(AttachmentStore::open(&folder).unwrap().is_none());
        let attachment_store = AttachmentStore::create(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        attachment_store
            .write("c0ffee", "{}", Progress::Begun)
            .unwrap();
        assert_eq!(
            attachment_store.read("c0ffee").unwrap(),
            Some(Saved {
                text: b"{}".to_vec(),
                progress: Progress::Begun
            })
        );
        attachment_store.finish("c0ffee").unwrap();
        assert_eq!(
            (
                attachment_store.read("c0ffee").unwrap().unwrap().progress,
                mode(&folder.join("c0ffee"))
            ),
            (Progress::Done, 0o600)
        );
        attachment_store
            .write("c0ffee", "{1}", Progress::Done)
            .unwrap();
        assert_eq!(
            attachment_store.read("c0ffee").unwrap().unwrap().text,
            b"{1}"
        );
        attachment_store.remove("c0ffee").unwrap();
        attachment_store.remove("c0ffee").unwrap();
        assert_eq!(
            (
                attachment_store.read("c0ffee").unwrap(),
                fs::read_dir(&folder).unwrap().count()
            ),
            (None, 0)
        );
        let long = "a".repeat(4096);
        assert_eq!(attachment_store.read(&long).unwrap(), None);
        assert!(attachment_store.write(&long, "{}", Progress::Done).is_err());
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
        nix::unistd::mkfifo(&folder.join("pipe"), Mode::S_IRUSR).unwrap();
        fs::create_dir(folder.join("folder")).unwrap();
        for (name, why) in [
            ("c0ffee", "symbolic link"),
            ("pipe", "regular"),
            ("folder", "regular"),
        ] {
            assert!(
                attachment_store
                    .read(name)
                    .unwrap_err()
                    .to_string()
                    .contains(why),
                "{name}"
            );
        }
        assert!(attachment_store.finish("c0ffee").is_err());
        assert!(attachment_store.entries().unwrap().is_empty());
        attachment_store
            .write("c0ffee", "{}", Progress::Done)
            .unwrap();
        assert_eq!(
            (
                fs::read_to_string(&secret).unwrap(),
                attachment_store.read("c0ffee").unwrap().unwrap().text
            ),
            ("mine".to_owned(), b"{}".to_vec())
        );
        assert!(
            attachment_store
                .write("folder", "{}", Progress::Done)
                .is_err()
        );
        let left: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(!left.iter().any(|name| name.starts_with('.')), "{left:?}");
    }

    #[test]
    fn foreign_names_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        let attachment_store = AttachmentStore::create(root.path()).unwrap();
        for name in [
            "c0ffee",
            "c0ffee:net1",
            ".c0ffee:net1",
            "-x",
            "..x",
            "a b",
            "c0ffee:",
            "c0ffee:a:b",
            "~",
        ] {
            fs::write(root.path().join(name), "{}").unwrap();
        }
        let mut names: Vec<_> = attachment_store
            .entries()
            .unwrap()
            .into_iter()
            .map(|entry| entry.name)
            .collect();
        names.sort();
        assert_eq!(names, [".c0ffee:net1", "c0ffee", "c0ffee:net1"]);
    }

    proptest! {
        #[test]
        fn no_two_interfaces_share_a_file(a in "[a-c0][a-c0_.-]{0,3}", b in "[a-c0][a-c0_.-]{0,3}", i in "(eth0|[a-c0.-]{1,4})", j in "(eth0|[a-c0.-]{1,4})") {
            let (one, other) = (attachment(&a, &i), attachment(&b, &j));
            prop_assert_eq!(name(&one) == name(&other), one == other);
            if crate::attachment::is_valid(&one) {
                let entry = parse(&name(&one)).unwrap();
                prop_assert_eq!((entry.container, entry.interface.unwrap_or(FIRST.to_owned()), entry.temporary), (a, i, false));
            }
        }
    }
}
