//! Installs files, such as CNI plugins, on the host. Replaces the files of running programs, and other processes never read a partial file.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Maximum number of names that the installer tries for the temporary file, more than the expected number of concurrent installers.
const ATTEMPTS: u32 = 100;

/// The error that [`install`] returns.
#[derive(Debug)]
pub struct InstallError {
    /// The path at which the installer should have installed the file.
    pub destination: PathBuf,
    /// The failed operation, with its cause.
    pub failure: Failure,
}

/// The operation of an installation that failed.
#[derive(Debug)]
pub enum Failure {
    /// The installer cannot read the source file.
    Read {
        /// The path of the source file.
        source: PathBuf,
        /// The error that the system call returned.
        cause: io::Error,
    },
    /// The source is not a regular file.
    NotRegular {
        /// The path of the source file.
        source: PathBuf,
    },
    /// The destination is not the path of a file.
    NotAFile,
    /// All names for the temporary file are in use.
    NoNameFree {
        /// The common prefix of the temporary file's possible names.
        prefix: String,
    },
    /// The installer cannot create a temporary file.
    Create(io::Error),
    /// The installer cannot write the temporary file, or cannot rename it to the destination.
    Write {
        /// The path of the temporary file.
        temporary: PathBuf,
        /// The error of the system call.
        cause: io::Error,
    },
}

impl InstallError {
    /// Returns the error code, which does not change between releases.
    pub fn code(&self) -> &'static str {
        match self.failure {
            Failure::Read { .. } => "install-read",
            Failure::NotRegular { .. } => "install-source-not-regular",
            Failure::NotAFile => "install-destination-not-a-file",
            Failure::NoNameFree { .. } => "install-no-name-free",
            Failure::Create(_) => "install-create",
            Failure::Write { .. } => "install-write",
        }
    }

    fn cause(&self) -> Option<&io::Error> {
        match &self.failure {
            Failure::Read { cause, .. } | Failure::Create(cause) | Failure::Write { cause, .. } => {
                Some(cause)
            }
            Failure::NotRegular { .. } | Failure::NotAFile | Failure::NoNameFree { .. } => None,
        }
    }
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error installing {:?}: ", self.destination)?;
        match &self.failure {
            Failure::Read { source, cause } => write!(f, "reading {}: {cause}", source.display()),
            Failure::NotRegular { source } => {
                write!(f, "reading {}: not a regular file", source.display())
            }
            Failure::NotAFile => {
                f.write_str("creating a temporary file in its folder: not the path of a file")
            }
            Failure::NoNameFree { prefix } => {
                write!(
                    f,
                    "creating a temporary file in its folder: all {ATTEMPTS} names for the temporary file are taken; remove {prefix}* from the folder"
                )
            }
            Failure::Create(cause) => write!(f, "creating a temporary file in its folder: {cause}"),
            Failure::Write { temporary, cause } => {
                write!(
                    f,
                    "writing the file through the temporary file {}: {cause}",
                    temporary.display()
                )
            }
        }?;
        match self.cause().map(io::Error::kind) {
            Some(io::ErrorKind::PermissionDenied) => {
                f.write_str("; make root the owner of the folder, or give the container the capability DAC_OVERRIDE")
            }
            Some(io::ErrorKind::ReadOnlyFilesystem) => f.write_str("; mount the folder of the host writable, or choose another folder"),
            Some(io::ErrorKind::NotFound) => f.write_str("; check that the volume is mounted"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for InstallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause().map(|cause| cause as _)
    }
}

/// Copies the content and mode of `source` to `destination`: writes a temporary file in the destination's folder,
/// then renames this file. Replaces a symbolic link at the destination and does not follow the link.
///
/// # Errors
/// Returns an error if the installer cannot read the source or cannot write the destination. After an error, the destination is unchanged.
pub fn install(source: &Path, destination: &Path) -> Result<(), InstallError> {
    let failed = |failure| InstallError { destination: destination.to_owned(), failure };
    let reading = |cause| failed(Failure::Read { source: source.to_owned(), cause });
    let mut from = File::open(source).map_err(reading)?;
    let kind = from.metadata().map_err(reading)?;
    if !kind.is_file() {
        return Err(failed(Failure::NotRegular { source: source.to_owned() }));
    }
    let (mut to, temporary) = create_temporary(destination).map_err(failed)?;
    let placed = copy(&mut from, &mut to, kind.permissions().mode() & 0o7777)
        .and_then(|()| std::fs::rename(&temporary, destination))
        .map_err(|cause| failed(Failure::Write { temporary: temporary.clone(), cause }));
    if placed.is_err() {
        let _ = std::fs::remove_file(&temporary);
        return placed;
    }
    // The rename is done, so a failure to sync the folder does not matter.
    if let Ok(folder) = File::open(folder_of(destination)) {
        let _ = folder.sync_all();
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates an empty temporary file in the destination's folder. Container runtimes do not read a file with this
/// temporary name as a configuration. Reuses a temporary file that a killed installer left.
fn create_temporary(destination: &Path) -> Result<(File, PathBuf), Failure> {
    let name = destination.file_name().ok_or(Failure::NotAFile)?;
    let name = name.to_string_lossy();
    for attempt in 0..ATTEMPTS {
        // The name does not depend on the PID. Earlier versions had it in place of the 1; in containers it was always 1, so their files are reused.
        let path = folder_of(destination).join(format!(".{name}.tmp1-{attempt}"));
        if let Some(file) = claim(&path).map_err(Failure::Create)? {
            return Ok((file, path));
        }
    }
    Err(Failure::NoNameFree { prefix: format!(".{name}.tmp") })
}

/// Opens or creates the file at this path and locks the file. Returns `None` if another installer holds the lock, or
/// if the path is not a regular file with exactly one hard link.
fn claim(path: &Path) -> io::Result<Option<File>> {
    let (file, is_new) = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => (file, true),
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Err(_) => {
            // Open only a regular file with one name: a link must not be followed, and opening a pipe would block.
            if !path.symlink_metadata().is_ok_and(|known| known.is_file() && known.nlink() == 1) {
                return Ok(None);
            }
            let Ok(file) = OpenOptions::new().write(true).open(path) else {
                return Ok(None);
            };
            (file, false)
        }
    };
    // The kernel releases the lock when its process ends, for whatever reason.
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(_)) if is_new => return Ok(Some(file)),
        Err(_) => return Ok(None),
    }
    // Another installer may have renamed it before this process locked it.
    let held = file.metadata()?;
    if path
        .symlink_metadata()
        .is_ok_and(|there| (there.dev(), there.ino()) == (held.dev(), held.ino()))
    {
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
