//! Reads files that an operator names, without blocking the runtime.

use std::io;
use std::path::Path;
use types::file::{self, Links};

/// Maximum size of a file with a configuration, certificates, keys or a token, in bytes. A ConfigMap or a Secret is not larger.
const LIMIT: u64 = 1024 * 1024;

/// Reads a regular file of at most 1 MiB.
///
/// # Errors
/// Returns an error if the read fails, or if the file is not regular or too long.
pub(crate) async fn read(path: &Path) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || file::read(&path, LIMIT, Links::Followed)).await?
}
