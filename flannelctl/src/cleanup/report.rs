//! The report of a cleanup.

use anyhow::{Result, ensure};
use types::printable;

use console::out;

/// Prints one line per object, and the outcome.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Whether nothing is changed.
    pub dry_run: bool,
    /// Number of objects removed.
    pub removed: usize,
    /// Number of objects that could not be removed.
    pub complaints: usize,
}

impl Report {
    /// An object was removed, or would be.
    pub(super) fn removed(&mut self, what: &str) {
        self.removed += 1;
        out::say(format!(
            "{} {}",
            if self.dry_run {
                "would remove"
            } else {
                "removed"
            },
            printable::line(what)
        ));
    }

    /// An object stays that may be flannel's.
    pub(super) fn kept(&mut self, what: &str) {
        out::say(format!("kept {}", printable::line(what)));
    }

    /// An object could not be removed.
    pub(super) fn complaint(&mut self, why: impl std::fmt::Display) {
        self.complaints += 1;
        out::complain(why);
    }

    /// The outcome.
    pub(super) fn end(&self) -> Result<()> {
        ensure!(
            self.complaints == 0,
            "not everything could be removed: fix the problems above and run cleanup again, which is safe"
        );
        if self.removed == 0 {
            out::say("nothing of flannel is left on this node");
        }
        Ok(())
    }
}
