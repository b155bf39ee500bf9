//! Names of labs and of their namespaces: `fl-<pid>-<id>-<host>`.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

use crate::net::netns::NETNS;

/// The parent of every lab's folder.
const LABS: &str = "/tmp/flannel-lab";
/// Marks a lab's folder: only [`crate::remove_labs_of_ended_processes`] removes the lab.
pub(crate) const KEPT: &str = "kept";
/// Identifies the process that created the lab, in the lab's folder.
pub(crate) const OWNER: &str = "owner";

/// Fails if the folder belongs to another user, who could lead root's reads and writes elsewhere.
pub(crate) fn create_folder_of_labs() -> Result<()> {
    // Another lab may have created it.
    let _ = DirBuilder::new().mode(0o755).create(LABS);
    let found = std::fs::symlink_metadata(LABS).with_context(|| format!("creating {LABS}"))?;
    ensure!(
        found.is_dir() && found.uid() == 0 && found.mode() & 0o022 == 0,
        "{LABS} is not a folder that only root can write to: remove it and try again"
    );
    Ok(())
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// All names of one lab begin with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LabName {
    pub(crate) pid: u32,
    pub(crate) id: String,
}

impl LabName {
    pub(crate) fn next() -> LabName {
        // The random part avoids the name of a kept lab of an earlier process with this PID.
        let id = format!(
            "{}{:03x}",
            NEXT.fetch_add(1, Ordering::Relaxed),
            rand::random::<u16>() & 0xfff
        );
        LabName { pid: std::process::id(), id }
    }

    /// The name is at the start of a namespace's or folder's name.
    pub(crate) fn from_start_of(text: &str) -> Option<LabName> {
        let mut parts = text.splitn(4, '-');
        if parts.next() != Some("fl") {
            return None;
        }
        let pid = parts.next()?.parse().ok()?;
        let id = parts.next().filter(|id| !id.is_empty())?.to_owned();
        Some(LabName { pid, id })
    }

    /// `fl-<pid>-<id>`.
    pub(crate) fn prefix(&self) -> String {
        format!("fl-{}-{}", self.pid, self.id)
    }

    pub(crate) fn netns(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix())
    }

    pub(crate) fn folder(&self) -> PathBuf {
        Path::new(LABS).join(self.prefix())
    }
}

/// Those with a namespace or a folder.
pub(crate) fn existing_labs() -> Vec<LabName> {
    let mut labs: Vec<LabName> = Vec::new();
    for folder in [NETNS, LABS] {
        for name in folder_entries(Path::new(folder)) {
            if let Some(lab) = LabName::from_start_of(&name).filter(|lab| !labs.contains(lab)) {
                labs.push(lab);
            }
        }
    }
    labs
}

/// Empty if the folder does not exist.
pub(crate) fn folder_entries(folder: &Path) -> Vec<String> {
    let Ok(read) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    read.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lab_name_is_parsed_from_its_namespace() {
        let lab = LabName::next();
        assert_eq!(LabName::from_start_of(&lab.netns("h1-pod")), Some(lab.clone()));
        assert_eq!(LabName::from_start_of(&lab.prefix()), Some(lab));
    }

    #[test]
    fn foreign_names_are_not_parsed() {
        for name in ["cni-1234", "fl", "fl-", "fl-x-1-h", "fl-12", "fl-12-", "flannel-1-2"] {
            assert_eq!(LabName::from_start_of(name), None, "{name}");
        }
    }
}
