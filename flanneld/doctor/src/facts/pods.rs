//! Facts that pods depend on in addition to the network: subnet.env, the CNI configuration, and the addresses of host-local.

use crate::fact::Fact;
use ipnet::IpNet;
use std::net::IpAddr;
use std::path::PathBuf;
use types::{Family, Subnets};

/// Facts that pods depend on in addition to the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// The contents of subnet.env; absent if the file does not exist.
    pub env: Fact<Env>,
    /// The configurations in /etc/cni/net.d; absent if the folder does not exist and therefore CNI is not in use.
    pub cni: Fact<Cni>,
    /// The addresses that host-local keeps, by network.
    pub ipam: Fact<Vec<Ipam>>,
    /// The address that mk-docker-opts.sh set for Docker's bridge; absent if it set none.
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
    /// The peers to or from which pod packets are lost while packets of this node itself pass.
    pub lost: Vec<(String, Lost)>,
    /// Whether probes of other peers pass.
    pub others_pass: bool,
    /// The hardware address of a pod that has the source address. In that case no probes are sent.
    pub taken_by: Option<String>,
}

/// Kind of pod packets that are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lost {
    /// No packets are lost, but they arrive with another source address.
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
    /// Reason why no daemon can replace the file: it is a directory.
    pub obstacle: Option<String>,
    /// Warnings about lines that cannot be parsed.
    pub warnings: Vec<String>,
}

/// The folder of CNI configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cni {
    /// The folder.
    pub folder: PathBuf,
    /// The configurations, in the order in which runtimes sort them. Runtimes use the first one.
    pub files: Vec<CniFile>,
    /// Whether pods of this host are expected to use flannel's plugin: a configuration of it exists, or kubelet runs here.
    pub expected: bool,
}

/// One file with a CNI configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniFile {
    /// The name of the file.
    pub name: String,
    /// Whether it configures flannel's plugin.
    pub flannel: bool,
}

/// The addresses that host-local keeps for a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipam {
    /// The folder.
    pub folder: PathBuf,
    /// The addresses of this node's subnets that host-local keeps.
    pub kept: Vec<Kept>,
    /// The folders of container runtimes with an entry for each running container; empty if they are not known.
    pub running: Vec<PathBuf>,
    /// The number of pod interfaces on the bridge.
    pub ports: Option<usize>,
}

/// An address that host-local keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The address.
    pub address: IpAddr,
    /// host-local's file for the address.
    pub file: PathBuf,
    /// The id of the container that has the address.
    pub container: String,
    /// Whether that container is gone; `None` if that is not known.
    pub gone: Option<bool>,
}
