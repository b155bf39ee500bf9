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

/// Everything the daemon was told, validated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where leases are kept.
    pub store: Store,
    /// Not ready once the lease has less than this left.
    pub renew_margin: Duration,
    /// Which interface is wanted, in the order in which to try; empty means nobody named one.
    pub selectors: Vec<Selector>,
    /// `--public-ip` and `--public-ipv6`.
    pub public: Option<Addresses>,
    /// How long to wait for the interface; `None` for ever.
    pub iface_wait: Option<Duration>,
    /// Where subnet.env is written.
    pub subnet_file: PathBuf,
    /// `--install-cni-conf`.
    pub cni_conf: Option<CniConf>,
    /// `--ip-masq`, as subnet.env repeats it.
    pub ip_masq: bool,
    /// What else was chosen about traffic rules.
    pub rules: RuleOptions,
    /// How often iptables rules are compared.
    pub rules_resync: Duration,
    /// `--set-sysctls`.
    pub set_sysctls: bool,
    /// `--ip-blackhole-route`.
    pub blackhole: bool,
    /// `--node-id`; none: derive it.
    pub node_id: Option<String>,
    /// `--require-backend`; empty: any.
    pub require_backend: Vec<String>,
    /// `--refuse-insecure`.
    pub refuse_insecure: bool,
    /// How often the whole kernel state is compared; `None`: on events only.
    pub audit: Option<Duration>,
    /// What marks our routes.
    pub route_protocol: u8,
    /// How packets are moved in userspace.
    pub features: Features,
    /// Where the health server listens; none: nowhere.
    pub health: Option<SocketAddr>,
    /// Where the status API listens, in addition to its socket; none: nowhere.
    pub status: Option<SocketAddr>,
    /// The port by which nodes ask each other; none: they do not.
    pub probe_port: Option<u16>,
    /// How to log.
    pub logging: Logging,
    /// What is odd but no mistake: to be logged at start.
    pub warnings: Vec<Warning>,
}

/// A CNI configuration and where the container runtime looks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniConf {
    /// The file to install; on Kubernetes a key of the ConfigMap.
    pub source: PathBuf,
    /// The file in the runtime's folder.
    pub destination: PathBuf,
}

/// How to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logging {
    /// How a line looks.
    pub format: LogFormat,
    /// klog's level: 0 info, 1 to 3 debug, 4 and above trace.
    pub verbosity: i32,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}
