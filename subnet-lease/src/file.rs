//! Reads files that an operator names, without blocking the runtime.

use std::io;
use std::path::Path;
use types::file::{self, Links};

/// In bytes, of a file with a configuration, certificates, keys or a token. A ConfigMap or a Secret is not larger.
const LIMIT: u64 = 1024 * 1024;

/// Fails if the file is not regular or longer than 1 MiB.
pub(crate) async fn read(path: &Path) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || file::read(&path, LIMIT, Links::Followed)).await?
}
