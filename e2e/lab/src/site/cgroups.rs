//! The cgroups of pods, which outlive what ran in them when it was killed.

use std::path::{Path, PathBuf};

use crate::site::name::entries;

const CGROUPS: &str = "/sys/fs/cgroup";
/// Where containerd keeps what it knows of running containers.
const TASKS: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io";

/// The containers of the node with this folder.
pub(crate) fn containers(node: &Path) -> Vec<String> {
    entries(&node.join(TASKS))
        .into_iter()
        .filter(|id| id.len() == 64)
        .collect()
}

/// The containers of all nodes in a lab's folder.
pub(crate) fn containers_of_lab(lab: &Path) -> Vec<String> {
    entries(lab)
        .into_iter()
        .flat_map(|host| containers(&lab.join(host)))
        .collect()
}

/// Removes the cgroups of containers whose processes have ended.
pub(crate) fn remove(containers: &[String]) {
    if containers.is_empty() {
        return;
    }
    // Version 2 is one hierarchy, version 1 has one for each controller.
    let hierarchies = entries(Path::new(CGROUPS))
        .into_iter()
        .map(|name| Path::new(CGROUPS).join(name))
        .chain([PathBuf::from(CGROUPS)]);
    for root in hierarchies {
        let parent = root.join("k8s.io");
        // What is not there, or not empty yet, or another cluster's, is not worth a failure.
        for id in containers {
            let _ = std::fs::remove_dir(parent.join(id));
        }
        let _ = std::fs::remove_dir(parent);
    }
}
