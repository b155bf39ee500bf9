//! The doctor's output: findings, checks that could not be made, and the report of both.

use crate::command::{ActsOn, Command};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use types::Family;
use types::printable;
use types::problem::MUTE;

/// The schema of [`Report`].
pub const SCHEMA: &str = "flannel.findings/1";
/// The place of remedies that name no other one.
pub const HERE: &str = "this node";
/// The same where flanneld runs in a pod, which has neither the programs nor the rights.
pub const ON_THE_NODE: &str = "the node itself, not flannel's pod";
/// What a finding is about that tells of several peers.
pub(crate) const SEVERAL: &str = "several peers";
/// The most peers that a finding names.
const MAX_PEERS: usize = 256;
/// Where a remedy belongs that all nodes need.
pub(crate) const EVERYWHERE: &str = "every node";
/// Where commands of kubectl belong: once, since they are the cluster's.
pub(crate) const WITH_KUBECTL: &str = "a node with kubectl";

/// The severity of a finding.
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
    /// What was found, as text.
    pub text: String,
    /// The command or source that shows it.
    pub from: String,
}

/// The commands that end a problem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// Commands for a shell, to be typed in this order, then comments about them. Empty if no command can end the problem.
    pub commands: Vec<String>,
    /// The machine on which to type them.
    pub on: String,
}

/// One problem of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The check that found it.
    pub check: String,
    /// The device, peer, file or family; empty if the check is about the node.
    pub about: String,
    /// The names of the peers that it is about, at most 256; empty if it is about this node.
    #[serde(default)]
    pub peers: Vec<String>,
    /// The only address family that it is about; none where it is about both.
    #[serde(skip)]
    pub family: Option<Family>,
    /// The severity of a finding.
    pub severity: Severity,
    /// What is wrong, in one sentence.
    pub what: String,
    /// Its cause or its consequence.
    pub why: String,
    /// What was found, as text.
    pub evidence: Vec<Evidence>,
    /// The commands that end it.
    pub remedy: Remedy,
    /// What each command of the remedy acts on, until [`Remedy::on`] is derived from that.
    #[serde(skip)]
    pub acts_on: Vec<ActsOn>,
    /// When it was found first; `None` without a daemon that repeats the checks.
    pub since: Option<Timestamp>,
    /// The check whose finding explains this one. Such a finding needs no remedy of its own.
    pub explained_by: Option<String>,
}

/// Keeps this many findings of one kind, the gravest; the last one tells how many more there are.
pub(crate) fn capped(mut findings: Vec<Finding>, most: usize) -> Vec<Finding> {
    findings.sort_by_key(|finding| finding.severity);
    let more = findings.len().saturating_sub(most);
    findings.truncate(most);
    if more > 0
        && let Some(last) = findings.pop()
    {
        findings.push(last.seen(format!("{more} more like this"), "flannelctl doctor"));
    }
    findings
}

impl Finding {
    /// Creates a finding without evidence and remedy.
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
            peers: Vec::new(),
            family: None,
            severity,
            what: code_or_text(check, what),
            why: code_or_text(check, why),
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

    /// Names the peers that it is about.
    #[must_use]
    pub(crate) fn about_peers<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: BTreeSet<&str> = names.into_iter().collect();
        self.peers = names
            .into_iter()
            .take(MAX_PEERS)
            .map(str::to_owned)
            .collect();
        self
    }

    /// Adds evidence: a text, and the command or source that shows it.
    #[must_use]
    pub fn seen(mut self, text: impl Into<String>, from: impl Into<String>) -> Self {
        self.evidence.push(Evidence {
            text: code_or_text(&self.check, text),
            from: from.into(),
        });
        self
    }

    /// Adds a command to the remedy.
    #[must_use]
    pub fn run(mut self, command: impl Into<Command>) -> Self {
        let Command { text, acts_on } = command.into();
        self.remedy.commands.push(text);
        self.acts_on.push(acts_on);
        self
    }

    /// Adds commands to the remedy.
    #[must_use]
    pub(crate) fn run_all<C: Into<Command>>(self, commands: impl IntoIterator<Item = C>) -> Self {
        commands.into_iter().fold(self, Self::run)
    }

    /// Adds a note on the commands as a comment of the shell. Comments come last.
    #[must_use]
    pub fn note(mut self, text: &str) -> Self {
        self.remedy.commands.push(format!("# {text}"));
        self
    }

    /// Sets the machine on which to type the commands.
    #[must_use]
    pub fn on(mut self, place: impl Into<String>) -> Self {
        self.remedy.on = place.into();
        self
    }

    /// Returns what distinguishes it from other findings.
    pub fn key(&self) -> (String, String) {
        (self.check.clone(), self.about.clone())
    }

    /// Makes everything printable: names of nodes and devices are foreign. A command that is not printable is left out.
    pub fn clean(&mut self) {
        for text in [
            &mut self.about,
            &mut self.what,
            &mut self.why,
            &mut self.remedy.on,
        ]
        .into_iter()
        .chain(&mut self.peers)
        {
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

/// Returns the text, or the check's name in a build with `--cfg mute`.
pub(crate) fn code_or_text(check: &str, text: impl Into<String>) -> String {
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
    /// The id of the check.
    pub check: String,
    /// Why it could not be made.
    pub why: String,
}

/// Whether a daemon runs on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DaemonState {
    /// It runs and answers.
    Running,
    /// It runs and does not answer.
    Hanging,
    /// No daemon runs.
    Stopped,
    /// It is not known.
    #[default]
    Unknown,
}

/// The findings of one round of checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The schema: [`SCHEMA`].
    pub schema: String,
    /// This node's name.
    pub node: String,
    /// When the checks were made.
    pub at: Timestamp,
    /// Whether a daemon runs on the node.
    pub daemon: DaemonState,
    /// Number of checks in the table.
    pub checks: usize,
    /// The findings, the most severe first, causes before their consequences.
    pub findings: Vec<Finding>,
    /// Checks that could not be made.
    pub unknown: Vec<Unknown>,
}

impl Report {
    /// Returns the findings that no other one explains.
    pub fn causes(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.explained_by.is_none())
    }

    /// Returns the findings that this one explains.
    pub fn explained<'a>(&'a self, cause: &'a Finding) -> impl Iterator<Item = &'a Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.explained_by.as_deref() == Some(&cause.check))
    }

    /// Returns the number of unexplained findings of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.causes()
            .filter(|finding| finding.severity == severity)
            .count()
    }
}
