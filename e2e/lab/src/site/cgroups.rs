//! Cgroups of pods, which still exist after all their processes have ended.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::site::name::folder_entries;

const CGROUPS: &str = "/sys/fs/cgroup";
/// A killed process has to leave its cgroup within this time.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Where containerd keeps its state of running containers.
const TASKS: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io";

/// The IDs of a node's containers, from its folder.
pub(crate) fn container_ids(node: &Path) -> Vec<String> {
    folder_entries(&node.join(TASKS)).into_iter().filter(|id| id.len() == 64).collect()
}

/// The IDs of the containers of all nodes, from a lab's folder.
pub(crate) fn containers_of_lab(lab: &Path) -> Vec<String> {
    folder_entries(lab).into_iter().flat_map(|host| container_ids(&lab.join(host))).collect()
}

/// Follows the kill of the processes. Waits up to [`EXIT_TIMEOUT`] for the last one to leave.
pub(crate) fn remove_container_cgroups(containers: &[String]) {
    if containers.is_empty() {
        return;
    }
    // cgroup v2 has one hierarchy, v1 has one for each controller.
    let parents: Vec<PathBuf> = folder_entries(Path::new(CGROUPS))
        .into_iter()
        .map(|name| Path::new(CGROUPS).join(name))
        .chain([PathBuf::from(CGROUPS)])
        .map(|root| root.join("k8s.io"))
        .collect();
    let mut left: Vec<PathBuf> =
        parents.iter().flat_map(|parent| containers.iter().map(|id| parent.join(id))).collect();
    let end = Instant::now() + EXIT_TIMEOUT;
    loop {
        left.retain(|folder| {
            let removed = std::fs::remove_dir(folder);
            removed.is_err_and(|error| error.kind() == ErrorKind::ResourceBusy)
        });
        if left.is_empty() || Instant::now() > end {
            break;
        }
        std::thread::sleep(EXIT_TIMEOUT / 100);
    }
    for parent in parents {
        // The parent may contain cgroups of another cluster.
        let _ = std::fs::remove_dir(parent);
    }
}
