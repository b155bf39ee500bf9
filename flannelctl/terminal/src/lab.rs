//! The options of `flannelctl lab`. flannelctl checks, completes and documents them, and flannel-lab, which it runs, applies them.

use std::path::PathBuf;

use clap::ValueEnum;

/// The options of the demonstration.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Backend that carries packets between the hosts.
    #[arg(long, value_enum, default_value_t = Backend::Vxlan)]
    pub backend: Backend,
    /// Number of hosts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=20))]
    pub hosts: u8,
    /// Store of the leases: files in a directory, or etcd on a host of its own.
    #[arg(long, value_enum, default_value_t = StoreKind::Dir)]
    pub store: StoreKind,
    /// Also give the pods IPv6 addresses.
    #[arg(long)]
    pub ipv6: bool,
    /// Build the hosts as Vagrant does with VirtualBox: all have 10.0.2.15 on their first interface.
    #[arg(long)]
    pub vagrant: bool,
    /// Seconds of the packet stream during which a daemon is killed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Leave everything running for inspection.
    #[arg(long)]
    pub keep: bool,
    /// Break one host, and keep the lab with the status page until a key is pressed.
    #[arg(long, conflicts_with_all = ["keep", "kube", "vagrant"])]
    pub status: bool,
    /// Only remove kept labs and the remains of killed ones.
    #[arg(long, conflicts_with = "keep")]
    pub remove: bool,
    /// The options of a cluster.
    #[command(flatten)]
    pub kube: KubeArgs,
}

/// The options of the demonstration on Kubernetes.
#[derive(Debug, clap::Args)]
pub struct KubeArgs {
    /// Build a real Kubernetes cluster and install flannel in it from a manifest.
    #[arg(long, conflicts_with_all = ["store", "ipv6", "backend"])]
    pub kube: bool,
    /// Folder with the image archives for --kube.
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "target/images",
        requires = "kube"
    )]
    pub images: PathBuf,
    /// Manifest for --kube.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "conf/kube-flannel.yml",
        requires = "kube"
    )]
    pub manifest: PathBuf,
}

/// How packets travel between hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// In VXLAN, by the kernel.
    Vxlan,
    /// In VXLAN, by flanneld itself behind a TUN device.
    VxlanUserspace,
    /// In plain UDP datagrams, by flanneld itself behind a TUN device.
    Udp,
    /// Encrypted by WireGuard: by the kernel's, or else by flanneld itself.
    Wireguard,
    /// In IPv4, by the kernel (IPIP).
    Ipip,
    /// By routes between hosts on one switch.
    HostGw,
    /// Leases only: packets do not travel.
    Alloc,
}

/// Where leases are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// Files in a directory.
    Dir,
    /// etcd, on a host of its own.
    Etcd,
}
