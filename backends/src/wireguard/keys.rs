//! The key files of a node: the private key, which the node creates itself, and the preshared key.

use netstate::Secret;
use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use types::file::{self, IrregularFileError, Links};
use types::wireguard::KEY_VARIABLE;
use zeroize::Zeroizing;

/// The private key, as in Go flannel.
pub(super) const KEY_FILE: &str = "/run/flannel/wgkey";
/// In bytes; a longer file does not contain a key.
const LONGEST: u64 = 4096;

/// Why a key file cannot be used.
pub(super) fn reason(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(IrregularFileError::Link) => format!(
            "the path is a symbolic link, which flanneld does not accept; name the link's target in {KEY_VARIABLE}"
        ),
        Some(_) => "the path does not lead to a file".to_owned(),
        None => error.to_string(),
    }
}

/// 32 bytes in base64. `None` if the file is empty or holds something other than a key. Fails if the
/// file is unreadable, or is a link and `links` refuses links.
pub(super) fn read_key(path: &Path, links: Links) -> io::Result<Option<Secret>> {
    let file = file::open(path, OpenOptions::new().read(true), links)?;
    // The vector has room for all of it from the start, because a vector that grows leaves a copy behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(2 * LONGEST as usize));
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    let text = std::str::from_utf8(&bytes).ok().filter(|text| text.len() as u64 <= LONGEST);
    Ok(text.and_then(Secret::parse))
}

/// A warning if users other than the owner can read the file.
pub(super) fn is_exposed(kind: &str, path: &Path) -> Option<String> {
    let is_open = fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o077 != 0);
    let path = path.display();
    is_open.then(|| {
        format!("users other than the owner can read the {kind} {path}; run chmod 600 {path}")
    })
}

/// In Go flannel's format: base64 without a newline. Other processes never see a partial key, and
/// only the owner can read the file.
pub(super) fn write_key(path: &Path, key: &Secret) -> io::Result<()> {
    let folder = folder_of(path);
    fs::create_dir_all(folder)?;
    let name = name(path)?;
    // Another daemon that starts with this folder takes the temporary file for a leftover of a crash and removes it.
    match write_in(folder, &name, path, key) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => write_in(folder, &name, path, key),
        result => result,
    }
}

