//! All flags: their names, variables, types, defaults and help texts.
//!
//! Each field is a list, because Go's `flag` accepts a flag any number of times. flanneld checks every value, and
//! the last value applies unless the flag is repeatable.

use clap::{ArgAction, Args, Parser};
use packet_engine::features::Features;
use traffic_rules::rules::UnknownSenders;

use crate::settings::LogFormat;
use crate::value::Value;

/// Heading in `--help-all` that `EtcdFlags` and `LeaseFlags` share.
const ETCD: &str = "Store of the leases: etcd";

/// Gives this node a subnet of the cluster's network and carries packets between the nodes' subnets.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "flanneld",
    version,
    override_usage = "flanneld [--flag=value …]",
    disable_help_flag = true,
    disable_version_flag = true
)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) store: StoreFlags,
    #[command(flatten)]
    pub(crate) lease: LeaseFlags,
    #[command(flatten)]
    pub(crate) interface: InterfaceFlags,
    #[command(flatten)]
    pub(crate) node: NodeFlags,
    #[command(flatten)]
    pub(crate) health: HealthFlags,
    #[command(flatten)]
    pub(crate) log: LogFlags,
    #[command(flatten)]
    pub(crate) rules: RuleFlags,
    #[command(flatten)]
    pub(crate) datapath: DatapathFlags,
    #[command(flatten)]
    pub(crate) other: OtherFlags,
}

/// The flags of flanneld and flannelctl that select the store of the leases.
#[derive(Args, Clone, Debug)]
pub struct StoreFlags {
    #[command(flatten)]
    pub(crate) etcd: EtcdFlags,
    #[command(flatten)]
    pub(crate) dir: DirFlags,
    #[command(flatten)]
    pub(crate) kubernetes: KubernetesFlags,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = ETCD)]
pub(crate) struct EtcdFlags {
    /// Client addresses of etcd (http://, https:// or unix:); without a scheme, https with a client certificate, otherwise http.
    #[arg(
        long,
        env = "FLANNELD_ETCD_ENDPOINTS",
        value_name = "URL,…",
        default_value = "http://127.0.0.1:4001,http://127.0.0.1:2379"
    )]
    pub(crate) etcd_endpoints: Vec<Value<String>>,
    /// Root of flannel's keys in etcd.
    #[arg(
        long,
        env = "FLANNELD_ETCD_PREFIX",
        value_name = "KEY",
        default_value = "/coreos.com/network"
    )]
    pub(crate) etcd_prefix: Vec<Value<String>>,
    /// CA certificate that verifies etcd over https. This flag does not require a client certificate.
    #[arg(long, env = "FLANNELD_ETCD_CAFILE", value_name = "FILE")]
    pub(crate) etcd_cafile: Vec<Value<String>>,
    /// Client certificate; requires --etcd-keyfile.
    #[arg(long, env = "FLANNELD_ETCD_CERTFILE", value_name = "FILE")]
    pub(crate) etcd_certfile: Vec<Value<String>>,
    /// Client key; requires --etcd-certfile.
    #[arg(long, env = "FLANNELD_ETCD_KEYFILE", value_name = "FILE")]
    pub(crate) etcd_keyfile: Vec<Value<String>>,
    /// User name for etcd; requires --etcd-password.
    #[arg(long, env = "FLANNELD_ETCD_USERNAME", value_name = "NAME")]
    pub(crate) etcd_username: Vec<Value<String>>,
    /// Password for etcd; safer in FLANNELD_ETCD_PASSWORD, which `ps` does not show.
    #[arg(long, env = "FLANNELD_ETCD_PASSWORD", value_name = "TEXT")]
    pub(crate) etcd_password: Vec<Value<String>>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Store of the leases: a directory (no server needed)")]
