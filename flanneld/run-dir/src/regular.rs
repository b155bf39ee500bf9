//! Opens files at well-known paths that another user may have created: follows no links and never blocks on a pipe.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a file if it is a regular file.
///
/// # Errors
/// The system's error, or the file is a link, a pipe or a device.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = options.custom_flags(flags).open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => refused("it is a symbolic link, which is not followed: put a regular file there, or delete the link"),
        Some(libc::ENXIO) => irregular(),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(irregular()) }
}

/// Reads at most a given number of bytes of a regular file.
///
/// # Errors
/// As for [`open`], or reading fails.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, OpenOptions::new().read(true))?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn irregular() -> io::Error {
    refused("it is not a regular file: delete it")
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;

    #[test]
    fn files_alone_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        nix::unistd::mkfifo(&path("pipe"), Mode::from_bits_truncate(0o600)).unwrap();
        assert_eq!(read(&path("file"), 3).unwrap(), b"tex");
        for (name, why) in [("link", "symbolic link"), ("pipe", "regular"), (".", "regular")] {
            assert!(read(&path(name), 3).unwrap_err().to_string().contains(why), "{name}");
            assert!(open(&path(name), OpenOptions::new().write(true)).is_err(), "{name}");
        }
        assert_eq!(read(&path("none"), 3).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
