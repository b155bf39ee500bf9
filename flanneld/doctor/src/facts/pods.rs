//! What pods depend on in addition to the network: subnet.env, the CNI configuration, the addresses of host-local.

use crate::fact::Fact;
use ipnet::IpNet;
use std::net::IpAddr;
use std::path::PathBuf;
use types::Subnets;

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
