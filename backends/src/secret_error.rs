//! Errors that occur when the daemon reads or writes the files of a node's secrets.

use std::fmt;
use std::io;
use std::path::PathBuf;
use types::file::IrregularFileError;
use types::wireguard::{KEY_VARIABLE, PRESHARED_VARIABLE};
use types::{Coded, Errno};

/// Reason why a key file is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileError {
    /// Symbolic link, which the daemon refuses.
    Link,
    /// Folder, device or other special file.
    NotAFile,
    /// Path that does not end with a file name.
    NotAPath,
    /// Errno of a failed system call.
    System(Errno),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(IrregularFileError::Link) => FileError::Link,
            Some(_) => FileError::NotAFile,
            None => FileError::System(error.into()),
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Link => write!(
                f,
                "the path is a symbolic link, which flanneld does not accept; name the link's target in {KEY_VARIABLE}"
            ),
            FileError::NotAFile => f.write_str("the path does not lead to a file"),
            FileError::NotAPath => f.write_str("not the path of a file"),
            FileError::System(errno) => errno.fmt(f),
        }
    }
}

/// The type of the WireGuard key in a file: private or preshared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretKind {
    /// The private key of this node.
    Private,
    /// The preshared key of all nodes.
    Preshared,
}

impl fmt::Display for SecretKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SecretKind::Private => "WireGuard private key",
            SecretKind::Preshared => "preshared key",
        })
    }
}

/// A file that users other than its owner can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The type of the key in the file: private or preshared.
    pub what: SecretKind,
    /// Path of the key file.
    pub path: PathBuf,
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "users other than the owner can read the {} {1}; run chmod 600 {1}",
            self.what,
            self.path.display()
        )
    }
}

/// Reason why the secrets are unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretError {
    /// Key file that other users can read, despite `--refuse-insecure`.
    Exposed(Exposed),
    /// Private key that the daemon cannot read or write.
    Private {
        /// Path of the key file.
        path: PathBuf,
        /// Reason why the key file is unusable.
        why: FileError,
    },
    /// Unreadable preshared key.
    Preshared {
        /// Path of the key file.
        path: PathBuf,
        /// Reason why the key file is unusable.
        why: FileError,
    },
    /// Preshared key file that does not exist.
    PresharedMissing {
        /// Path of the key file.
        path: PathBuf,
    },
    /// Preshared key file that does not hold a key.
    PresharedGarbled {
        /// Path of the key file.
        path: PathBuf,
    },
}

impl Coded for SecretError {
    fn code(&self) -> &'static str {
        match self {
            SecretError::Exposed(_) => "secret-exposed",
            SecretError::Private { .. } => "private-key-unusable",
            SecretError::Preshared { .. } | SecretError::PresharedGarbled { .. } => {
                "preshared-key-unusable"
            }
            SecretError::PresharedMissing { .. } => "preshared-key-missing",
        }
    }
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretError::Exposed(exposed) => write!(f, "{exposed}; --refuse-insecure is set"),
            SecretError::Private { path, why } => write!(
                f,
                "cannot read or write the WireGuard private key {}: {why}; make the file's folder writable, or name another file in {KEY_VARIABLE}",
                path.display()
            ),
            SecretError::Preshared { path, why } => {
                write!(f, "cannot read the preshared key of {}: {why}", path.display())
            }
            SecretError::PresharedMissing { path } => write!(
                f,
                "cannot use the preshared key of {}: the file does not exist; create it, or correct PSKFile in the Backend or {PRESHARED_VARIABLE}",
                path.display()
            ),
            SecretError::PresharedGarbled { path } => {
                write!(
                    f,
                    "cannot use the preshared key of {}: the file does not hold 32 bytes in base64; write the output of `wg genpsk` into the file",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for SecretError {}
