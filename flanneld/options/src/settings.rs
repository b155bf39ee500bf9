//! The validated options of the daemon.

use crate::mistake::Warning;
use crate::selector::Selector;
use crate::store::Store;
use packet_engine::features::Features;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use traffic_rules::rules::RuleOptions;
use types::Addresses;

/// The daemon's validated options, by subject.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The store of the leases.
    pub store: Store,
    /// The node is not ready once its lease has less than this left.
    pub renew_margin: Duration,
    /// The interface that carries packets between nodes.
    pub interface: InterfaceSettings,
    /// This node's identity, files and kernel.
    pub node: NodeSettings,
    /// What was chosen about traffic rules.
    pub rules: RuleSettings,
    /// How packets are moved in userspace.
    pub features: Features,
    /// Addresses and ports on which the daemon listens.
    pub listen: ListenSettings,
    /// Format and verbosity of the log.
    pub logging: Logging,
    /// Oddities that are no mistakes, to be logged at start.
    pub warnings: Vec<Warning>,
}

/// Which interface carries packets between nodes, and which addresses it has for them.
#[derive(Clone, Debug)]
pub struct InterfaceSettings {
    /// `--iface` and its kin in the order of trying; empty where none is given.
    pub selectors: Vec<Selector>,
    /// `--public-ip` and `--public-ipv6`: addresses to advertise to other nodes.
    pub public: Option<Addresses>,
    /// `--iface-wait`: how long to wait for a missing interface; `None` waits forever.
    pub wait: Option<Duration>,
}

/// This node's identity, files and kernel.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// `--node-id`; `None` derives it from the host.
    pub id: Option<String>,
    /// `--subnet-file`: the file for pods; status, socket and exit report are in its folder.
    pub subnet_file: PathBuf,
    /// `--install-cni-conf`: a CNI configuration to install.
    pub cni_conf: Option<CniConf>,
    /// `--require-backend`: the backends that a network configuration may name; empty allows any.
    pub require_backend: Vec<String>,
    /// `--refuse-insecure`: refuse secrets that others can read.
    pub refuse_insecure: bool,
    /// `--audit-interval`: how often the whole kernel state is compared; `None` compares on events only.
    pub audit: Option<Duration>,
    /// `--set-sysctls`: set the sysctls that pods need.
    pub set_sysctls: bool,
    /// `--route-protocol`: protocol number that marks flannel's routes.
    pub route_protocol: u8,
}

/// What was chosen about traffic rules.
#[derive(Clone, Debug)]
pub struct RuleSettings {
    /// The rules that flanneld keeps.
    pub options: RuleOptions,
    /// `--iptables-resync`: how often iptables rules are compared.
    pub resync: Duration,
    /// `--ip-blackhole-route`: add a blackhole route for this node's subnet.
    pub blackhole: bool,
}

/// Addresses and ports on which the daemon listens.
#[derive(Clone, Debug)]
pub struct ListenSettings {
    /// Address of the health server; `None` without one.
    pub health: Option<SocketAddr>,
    /// Address of the status API, in addition to its unix socket; `None` without one.
    pub status: Option<SocketAddr>,
    /// UDP port of probes between nodes; `None` without probes.
    pub probe_port: Option<u16>,
    /// `--probe-pods`: probe the path of pods' packets.
    pub probe_pods: bool,
}

/// A CNI configuration and its place for the container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniConf {
    /// The file to install; on Kubernetes a key of the ConfigMap.
    pub source: PathBuf,
    /// The file in the runtime's folder.
    pub destination: PathBuf,
}

/// Format and verbosity of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logging {
    /// The format of a line.
    pub format: LogFormat,
    /// klog's level: 0 info, 1 to 3 debug, 4 and above trace.
    pub verbosity: i32,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of text for people.
    #[default]
    Text,
    /// One JSON object a line, for machines.
    Json,
}
