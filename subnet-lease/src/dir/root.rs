//! Opens the store's directory, and checks that it is the one that flanneld found at the start. All files are opened relative to its descriptor, so
//! flanneld never reads or writes another directory at the same path.

use super::error::{DirError, FileError};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, fstat, fstatat, mkdirat};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const CONFIG: &str = "config";
const SUBNETS: &str = "subnets";
const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// The path of the store's directory, and the identity of the first directory found there.
pub(super) struct Root {
    path: PathBuf,
    /// Device and inode.
    first: OnceLock<(u64, u64)>,
}

pub(super) struct Open<'a> {
    root: &'a Root,
    file: OwnedFd,
}

impl Root {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, first: OnceLock::new() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// True once flanneld has found a directory with a configuration.
    pub(super) fn is_settled(&self) -> bool {
        self.first.get().is_some()
    }

    /// Fails if another directory has replaced the store's directory, or if the configuration is gone.
    pub(super) fn open(&self) -> Result<Open<'_>, DirError> {
        let path = self.path.display();
        let unavailable = |code, what: &str| {
            DirError::unavailable(code, format!("the directory of leases {path} {what}"))
        };
        let unreadable = |code, what: &str, error: Errno| {
            let what = format!("the directory of leases {path} cannot be {what}");
            DirError::unreadable(code, what, error)
        };
        let file = open(&self.path, DIRECTORY, Mode::empty()).map_err(|error| match error {
            Errno::ENOENT => unavailable(
                "directory-missing",
                "does not exist; mount the directory, or move the directory back",
            ),
            error => unreadable("directory-not-opened", "opened", error),
        })?;
        let opened = Open { root: self, file };
        let Some(first) = self.first.get() else {
            return Ok(opened);
        };
        let present = opened.identity()?;
        let config = fstatat(&opened.file, CONFIG, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map(|meta| meta.st_mode & libc_type::MASK == libc_type::REGULAR);
        match (present == *first, config) {
            (true, Ok(true)) => Ok(opened),
            (false, Ok(true)) => Err(unavailable(
                "directory-replaced",
                "is not the directory that flanneld found at its start; restore the former directory, or restart flanneld to use this directory",
            )),
            (false, _) => Err(unavailable(
                "directory-unmounted",
                "is missing, and a directory without a config is in its place; mount the missing directory, or move it back",
            )),
            (true, Ok(false)) => Err(unavailable(
                "directory-config-not-regular",
                "has a config that is not a regular file; put the file back",
            )),
            (true, Err(Errno::ENOENT)) => Err(unavailable(
                "directory-config-gone",
                "no longer has a config; put the config back",
            )),
            (true, Err(error)) => Err(unreadable("directory-unreadable", "read: config", error)),
        }
    }
}

/// The file type bits of a mode.
mod libc_type {
    use nix::sys::stat::SFlag;
    pub(super) const MASK: u32 = SFlag::S_IFMT.bits();
    pub(super) const REGULAR: u32 = SFlag::S_IFREG.bits();
}

impl Open<'_> {
    fn identity(&self) -> Result<(u64, u64), DirError> {
        let meta = fstat(&self.file).map_err(|error| {
            let what =
                format!("the directory of leases {} cannot be read", self.root.path.display());
            DirError::unreadable("directory-unreadable", what, error)
        })?;
        Ok((meta.st_dev, meta.st_ino))
    }

    pub(super) fn config(&self) -> std::io::Result<File> {
        regular(&self.file, CONFIG, OFlag::O_RDONLY)
    }

    /// Records the open directory as the store's. Only the first call counts.
    pub(super) fn settle(&self) -> Result<(), DirError> {
        let _ = self.root.first.set(self.identity()?);
        Ok(())
    }

    /// `None` if it does not exist yet.
    pub(super) fn subnets(&self) -> Result<Option<OwnedFd>, DirError> {
        match openat(&self.file, SUBNETS, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty()) {
            Ok(folder) => Ok(Some(folder)),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => {
                let path = self.root.path.join(SUBNETS);
                let what = format!("cannot open the directory {}", path.display());
                let why = FileError::of(error);
                Err(DirError::unreadable("directory-subnets-not-opened", what, why))
            }
        }
    }

    /// Creates it if it is missing.
    pub(super) fn subnets_made(&self) -> Result<OwnedFd, DirError> {
        let failed = |error: Errno| {
            let path = self.root.path.join(SUBNETS);
            DirError::of_file("create the directory", &path, FileError::of(error))
        };
        match mkdirat(&self.file, SUBNETS, Mode::from_bits_truncate(0o777)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        self.subnets()?.ok_or_else(|| failed(Errno::ENOENT))
    }
}

/// Follows no symbolic links and never blocks on a pipe.
pub(super) fn regular(folder: &OwnedFd, name: &str, flags: OFlag) -> std::io::Result<File> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let opened =
        openat(folder, name, flags, Mode::from_bits_truncate(0o644)).map_err(
            |error| match error {
                // The file is a pipe without a reader, opened for writing, or a socket.
                Errno::ENXIO | Errno::ENODEV => strange(),
                // The file is a directory, opened for writing.
                Errno::EISDIR => strange(),
                error => error.into(),
            },
        )?;
    let file = File::from(opened);
    if !file.metadata()?.is_file() {
        return Err(strange());
    }
    Ok(file)
}

fn strange() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, "the path is not a regular file")
}

/// True if an operation failed because the file is not a regular file.
pub(super) fn foreign(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::InvalidInput
        || error.raw_os_error() == Some(Errno::ELOOP as i32)
}
