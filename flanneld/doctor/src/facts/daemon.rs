//! The daemon: whether it runs, its exit report, its options, and its choice of the interface.

use super::argument::Argument;
use crate::fact::Fact;
pub use run_dir::exit_report::{Choice, ExitReport};
use std::collections::BTreeMap;
use std::path::PathBuf;
use types::{DaemonPod, Problem};

/// The namespace in flannel's manifests.
pub const NAMESPACE: &str = "kube-flannel";

/// Facts about the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemon {
    /// Whether a daemon runs.
    pub running: Fact<bool>,
    /// Whether the daemon started less than ten seconds ago. Checks that have to wait report no findings during this time.
    pub young: bool,
    /// The exit report of the last daemon; absent while a daemon runs.
    pub exit_report: Fact<ExitReport>,
    /// Tasks that have stopped sending heartbeats, or a note that the socket of the daemon does not respond.
    pub silent: Fact<Vec<String>>,
    /// The reasons why the daemon is not ready, by condition.
    pub reasons: Fact<BTreeMap<String, Problem>>,
    /// The underlay interface and the reason for the choice; absent while the daemon has no interface.
    pub choice: Fact<Choice>,
    /// The service manager that starts the daemon, for remedies.
    pub launch: Launch,
    /// The arguments of the daemon's command line that remedies need.
    pub arguments: Vec<Argument>,
    /// Whether an option sets this node's identity. Otherwise, flanneld derives the identity from the machine's identity.
    pub id_given: bool,
    /// The path of `subnet.env`.
    pub subnet_file: PathBuf,
    /// Objects that other programs keep changing.
    pub drift: Fact<Vec<Drift>>,
    /// flannel's pods on this node with Kubernetes, including the pod of this daemon.
    pub pods: Fact<Vec<DaemonPod>>,
}

/// The service manager that starts the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// systemd, with options in /etc/default/flanneld.
    #[default]
    Systemd,
    /// A DaemonSet.
    Kubernetes {
        /// The namespace of the DaemonSet.
        namespace: String,
        /// Whether the namespace is only an assumption, because no file on this node shows it.
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
    /// The number of times that flanneld restored the object in the last ten minutes.
    pub times: u32,
    /// Programs on this host that may be the cause.
    pub by: Vec<String>,
}

/// Kind of an object that keeps changing. The kind decides which setting keeps another program from changing the object.
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
    /// Returns the argument that sets this flag. An argument takes precedence over the variable of the same name.
    pub fn argument(&self, flag: &str) -> Option<&Argument> {
        self.arguments.iter().find(|argument| argument.is(flag))
    }

    /// Returns the argument that selects the current interface. A remedy has to change this argument to select another interface. The first matching
    /// selector applies, and every argument takes precedence over its variable.
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