pub(crate) struct DirFlags {
    /// Keeps leases as files in this directory instead of in etcd. All nodes must share the directory.
    #[arg(long, env = "FLANNELD_SUBNET_DIR", value_name = "DIR")]
    pub(crate) subnet_dir: Vec<Value<String>>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Store of the leases: the Nodes of Kubernetes")]
pub(crate) struct KubernetesFlags {
    /// Takes this node's subnet from the podCIDRs of its Node (NODE_NAME, or POD_NAME and POD_NAMESPACE).
    #[arg(long, env = "FLANNELD_KUBE_SUBNET_MGR")]
    pub(crate) kube_subnet_mgr: Vec<Value<bool>>,
    /// Addresses of API servers, tried in order; default: the kubeconfig's server, or the server in the pod's environment.
    #[arg(long, env = "FLANNELD_KUBE_API_URL", value_name = "URL,…")]
    pub(crate) kube_api_url: Vec<Value<String>>,
    /// Prefix of flannel's annotations on Nodes.
    #[arg(
        long,
        env = "FLANNELD_KUBE_ANNOTATION_PREFIX",
        value_name = "PREFIX",
        default_value = "flannel.alpha.coreos.com"
    )]
    pub(crate) kube_annotation_prefix: Vec<Value<String>>,
    /// Kubeconfig with the API server and the credentials; default: the pod's service account.
    #[arg(long, env = "FLANNELD_KUBECONFIG_FILE", value_name = "FILE")]
    pub(crate) kubeconfig_file: Vec<Value<String>>,
    /// File with the network configuration, which the pod mounts from the ConfigMap.
    #[arg(
        long,
        env = "FLANNELD_NET_CONFIG_PATH",
        value_name = "FILE",
        default_value = "/etc/kube-flannel/net-conf.json"
    )]
    pub(crate) net_config_path: Vec<Value<String>>,
    /// Sets the Node's condition NetworkUnavailable to False once the Node's network works.
    #[arg(long, env = "FLANNELD_SET_NODE_NETWORK_UNAVAILABLE", default_value = "true")]
    pub(crate) set_node_network_unavailable: Vec<Value<bool>>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = ETCD)]
pub(crate) struct LeaseFlags {
    /// Reports that this node is not ready once the lease has fewer than this many minutes left (1 to 1439).
    #[arg(
        long,
        env = "FLANNELD_SUBNET_LEASE_RENEW_MARGIN",
        value_name = "MINUTES",
        default_value = "60"
    )]
    pub(crate) subnet_lease_renew_margin: Vec<Value<i64>>,
}

#[derive(Args, Clone, Debug)]
#[command(
    next_help_heading = "Interface towards the other nodes (default: interface of the default route)"
)]
pub(crate) struct InterfaceFlags {
    /// Interface by name or IP, or `auto` (towards the first etcd endpoint). Repeatable; first match wins.
    #[arg(long, env = "FLANNELD_IFACE", value_name = "NAME|IP|auto")]
    pub(crate) iface: Vec<Value<String>>,
    /// Interface with an address inside this network; tried after --iface. Repeatable.
    #[arg(long, env = "FLANNELD_IFACE_CIDR", value_name = "CIDR")]
    pub(crate) iface_cidr: Vec<Value<String>>,
    /// Interface whose address, or otherwise whose name, matches this expression; tried after --iface-cidr. Repeatable.
    #[arg(long, env = "FLANNELD_IFACE_REGEX", value_name = "REGEX")]
    pub(crate) iface_regex: Vec<Value<String>>,
    /// Interface that the kernel would use to reach this address; tried last.
    #[arg(long, env = "FLANNELD_IFACE_CAN_REACH", value_name = "IP")]
    pub(crate) iface_can_reach: Vec<Value<String>>,
    /// Maximum time in seconds to wait for a missing interface; 0 sets no limit.
    #[arg(long, env = "FLANNELD_IFACE_WAIT", value_name = "SECONDS", default_value = "0")]
    pub(crate) iface_wait: Vec<Value<i64>>,
    /// IPv4 address to publish if it differs from the interface's address (NAT).
    #[arg(long, env = "FLANNELD_PUBLIC_IP", value_name = "IP")]
    pub(crate) public_ip: Vec<Value<String>>,
    /// IPv6 address to publish if it differs from the interface's address.
    #[arg(long, env = "FLANNELD_PUBLIC_IPV6", value_name = "IP")]
    pub(crate) public_ipv6: Vec<Value<String>>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "This node")]
