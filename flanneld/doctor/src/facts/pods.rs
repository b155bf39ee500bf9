//! Facts about pods: subnet.env, the CNI configuration, and the addresses of host-local.

use crate::fact::Fact;
use ipnet::IpNet;
use std::net::IpAddr;
use std::path::PathBuf;
use types::{Family, Subnets};

/// Files and addresses that pods need in addition to the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// Absent if the file does not exist.
    pub env: Fact<Env>,
    /// From /etc/cni/net.d; absent without this folder, because CNI is then not in use.
    pub cni: Fact<Cni>,
    /// Reserved by the plugin host-local.
    pub ipam: Fact<Vec<Ipam>>,
    /// The address that mk-docker-opts.sh set for Docker's bridge; absent if it set none.
    pub docker: Fact<IpNet>,
    /// Probes on the path of pod packets; absent without them.
    pub paths: Fact<Vec<PodPath>>,
}

/// Probes on the path of pod packets in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPath {
    pub family: Family,
    /// Source of the probes.
    pub address: IpAddr,
    /// Peers to or from which pod packets get lost, although packets of this node itself arrive.
    pub lost: Vec<(String, LostPackets)>,
    /// Probes to and from other peers arrive.
    pub others_pass: bool,
    /// The MAC of a pod that has the source address of the probes. While one has it, flanneld sends none.
    pub taken_by: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LostPackets {
    /// Packets between pods arrive, but with a changed source address.
    Address,
    /// Packets of this node's pods to other nodes, or their replies, get lost.
    Everything,
    /// Packets of new connections from other nodes to this node's pods get lost.
    Calls,
    /// Replies to pods.
    Answers,
}

/// From subnet.env.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Env {
    /// The cluster's.
    pub networks: Option<Subnets>,
    /// This node's.
    pub subnets: Option<Subnets>,
    /// The MTU of pods in bytes.
    pub mtu: Option<u32>,
    /// Why flanneld cannot replace subnet.env, for example because the path is a directory.
    pub obstacle: Option<String>,
    /// About invalid lines.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cni {
    pub folder: PathBuf,
    /// In the order of container runtimes, which use the first configuration in the folder.
    pub files: Vec<CniFile>,
    /// Pods of this host should use flannel's plugin: kubelet runs or a configuration of the plugin exists.
    pub expected: bool,
}

impl Cni {
    pub(crate) fn has_flannel(&self) -> bool {
        self.files.iter().any(|file| file.flannel == Some(true))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniFile {
    pub name: String,
    /// The file makes pods use flannel's plugin; `None` if the doctor does not know its plugin, which may call flannel's.
    pub flannel: Option<bool>,
}

/// Addresses that the plugin host-local has reserved for a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipam {
    pub folder: PathBuf,
    /// Addresses of this node's subnets.
    pub kept: Vec<Kept>,
    /// Folders in which container runtimes have an entry for each running container; empty if they are unknown.
    pub running: Vec<PathBuf>,
    /// Pod interfaces on the bridge `cni0`.
    pub ports: Option<usize>,
}

/// An address that host-local has reserved for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub address: IpAddr,
    pub file: PathBuf,
    /// The container's id.
    pub container: String,
    /// The container no longer exists.
    pub gone: Option<bool>,
}
