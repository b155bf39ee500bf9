//! Facts about flanneld: whether it runs, its exit report, its options, and its choice of the underlay interface.

use super::argument::Argument;
use crate::fact::Fact;
pub use run_dir::exit_report::{Choice, ExitReport};
use std::collections::BTreeMap;
use std::path::PathBuf;
use types::{DaemonPod, Problem};

/// The Kubernetes namespace in flannel's manifests.
pub const NAMESPACE: &str = "kube-flannel";

/// Facts about flanneld on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemon {
    /// Whether a daemon runs.
    pub running: Fact<bool>,
    /// Whether flanneld started less than ten seconds ago. In the first ten seconds, the doctor skips the checks whose field `waits` is true.
    pub young: bool,
    /// The exit report of the last run of flanneld; absent while flanneld runs.
    pub exit_report: Fact<ExitReport>,
    /// Tasks of flanneld without heartbeats, or a note that flanneld's socket does not respond.
    pub silent: Fact<Vec<String>>,
    /// The reasons why the node is not ready, by readiness condition.
    pub reasons: Fact<BTreeMap<String, Problem>>,
    /// The underlay interface and the reason for its choice; absent while flanneld has no interface.
    pub choice: Fact<Choice>,
    /// The service manager that starts flanneld, which determines the commands of remedies.
    pub launch: Launch,
    /// The arguments of flanneld's command line that remedies need.
    pub arguments: Vec<Argument>,
    /// Whether an option sets this node's identity. Without the option, flanneld derives the node's identity from the machine's identity.
    pub id_given: bool,
    /// The path of `subnet.env`.
    pub subnet_file: PathBuf,
    /// Kernel objects that other programs keep changing.
    pub drift: Fact<Vec<Drift>>,
    /// flannel's pods on this node with Kubernetes, including the pod of the running daemon.
    pub pods: Fact<Vec<DaemonPod>>,
}

/// The service manager that starts flanneld.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// systemd, which reads flanneld's options from /etc/default/flanneld.
    #[default]
    Systemd,
    /// A DaemonSet.
    Kubernetes {
        /// The Kubernetes namespace of the DaemonSet.
        namespace: String,
        /// Whether the doctor only assumes the namespace, because no file on this node shows the namespace.
        assumed: bool,
    },
}

/// A kernel object that another program keeps changing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The object: `route to 10.244.2.0/24`.
    pub object: String,
    /// The kind of the object.
    pub kind: Drifting,
    /// Number of times that flanneld restored the object in the last ten minutes.
    pub times: u32,
    /// Programs on this host that may change the kernel object.
    pub by: Vec<String>,
}

/// Kind of a kernel object that another program keeps changing. The kind of the object determines which setting keeps another program from changing
/// the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drifting {
    /// A network device.
    Link,
    /// A route of the main table.
    Route,
    /// An address, a neighbour or another object on a network device.
    Other,
}

impl Daemon {
    /// Returns the command-line argument that sets the given flag. A command-line argument takes precedence over the environment variable for the
    /// same option.
    pub fn argument(&self, flag: &str) -> Option<&Argument> {
        self.arguments.iter().find(|argument| argument.is(flag))
    }

    /// Returns the command-line argument that selects the current underlay interface. A remedy has to change this argument to select another underlay
    /// interface. The first selector that matches an interface applies, and an argument takes precedence over the environment variable.
    pub fn naming(&self) -> Option<&Argument> {
        let chosen = self
            .choice
            .known()
            .and_then(|choice| choice.flag.as_ref()?.trim_start_matches('-').split_once('='));
        let named = |argument: &&Argument| {
            chosen.is_some_and(|(flag, value)| argument.flag == flag && argument.value == value)
        };
        self.arguments.iter().find(named).or_else(|| self.argument("iface"))
    }
}
