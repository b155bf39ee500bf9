//! Facts about pods: subnet.env, the CNI configuration, and the addresses of host-local.

use crate::fact::Fact;
use ipnet::IpNet;
use std::net::IpAddr;
use std::path::PathBuf;
use types::{Family, Subnets};

/// Facts about the files and addresses that pods need in addition to the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// The values in subnet.env; absent if the file does not exist.
    pub env: Fact<Env>,
    /// The CNI configurations in /etc/cni/net.d; absent without this folder, because CNI is then not in use.
    pub cni: Fact<Cni>,
    /// The addresses that the plugin host-local has reserved, by network.
    pub ipam: Fact<Vec<Ipam>>,
    /// The address that mk-docker-opts.sh set for Docker's bridge; absent if the script set none.
    pub docker: Fact<IpNet>,
    /// Results of the probes on the path of pod packets, by address family; absent without these probes.
    pub paths: Fact<Vec<PodPath>>,
}

/// Results of the probes on the path of pod packets in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPath {
    /// The address family.
    pub family: Family,
    /// The source address of the probes.
    pub address: IpAddr,
    /// The peers to or from which pod packets get lost, although packets of this node itself arrive.
    pub lost: Vec<(String, Lost)>,
    /// Whether probes on the pods' path to and from other peers arrive.
    pub others_pass: bool,
    /// The MAC of a pod that has the source address of the probes. flanneld sends no probes while a pod has the source address of the probes.
    pub taken_by: Option<String>,
}

/// Kind of lost pod packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lost {
    /// Packets between pods arrive, but with a changed source address.
    Address,
    /// Packets of this node's pods to other nodes, or the replies to these packets, get lost.
    Everything,
    /// Packets of new connections from other nodes to this node's pods get lost.
    Calls,
    /// Replies to pods.
    Answers,
}

/// The values in subnet.env, with warnings about the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Env {
    /// The cluster's networks.
    pub networks: Option<Subnets>,
    /// This node's subnets.
    pub subnets: Option<Subnets>,
    /// The MTU of pods in bytes.
    pub mtu: Option<u32>,
    /// Reason why flanneld cannot replace subnet.env, for example because the path is a directory.
    pub obstacle: Option<String>,
    /// Warnings about invalid lines in subnet.env.
    pub warnings: Vec<String>,
}

/// The folder of CNI configurations and its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cni {
    /// The folder.
    pub folder: PathBuf,
    /// The files with CNI configurations, in the order in which container runtimes sort the files. A container runtime uses the first configuration
    /// in the folder.
    pub files: Vec<CniFile>,
    /// Whether pods of this host should use flannel's plugin, because kubelet runs or a configuration of the plugin exists.
    pub expected: bool,
}

impl Cni {
    /// Returns whether a configuration makes pods use flannel's plugin.
    pub(crate) fn has_flannel(&self) -> bool {
        self.files.iter().any(|file| file.flannel == Some(true))
    }
}

/// A file with a CNI configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniFile {
    /// The name of the configuration file.
    pub name: String,
    /// Whether the file makes pods use flannel's plugin; `None` if the doctor does not know its plugin, which may call flannel's.
    pub flannel: Option<bool>,
}

/// The addresses that the plugin host-local has reserved for a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipam {
    /// The folder.
    pub folder: PathBuf,
    /// The addresses of this node's subnets that host-local has reserved for pods.
    pub kept: Vec<Kept>,
    /// The folders in which container runtimes have an entry for each running container; empty if the folders are unknown.
    pub running: Vec<PathBuf>,
    /// The number of pod interfaces on the bridge `cni0`.
    pub ports: Option<usize>,
}

/// An address that the plugin host-local has reserved for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The address.
    pub address: IpAddr,
    /// The file in which host-local has reserved the address.
    pub file: PathBuf,
    /// The id of the container for which host-local has reserved the address.
    pub container: String,
    /// Whether the container no longer exists; `None` if unknown.
    pub gone: Option<bool>,
}
