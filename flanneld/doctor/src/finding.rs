//! The doctor's output: findings, checks with an unknown result, and the report that contains both.

use crate::command::{ActsOn, Command};
use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use types::Family;
use types::printable;

/// Of a [`Report`].
pub const SCHEMA: &str = "flannel.findings/1";
/// The machine for the commands of a remedy, unless they need another.
pub const HERE: &str = "this node";
/// If flanneld runs in a pod, which lacks the programs and permissions for the commands.
pub const ON_THE_NODE: &str = "the node itself, not flannel's pod";
/// Subject of a finding that covers several peers.
pub(crate) const SEVERAL: &str = "several peers";
/// The most peers that a finding names.
const MAX_PEERS: usize = 256;
/// For commands that every node needs.
pub(crate) const EVERYWHERE: &str = "every node";
/// For kubectl commands, which change the cluster and therefore run only once.
pub(crate) const WITH_KUBECTL: &str = "a node with kubectl";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Pod packets get lost, or a node has no working network.
    Broken,
    /// A working node has a fault that causes packet loss or repeated repairs.
    Degraded,
    /// A working node may get a fault later.
    Risk,
}

impl Severity {
    /// The name in JSON.
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

/// An observation that shows a problem, and its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub text: String,
    /// The command or data source that shows it.
    pub from: String,
}

/// What fixes a problem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// Shell commands in the order of their execution, then comments about them. Empty if no command can fix the problem.
    pub commands: Vec<String>,
    /// The machine on which to run them.
    pub on: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The id of the check that found it.
    pub check: String,
    /// The device, peer, file or address family with the problem; empty if it affects the whole node.
    pub about: String,
    /// The names of the affected peers, at most 256; empty if the finding is about this node.
    #[serde(default)]
    pub peers: Vec<String>,
    /// `None` if the problem affects both families.
    #[serde(skip)]
    pub family: Option<Family>,
    /// The subnets of the peers to or from which packets get lost; `None` if the finding is about this node. A peer chooses its name freely, but no
    /// two peers have the same subnet.
    #[serde(skip)]
    pub scope: Option<BTreeSet<IpNet>>,
    pub severity: Severity,
    /// The problem, in one sentence.
    pub what: String,
    /// Its cause or its consequence.
    pub why: String,
    pub evidence: Vec<Evidence>,
    pub remedy: Remedy,
    /// What each command of the remedy changes or reads, from which a later step derives [`Remedy::on`].
    #[serde(skip)]
    pub acts_on: Vec<ActsOn>,
    /// When a report first contained the finding; `None` unless a daemon repeats the checks.
    pub since: Option<Timestamp>,
    /// The id of the check whose finding explains this one, which then needs no remedy of its own.
    pub explained_by: Option<String>,
}

/// The first names, and the number of the others.
pub(crate) fn named<S: AsRef<str>>(names: &[S], most: usize) -> String {
    let first: Vec<&str> = names.iter().take(most).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(most) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Keeps at most `most` findings, the most severe first. The last one reports the number of omitted findings.
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
            scope: None,
            severity,
            what: what.into(),
            why: why.into(),
            evidence: Vec::new(),
            remedy: Remedy { commands: Vec::new(), on: HERE.to_owned() },
            acts_on: Vec::new(),
            since: None,
            explained_by: None,
        }
    }

    /// Limits a finding to one address family.
    #[must_use]
    pub fn of(mut self, family: Family) -> Self {
        self.family = Some(family);
        self
    }

    /// Keeps at most 256 names.
    #[must_use]
    pub(crate) fn about_peers<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: BTreeSet<&str> = names.into_iter().collect();
        self.peers = names.into_iter().take(MAX_PEERS).map(str::to_owned).collect();
        self
    }

    /// Limits a finding to the peers with these subnets.
    #[must_use]
    pub(crate) fn within(mut self, subnets: impl IntoIterator<Item = IpNet>) -> Self {
        self.scope = Some(subnets.into_iter().collect());
        self
    }

    /// Adds evidence: an observation, and the command or data source that shows it.
    #[must_use]
    pub fn seen(mut self, text: impl Into<String>, from: impl Into<String>) -> Self {
        self.evidence.push(Evidence { text: text.into(), from: from.into() });
        self
    }

    #[must_use]
    pub fn run(mut self, command: impl Into<Command>) -> Self {
        let Command { text, acts_on } = command.into();
        self.remedy.commands.push(text);
        self.acts_on.push(acts_on);
        self
    }

    #[must_use]
    pub(crate) fn run_all<C: Into<Command>>(self, commands: impl IntoIterator<Item = C>) -> Self {
        commands.into_iter().fold(self, Self::run)
    }

    /// Adds a shell comment. Notes must follow the commands, so add those first.
    #[must_use]
    pub fn note(mut self, text: &str) -> Self {
        self.remedy.commands.push(format!("# {text}"));
        self
    }

    /// The machine on which to run the commands.
    #[must_use]
    pub fn on(mut self, place: impl Into<String>) -> Self {
        self.remedy.on = place.into();
        self
    }

    /// Identifies a finding across reports: its check and its subject.
    pub fn key(&self) -> (String, String) {
        (self.check.clone(), self.about.clone())
    }

    /// Makes all texts printable, because other hosts choose the names of nodes and devices. Removes commands with characters that are not printable.
    pub fn clean(&mut self) {
        for text in [&mut self.about, &mut self.what, &mut self.why, &mut self.remedy.on]
            .into_iter()
            .chain(&mut self.peers)
        {
            *text = printable::line(text).into_owned();
        }
        for seen in &mut self.evidence {
            seen.text = printable::line(&seen.text).into_owned();
            seen.from = printable::line(&seen.from).into_owned();
        }
        self.remedy.commands.retain(|command| printable::line(command) == command.as_str());
    }
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

/// A check without a result, because a fact is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unknown {
    pub check: String,
    pub why: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DaemonState {
    /// It also responds.
    Running,
    /// Its socket does not respond, or some of its tasks have stopped sending heartbeats.
    Hanging,
    Stopped,
    /// The doctor cannot determine whether flanneld runs.
    #[default]
    Unknown,
}

/// What all checks of a node found at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    pub node: String,
    /// When the doctor ran the checks.
    pub at: Timestamp,
    pub daemon: DaemonState,
    /// The number of all checks of the doctor.
    pub checks: usize,
    /// The most severe first, and causes before their consequences.
    pub findings: Vec<Finding>,
    /// Checks with an unknown result.
    pub unknown: Vec<Unknown>,
}

impl Report {
    /// The findings that no other finding explains.
    pub fn causes(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.explained_by.is_none())
    }

    /// The findings that `cause` explains.
    pub fn explained<'a>(&'a self, cause: &'a Finding) -> impl Iterator<Item = &'a Finding> {
        self.findings.iter().filter(|finding| finding.explained_by.as_deref() == Some(&cause.check))
    }

    /// Counts the unexplained findings.
    pub fn count(&self, severity: Severity) -> usize {
        self.causes().filter(|finding| finding.severity == severity).count()
    }
}
