//! Errors and warnings about a command line or environment variables.

use subnet_lease::kube::error::PrefixError;
use thiserror::Error;
use types::{Coded, Problem};

/// Why the daemon does not start with its flags and environment variables.
#[derive(Clone, Debug, PartialEq, Error, Coded)]
pub enum OptionError {
    /// flanneld's own parser accepts the command line, but clap rejects it.
    #[error("cannot read the command line: {0}")]
    #[code("command-line")]
    Unreadable(clap::error::ErrorKind),
    /// `flag` is the argument without a value.
    #[error("bad flag syntax: {flag}; a flag looks like --name=value")]
    #[code("flag-syntax")]
    Syntax { flag: String },
    /// `name` has no dashes, here and below. `near` is the known flag with the most similar name.
    #[error("flag provided but not defined: --{name}; {}", .near.as_ref().map_or_else(|| "see --help-all".to_owned(), |near| format!("did you mean --{near}?")))]
    #[code("flag-unknown")]
    Unknown { name: String, near: Option<String> },
    /// `value` is the placeholder for the flag's value in the help.
    #[error("flag needs an argument: --{name} {value}")]
    #[code("flag-without-value")]
    NoValue { name: String, value: String },
    /// `from` is the flag or environment variable with the value, here and below.
    #[error("{from}: {problem}")]
    #[code("flag-value")]
    #[parts(vec![problem.clone()])]
    Value { from: String, problem: Problem },
    /// The prefix of flannel's annotations on Nodes.
    #[error("error creating network manager: {from}: {why}")]
    #[code("flag-annotation-prefix")]
    #[parts(vec![Problem::of(why)])]
    Prefix { from: String, why: PrefixError },
    #[error("{dir} and {other} exclude each other: keep the leases either in a directory or in {}", if *.kubernetes { "Kubernetes" } else { "etcd" })]
    #[code("flag-two-stores")]
    TwoStores { dir: String, other: String, kubernetes: bool },
    /// `missing` is the missing flag, with a reason where it needs one.
    #[error("{from} also needs {missing}")]
    #[code("flag-alone")]
    Alone { from: String, missing: &'static str },
    #[error("env EVENT_QUEUE_DEPTH={depth} format error: it is not an integer")]
    #[code("event-queue-depth")]
    QueueDepth { depth: String },
    #[error(
        "env variables POD_NAME and POD_NAMESPACE must be set, or NODE_NAME: --kube-subnet-mgr has to know which Node this is (in a pod's \
         manifest: valueFrom.fieldRef.fieldPath spec.nodeName; elsewhere the name that `kubectl get nodes` shows)"
    )]
    NodeUnknown,
    #[error("{variable}: {name:?} is not a Kubernetes name: use letters, digits, hyphens and dots")]
    NodeName { variable: String, name: String },
    /// flanneld prints a warning with the errors, because logging has not started yet.
    #[error("also: {0}")]
    #[code(of = _0)]
    Also(Warning),
}

/// The problem of one value, as a part of [`OptionError::Value`].
pub(crate) fn unusable(code: &'static str, text: impl Into<String>) -> Problem {
    Problem { code: code.into(), ..Problem::in_words(text) }
}

/// A questionable option that does not keep the daemon from starting.
#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
pub enum Warning {
    /// `from` is the first ignored argument; `None` if it may be a secret.
    #[error(
        "flanneld ignores the command line from {} onwards: flags end at the first argument that is not a flag; a switch takes its value with '=', as in --ip-masq=false",
        .from.as_ref().map_or_else(|| "an argument that is not shown".to_owned(), |from| format!("{from:?}"))
    )]
    #[code("arguments-ignored")]
    Ignored { from: Option<String> },
    #[error(
        "--iface=auto has no effect with --kube-subnet-mgr, where flanneld by default chooses the interface by the Node's addresses; omit --iface=auto"
    )]
    #[code("iface-auto-with-kubernetes")]
    Auto,
    #[error(
        "flanneld does not use the TLS options with {0}, which is not encrypted; write https:// to use them"
    )]
    #[code("tls-options-unused")]
    TlsUnused(String),
    /// The route protocol number of a routing daemon.
    #[error(
        "{from}={number} is the number of a routing daemon: if that daemon runs on this node, flanneld treats the daemon's routes inside the network as flannel's routes"
    )]
    #[code("route-protocol-of-a-daemon")]
    RouteProtocol { from: String, number: u64 },
    /// The interval between two comparisons of the iptables rules with the desired rules is zero or negative.
    #[error("{from}: Go flannel would loop without a pause; using 5 s")]
    #[code("resync-without-pause")]
    NoPause { from: String },
}
