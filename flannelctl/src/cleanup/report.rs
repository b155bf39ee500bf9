//! Prints one line for each object of a cleanup, and counts the objects.

use anyhow::{Result, ensure};
use types::printable;

use terminal::out;

#[derive(Debug, Default)]
pub(super) struct Report {
    pub dry_run: bool,
    /// Objects that were removed, or would be.
    pub removed: usize,
    /// Failed removals.
    pub complaints: usize,
}

impl Report {
    /// An object that was removed, or would be without `--dry-run`.
    pub(super) fn removed(&mut self, what: &str) {
        self.removed += 1;
        out::print(format!(
            "{} {}",
            if self.dry_run { "would remove" } else { "removed" },
            printable::line(what)
        ));
    }

    /// An object that stays although it may be flannel's.
    pub(super) fn kept(&mut self, what: &str) {
        out::print(format!("kept {}", printable::line(what)));
    }

    /// A removal that failed.
    pub(super) fn complaint(&mut self, why: impl std::fmt::Display) {
        self.complaints += 1;
        out::complain(why);
    }

    /// Prints the outcome. Fails if a removal failed.
    pub(super) fn end(&self) -> Result<()> {
        ensure!(
            self.complaints == 0,
            "cleanup could not remove all objects; fix the problems above and run cleanup again, which is safe"
        );
        if self.removed == 0 {
            out::print("nothing of flannel is left on this node");
        }
        Ok(())
    }
}
