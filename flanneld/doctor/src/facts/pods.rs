//! What pods depend on in addition to the network: subnet.env, the CNI configuration, the addresses of host-local.

use crate::fact::Fact;
use ipnet::IpNet;
use std::net::IpAddr;
use std::path::PathBuf;
use types::{Family, Subnets};

/// What pods depend on in addition to the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// subnet.env; absent if there is no such file.
    pub env: Fact<Env>,
    /// The configurations of /etc/cni/net.d; absent if there is no such folder, hence no CNI here.
    pub cni: Fact<Cni>,
    /// The addresses that host-local keeps, network by network.
    pub ipam: Fact<Vec<Ipam>>,
    /// The address that mk-docker-opts.sh gave to Docker's bridge; absent where it gave none.
    pub docker: Fact<IpNet>,
    /// What the probes on the path of pods' packets found, family by family; absent without them.
    pub paths: Fact<Vec<PodPath>>,
}

/// What the probes on the path of pods' packets found in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPath {
    /// The address family.
    pub family: Family,
    /// The address that asks.
    pub address: IpAddr,
    /// The peers from or to which packets of pods are lost, while this node's own pass.
    pub lost: Vec<(String, Lost)>,
    /// Whether other peers answer pods.
    pub others_pass: bool,
    /// The hardware address of a pod that has the address, so that nobody is asked.
    pub taken_by: Option<String>,
}

/// What is lost of pods' packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lost {
    /// Nothing: packets of pods arrive with another address.
    Address,
    /// Packets of pods, or their answers.
    Everything,
    /// Packets of new connections to pods.
    Calls,
    /// Answers to pods.
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
    /// Why no daemon can replace it: it is a directory.
    pub obstacle: Option<String>,
    /// Lines that cannot be read.
    pub warnings: Vec<String>,
}

/// The folder of CNI configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cni {
    /// The folder.
    pub folder: PathBuf,
    /// The configurations, in the order in which runtimes sort them: the first one is used.
    pub files: Vec<CniFile>,
    /// Whether pods get their network here from flannel's plugin: an option of the daemon installs a configuration, or kubelet runs here.
    pub expected: bool,
}

/// One file with a CNI configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniFile {
    /// The name of the file.
    pub name: String,
    /// Whether flannel's plugin is in it.
    pub flannel: bool,
}

/// The addresses that host-local keeps for a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipam {
    /// The folder.
    pub folder: PathBuf,
    /// The addresses with the file that keeps each, and whether a network namespace or link of its container still is there.
    pub kept: Vec<Kept>,
    /// The folders in which container runtimes keep what runs, by container; empty where they are not known.
    pub running: Vec<PathBuf>,
    /// How many interfaces of pods are on the bridge.
    pub ports: Option<usize>,
}

/// An address that host-local keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The address that is kept.
    pub address: IpAddr,
    /// The file of host-local that keeps it.
    pub file: PathBuf,
    /// The container that it is kept for.
    pub container: String,
    /// Whether that container is gone; `None` where that is not known.
    pub gone: Option<bool>,
}
