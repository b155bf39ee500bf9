//! Facts about flanneld: whether it runs, its exit report, its options, and its choice of the underlay interface.

use super::argument::Argument;
use crate::fact::Fact;
pub use run_dir::exit_report::{Choice, ExitReport};
use std::collections::BTreeMap;
use std::path::PathBuf;
use types::{DaemonPod, Problem};

/// As in flannel's manifests.
pub const NAMESPACE: &str = "kube-flannel";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemon {
    pub running: Fact<bool>,
    /// flanneld started less than ten seconds ago, so the doctor skips the checks that wait.
    pub young: bool,
    /// Of the last run; absent while flanneld runs.
    pub exit_report: Fact<ExitReport>,
    /// Tasks without heartbeats, or a note that flanneld's socket does not respond.
    pub silent: Fact<Vec<String>>,
    /// Why the node is not ready, by readiness condition.
    pub reasons: Fact<BTreeMap<String, Problem>>,
    /// Absent while flanneld has no interface.
    pub choice: Fact<Choice>,
    pub launch: Launch,
    /// Those that remedies need.
    pub arguments: Vec<Argument>,
    /// An option sets this node's identity; without it, flanneld derives the identity from the machine's.
    pub id_given: bool,
    pub subnet_file: PathBuf,
    /// Kernel objects that other programs keep changing.
    pub drift: Fact<Vec<Drift>>,
    /// flannel's pods on this node, including the running daemon's own.
    pub pods: Fact<Vec<DaemonPod>>,
}

/// What starts flanneld; it decides the commands of remedies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// flanneld's options are in /etc/default/flanneld.
    #[default]
    Systemd,
    Kubernetes {
        namespace: String,
        /// No file on this node shows the namespace.
        assumed: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// As text: `route to 10.244.2.0/24`.
    pub object: String,
    pub kind: Drifting,
    /// Repairs by flanneld in the last ten minutes.
    pub times: u32,
    /// Programs on this host that may change the object.
    pub by: Vec<String>,
}

/// Decides which setting keeps another program from changing the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drifting {
    Link,
    /// Of the main table.
    Route,
    /// An address, a neighbour or another object on a network device.
    Other,
}

impl Daemon {
    /// It takes precedence over the environment variable for the same option.
    pub fn argument(&self, flag: &str) -> Option<&Argument> {
        self.arguments.iter().find(|argument| argument.is(flag))
    }

    /// The argument that selects the current underlay interface, which a remedy has to change. The first selector that matches an interface applies,
    /// and an argument takes precedence over the environment variable.
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
