//! The validated options of the daemon.

use crate::endpoint::Endpoint;
use crate::mistake::Warning;
use crate::selector::Selector;
use packet_engine::features::Features;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use subnet_lease::etcd::EtcdOptions;
use subnet_lease::kube::KubeOptions;
use traffic_rules::rules::RuleOptions;

/// Everything the daemon was told, validated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where leases are kept.
    pub store: Store,
    /// Not ready once the lease has less than this left.
    pub renew_margin: Duration,
    /// Which interface is wanted, in the order in which to try; empty means nobody named one.
    pub selectors: Vec<Selector>,
    /// `--public-ip`.
    pub public_ip: Option<Ipv4Addr>,
    /// `--public-ipv6`.
    pub public_ipv6: Option<Ipv6Addr>,
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
    /// Where the API listens beside its socket; none: nowhere.
    pub page: Option<SocketAddr>,
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

/// Where leases are kept.
#[derive(Clone, Debug)]
pub enum Store {
    /// In etcd.
    Etcd(Etcd),
    /// As files in a directory.
    Dir(PathBuf),
    /// In the Nodes of Kubernetes.
    Kube(Box<KubeOptions>),
}

impl Store {
    /// The host of the first endpoint, whose route is the one that matters; none where the store is on this host by its nature.
    pub fn host(&self) -> Option<(&str, u16)> {
        match self {
            Store::Etcd(etcd) => etcd.endpoints.first().and_then(Endpoint::host),
            // The address of Kubernetes' API is mostly a Service's, whose route says nothing.
            Store::Dir(_) | Store::Kube(_) => None,
        }
    }
}

/// Where the leases are, for people.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Store::Dir(path) => write!(f, "{}", path.display()),
            Store::Kube(kube) => {
                let servers = match (&kube.kubeconfig, kube.urls.as_slice()) {
                    (Some(file), []) => format!("the server of {}", file.display()),
                    (None, []) => "the server of the pod's environment".to_owned(),
                    (_, urls) => urls.iter().map(|url| url.to_string().trim_end_matches('/').to_owned()).collect::<Vec<_>>().join(", "),
                };
                write!(f, "the Nodes of Kubernetes at {servers}")
            }
            Store::Etcd(etcd) => {
                let endpoints: Vec<String> = etcd.endpoints.iter().map(ToString::to_string).collect();
                write!(f, "etcd at {} under {}", endpoints.join(", "), etcd.prefix)
            }
        }
    }
}

/// How to reach etcd.
#[derive(Clone, Debug)]
pub struct Etcd {
    /// Its addresses, at least one.
    pub endpoints: Vec<Endpoint>,
    /// Root of the keys, cleaned: `{prefix}/config` is a key. Empty where the root is `/`.
    pub prefix: String,
    /// TLS options; none where none were given or no endpoint speaks TLS.
    pub tls: Option<Tls>,
    /// User and password.
    pub user: Option<(String, Secret)>,
}

impl Etcd {
    /// The same for the client; TLS files only where an endpoint speaks TLS.
    pub fn options(&self) -> EtcdOptions {
        EtcdOptions {
            endpoints: self.endpoints.iter().map(ToString::to_string).collect(),
            prefix: self.prefix.clone(),
            ca: self.tls.as_ref().and_then(|tls| tls.ca.clone()),
            identity: self.tls.as_ref().and_then(|tls| tls.client.clone()),
            user: self.user.as_ref().map(|(name, password)| (name.clone(), password.reveal().to_owned())),
        }
    }
}

/// Files for TLS, to be read again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificate authority; none: the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate and key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text, for the one place that sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
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