fn write_in(folder: &Path, name: &str, path: &Path, key: &Secret) -> io::Result<()> {
    let temporary =
        folder.join(format!("{}{:0DIGITS$x}", temporary_prefix(name), rand::random::<u64>()));
    let written = (|| {
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(key.text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Hexadecimal digits at the end of the name of a temporary key file.
const DIGITS: usize = 16;

fn temporary_prefix(name: &str) -> String {
    format!(".{name}.")
}

/// flanneld leaves temporary key files if it crashes during the write of a key.
fn remove_leftovers(path: &Path) -> io::Result<()> {
    let prefix = temporary_prefix(&name(path)?);
    let entries = match fs::read_dir(folder_of(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        let ours = digits.is_some_and(|digits| {
            digits.len() == DIGITS
                && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
        });
        if ours && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
            tracing::info!(
                path = %entry.path().display(),
                "removed a temporary WireGuard key that a crash left"
            );
        }
    }
    Ok(())
}

/// Renames a file that does not contain a key; the result is its new path. Only the owner can read
/// it, because it may contain a partial key.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_file_name(format!("{}.bad", name(path)?));
    match file::open(path, OpenOptions::new().read(true), Links::Refused) {
        Ok(file) => file.set_permissions(fs::Permissions::from_mode(0o600))?,
        // The file behind a link may belong to another program, so its permissions stay unchanged.
        Err(_) if path.is_symlink() => {}
        Err(error) => return Err(error),
    }
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn name(path: &Path) -> io::Result<Cow<'_, str>> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "not the path of a file");
    path.file_name().map(|name| name.to_string_lossy()).ok_or_else(no_name)
}

/// The key in the file, or a new one, which is written to the file. A file without a key is renamed
/// first.
pub(super) fn load_or_create_key(path: &Path, links: Links) -> io::Result<Secret> {
    if let Err(error) = remove_leftovers(path) {
        tracing::warn!(
            path = %path.display(),
            error = reason(&error),
            "cannot remove temporary WireGuard keys in the key's directory"
        );
    }
    match read_key(path, links) {
        Ok(Some(key)) => return Ok(key.clamped()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(None) => {
            let aside = set_aside(path)?;
            tracing::warn!(
                path = %path.display(),
                to = %aside.display(),
                "moved the file, because it held no WireGuard private key (32 bytes in base64); creating a new key, which peers learn from this node's lease"
            );
        }
    }
    write_new_key(path)
}

/// Writes a new private key to the file.
pub(super) fn write_new_key(path: &Path) -> io::Result<Secret> {
    let key = Secret::generate()
        .map_err(|error| io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO)))?;
    write_key(path, &key)?;
    tracing::info!(
        path = %path.display(),
        public_key = %key.public(),
        "new WireGuard key"
    );
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("flannel-keys-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_key_file_that_is_a_link_is_refused_where_only_the_daemon_writes_it() {
        let folder = folder("link");
        let (path, target) = (folder.join("wgkey"), folder.join("target"));
        let key = Secret::generate().unwrap();
        fs::write(&target, &*key.text()).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        for result in [
            read_key(&path, Links::Refused).map(drop),
            load_or_create_key(&path, Links::Refused).map(drop),
        ] {
            let error = reason(&result.unwrap_err());
            assert!(error.contains("symbolic link") && error.contains(KEY_VARIABLE), "{error}");
        }
        // Kubernetes mounts the files of a Secret as links.
        assert_eq!(load_or_create_key(&path, Links::Followed).unwrap(), key.clamped());
        // A new key replaces the link, not its target.
        let other = write_new_key(&path).unwrap();
        assert_eq!(
            (read_key(&path, Links::Refused).unwrap(), read_key(&target, Links::Refused).unwrap()),
            (Some(other), Some(key))
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn temporary_keys_of_a_crash_are_removed_at_the_next_start() {
        let folder = folder("crash");
        let path = folder.join("wgkey");
        let left = [".wgkey.0123456789abcdef", ".wgkey.fedcba9876543210"];
        // Similar names, which are not those of temporary keys. They stay, and so does a folder.
        let others = [
            ".wgkey2.0123456789abcdef",
            ".wgkey.0123456789abcdeg",
            ".wgkey.123",
            "wgkey.0123456789abcdef",
        ];
        left.iter().chain(&others).for_each(|name| fs::write(folder.join(name), "secret").unwrap());
        fs::create_dir(folder.join(".wgkey.0000000000000000")).unwrap();
        for _ in 0..2 {
            load_or_create_key(&path, Links::Refused).unwrap();
            assert!(left.iter().all(|name| !folder.join(name).exists()));
            assert!(
                others
                    .iter()
                    .chain(&[".wgkey.0000000000000000"])
                    .all(|name| folder.join(name).exists())
            );
            fs::write(folder.join(left[0]), "secret").unwrap();
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_is_set_aside_can_be_read_by_its_owner_only() {
        let folder = folder("aside");
        let path = folder.join("wgkey");
        fs::write(&path, "half a key").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let aside = set_aside(&path).unwrap();
        assert_eq!(fs::metadata(&aside).unwrap().permissions().mode() & 0o777, 0o600);
        // If the path is a link, only the link is moved.
        let target = folder.join("target");
        fs::write(&target, "no key").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        set_aside(&path).unwrap();
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o644);
        assert!(fs::symlink_metadata(&aside).unwrap().is_symlink());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_key_is_made_once_and_only_its_owner_can_read_it() {
        let folder = folder("made");
        let path = folder.join("new/wgkey");
        let key = load_or_create_key(&path, Links::Refused).unwrap();
        assert_eq!(load_or_create_key(&path, Links::Refused).unwrap(), key);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read(&path).unwrap().len(), 44, "no line end");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file");
        // The file as `wg genkey > file` writes it.
        fs::write(&path, format!("{}\n", &*key.text())).unwrap();
        assert_eq!(load_or_create_key(&path, Links::Refused).unwrap(), key);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn invalid_key_is_set_aside_and_a_non_file_is_an_error() {
        let folder = folder("bad");
        let path = folder.join("wgkey");
        for bad in [
            &b""[..],
            b"QUJD",
            b"\xff\xff",
            &[b'A'; 100_000],
            b" oLXChGgxUhtFKhIW7Nn2S9+bFai5u2s1lbeCLqZnt3k=",
        ] {
            fs::write(&path, bad).unwrap();
            let key = load_or_create_key(&path, Links::Refused).unwrap();
            assert_eq!(read_key(&path, Links::Refused).unwrap(), Some(key));
            assert_eq!(fs::read(folder.join("wgkey.bad")).unwrap(), bad);
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(load_or_create_key(&path, Links::Refused).is_err());
        assert!(
            load_or_create_key(Path::new("/proc/flannel/wgkey"), Links::Refused).is_err()
                && load_or_create_key(Path::new(""), Links::Refused).is_err()
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
