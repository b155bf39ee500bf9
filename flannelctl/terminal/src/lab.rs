//! The options of `flannelctl lab`. flannelctl checks, completes and documents them, and then runs
//! flannel-lab, which applies them.

use std::path::PathBuf;

use clap::ValueEnum;

/// Options of `flannelctl lab`: the hosts, the backend, the store and the duration.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Backend that carries packets between the hosts.
    #[arg(long, value_enum, default_value_t = Backend::Vxlan)]
    pub backend: Backend,
    /// Number of hosts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=20))]
    pub hosts: u8,
    /// Store of the leases: files in a directory, or etcd on a separate host.
    #[arg(long, value_enum, default_value_t = StoreKind::Dir)]
    pub store: StoreKind,
    /// Also gives the pods IPv6 addresses.
    #[arg(long)]
    pub ipv6: bool,
    /// Builds the hosts as Vagrant does with VirtualBox: all hosts have 10.0.2.15 on their first interface.
    #[arg(long)]
    pub vagrant: bool,
    /// Duration in seconds of the packet stream during which the lab kills a daemon.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Leaves the lab running for inspection.
    #[arg(long)]
    pub keep: bool,
    /// Breaks one host, and keeps the lab with the status page until you press a key.
    #[arg(long, conflicts_with_all = ["keep", "kube", "vagrant"])]
    pub status: bool,
    /// Only removes kept labs and the remains of killed labs.
    #[arg(long, conflicts_with = "keep")]
    pub remove: bool,
    /// Options of a lab with Kubernetes.
    #[command(flatten)]
    pub kube: KubeArgs,
}

/// Options of a lab with Kubernetes: the images and the manifest.
#[derive(Debug, clap::Args)]
pub struct KubeArgs {
    /// Builds a real Kubernetes cluster and installs flannel in it from a manifest.
    #[arg(long, conflicts_with_all = ["store", "ipv6", "backend"])]
    pub kube: bool,
    /// Folder with the image archives for --kube.
    #[arg(long, value_name = "FOLDER", default_value = "target/images", requires = "kube")]
    pub images: PathBuf,
    /// Manifest for --kube.
    #[arg(long, value_name = "FILE", default_value = "conf/kube-flannel.yml", requires = "kube")]
    pub manifest: PathBuf,
}

/// Transport of packets between hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// VXLAN, by the kernel.
    Vxlan,
    /// VXLAN in userspace: flanneld encapsulates the packets of a TUN device.
    VxlanUserspace,
    /// Plain UDP datagrams: flanneld encapsulates the packets of a TUN device.
    Udp,
    /// Encryption by the kernel's WireGuard, or by flanneld itself if the kernel lacks WireGuard.
    Wireguard,
    /// IPIP (packets in IPv4), by the kernel.
    Ipip,
    /// Routes between hosts on one switch.
    HostGw,
    /// Leases only, without the transport of packets.
    Alloc,
}

/// Location of the leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// Files in a directory.
    Dir,
    /// etcd, on a separate host.
    Etcd,
}