pub(crate) struct NodeFlags {
    /// File with the network, the subnet and the MTU for the CNI plugin and Docker.
    #[arg(
        long,
        env = "FLANNELD_SUBNET_FILE",
        value_name = "FILE",
        default_value = "/run/flannel/subnet.env"
    )]
    pub(crate) subnet_file: Vec<Value<String>>,
    /// Installs this CNI configuration when the node's network works, and keeps it installed (SOURCE:DESTINATION).
    #[arg(long, env = "FLANNELD_INSTALL_CNI_CONF", value_name = "FILE:FILE")]
    pub(crate) install_cni_conf: Vec<Value<String>>,
    /// Permanent identity of this node; default: derived from machine-id, hardware and hostname.
    #[arg(long, env = "FLANNELD_NODE_ID", value_name = "TEXT")]
    pub(crate) node_id: Vec<Value<String>>,
    /// Refuses a network configuration whose backend is not in this list; an empty list accepts any backend.
    #[arg(long, env = "FLANNELD_REQUIRE_BACKEND", value_name = "NAME,…")]
    pub(crate) require_backend: Vec<Value<String>>,
    /// Exits instead of logging a warning if other users can read a secret of wireguard: a PSK in the network configuration, or a key file.
    #[arg(long, env = "FLANNELD_REFUSE_INSECURE")]
    pub(crate) refuse_insecure: Vec<Value<bool>>,
    /// Interval in seconds between comparisons of the whole kernel state with the desired state, in addition to
    /// comparisons on events; 0 disables the periodic comparisons.
    #[arg(long, env = "FLANNELD_AUDIT_INTERVAL", value_name = "SECONDS", default_value = "10")]
    pub(crate) audit_interval: Vec<Value<i64>>,
    /// Sets the sysctls that pods need and keeps them set: ip_forward, IPv6 forwarding, bridge-nf-call-*.
    #[arg(long, env = "FLANNELD_SET_SYSCTLS")]
    pub(crate) set_sysctls: Vec<Value<bool>>,
    /// Protocol number that marks flannel's routes (`ip route show proto 241`), 5 to 255.
    #[arg(long, env = "FLANNELD_ROUTE_PROTOCOL", value_name = "NUMBER", default_value = "241")]
    pub(crate) route_protocol: Vec<Value<i64>>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Health and logs")]
