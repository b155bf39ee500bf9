//! What cleanup tells.

use anyhow::{Result, ensure};
use subnet_lease::printable;

use crate::out;

/// One line an object, and the outcome.
#[derive(Debug, Default)]
pub struct Report {
    /// Nothing is changed.
    pub dry_run: bool,
    /// How much went.
    pub removed: usize,
    /// How much could not be removed.
    pub complaints: usize,
}

impl Report {
    /// Something is gone, or would be.
    pub fn removed(&mut self, what: &str) {
        self.removed += 1;
        out::say(format!("{} {}", if self.dry_run { "would remove" } else { "removed" }, printable::line(what)));
    }

    /// Something stays that may be flannel's.
    pub fn kept(&mut self, what: &str) {
        out::say(format!("kept {}", printable::line(what)));
    }

    /// Something could not be removed.
    pub fn complaint(&mut self, why: impl std::fmt::Display) {
        self.complaints += 1;
        out::complain(why);
    }

    /// The outcome of all of it.
    pub fn end(&self) -> Result<()> {
        ensure!(self.complaints == 0, "not everything could be removed; mend what the lines above name and say it again: it does no harm");
        if self.removed == 0 {
            out::say("nothing of flannel is here");
        }
        Ok(())
    }
}
