//! Shell commands of remedies.

use crate::shell::word;
use std::fmt;

/// Objects that a command changes or reads, which decide where an operator can run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActsOn {
    Host,
    /// Through kubectl.
    Cluster,
    /// flannel's own objects, through kubectl in flannel's namespace.
    Namespace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// As the operator types it.
    pub text: String,
    pub acts_on: ActsOn,
}

impl Command {
    /// The arguments do not name flannel's namespace.
    pub fn kubectl(arguments: impl fmt::Display) -> Self {
        Self::on_cluster(format!("kubectl {arguments}"))
    }

    pub(crate) fn on_cluster(text: impl Into<String>) -> Self {
        Self { text: text.into(), acts_on: ActsOn::Cluster }
    }

    /// The argument of `line` is `kubectl -n NAMESPACE`.
    ///
    /// ```
    /// use doctor::command::Command;
    /// use doctor::shell::word;
    ///
    /// let command = Command::in_namespace("kube-flannel", |kubectl| {
    ///     format!("{kubectl} delete pod {}", word("pod; reboot"))
    /// });
    /// assert_eq!(command.text, "kubectl -n kube-flannel delete pod 'pod; reboot'");
    /// ```
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
