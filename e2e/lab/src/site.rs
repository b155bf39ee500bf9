//! The part of a lab that its hosts and processes share: its name, its folder, and whether it is kept.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

use crate::net::netns::Netns;
use crate::site::name::LabName;

pub(crate) mod cgroups;
pub(crate) mod name;
pub(crate) mod sweep;

/// The part of a lab that its hosts and processes share.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) name: LabName,
    pub(crate) kept: AtomicBool,
}

impl Site {
    /// Makes one of the lab's namespaces.
    pub(crate) fn netns(&self, host: &str) -> Result<Netns> {
        let netns = Netns::create(self.name.netns(host))?;
        Ok(netns)
    }

    /// Gives a process's namespace one of the lab's names, if it has not got it yet.
    pub(crate) fn netns_of(&self, name: &str, pid: u32) -> Result<Netns> {
        Netns::attach(self.name.netns(name), pid)
    }

    /// A folder of the lab, made when it is not there.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.name.folder().join(name);
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("creating {}", folder.display()))?;
        Ok(folder)
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }
}
