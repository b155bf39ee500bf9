//! Shell commands of remedies.

use crate::shell::word;
use std::fmt;

/// Objects that a command changes or reads. The kind of object determines the machine on which an operator can run the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActsOn {
    /// The host on which the operator runs the command.
    Host,
    /// Objects of the cluster, which the command reads or changes through kubectl.
    Cluster,
    /// flannel's own objects in the cluster, which the command reads or changes through kubectl in flannel's namespace.
    Namespace,
}

/// A shell command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The command line, as the operator types it.
    pub text: String,
    /// The kind of object that the command changes or reads.
    pub acts_on: ActsOn,
}

impl Command {
    /// Returns a kubectl command with the given arguments, which do not name flannel's namespace.
    pub fn kubectl(arguments: impl fmt::Display) -> Self {
        Self::on_cluster(format!("kubectl {arguments}"))
    }

    /// Returns a shell line that uses kubectl.
    pub(crate) fn on_cluster(text: impl Into<String>) -> Self {
        Self { text: text.into(), acts_on: ActsOn::Cluster }
    }

    /// Returns a shell command that acts on objects in flannel's namespace. The argument of `line` is `kubectl -n NAMESPACE`.
    pub fn in_namespace(namespace: &str, line: impl FnOnce(&str) -> String) -> Self {
        Self { text: line(&format!("kubectl -n {}", word(namespace))), acts_on: ActsOn::Namespace }
    }
}

impl<T: Into<String>> From<T> for Command {
    fn from(text: T) -> Self {
        Self { text: text.into(), acts_on: ActsOn::Host }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
