//! What the doctor says: findings, what it could not look at, and the report of both.

use crate::command::{ActsOn, Command};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use types::Family;
use types::printable;
use types::problem::MUTE;

/// The schema of [`Report`].
pub const SCHEMA: &str = "flannel.findings/1";
/// Where a remedy belongs if it says nothing else.
pub const HERE: &str = "this node";
/// Where a remedy belongs that all nodes need.
pub(crate) const EVERYWHERE: &str = "every node";
/// Where commands of kubectl belong: once, since they are the cluster's.
pub(crate) const WITH_KUBECTL: &str = "a node with kubectl";

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Packets of pods are lost now, or pods cannot start.
    Broken,
    /// Some packets are lost, or they are slow.
    Degraded,
    /// It works, and will not for long.
    Risk,
}

impl Severity {
    /// Its name, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Broken => "broken",
            Severity::Degraded => "degraded",
            Severity::Risk => "risk",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Something that was seen, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// What was seen.
    pub text: String,
    /// The command or source that shows it.
    pub from: String,
}

/// What ends the problem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// Commands for a shell, to be typed as they stand, in this order, then comments about them. Empty if no command can do it.
    pub commands: Vec<String>,
    /// Where to type them.
    pub on: String,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The check that found it.
    pub check: String,
    /// The device, peer, file or family; empty if the check is about the node.
    pub about: String,
    /// The only address family that it is about; none where it is about both.
    #[serde(skip)]
    pub family: Option<Family>,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one sentence.
    pub what: String,
    /// Its cause or its consequence.
    pub why: String,
    /// What was seen.
    pub evidence: Vec<Evidence>,
    /// What to type.
    pub remedy: Remedy,
    /// What each command of the remedy acts on, until the remedy says where to type them.
    #[serde(skip)]
    pub acts_on: Vec<ActsOn>,
    /// When it was found first; `None` where nobody keeps watch.
    pub since: Option<Timestamp>,
    /// The check whose finding explains this one. Such a finding needs no remedy of its own.
    pub explained_by: Option<String>,
}

impl Finding {
    /// A problem without evidence and remedy so far.
    pub fn new(
        check: &str,
        severity: Severity,
        about: impl Into<String>,
        what: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self {
            check: check.to_owned(),
            about: about.into(),
            family: None,
            severity,
            what: said(check, what),
            why: said(check, why),
            evidence: Vec::new(),
            remedy: Remedy {
                commands: Vec::new(),
                on: HERE.to_owned(),
            },
            acts_on: Vec::new(),
            since: None,
            explained_by: None,
        }
    }

    /// Notes the only address family that it is about.
    #[must_use]
    pub fn of(mut self, family: Family) -> Self {
        self.family = Some(family);
        self
    }

    /// Adds something that was seen.
    #[must_use]
    pub fn seen(mut self, text: impl Into<String>, from: impl Into<String>) -> Self {
        self.evidence.push(Evidence {
            text: said(&self.check, text),
            from: from.into(),
        });
        self
    }

    /// Adds a command.
    #[must_use]
    pub fn run(mut self, command: impl Into<Command>) -> Self {
        let Command { text, acts_on } = command.into();
        self.remedy.commands.push(text);
        self.acts_on.push(acts_on);
        self
    }

    /// Adds commands.
    #[must_use]
    pub(crate) fn run_all<C: Into<Command>>(self, commands: impl IntoIterator<Item = C>) -> Self {
        commands.into_iter().fold(self, Self::run)
    }

    /// Adds what to know of the commands, as a comment of the shell. Comments come last.
    #[must_use]
    pub fn note(mut self, text: &str) -> Self {
        self.remedy.commands.push(format!("# {text}"));
        self
    }

    /// Says where the commands belong.
    #[must_use]
    pub fn on(mut self, place: impl Into<String>) -> Self {
        self.remedy.on = place.into();
        self
    }

    /// What tells it from other findings.
    pub fn key(&self) -> (String, String) {
        (self.check.clone(), self.about.clone())
    }

    /// Makes everything printable: names of nodes and devices are foreign. A command that is not printable is left out.
    pub(crate) fn clean(&mut self) {
        for text in [
            &mut self.about,
            &mut self.what,
            &mut self.why,
            &mut self.remedy.on,
        ] {
            *text = printable::line(text).into_owned();
        }
        for seen in &mut self.evidence {
            seen.text = printable::line(&seen.text).into_owned();
            seen.from = printable::line(&seen.from).into_owned();
        }
        self.remedy
            .commands
            .retain(|command| printable::line(command) == command.as_str());
    }
}

/// A text of a finding: that of the check in a mute build.
pub fn said(check: &str, text: impl Into<String>) -> String {
    if MUTE { check.to_owned() } else { text.into() }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.check, self.what, self.why)?;
        if !self.remedy.commands.is_empty() {
            let place = if self.remedy.on == HERE {
                String::new()
            } else {
                format!(" (on {})", self.remedy.on)
            };
            write!(f, "; remedy{place}: {}", self.remedy.commands.join("; "))?;
        }
        Ok(())
    }
}

/// A check that could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unknown {
    /// The check.
    pub check: String,
    /// Why not.
    pub why: String,
}

/// Whether a daemon runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DaemonState {
    /// It answers.
    Running,
    /// It is there and does not answer.
    Hanging,
    /// There is none.
    Stopped,
    /// Nobody knows.
    #[default]
    Unknown,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// This node's name.
    pub node: String,
    /// When it was looked.
    pub at: Timestamp,
    /// Whether a daemon runs.
    pub daemon: DaemonState,
    /// Number of checks in the table.
    pub checks: usize,
    /// The gravest first, causes before what they explain.
    pub findings: Vec<Finding>,
    /// Checks that could not be made.
    pub unknown: Vec<Unknown>,
}

impl Report {
    /// The findings that no other one explains.
    pub fn causes(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.explained_by.is_none())
    }

    /// The findings that this one explains.
    pub fn explained<'a>(&'a self, cause: &'a Finding) -> impl Iterator<Item = &'a Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.explained_by.as_deref() == Some(&cause.check))
    }

    /// The number of unexplained findings of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.causes()
            .filter(|finding| finding.severity == severity)
            .count()
    }
}
