//! Flannel's pods on a node.

use std::collections::BTreeMap;

/// A pod of flannel on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonPod {
    /// The name of the pod.
    pub name: String,
    /// Object that creates and replaces the pod, e.g. `DaemonSet/kube-flannel-ds`; `None` if no object owns the pod.
    pub owner: Option<String>,
    /// The labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// Whether flannel-rs' Helm chart created the pod.
    pub charted: bool,
}
