//! Errors of the files of a node's secrets.

use std::io;
use std::path::PathBuf;
use thiserror::Error;
use types::file::IrregularFileError;
use types::wireguard::{KEY_VARIABLE, PRESHARED_VARIABLE};
use types::{Coded, Errno};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FileError {
    #[error(
        "the path is a symbolic link, which flanneld does not accept; name the link's target in {KEY_VARIABLE}"
    )]
    Link,
    #[error("the path does not lead to a file")]
    NotAFile,
    #[error("not the path of a file")]
    NotAPath,
    #[error("{0}")]
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

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum SecretError {
    /// The text says which file other users can read.
    #[error("{0}; --refuse-insecure is set")]
    #[code("secret-exposed")]
    Exposed(String),
    #[error(
        "cannot read or write the WireGuard private key {path}: {why}; make the file's folder writable, or name another file in {KEY_VARIABLE}"
    )]
    #[code("private-key-unusable")]
    Private { path: PathBuf, why: FileError },
    #[error("cannot read the preshared key of {path}: {why}")]
    #[code("preshared-key-unusable")]
    Preshared { path: PathBuf, why: FileError },
    #[error(
        "cannot use the preshared key of {path}: the file does not exist; create it, or correct PSKFile in the Backend or {PRESHARED_VARIABLE}"
    )]
    #[code("preshared-key-missing")]
    PresharedMissing { path: PathBuf },
    #[error(
        "cannot use the preshared key of {path}: the file does not hold 32 bytes in base64; write the output of `wg genpsk` into the file"
    )]
    #[code("preshared-key-unusable")]
    PresharedGarbled { path: PathBuf },
}
