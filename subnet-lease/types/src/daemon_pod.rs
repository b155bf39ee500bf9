//! Flannel's pods on a node.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonPod {
    pub name: String,
    /// Creates and replaces the pod, e.g. `DaemonSet/kube-flannel-ds`.
    pub owner: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// Flannel-rs' Helm chart created the pod.
    pub charted: bool,
}
