//! Faults of this node's podCIDR, before the node has a lease and while the node holds a lease.

use super::fault::PodCidrError;
use crate::reason::Lasting;
use std::fmt;
use std::path::PathBuf;
use types::{Coded, Detail, Subnets};

/// Reason why the podCIDR of this node's Node is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodCidrTrouble {
    /// Node that has no podCIDR yet.
    Missing {
        /// Name of the Node.
        node: String,
        /// Networks of the configuration.
        networks: Subnets,
    },
    /// podCIDR that is not a subnet.
    Unusable {
        /// Name of the Node.
        node: String,
        /// Reason why the podCIDR is unusable.
        why: PodCidrError,
    },
    /// podCIDR of another family than the network.
    Family {
        /// Name of the Node.
        node: String,
        /// The Node's podCIDR.
        subnets: Subnets,
        /// Networks of the configuration.
        networks: Subnets,
        /// File of the network configuration.
        net_conf: PathBuf,
    },
    /// podCIDR that is not inside the network.
    Outside {
        /// Name of the Node.
        node: String,
        /// The Node's podCIDR.
        subnets: Subnets,
        /// Networks of the configuration.
        networks: Subnets,
        /// File of the network configuration.
        net_conf: PathBuf,
    },
    /// podCIDR that overlaps the podCIDR of an older Node.
    Overlaps {
        /// Name of the Node.
        node: String,
        /// The Node's podCIDR.
        subnets: Subnets,
        /// Name of the older Node.
        other: String,
    },
}

fn list(networks: &Subnets) -> String {
    networks.nets().map(|net| net.to_string()).collect::<Vec<_>>().join(",")
}

impl Coded for PodCidrTrouble {
    fn code(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "podcidr-missing",
            Self::Unusable { .. } => "podcidr-unusable",
            Self::Family { .. } => "podcidr-other-family",
            Self::Outside { .. } => "podcidr-outside-network",
            Self::Overlaps { .. } => "podcidr-overlaps",
        }
    }

    fn detail(&self) -> Detail {
        match self {
            Self::Missing { networks, .. } => {
                Detail::PodCidrMissing { cluster_cidr: Some(list(networks)) }
            }
            _ => Detail::None,
        }
    }
}

impl fmt::Display for PodCidrTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { node, networks } => write!(
                f,
                "node \"{node}\" pod cidr not assigned: waiting for the controller manager; start kube-controller-manager with \
                 --allocate-node-cidrs=true and --cluster-cidr={networks}, or run kubeadm init with --pod-network-cidr={networks}",
                networks = list(networks),
            ),
            Self::Unusable { node, why } => {
                write!(f, "cannot use the podCIDRs of node \"{node}\": {why}")
            }
            Self::Family { node, subnets, networks, net_conf } => write!(
                f,
                "node \"{node}\" has podCIDR {subnets}, which is of another address family than the network {networks} in {}; change the ConfigMap \
                 kube-flannel-cfg (kubectl -n kube-flannel edit configmap kube-flannel-cfg)",
                net_conf.display()
            ),
            Self::Outside { node, subnets, networks, net_conf } => write!(
                f,
                "node \"{node}\" has podCIDR {subnets}, which is not inside the Network {networks} of {}. Set Network in the ConfigMap \
                 kube-flannel-cfg to the cluster's pod network (kube-controller-manager's --cluster-cidr; 10.42.0.0/16 in k3s): kubectl -n \
                 kube-flannel edit configmap kube-flannel-cfg. flanneld reads the change within two minutes, without a restart",
                net_conf.display()
            ),
            Self::Overlaps { node, subnets, other } => write!(
                f,
                "node \"{node}\" has podCIDR {subnets}, which overlaps the podCIDR of the older Node {other}. Delete one of the two Nodes (kubectl delete node {node}), and restart the deleted Node's kubelet, which registers the Node again"
            ),
        }
    }
}

impl Lasting for PodCidrTrouble {}

/// Reason why this node lost its subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// Deletion of the Node; another Node has the former podCIDR.
    Deleted {
        /// Name of the Node.
        node: String,
        /// The Node's former podCIDR.
        subnets: Subnets,
        /// Name of the other Node.
        other: String,
    },
    /// Recreation of the Node; another Node has the former podCIDR.
    Recreated {
        /// Name of the Node.
        node: String,
        /// The Node's former podCIDR.
        subnets: Subnets,
        /// Name of the other Node.
        other: String,
    },
    /// Change of the Node's podCIDR.
    Subnet {
        /// The podCIDR that the Node has.
        now: Subnets,
        /// The podCIDR of the lease that the node held.
        before: Subnets,
    },
    /// Unusable podCIDR of the Node.
    PodCidr(PodCidrTrouble),
}

impl Coded for Moved {
    fn code(&self) -> &'static str {
        match self {
            Self::Deleted { .. } => "node-deleted-podcidr-given-away",
            Self::Recreated { .. } => "node-recreated-podcidr-given-away",
            Self::Subnet { .. } => "podcidr-changed",
            Self::PodCidr(trouble) => trouble.code(),
        }
    }

    fn detail(&self) -> Detail {
        match self {
            Self::PodCidr(trouble) => trouble.detail(),
            _ => Detail::None,
        }
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted { node, subnets, other } => {
                write!(
                    f,
                    "the Node {node} was deleted, and the Node {other} now has its podCIDR {subnets}"
                )
            }
            Self::Recreated { node, subnets, other } => {
                write!(
                    f,
                    "the Node {node} was created again, and the Node {other} now has its podCIDR {subnets}"
                )
            }
            Self::Subnet { now, before } => {
                write!(f, "this node's podCIDR changed from {before} to {now}")
            }
            Self::PodCidr(trouble) => trouble.fmt(f),
        }
    }
}
