//! The daemon: whether it runs, its exit report, its options, and its choice of the interface.

use super::argument::Argument;
use crate::fact::Fact;
pub use run_dir::exit_report::{Choice, ExitReport};
use std::collections::BTreeMap;
use std::path::PathBuf;
use types::{DaemonPod, Problem};

/// The namespace that the manifests have.
pub const NAMESPACE: &str = "kube-flannel";

/// Facts about the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemon {
    /// Whether a daemon runs.
    pub running: Fact<bool>,
    /// Whether it started less than ten seconds ago: checks that have to wait report nothing yet.
    pub young: bool,
    /// The exit report of the last daemon; absent while one runs.
    pub exit_report: Fact<ExitReport>,
    /// Tasks that have stopped sending heartbeats.
    pub silent: Fact<Vec<String>>,
    /// Why it is not ready, by condition.
    pub reasons: Fact<BTreeMap<String, Problem>>,
    /// The interface for packets between nodes; absent while there is none.
    pub choice: Fact<Choice>,
    /// How it is started, for remedies.
    pub launch: Launch,
    /// The arguments that it was started with, as far as remedies change them.
    pub arguments: Vec<Argument>,
    /// Whether its options name this node's identity, which is made of the machine's otherwise.
    pub id_given: bool,
    /// The file for pods: `subnet.env`.
    pub subnet_file: PathBuf,
    /// Objects that other programs keep changing.
    pub drift: Fact<Vec<Drift>>,
    /// On Kubernetes, the pods of flannel on this node, this daemon's included.
    pub pods: Fact<Vec<DaemonPod>>,
}

/// How the daemon is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// By systemd, with options in /etc/default/flanneld.
    #[default]
    Systemd,
    /// By the DaemonSet of a cluster.
    Kubernetes {
        /// The namespace of the DaemonSet.
        namespace: String,
        /// Whether that is only assumed, because nothing on this node reveals it.
        assumed: bool,
    },
}

/// An object that another program keeps changing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The object: `route to 10.244.2.0/24`.
    pub object: String,
    /// The kind of the object.
    pub kind: Drifting,
    /// How often it was restored in the last ten minutes.
    pub times: u32,
    /// The programs of this host that may be to blame.
    pub by: Vec<String>,
}

/// What kind of object keeps changing: what keeps a program from it depends on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drifting {
    /// A network device.
    Link,
    /// A route of the main table.
    Route,
    /// An address, a neighbour or another object on a device.
    Other,
}

impl Daemon {
    /// Returns the argument with this flag. It takes precedence over the variable of the same name.
    pub fn argument(&self, flag: &str) -> Option<&Argument> {
        self.arguments.iter().find(|argument| argument.is(flag))
    }

    /// Returns the argument that has to be removed so that another interface is chosen. The first selector that fits applies, and every argument takes
    /// precedence over its variable.
    pub fn naming(&self) -> Option<&Argument> {
        let chosen = self.choice.known().and_then(|choice| {
            choice
                .flag
                .as_ref()?
                .trim_start_matches('-')
                .split_once('=')
        });
        let named = |argument: &&Argument| {
            chosen.is_some_and(|(flag, value)| argument.flag == flag && argument.value == value)
        };
        self.arguments
            .iter()
            .find(named)
            .or_else(|| self.argument("iface"))
    }
}
