//! A file system that does not respond, as on a dead NFS server: each `open` in a folder blocks (fanotify(7)).

use std::path::Path;

use anyhow::{Context, Result};
use nix::fcntl::AT_FDCWD;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};

/// Blocks each `open` of the folders and their entries until the caller drops it. Tests can kill a blocked process.
///
/// The process that creates it must not open the folders: it would wait for itself.
#[derive(Debug)]
pub struct Hang {
    // The kernel asks this descriptor for permission on each open and gets no reply. Closing the descriptor permits all blocked opens.
    _gate: Fanotify,
}

impl Hang {
    /// Needs fanotify permission events.
    pub fn block_opens_in_folders(folders: &[&Path]) -> Result<Hang> {
        let flags = InitFlags::FAN_CLASS_CONTENT | InitFlags::FAN_CLOEXEC;
        let gate = Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC)
            .context("fanotify_init")?;
        let events =
            MaskFlags::FAN_OPEN_PERM | MaskFlags::FAN_ONDIR | MaskFlags::FAN_EVENT_ON_CHILD;
        for folder in folders {
            gate.mark(MarkFlags::FAN_MARK_ADD, events, AT_FDCWD, Some(*folder))
                .with_context(|| format!("marking {}", folder.display()))?;
        }
        Ok(Hang { _gate: gate })
    }
}
