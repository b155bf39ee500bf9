//! Replaces files atomically by a rename: a reader sees either the old or the new file as a whole.

use rand::Rng;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Creates the folder of `path`, calls `make` to create a file at a temporary path in it, and renames that file to
/// `path`. Removes the temporary file if a step fails.
pub(crate) fn replace<T>(path: &Path, make: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let folder = folder(path);
    // The folder does not exist yet on a fresh host.
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let temporary =
        folder.join(format!("{}{:016x}", temporary_prefix(path), rand::rng().random::<u64>()));
    let made = make(&temporary).and_then(|made| {
        std::fs::rename(&temporary, path)?;
        Ok(made)
    });
    if made.is_err() {
        // The temporary file may not exist; the first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
    }
    made
}

/// Replaces the file at `path` by a file with these contents that everybody can read. A link at `path` is replaced,
/// not followed. If a step fails, the former file stays.
///
/// ```
/// use run_dir::replace::write_public;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("new-folder/file");
/// write_public(&path, b"former")?;
/// write_public(&path, b"present")?;
/// assert_eq!(std::fs::read(&path)?, b"present");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_public(path: &Path, contents: &[u8]) -> io::Result<()> {
    replace(path, |temporary| {
        let mut file = create(temporary)?;
        file.write_all(contents)?;
        file.set_permissions(Permissions::from_mode(0o644))
    })
}

/// Creates a file that only root can read and lock.
pub(crate) fn create(temporary: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)
}

/// The folder that contains the file at `path`.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The prefix of the names of temporary files for `path`.
pub(crate) fn temporary_prefix(path: &Path) -> String {
    format!(".{}", path.file_name().map_or("subnet.env".into(), |name| name.to_string_lossy()))
}
