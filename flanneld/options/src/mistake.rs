//! Mistakes in a command line or in environment variables, as typed errors.

use crate::endpoint::{Endpoint, EndpointError, USER};
use std::fmt;
use subnet_lease::kube::UrlError;
use subnet_lease::kube::error::PrefixError;
use types::{Coded, Problem};

/// A mistake that keeps the daemon from starting.
#[derive(Clone, Debug, PartialEq)]
pub enum Mistake {
    /// A command line that flanneld's own parser accepts but clap rejects.
    Unreadable(clap::error::ErrorKind),
    /// An argument that begins with a dash but does not have the syntax of a flag.
    Syntax {
        /// The argument, without a value.
        flag: String,
    },
    /// A flag that does not exist.
    Unknown {
        /// The flag's name as typed, without dashes.
        name: String,
        /// The known flag with the most similar name, if any name is similar.
        near: Option<String>,
    },
    /// A flag without its value.
    NoValue {
        /// The flag's name as typed, without dashes.
        name: String,
        /// The placeholder for the flag's value in the help.
        value: String,
    },
    /// A value is unusable.
    Value {
        /// The flag or environment variable with the value.
        from: String,
        /// The reason why the value is invalid.
        fault: Fault,
    },
    /// An invalid prefix for flannel's annotations on Nodes.
    Prefix {
        /// The flag or environment variable with the prefix.
        from: String,
        /// The reason why the prefix is invalid.
        why: PrefixError,
    },
    /// Two flags that select different stores.
    TwoStores {
        /// The flag or environment variable that selects the directory.
        dir: String,
        /// The flag or environment variable that selects the other store.
        other: String,
        /// Whether the other store is Kubernetes, not etcd.
        kubernetes: bool,
    },
    /// A flag without the other flag that it requires.
    Alone {
        /// The flag or environment variable that the operator set.
        from: String,
        /// The missing flag.
        missing: Partner,
    },
    /// A value of the variable EVENT_QUEUE_DEPTH that is not an integer.
    QueueDepth {
        /// The value of the variable.
        depth: String,
    },
    /// Environment variables that do not name this host's Node.
    NodeUnknown,
    /// An environment variable that does not contain a valid Kubernetes name.
    NodeName {
        /// The name of the variable.
        variable: String,
        /// The value of the variable.
        name: String,
    },
    /// A warning that flanneld prints with the mistakes, because logging has not started yet.
    Also(Warning),
}

/// A flag that another flag requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partner {
    /// `--etcd-keyfile`, which `--etcd-certfile` requires.
    KeyFile,
    /// `--etcd-certfile`, which `--etcd-keyfile` requires.
    CertFile,
    /// `--etcd-password`, which `--etcd-username` requires.
    Password,
    /// `--etcd-username`, which `--etcd-password` requires.
    User,
}

/// Fault of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Not a boolean.
    Truth(String),
    /// A value that is not an integer in Go's syntax.
    Integer(String),
    /// A value that is not a decimal integer.
    Decimal(String),
    /// A value that is not a log format.
    LogFormat(String),
    /// A value that is not a mode of `--encap-peers`.
    UnknownSenders(String),
    /// A value that is not a mode of `--datapath`.
    Datapath(String),
    /// A number that is out of range.
    Range {
        /// The number.
        value: i64,
        /// The lowest valid number.
        low: u64,
        /// The highest valid number.
        high: u64,
        /// The unit of the number, and the meaning of special numbers.
        note: &'static str,
    },
    /// A number that is not a valid port.
    Port(i64),
    /// A value that is not an IP address of the required family.
    PublicAddress {
        /// The value.
        text: String,
        /// The required family.
        family: types::Family,
    },
    /// A value that is not an IP address.
    Address(String),
    /// A value of `--iface-cidr` that is not a network in CIDR notation.
    InterfaceNetwork(String),
    /// A value that is not a network in CIDR notation.
    Network(String),
    /// A value that is not a regular expression.
    Pattern(PatternError),
    /// An unusable etcd endpoint.
    Endpoint(EndpointError),
    /// An etcd endpoint that contains a user name.
    EndpointUser,
    /// No etcd endpoint.
    NoEndpoint,
    /// A value that is not a valid root for flannel's keys in etcd.
    Root(String),
    /// A value that is not the address of an API server.
    Server {
        /// The address; `None` if it may contain a password.
        named: Option<String>,
        /// The reason why the address is invalid.
        why: UrlError,
    },
    /// A value that is not a valid identity of a node.
    NodeId(String),
    /// A list of backends that contains no name.
    NoBackend(String),
    /// An unknown backend.
    Backend {
        /// The name.
        name: String,
        /// The names of all backends.
        known: Vec<String>,
    },
    /// A value that is not the path of a file.
    File(String),
    /// A value that does not contain the paths of two files.
    TwoFiles(String),
    /// A value that does not have the form `pattern=N`.
    Vmodule(String),
    /// A value that does not have the form `file.go:N`.
    Backtrace(String),
}

/// Error for an invalid regular expression.
#[derive(Clone, Debug, PartialEq)]
pub struct PatternError {
    /// The regular expression.
    pub pattern: String,
    /// The error of the regex compiler.
    pub cause: regex::Error,
}

