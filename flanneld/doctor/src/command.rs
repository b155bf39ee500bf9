//! Commands of remedies.

use crate::shell::word;
use std::fmt;

/// What a command acts on, which decides where it can be typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActsOn {
    /// The host on which it is typed.
    Host,
    /// Objects of the cluster, through kubectl.
    Cluster,
    /// flannel's own objects in the cluster, through kubectl with their namespace.
    Namespace,
}

/// A command for a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The line as it is typed.
    pub text: String,
    /// The objects that it acts on.
    pub acts_on: ActsOn,
}

impl Command {
    /// Returns kubectl with these arguments, which do not name flannel's namespace.
    pub fn kubectl(arguments: impl fmt::Display) -> Self {
        Self::on_cluster(format!("kubectl {arguments}"))
    }

    /// Returns a shell line that uses kubectl.
    pub(crate) fn on_cluster(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            acts_on: ActsOn::Cluster,
        }
    }

    /// Returns a shell line about objects in flannel's namespace. `line` gets kubectl with that namespace.
    pub fn in_namespace(namespace: &str, line: impl FnOnce(&str) -> String) -> Self {
        Self {
            text: line(&format!("kubectl -n {}", word(namespace))),
            acts_on: ActsOn::Namespace,
        }
    }
}

impl<T: Into<String>> From<T> for Command {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            acts_on: ActsOn::Host,
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
