//! What the hosts and processes of a lab share: its name, its folder, and whether it stays after a drop.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

use crate::net::netns::Netns;
use crate::site::name::LabName;

pub(crate) mod cgroups;
pub(crate) mod limits;
pub(crate) mod name;
pub(crate) mod sweep;

#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) name: LabName,
    pub(crate) kept: AtomicBool,
}

impl Site {
    /// It belongs to the lab.
    pub(crate) fn create_netns(&self, host: &str) -> Result<Netns> {
        let netns = Netns::create(self.name.netns(host))?;
        Ok(netns)
    }

    /// Named after the lab, unless the namespace already has this name.
    pub(crate) fn name_netns_of_process(&self, name: &str, pid: u32) -> Result<Netns> {
        Netns::name_namespace_of_process(self.name.netns(name), pid)
    }

    /// Created if it is missing.
    pub(crate) fn ensure_folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.name.folder().join(name);
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("creating {}", folder.display()))?;
        Ok(folder)
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }
}