/// A questionable option that does not keep the daemon from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Arguments at the end of the command line, which flanneld ignores.
    Ignored {
        /// The first ignored argument; `None` if it may be a secret.
        from: Option<String>,
    },
    /// `--iface=auto`, which has no effect with Kubernetes.
    Auto,
    /// TLS options that flanneld does not use for an endpoint, because the endpoint uses no TLS.
    TlsUnused(Endpoint),
    /// A route protocol number that belongs to a routing daemon.
    RouteProtocol {
        /// The flag or environment variable with the number.
        from: String,
        /// The protocol number.
        number: u64,
    },
    /// A zero or negative interval between two comparisons of the iptables rules with the desired rules.
    NoPause {
        /// The flag or environment variable with the interval.
        from: String,
    },
}

impl Coded for Mistake {
    fn code(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "command-line",
            Self::Syntax { .. } => "flag-syntax",
            Self::Unknown { .. } => "flag-unknown",
            Self::NoValue { .. } => "flag-without-value",
            Self::Value { .. } => "flag-value",
            Self::Prefix { .. } => "flag-annotation-prefix",
            Self::TwoStores { .. } => "flag-two-stores",
            Self::Alone { .. } => "flag-alone",
            Self::QueueDepth { .. } => "event-queue-depth",
            Self::NodeUnknown => "node-unknown",
            Self::NodeName { .. } => "node-name",
            Self::Also(warning) => warning.code(),
        }
    }

    fn parts(&self) -> Vec<Problem> {
        match self {
            Self::Value { fault, .. } => vec![Problem::of(fault)],
            Self::Prefix { why, .. } => vec![Problem::of(why)],
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(kind) => write!(f, "cannot read the command line: {kind}"),
            Self::Syntax { flag } => write!(f, "bad flag syntax: {flag}; a flag looks like --name=value"),
            Self::Unknown { name, near: Some(near) } => write!(f, "flag provided but not defined: --{name}; did you mean --{near}?"),
            Self::Unknown { name, near: None } => write!(f, "flag provided but not defined: --{name}; see --help-all"),
            Self::NoValue { name, value } => write!(f, "flag needs an argument: --{name} {value}"),
            Self::Value { from, fault } => write!(f, "{from}: {fault}"),
            Self::Prefix { from, why } => write!(f, "error creating network manager: {from}: {why}"),
            Self::TwoStores { dir, other, kubernetes } => {
                let store = if *kubernetes { "Kubernetes" } else { "etcd" };
                write!(f, "{dir} and {other} exclude each other: keep the leases either in a directory or in {store}")
            }
            Self::Alone { from, missing } => write!(f, "{from} also needs {missing}"),
            Self::QueueDepth { depth } => write!(f, "env EVENT_QUEUE_DEPTH={depth} format error: it is not an integer"),
            Self::NodeUnknown => f.write_str(
                "env variables POD_NAME and POD_NAMESPACE must be set, or NODE_NAME: --kube-subnet-mgr has to know which Node this is (in a pod's \
                 manifest: valueFrom.fieldRef.fieldPath spec.nodeName; elsewhere the name that `kubectl get nodes` shows)",
            ),
            Self::NodeName { variable, name } => write!(f, "{variable}: {name:?} is not a Kubernetes name: use letters, digits, hyphens and dots"),
            Self::Also(warning) => write!(f, "also: {warning}"),
        }
    }
}

impl std::error::Error for Mistake {}

impl fmt::Display for Partner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeyFile => "--etcd-keyfile: a client certificate and its key go together",
            Self::CertFile => "--etcd-certfile: a client certificate and its key go together",
            Self::Password => "--etcd-password (or FLANNELD_ETCD_PASSWORD)",
            Self::User => "--etcd-username",
        })
    }
}

