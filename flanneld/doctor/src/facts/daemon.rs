//! The daemon: whether it runs, what it said last, what it was told and what it chose.

use super::argument::Argument;
use crate::fact::Fact;
use jiff::Timestamp;
pub use run_dir::exit_report::Choice;
use std::collections::BTreeMap;
use std::path::PathBuf;
use types::Problem;

/// The namespace that the manifests have.
pub const NAMESPACE: &str = "kube-flannel";

/// The daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemon {
    /// Whether one runs.
    pub running: Fact<bool>,
    /// Whether it started less than ten seconds ago: what needs waiting is not told yet.
    pub young: bool,
    /// What the last one said at its end; absent while one runs.
    pub exit_report: Fact<ExitReport>,
    /// Tasks that send no heartbeat.
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
    /// Objects of the kernel that are not as wanted, with the kernel's errors.
    pub kernel_trouble: Fact<Problem>,
    /// On Kubernetes, the pods of flannel on this node, this daemon's included.
    pub pods: Fact<Vec<DaemonPod>>,
}

/// A pod of flannel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonPod {
    /// Its name.
    pub name: String,
    /// What creates and replaces it, as `DaemonSet/kube-flannel-ds`; `None` if nothing does.
    pub owner: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether our chart made it.
    pub charted: bool,
}

/// How the daemon is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// By systemd, with options in this file.
    #[default]
    Systemd,
    /// By the DaemonSet of a cluster.
    Kubernetes {
        /// Its namespace.
        namespace: String,
        /// Whether that is only the usual one: nothing on this node tells it.
        assumed: bool,
    },
}

/// What a daemon said at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitReport {
    /// When.
    pub at: Option<Timestamp>,
    /// Its exit code.
    pub code: i32,
    /// Why it ended.
    pub problem: Problem,
    /// The interface that it had chosen.
    pub choice: Option<Choice>,
}

/// An object that another program keeps changing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The object: `route to 10.244.2.0/24`.
    pub object: String,
    /// What it is.
    pub kind: Drifting,
    /// How often it was put back in the last ten minutes.
    pub times: u32,
    /// The programs of this host that may be to blame.
    pub by: Vec<String>,
}

/// What kind of object keeps changing: what keeps a program from it depends on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drifting {
    /// A device.
    Link,
    /// A route.
    Route,
    /// Something on a device.
    Other,
}

impl Daemon {
    /// The argument with this flag. It beats the variable of the same name.
    pub fn argument(&self, flag: &str) -> Option<&Argument> {
        self.arguments.iter().find(|argument| argument.is(flag))
    }

    /// The argument that has to go so that another interface is chosen: the first one that fits wins, and every argument beats its variable.
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
