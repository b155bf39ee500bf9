//! Opens files that another user may have created at well-known paths: follows no links and never blocks on a pipe.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use types::Coded;
use types::problem::text;

/// Opens a file if it is a regular file.
///
/// # Errors
/// Returns an error if the open fails, or if the file is a link, a pipe or a device ([`Irregular`]).
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file =
        options
            .custom_flags(flags)
            .open(path)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ELOOP) => Irregular::Link.into(),
                Some(libc::ENXIO) => Irregular::Other.into(),
                _ => error,
            })?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(Irregular::Other.into())
    }
}

/// Reads at most `limit` bytes of a regular file.
///
/// # Errors
/// Returns an error if [`open`] or the read of the file fails.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, OpenOptions::new().read(true))?
        .take(limit)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reason why a program does not use a file. This reason is the inner error of an [`io::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Irregular {
    /// A symbolic link.
    Link,
    /// A pipe, a device, a socket or a directory.
    Other,
    /// A file with more than one hard link.
    HardLinks,
}

impl Coded for Irregular {
    fn code(&self) -> &'static str {
        match self {
            Self::Link => "file-symbolic-link",
            Self::Other => "file-not-regular",
            Self::HardLinks => "file-hard-links",
        }
    }
}

impl fmt::Display for Irregular {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text(f, self, |f| {
            f.write_str(match self {
                Self::Link => "the path is a symbolic link, which flanneld does not follow; put a regular file at the path, or delete the link",
                Self::Other => "the path is not a regular file; delete it",
                Self::HardLinks => "the file has several hard links; delete this link",
            })
        })
    }
}

impl std::error::Error for Irregular {}

impl From<Irregular> for io::Error {
    fn from(why: Irregular) -> Self {
        io::Error::new(io::ErrorKind::InvalidInput, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        nix::unistd::mkfifo(&path("pipe"), Mode::from_bits_truncate(0o600)).unwrap();
        assert_eq!(read(&path("file"), 3).unwrap(), b"tex");
        for (name, why) in [
            ("link", Irregular::Link),
            ("pipe", Irregular::Other),
            (".", Irregular::Other),
        ] {
            let error = read(&path(name), 3).unwrap_err();
            assert_eq!(
                error.get_ref().and_then(|inner| inner.downcast_ref()),
                Some(&why),
                "{name}: {error}"
            );
        }
        for (name, why) in [
            ("link", "symbolic link"),
            ("pipe", "regular"),
            (".", "regular"),
        ] {
            assert!(
                read(&path(name), 3).unwrap_err().to_string().contains(why),
                "{name}"
            );
            assert!(
                open(&path(name), OpenOptions::new().write(true)).is_err(),
                "{name}"
            );
        }
        assert_eq!(
            read(&path("none"), 3).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