impl Coded for Fault {
    fn code(&self) -> &'static str {
        match self {
            Self::Truth(_) => "not-a-truth-value",
            Self::Integer(_) => "not-an-integer",
            Self::Decimal(_) => "not-a-decimal-integer",
            Self::LogFormat(_) => "not-a-log-format",
            Self::UnknownSenders(_) => "not-an-encap-peers-mode",
            Self::Datapath(_) => "not-a-datapath-mode",
            Self::Range { .. } => "out-of-range",
            Self::Port(_) => "not-a-port",
            Self::PublicAddress { .. } => "not-a-public-address",
            Self::Address(_) => "not-an-address",
            Self::InterfaceNetwork(_) | Self::Network(_) => "not-a-network",
            Self::Pattern(_) => "not-a-pattern",
            Self::Endpoint(error) => error.code(),
            Self::EndpointUser => "endpoint-with-user",
            Self::NoEndpoint => "no-endpoint",
            Self::Root(_) => "not-a-root-for-keys",
            Self::Server { .. } => "not-an-api-server",
            Self::NodeId(_) => "not-a-node-id",
            Self::NoBackend(_) => "no-backend",
            Self::Backend { .. } => "unknown-backend",
            Self::File(_) => "not-a-file",
            Self::TwoFiles(_) => "not-two-files",
            Self::Vmodule(_) => "not-a-vmodule",
            Self::Backtrace(_) => "not-a-line-of-a-file",
        }
    }

    fn parts(&self) -> Vec<Problem> {
        match self {
            Self::Server { why, .. } => vec![Problem::of(why)],
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truth(text) => write!(f, "{text:?} is neither true nor false"),
            Self::Integer(text) => write!(f, "{text:?} is not an integer"),
            Self::Decimal(text) => write!(f, "{text:?} is not a decimal integer"),
            Self::LogFormat(text) => {
                write!(f, "{text:?} is not a log format; use text or json")
            }
            Self::UnknownSenders(text) => {
                write!(f, "{text:?} is not a mode: use off, count or drop")
            }
            Self::Datapath(text) => write!(
                f,
                "{text:?} is not a mode: use offload, mmsg or plain, or omit the mode for the fastest available mode"
            ),
            Self::Range { value, low, high, note } => {
                write!(f, "{value} is out of range; it must be {low} to {high} ({note})")
            }
            Self::Port(number) => write!(f, "{number} is not a port; the highest port is 65535"),
            Self::PublicAddress { text, family } => match family {
                types::Family::V4 => {
                    write!(f, "invalid public IP address: {text}; it must be an IPv4 address")
                }
                types::Family::V6 => {
                    write!(f, "invalid public IPv6 address: {text}; it must be an IPv6 address")
                }
            },
            Self::Address(text) => write!(f, "{text:?} is not an IP address"),
            Self::InterfaceNetwork(text) => {
                write!(f, "{text:?} is not a network; use a value such as 192.168.56.0/24")
            }
            Self::Network(text) => write!(f, "{text:?} is not a network such as 10.0.0.0/8"),
            Self::Pattern(error) => write!(f, "{error}"),
            Self::Endpoint(error) => write!(f, "{error}"),
            Self::EndpointUser => f.write_str(USER),
            Self::NoEndpoint => {
                f.write_str("contains no endpoint; write an endpoint such as http://10.0.0.1:2379")
            }
            Self::Root(text) => {
                write!(f, "{text:?} is not a root for keys; use a path such as /coreos.com/network")
            }
            Self::Server { named, why } => {
                match named {
                    Some(named) => write!(f, "{named:?}")?,
                    None => f.write_str("a value")?,
                }
                write!(
                    f,
                    " is not the address of an API server: {why}; write it like https://10.0.0.1:6443"
                )
            }
            Self::NodeId(text) => write!(
                f,
                "{text:?} is not a node identity: use at most 253 bytes, without blanks and control characters"
            ),
            Self::NoBackend(text) => write!(f, "{text:?} names no backend"),
            Self::Backend { name, known } => {
                write!(f, "{name:?} is not a backend; the backends are {}", known.join(", "))
            }
            Self::File(text) => write!(f, "{text:?} is not the path of a file"),
            Self::TwoFiles(text) => write!(
                f,
                "{text:?} does not contain the paths of two files with a colon between them, such as /etc/kube-flannel/cni-conf.json:/etc/cni/net.d/10-flannel.conflist"
            ),
            Self::Vmodule(text) => write!(f, "{text:?} is not pattern=N"),
            Self::Backtrace(text) => write!(f, "{text:?} is not file.go:N"),
        }
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The compiler's message has several lines, one of which points at the fault.
        let cause = self.cause.to_string();
        let cause = cause.split_whitespace().collect::<Vec<_>>().join(" ");
        write!(f, "could not compile the IP address regex '{}': {cause}", self.pattern)
    }
}

impl std::error::Error for PatternError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

impl Coded for Warning {
    fn code(&self) -> &'static str {
        match self {
            Self::Ignored { .. } => "arguments-ignored",
            Self::Auto => "iface-auto-with-kubernetes",
            Self::TlsUnused(_) => "tls-options-unused",
            Self::RouteProtocol { .. } => "route-protocol-of-a-daemon",
            Self::NoPause { .. } => "resync-without-pause",
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ignored { from } => {
                f.write_str("flanneld ignores the command line from ")?;
                match from {
                    Some(from) => write!(f, "{from:?}")?,
                    None => f.write_str("an argument that is not shown")?,
                }
                f.write_str(
                    " onwards: flags end at the first argument that is not a flag; a switch takes its value with '=', as in --ip-masq=false",
                )
            }
            Self::Auto => {
                f.write_str("--iface=auto has no effect with --kube-subnet-mgr, where flanneld by default chooses the interface by the Node's addresses; omit --iface=auto")
            }
            Self::TlsUnused(endpoint) => {
                write!(f, "flanneld does not use the TLS options with {endpoint}, which is not encrypted; write https:// to use them")
            }
            Self::RouteProtocol { from, number } => {
                write!(f, "{from}={number} is the number of a routing daemon: if that daemon runs on this node, flanneld treats the daemon's routes inside the network as flannel's routes")
            }
            Self::NoPause { from } => write!(f, "{from}: Go flannel would loop without a pause; using 5 s"),
        }
    }
}