pub(crate) struct HealthFlags {
    /// Address of the server for /healthz, /livez, /readyz, /metrics and /status.
    #[arg(long, env = "FLANNELD_HEALTHZ_IP", value_name = "IP", default_value = "0.0.0.0")]
    pub(crate) healthz_ip: Vec<Value<String>>,
    /// Port of the health server; 0 disables the server.
    #[arg(long, env = "FLANNELD_HEALTHZ_PORT", value_name = "PORT", default_value = "0")]
    pub(crate) healthz_port: Vec<Value<i64>>,
    /// Listen address of the read-only status API. The API has no authentication; keep the address on localhost.
    #[arg(long, env = "FLANNELD_STATUS_IP", value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) status_ip: Vec<Value<String>>,
    /// Port of the status API; 0 disables the API.
    #[arg(long, env = "FLANNELD_STATUS_PORT", value_name = "PORT", default_value = "8474")]
    pub(crate) status_port: Vec<Value<i64>>,
    /// UDP port for probes between nodes. All nodes must use the same port. 0 disables probing.
    #[arg(long, env = "FLANNELD_PROBE_PORT", value_name = "PORT", default_value = "8473")]
    pub(crate) probe_port: Vec<Value<i64>>,
    /// Also probes the path of pods' packets, from the last address of this node's subnet, which flanneld reserves for the probes.
    #[arg(long, env = "FLANNELD_PROBE_PODS", default_value = "false")]
    pub(crate) probe_pods: Vec<Value<bool>>,
    /// Adds metrics of each peer: the peer's state, round-trip time and losses. Each metric of peers has N times N series in a cluster of N nodes.
    #[arg(long, env = "FLANNELD_METRICS_PER_PEER", default_value = "false")]
    pub(crate) metrics_per_peer: Vec<Value<bool>>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Health and logs")]
pub(crate) struct LogFlags {
    /// Format of log lines on stderr.
    #[arg(long, env = "FLANNELD_LOG_FORMAT", value_name = "text|json", default_value = "text")]
    pub(crate) log_format: Vec<Value<LogFormat>>,
    /// Verbosity (1: debug; 4 and above: trace); RUST_LOG overrides this flag.
    #[arg(long, env = "FLANNELD_V", value_name = "LEVEL", default_value = "0")]
    pub(crate) v: Vec<Value<i32>>,
    /// Flag without effect, accepted for compatibility with Go flannel; use RUST_LOG.
    #[arg(long, env = "FLANNELD_VMODULE", value_name = "PATTERN=N,…")]
    pub(crate) vmodule: Vec<Value<String>>,
    /// Accepted for compatibility.
    #[arg(long = "log_backtrace_at", env = "FLANNELD_LOG_BACKTRACE_AT", value_name = "FILE:N")]
    pub(crate) log_backtrace_at: Vec<Value<String>>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Traffic rules")]
pub(crate) struct RuleFlags {
    /// Masquerades traffic from pods to other networks.
    #[arg(long, env = "FLANNELD_IP_MASQ")]
    pub(crate) ip_masq: Vec<Value<bool>>,
    /// Lets the kernel choose the source ports of masqueraded packets, without --random-fully.
    #[arg(long, env = "FLANNELD_IP_MASQ_FULLY_RANDOM_DISABLE")]
    pub(crate) ip_masq_fully_random_disable: Vec<Value<bool>>,
    /// Destination network for which pods keep their address, in addition to NonMasqueradeCIDRs of the configuration. Repeatable.
    #[arg(long, env = "FLANNELD_NON_MASQUERADE_CIDR", value_name = "CIDR")]
    pub(crate) non_masquerade_cidr: Vec<Value<String>>,
    /// Masquerades traffic from outside the pod network to pods of other nodes, so that replies return through this node.
    #[arg(long, env = "FLANNELD_MASQUERADE_INBOUND", default_value = "true")]
    pub(crate) masquerade_inbound: Vec<Value<bool>>,
    /// Accepts forwarded traffic of the pod network.
    #[arg(long, env = "FLANNELD_IPTABLES_FORWARD_RULES", default_value = "true")]
    pub(crate) iptables_forward_rules: Vec<Value<bool>>,
    /// Inserts the jump to flannel's forward rules first, before rules that may reject packets (firewalld, cloud images).
    #[arg(long, env = "FLANNELD_IPTABLES_FORWARD_INSERT")]
    pub(crate) iptables_forward_insert: Vec<Value<bool>>,
    /// Interval in seconds between comparisons of iptables rules with the desired rules; flanneld compares nftables rules on events.
    #[arg(long, env = "FLANNELD_IPTABLES_RESYNC", value_name = "SECONDS", default_value = "5")]
    pub(crate) iptables_resync: Vec<Value<i64>>,
    /// Exempts encapsulated packets from connection tracking.
    #[arg(long, env = "FLANNELD_ENCAP_NOTRACK")]
    pub(crate) encap_notrack: Vec<Value<bool>>,
    /// Counts or drops packets to the encapsulation port that do not come from another node.
    #[arg(
        long,
        env = "FLANNELD_ENCAP_PEERS",
        value_name = "off|count|drop",
        default_value = "off"
    )]
    pub(crate) encap_peers: Vec<Value<UnknownSenders>>,
    /// Drops packets from pods to the encapsulation port of nodes.
    #[arg(long, env = "FLANNELD_ENCAP_BAR_PODS")]
    pub(crate) encap_bar_pods: Vec<Value<bool>>,
    /// Adds a blackhole route for this node's subnet, so that packets to missing pods do not leave by the default route.
    #[arg(long, env = "FLANNELD_IP_BLACKHOLE_ROUTE")]
    pub(crate) ip_blackhole_route: Vec<Value<bool>>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Packets in userspace (udp, and vxlan with \"Mode\": \"userspace\")")]
pub(crate) struct DatapathFlags {
    /// Method that moves packets: with the kernel's offloads, in batches (mmsg), or one by one; auto selects the fastest method that works.
    #[arg(
        long,
        env = "FLANNELD_DATAPATH",
        value_name = "auto|offload|mmsg|plain",
        default_value = "auto"
    )]
    pub(crate) datapath: Vec<Value<Features>>,
    /// Number of queues of the TUN device, up to 16, each with two threads; 0 selects one queue for each two processors, at most 4.
    #[arg(long, env = "FLANNELD_DATAPATH_QUEUES", value_name = "NUMBER", default_value = "0")]
    pub(crate) datapath_queues: Vec<Value<i64>>,
    /// Moves packets of quiet flows with real-time priority (SCHED_RR), for at most a quarter of the processors' time.
    #[arg(long, env = "FLANNELD_DATAPATH_REAL_TIME", default_value = "true")]
    pub(crate) datapath_real_time: Vec<Value<bool>>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Other")]
pub(crate) struct OtherFlags {
    // Go flannel ignores the environment variable of this flag, so it has none here.
    /// Prints the version and exits.
    #[arg(long)]
    pub(crate) version: Vec<Value<bool>>,
    /// Prints the common flags and exits.
    #[arg(long, action = ArgAction::Help)]
    pub(crate) help: Option<bool>,
    /// Prints all flags and exits.
    #[arg(long, action = ArgAction::Help)]
    pub(crate) help_all: Option<bool>,
}
