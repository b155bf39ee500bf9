//! Opens and reads files that another user or program may have put at a path: never blocks on a pipe or a device, and reads a limited number of bytes.

use crate::Coded;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use thiserror::Error;

/// Whether a path may lead through a symbolic link in its last part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// A link is followed, because an operator named the path. Kubernetes mounts the files of ConfigMaps and Secrets as links.
    Followed,
    /// A link is refused, because other users may write to the folder, or because only this program creates the file.
    Refused,
}

/// Opens a file if it is a regular file. The inner error of a refused link, a pipe or a device is an [`IrregularFileError`].
pub fn open(path: &Path, options: &mut OpenOptions, links: Links) -> io::Result<File> {
    let no_links = match links {
        Links::Followed => 0,
        Links::Refused => libc::O_NOFOLLOW,
    };
    let file = options
        .custom_flags(no_links | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) if links == Links::Refused => IrregularFileError::Link.into(),
            Some(libc::ENXIO) => IrregularFileError::Other.into(),
            _ => error,
        })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(IrregularFileError::Other.into()) }
}

/// Fails for a file of more than `limit` bytes. The inner error is then [`IrregularFileError::TooLong`].
pub fn read(path: &Path, limit: u64, links: Links) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, OpenOptions::new().read(true), links)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(IrregularFileError::TooLong(limit).into());
    }
    Ok(bytes)
}

/// The inner error of an [`io::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Coded)]
pub enum IrregularFileError {
    #[error(
        "the path is a symbolic link, which flanneld does not follow; put a regular file at the path, or delete the link"
    )]
    #[code("file-symbolic-link")]
    Link,
    /// A pipe, a device, a socket or a directory.
    #[error("the path is not a regular file; put a regular file there")]
    #[code("file-not-regular")]
    Other,
    #[error("the file has several hard links; delete this link")]
    #[code("file-hard-links")]
    HardLinks,
    /// With the limit in bytes.
    #[error("the file has more than {0} bytes")]
    #[code("file-too-long")]
    TooLong(u64),
}

impl From<IrregularFileError> for io::Error {
    fn from(why: IrregularFileError) -> Self {
        io::Error::new(io::ErrorKind::InvalidInput, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_regular_files_are_read() {
        let folder = std::env::temp_dir().join(format!("file-{}", rand::random::<u64>()));
        std::fs::create_dir(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        std::fs::write(path("file"), "text").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("endless")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        let error = |name: &str, links| {
            let error = read(&path(name), 4, links).unwrap_err();
            error.get_ref().and_then(|inner| inner.downcast_ref().copied()).ok_or(error.kind())
        };
        for links in [Links::Followed, Links::Refused] {
            assert_eq!(read(&path("file"), 4, links).unwrap(), b"text");
            assert_eq!(error("pipe", links), Ok(IrregularFileError::Other));
            assert_eq!(error(".", links), Ok(IrregularFileError::Other));
            assert_eq!(error("none", links), Err(io::ErrorKind::NotFound));
            assert!(open(&path("pipe"), OpenOptions::new().write(true), links).is_err());
            std::fs::write(path("long"), "texts").unwrap();
            assert_eq!(error("long", links), Ok(IrregularFileError::TooLong(4)));
        }
        assert_eq!(read(&path("link"), 4, Links::Followed).unwrap(), b"text");
        assert_eq!(error("link", Links::Refused), Ok(IrregularFileError::Link));
        assert_eq!(error("endless", Links::Followed), Ok(IrregularFileError::Other));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
