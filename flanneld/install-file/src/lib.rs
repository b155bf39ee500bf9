//! Installs a file on the host: a program that runs is replaced, and no reader ever sees half of a file.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Names that are tried for the temporary file before giving up: more than installers that run at once.
const ATTEMPTS: u32 = 100;

/// A file could not be installed.
#[derive(Debug)]
pub struct InstallError {
    destination: PathBuf,
    doing: String,
    cause: io::Error,
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error installing {:?}: {}: {}", self.destination, self.doing, self.cause)?;
        match self.cause.kind() {
            io::ErrorKind::PermissionDenied => f.write_str("; the folder must belong to root, or the container needs the capability DAC_OVERRIDE"),
            io::ErrorKind::ReadOnlyFilesystem => f.write_str("; mount the folder of the host writable, or choose another one"),
            io::ErrorKind::NotFound => f.write_str("; is the volume mounted?"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for InstallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// Copies the content and mode of `source` to `destination` by a temporary file beside it and a rename. A symbolic link at the
/// destination is replaced, not followed.
///
/// # Errors
/// Fails without a trace at the destination if anything fails.
pub fn install(source: &Path, destination: &Path) -> Result<(), InstallError> {
    let failed = |doing: String| move |cause| InstallError { destination: destination.to_owned(), doing, cause };
    let reading = || failed(format!("reading {}", source.display()));
    let mut from = File::open(source).map_err(reading())?;
    let kind = from.metadata().map_err(reading())?;
    if !kind.is_file() {
        return Err(reading()(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    let (mut to, temporary) = create_beside(destination).map_err(failed("creating a temporary file in its folder".to_owned()))?;
    let placed = copy(&mut from, &mut to, kind.permissions().mode() & 0o7777)
        .and_then(|()| std::fs::rename(&temporary, destination))
        .map_err(failed(format!("writing it by way of {}", temporary.display())));
    if placed.is_err() {
        let _ = std::fs::remove_file(&temporary);
        return placed;
    }
    // The rename is done: a folder that cannot be synced is no reason to fail.
    if let Ok(folder) = File::open(folder_of(destination)) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// An empty file in the destination's folder, under a name that no container runtime takes for a configuration: a new one, or one that an
/// installer left behind when it was killed.
fn create_beside(destination: &Path) -> io::Result<(File, PathBuf)> {
    let name = destination.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the path of a file"))?;
    let name = name.to_string_lossy();
    for attempt in 0..ATTEMPTS {
        // Not the process's own number: it is 1 in every container, and so in the names of earlier versions.
        let path = folder_of(destination).join(format!(".{name}.tmp1-{attempt}"));
        if let Some(file) = claim(&path)? {
            return Ok((file, path));
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("none of {ATTEMPTS} names for it is free: remove .{name}.tmp* there")))
}

/// The file at this path for this process alone; none while another installer has it, or where something else is.
fn claim(path: &Path) -> io::Result<Option<File>> {
    let (file, is_new) = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => (file, true),
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Err(_) => {
            // Nothing but a file is opened: a link is not followed, and a pipe would wait.
            if !path.symlink_metadata().is_ok_and(|known| known.is_file() && known.nlink() == 1) {
                return Ok(None);
            }
            let Ok(file) = OpenOptions::new().write(true).open(path) else { return Ok(None) };
            (file, false)
        }
    };
    // The lock ends with its process, however that ends.
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(_)) if is_new => return Ok(Some(file)),
        Err(_) => return Ok(None),
    }
    // Whoever had it may have renamed it before this process locked it.
    let held = file.metadata()?;
    if path.symlink_metadata().is_ok_and(|there| (there.dev(), there.ino()) == (held.dev(), held.ino())) {
        file.set_len(0)?;
        return Ok(Some(file));
    }
    Ok(None)
}

fn copy(from: &mut impl Read, to: &mut File, mode: u32) -> io::Result<()> {
    io::copy(from, to)?;
    to.set_permissions(std::fs::Permissions::from_mode(mode))?;
    to.flush()?;
    to.sync_all()
}

#[cfg(test)]
mod tests;
