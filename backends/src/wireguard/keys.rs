//! The files of a node's secrets: its private key, which it makes itself, and a preshared key.

use netstate::wireguard::Secret;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Where Go flannel keeps the private key.
pub const KEY_FILE: &str = "/run/flannel/wgkey";
/// Names another file, as for Go flannel.
pub const KEY_VARIABLE: &str = "WIREGUARD_KEY_FILE";
/// Names the file of the preshared key.
pub const PRESHARED_VARIABLE: &str = "WIREGUARD_PSK_FILE";
/// A longer file holds no key.
const LONGEST: u64 = 4096;

/// What a file holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Content {
    /// A key.
    Key(Secret),
    /// Nothing, or something else.
    Garbled,
    /// There is none.
    Missing,
}

/// Reads a file of 32 bytes in base64.
///
/// # Errors
/// It exists and cannot be read.
pub fn read(path: &Path) -> io::Result<Content> {
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::Missing),
        Err(error) => return Err(error),
    };
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    let text = std::str::from_utf8(&bytes).ok().filter(|text| text.len() as u64 <= LONGEST);
    Ok(text.and_then(Secret::parse).map_or(Content::Garbled, Content::Key))
}

/// What to say of a file that others than its owner can read.
pub fn exposed(what: &str, path: &Path) -> Option<String> {
    let is_open = fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o077 != 0);
    is_open.then(|| format!("others than its owner can read the {what} {0}: chmod 600 {0}", path.display()))
}

/// Writes a private key, as Go flannel does: base64 without a line end. No reader sees half of it, and nobody else sees it at all.
///
/// # Errors
/// The folder cannot be written.
pub fn write(path: &Path, key: &Secret) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let temporary = folder.join(format!(".{}.{:016x}", name(path)?, rand::random::<u64>()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
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

/// Moves a file that holds no key out of the way, and returns its new path.
///
/// # Errors
/// It cannot be renamed.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_file_name(format!("{}.bad", name(path)?));
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn name(path: &Path) -> io::Result<std::borrow::Cow<'_, str>> {
    path.file_name().map(|name| name.to_string_lossy()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the path of a file"))
}

/// The private key of this host: that of the file, or a new one, which is written there. A file that holds none is set aside.
///
/// # Errors
/// The file cannot be read or written.
pub fn own(path: &Path) -> io::Result<Secret> {
    match read(path)? {
        Content::Key(key) => return Ok(key.clamped()),
        Content::Missing => {}
        Content::Garbled => {
            let aside = set_aside(path)?;
            tracing::warn!(
                "{} held no WireGuard private key (32 bytes in base64): it was moved to {}, and a new key is made; peers learn it from this node's lease",
                path.display(),
                aside.display()
            );
        }
    }
    renew(path)
}

/// Makes a new private key and writes it.
///
/// # Errors
/// The file cannot be written.
pub fn renew(path: &Path) -> io::Result<Secret> {
    let key = Secret::generate().map_err(io::Error::other)?;
    write(path, &key)?;
    tracing::info!("new WireGuard key in {}: public key {}", path.display(), key.public());
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("flannel-keys-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_key_is_made_once_and_only_its_owner_can_read_it() {
        let folder = folder("made");
        let path = folder.join("new/wgkey");
        let key = own(&path).unwrap();
        assert_eq!(own(&path).unwrap(), key);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read(&path).unwrap().len(), 44, "no line end");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file");
        // As `wg genkey > file` writes it.
        fs::write(&path, format!("{}\n", &*key.text())).unwrap();
        assert_eq!(own(&path).unwrap(), key);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_no_key_is_set_aside_and_what_is_no_file_is_an_error() {
        let folder = folder("bad");
        let path = folder.join("wgkey");
        for bad in [&b""[..], b"QUJD", b"\xff\xff", &[b'A'; 100_000], b" oLXChGgxUhtFKhIW7Nn2S9+bFai5u2s1lbeCLqZnt3k="] {
            fs::write(&path, bad).unwrap();
            let key = own(&path).unwrap();
            assert_eq!(read(&path).unwrap(), Content::Key(key));
            assert_eq!(fs::read(folder.join("wgkey.bad")).unwrap(), bad);
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(own(&path).is_err());
        assert!(own(Path::new("/proc/flannel/wgkey")).is_err() && own(Path::new("")).is_err());
        fs::remove_dir_all(folder).unwrap();
    }
}
