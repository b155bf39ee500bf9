//! A file system that does not answer: each `open` in a folder waits (fanotify(7)), as on a dead NFS server.

use std::path::Path;

use anyhow::{Context, Result};
use nix::fcntl::AT_FDCWD;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};

/// While it lives, no `open` of these folders or of anything in them returns. The opener can be killed.
///
/// The process that made it must not open them either: it would wait for itself.
#[derive(Debug)]
pub struct Hang {
    // Each open asks here for permission and gets no answer; closing it permits all.
    _gate: Fanotify,
}

impl Hang {
    /// Blocks each `open` from now on.
    ///
    /// # Errors
    /// When the kernel has no fanotify permissions, or a folder is not there.
    pub fn of(folders: &[&Path]) -> Result<Hang> {
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
