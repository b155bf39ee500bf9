//! The validated options of the daemon.

use crate::selector::Selector;
use crate::store::Store;
use packet_engine::features::Features;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use traffic_rules::rules::RuleOptions;
use types::{Addresses, Problem};

#[derive(Clone, Debug)]
pub struct Settings {
    pub store: Store,
    /// `--subnet-lease-renew-margin`: minimum remaining time of the lease; below this time, the node is not ready.
    pub renew_margin: Duration,
    pub interface: InterfaceSettings,
    pub node: NodeSettings,
    pub rules: RuleSettings,
    pub features: Features,
    pub listen: ListenSettings,
    pub logging: Logging,
    /// To log at start.
    pub warnings: Vec<Problem>,
}

#[derive(Clone, Debug)]
pub struct InterfaceSettings {
    /// `--iface` and the other `--iface-…` selectors, in the order in which flanneld tries them; empty if no selector is set.
    pub selectors: Vec<Selector>,
    /// `--public-ip` and `--public-ipv6`: addresses to advertise to other nodes.
    pub public: Option<Addresses>,
    /// Time to wait for a missing interface (`--iface-wait`); with `None`, flanneld waits forever.
    pub wait: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// `--node-id`: identity of this node; with `None`, flanneld derives the identity from the host.
    pub id: Option<String>,
    /// `--subnet-file`: path of subnet.env. Its folder also contains the status file, flanneld's socket and the exit
    /// report.
    pub subnet_file: PathBuf,
    /// `--install-cni-conf`: a CNI configuration to install.
    pub cni_conf: Option<CniConf>,
    /// `--require-backend`: the backends that a network configuration may name; an empty list allows all backends.
    pub require_backend: Vec<String>,
    /// `--refuse-insecure`: whether flanneld exits if other users can read a secret of wireguard.
    pub refuse_insecure: bool,
    /// `WIREGUARD_KEY_FILE`: file of the private key of wireguard.
    pub key_file: Option<PathBuf>,
    /// `WIREGUARD_PSK_FILE`: file of the preshared key of wireguard.
    pub preshared_file: Option<PathBuf>,
    /// `--audit-interval`: time between two comparisons of the whole kernel state with the desired state; with
    /// `None`, flanneld compares them only on events.
    pub audit: Option<Duration>,
    /// `--set-sysctls`: whether to set the sysctls that pods need.
    pub set_sysctls: bool,
    /// `--route-protocol`: protocol number that marks flannel's routes.
    pub route_protocol: u8,
}

#[derive(Clone, Debug)]
pub struct RuleSettings {
    pub options: RuleOptions,
    /// `--iptables-resync`: time between two comparisons of the iptables rules with the desired rules.
    pub resync: Duration,
    /// `--ip-blackhole-route`: whether to add a blackhole route for this node's subnet.
    pub blackhole: bool,
}

#[derive(Clone, Debug)]
pub struct ListenSettings {
    /// `None` disables the server.
    pub health: Option<SocketAddr>,
    /// With `None`, the API listens only on its unix socket.
    pub status: Option<SocketAddr>,
    /// UDP port for probes between nodes; `None` disables probing.
    pub probe_port: Option<u16>,
    /// `--probe-pods`: whether to send probes along the path of pod packets.
    pub probe_pods: bool,
    /// `--metrics-per-peer`: whether /metrics has series of each peer.
    pub metrics_per_peer: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniConf {
    /// On Kubernetes, it is a key of the ConfigMap.
    pub source: PathBuf,
    /// In the container runtime's folder.
    pub destination: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logging {
    pub format: LogFormat,
    /// As in klog: 0 is info, 1 to 3 is debug, 4 and above is trace.
    pub verbosity: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object on each line, for programs.
    Json,
}
