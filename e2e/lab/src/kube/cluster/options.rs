//! Options of a cluster.

use std::path::PathBuf;

use crate::kube::api_server::Families;

/// The rules that kube-proxy writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProxyMode {
    /// `--proxy-mode=iptables`, the default.
    #[default]
    Iptables,
    /// `--proxy-mode=nftables` instead of iptables.
    Nftables,
}

impl ProxyMode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ProxyMode::Iptables => "iptables",
            ProxyMode::Nftables => "nftables",
        }
    }
}

#[derive(Debug, Clone)]
pub struct ClusterOptions {
    pub(crate) nodes: u8,
    pub(crate) families: Families,
    pub(crate) proxy: ProxyMode,
    pub(crate) node_ip: Vec<bool>,
    /// Each node is behind a separate NAT, with the same address there.
    pub(crate) equal_nat: bool,
    pub(crate) images: Vec<PathBuf>,
    pub(crate) network: (String, String),
    pub(crate) name_service: bool,
    pub(crate) layers: bool,
}

impl ClusterOptions {
    /// IPv4, kube-proxy in the mode iptables, and kubelets with `--node-ip`.
    pub fn new(nodes: u8) -> ClusterOptions {
        ClusterOptions {
            nodes,
            families: Families::V4,
            proxy: ProxyMode::Iptables,
            node_ip: Vec::new(),
            equal_nat: false,
            images: Vec::new(),
            network: ("10.244.0.0/16".to_owned(), "fd10:244::/48".to_owned()),
            name_service: false,
            layers: false,
        }
    }

    /// Pods, Services and nodes have these families.
    #[must_use]
    pub fn families(mut self, families: Families) -> ClusterOptions {
        self.families = families;
        self
    }

    #[must_use]
    pub fn proxy(mut self, mode: ProxyMode) -> ClusterOptions {
        self.proxy = mode;
        self
    }

    /// kubelet then uses the address of the default route.
    #[must_use]
    pub fn without_node_ip(self) -> ClusterOptions {
        let nodes = usize::from(self.nodes);
        self.node_ip(&vec![false; nodes])
    }

    /// Whether each node's kubelet gets `--node-ip`. If the list is shorter, the other kubelets get it.
    #[must_use]
    pub fn node_ip(mut self, nodes: &[bool]) -> ClusterOptions {
        self.node_ip = nodes.to_vec();
        self
    }

    /// 10.0.2.15 on every node's first interface, as Vagrant with VirtualBox does.
    #[must_use]
    pub fn nat_with_equal_addresses(mut self) -> ClusterOptions {
        self.equal_nat = true;
        self
    }

    /// An archive for every node.
    #[must_use]
    pub fn image(mut self, archive: impl Into<PathBuf>) -> ClusterOptions {
        self.images.push(archive.into());
        self
    }

    /// Pods use the DNS server 10.96.0.10, which the test installs.
    #[must_use]
    pub fn kubelet_cluster_dns(mut self) -> ClusterOptions {
        self.name_service = true;
        self
    }

    /// Images as overlayfs layers instead of one copy per container: for large images on file systems that support it.
    #[must_use]
    pub fn overlayfs_snapshotter(mut self) -> ClusterOptions {
        self.layers = true;
        self
    }

    pub(crate) fn snapshotter(&self) -> &'static str {
        if self.layers { "overlayfs" } else { "native" }
    }

    /// They contain all podCIDRs, as command line arguments.
    pub(crate) fn pod_networks(&self) -> String {
        match self.families {
            Families::V4 => self.network.0.clone(),
            Families::V6 => self.network.1.clone(),
            Families::Dual => format!("{},{}", self.network.0, self.network.1),
        }
    }
}
