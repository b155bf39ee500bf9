//! Facts on which pods depend in addition to the network: subnet.env, the CNI configuration, and the addresses of host-local.

use crate::fact::Fact;
use ipnet::IpNet;
use std::net::IpAddr;
use std::path::PathBuf;
use types::{Family, Subnets};

/// Facts on which pods depend in addition to the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// The contents of subnet.env; absent if the file does not exist.
    pub env: Fact<Env>,
    /// The configurations in /etc/cni/net.d; absent if the folder does not exist and therefore CNI is not in use.
    pub cni: Fact<Cni>,
    /// The addresses that host-local has reserved, by network.
    pub ipam: Fact<Vec<Ipam>>,
    /// The address that mk-docker-opts.sh set for Docker's bridge; absent if the script set no address.
    pub docker: Fact<IpNet>,
    /// Results of the probes on the path of pod packets, by family; absent without these probes.
    pub paths: Fact<Vec<PodPath>>,
}

/// Results of the probes on the path of pod packets in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPath {
    /// The address family.
    pub family: Family,
    /// The source address of the probes.
    pub address: IpAddr,
    /// The peers to or from which pod packets get lost while packets of this node itself pass.
    pub lost: Vec<(String, Lost)>,
    /// Whether probes of other peers pass.
    pub others_pass: bool,
    /// The hardware address of a pod that has the source address of the probes. If a pod has the source
    /// address of the probes, flanneld sends no probes.
    pub taken_by: Option<String>,
}

/// Kind of lost pod packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lost {
    /// Packets that arrive with another source address; no packet is lost.
    Address,
    /// Packets of pods, or the replies to them.
    Everything,
    /// Packets of new connections to pods.
    Calls,
    /// Replies to pods.
    Answers,
}

/// The contents of subnet.env.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Env {
    /// The cluster's networks.
    pub networks: Option<Subnets>,
    /// This node's subnets.
    pub subnets: Option<Subnets>,
    /// The MTU of pods in bytes.
    pub mtu: Option<u32>,
    /// Reason why no daemon can replace the file, for example because the path is a directory.
    pub obstacle: Option<String>,
    /// Warnings about invalid lines.
    pub warnings: Vec<String>,
}

/// The folder of CNI configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cni {
    /// The folder.
    pub folder: PathBuf,
    /// The configurations, in the order in which runtimes sort them. Runtimes use the first configuration.
    pub files: Vec<CniFile>,
    /// Whether pods of this host should use flannel's plugin, because a configuration of the plugin exists or kubelet runs on this host.
    pub expected: bool,
}

/// One file with a CNI configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniFile {
    /// The name of the file.
    pub name: String,
    /// Whether the file configures flannel's plugin.
    pub flannel: bool,
}

/// The addresses that host-local has reserved for a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipam {
    /// The folder.
    pub folder: PathBuf,
    /// The addresses of this node's subnets that host-local has reserved.
    pub kept: Vec<Kept>,
    /// The folders of container runtimes with an entry for each running container; empty if the folders are unknown.
    pub running: Vec<PathBuf>,
    /// The number of pod interfaces on the bridge.
    pub ports: Option<usize>,
}

/// An address that host-local has reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The address.
    pub address: IpAddr,
    /// host-local's file for the address.
    pub file: PathBuf,
    /// The id of the container that has the address.
    pub container: String,
    /// Whether the container is gone; `None` if unknown.
    pub gone: Option<bool>,
}
