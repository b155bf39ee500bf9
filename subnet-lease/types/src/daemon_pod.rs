//! A pod of flannel on a node.

use std::collections::BTreeMap;

/// A pod of flannel on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonPod {
    /// The name of the pod.
    pub name: String,
    /// What creates and replaces it, as `DaemonSet/kube-flannel-ds`; `None` if nothing does.
    pub owner: Option<String>,
    /// The labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// Whether our Helm chart created it.
    pub charted: bool,
}
