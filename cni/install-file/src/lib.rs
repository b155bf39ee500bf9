//! Installs files, such as CNI plugins, on the host. It replaces files of running programs, and others never
//! read a partial file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Names that are tried for the temporary file: more than the expected number of concurrent installers.
const ATTEMPTS: u32 = 100;

#[derive(Debug, Error)]
#[error("error installing {destination:?}: {operation}: {source}{}", remedy(source))]
pub struct InstallError {
    code: &'static str,
    destination: PathBuf,
    operation: String,
    source: io::Error,
}

impl InstallError {
    /// Does not change between releases.
    pub fn code(&self) -> &'static str {
        self.code
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; make root the owner of the folder, or give the container the capability DAC_OVERRIDE"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "; mount the folder of the host writable, or choose another folder"
        }
        io::ErrorKind::NotFound => "; check that the volume is mounted",
        _ => "",
    }
}

/// Copies content and mode to a temporary file in the destination's folder, which is then renamed. A symbolic
/// link at the destination is replaced and not followed. After an error, the destination is unchanged.
pub fn install(source: &Path, destination: &Path) -> Result<(), InstallError> {
    let failed = |code, operation, source| InstallError {
        code,
        destination: destination.to_owned(),
        operation,
        source,
    };
    let reading = |code, error| failed(code, format!("reading {}", source.display()), error);
    let unread = |error| reading("install-read", error);
    let mut from = File::open(source).map_err(unread)?;
    let kind = from.metadata().map_err(unread)?;
    if !kind.is_file() {
        let error = io::Error::other("not a regular file");
        return Err(reading("install-source-not-regular", error));
    }
    let (mut to, temporary) = create_temporary(destination).map_err(|(code, error)| {
        failed(code, "creating a temporary file in its folder".to_owned(), error)
    })?;
    let placed = copy(&mut from, &mut to, kind.permissions().mode() & 0o7777)
        .and_then(|()| std::fs::rename(&temporary, destination));
    if let Err(error) = placed {
        let _ = std::fs::remove_file(&temporary);
        let operation =
            format!("writing the file through the temporary file {}", temporary.display());
        return Err(failed("install-write", operation, error));
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

/// Creates an empty temporary file in the destination's folder, or reuses one that a killed installer left.
/// Container runtimes do not take this name for a configuration. An error is a code and its cause.
fn create_temporary(destination: &Path) -> Result<(File, PathBuf), (&'static str, io::Error)> {
    let not_a_file =
        || ("install-destination-not-a-file", io::Error::other("not the path of a file"));
    let name = destination.file_name().ok_or_else(not_a_file)?;
    let name = name.to_string_lossy();
    for attempt in 0..ATTEMPTS {
        // The name does not depend on the PID. Earlier versions had it in place of the 1; in containers it was always 1, so their files are reused.
        let path = folder_of(destination).join(format!(".{name}.tmp1-{attempt}"));
        if let Some(file) = claim(&path).map_err(|error| ("install-create", error))? {
            return Ok((file, path));
        }
    }
    let why = format!(
        "all {ATTEMPTS} names for the temporary file are taken; remove .{name}.tmp* from the folder"
    );
    Err(("install-no-name-free", io::Error::other(why)))
}

/// Opens or creates a file and locks it. `None` if another installer holds the lock, or if it is not a
/// regular file with exactly one hard link.
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
