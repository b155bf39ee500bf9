//! Refuses a `CNI_NETNS` that is the host's network namespace, which only a faulty container runtime passes.

use crate::error::{CniError, INVALID_NETNS};
use std::os::unix::fs::MetadataExt;

/// Fails if the path is the plugin's own network namespace. An unreadable path passes, because the delegate
/// reports it.
pub fn foreign(path: &str) -> Result<(), CniError> {
    let identity = |path: &str| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    match (identity(path), identity("/proc/self/ns/net")) {
        (Some(theirs), Some(own)) if theirs == own => Err(CniError::new(
            INVALID_NETNS,
            "plugin's netns and netns from CNI_NETNS should not be the same",
        )
        .details(format!("CNI_NETNS is {path}"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_namespace_is_refused() {
        assert_eq!(foreign("/proc/self/ns/net").map_err(|error| error.code), Err(8));
        for fine in ["", "/nowhere", "/proc/self/ns/ipc"] {
            assert_eq!(foreign(fine), Ok(()), "{fine}");
        }
    }
}
