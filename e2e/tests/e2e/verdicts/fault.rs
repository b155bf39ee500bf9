//! Injects faults into the second of three nodes, and checks the doctor's findings on all three nodes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{PingMatrix, until_ok};
use serde_json::Value;

use super::bench::Bench;
use crate::doctor::node::Node;

/// A fault of the second node, and its expected findings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub name: &'static str,
    /// Whether `make test` includes this fault.
    pub quick: bool,
    /// Script that causes the fault on the second node.
    make: &'static str,
    /// nft rules with which the switch changes or drops frames.
    wire: &'static str,
    /// IPv4 address and prefix length of a host that the test adds to the switch.
    stranger: &'static str,
    /// Names of checks, separated by spaces: the second node's first finding must come from one of these checks. If the
    /// string is empty, the test does not check the second node's first finding.
    here: &'static str,
    /// Names of checks, separated by spaces: the other nodes' first finding must come from one of these checks and name the second node. If the
    /// string is empty, the other nodes must have no finding.
    there: &'static str,
    /// Texts that the second node's first finding must contain, separated by `|`.
    words: &'static str,
    /// Script that removes the remains of the fault and of its remedy. If `by_hand` is true, the script also fixes the fault.
    clear: &'static str,
    by_hand: bool,
    /// Whether the fault affects only the first two nodes.
    of_pair: bool,
    /// Whether the test ignores the third node's findings, because these findings depend on chance.
    spares_third: bool,
    /// Whether the fault cuts the pods of the second node off from the pods of other nodes.
    cuts: bool,
    /// Expected result of probes on the path of pods.
    tried: Tried,
}

/// Expected result of probes on the path of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    /// Expects lost probes on the faulty node if the fault cuts pods off and the other nodes have no finding. Otherwise, the test ignores the probes.
    AsPods,
    /// Expects that probes get lost.
    Lost,
    /// Expects that probes pass, because the fault affects only other packets of pods.
    Pass,
}

/// Returns a fault that the second node's doctor finds and that the doctor's commands fix. The other nodes have no finding about the fault.
pub(super) const fn fault(
    name: &'static str,
    make: &'static str,
    here: &'static str,
    clear: &'static str,
) -> Fault {
    Fault {
        name,
        quick: false,
        make,
        wire: "",
        stranger: "",
        here,
        there: "",
        words: "",
        clear,
        by_hand: false,
        of_pair: false,
        spares_third: false,
        cuts: false,
        tried: Tried::AsPods,
    }
}

impl Fault {
    /// Sets the names of checks; one of these checks must report the second node's fault on the other nodes.
    pub(super) const fn told(self, there: &'static str) -> Self {
        Self { there, ..self }
    }

    /// Marks a fault that `make test` includes.
    pub(super) const fn quick(self) -> Self {
        Self {
            quick: true,
            ..self
        }
    }

    /// Marks a fault that no command fixes.
    pub(super) const fn by_hand(self) -> Self {
        Self {
            by_hand: true,
            ..self
        }
    }

    /// Marks a fault that affects only the first two nodes.
    pub(super) const fn of_pair(self) -> Self {
        Self {
            of_pair: true,
            ..self
        }
    }

    /// Marks a fault whose findings on the third node depend on chance.
    pub(super) const fn spares_third(self) -> Self {
        Self {
            spares_third: true,
            ..self
        }
    }

    /// Marks a fault that cuts the second node's pods off from the pods of other nodes.
    pub(super) const fn cuts(self) -> Self {
        Self { cuts: true, ..self }
    }

    /// Marks a fault that drops probes on the path of pods, although pings between pods pass.
    pub(super) const fn loses_probes(self) -> Self {
        Self {
            tried: Tried::Lost,
            ..self
        }
    }

    /// Marks a fault that does not affect probes on the path of pods.
    pub(super) const fn passes_probes(self) -> Self {
        Self {
            tried: Tried::Pass,
            ..self
        }
    }

    /// Sets the texts that the second node's first finding must contain.
    pub(super) const fn says(self, words: &'static str) -> Self {
        Self { words, ..self }
    }

    /// Sets the nft rules with which the switch changes or drops frames.
    pub(super) const fn wire(self, wire: &'static str) -> Self {
        Self { wire, ..self }
    }

    /// Adds a host with the address `stranger` to the switch.
    pub(super) const fn stranger(self, stranger: &'static str) -> Self {
        Self { stranger, ..self }
    }

    /// Returns the names of the checks that may produce the second node's first finding; `None` if no command fixes the fault.
    pub(super) fn mended_by(&self) -> Option<&'static str> {
        (!self.by_hand).then_some(self.here)
    }
}

/// A case of the fault tables: one fault, or two simultaneous faults.
#[derive(Clone, Copy, Debug)]
pub(super) enum Row {
    One(&'static Fault),
    Two(&'static Fault, &'static Fault),
}

impl Row {
    pub(super) fn name(self) -> String {
        match self {
            Row::One(fault) => fault.name.to_owned(),
            Row::Two(first, second) => format!("{} + {}", first.name, second.name),
        }
    }

    fn faults(self) -> Vec<&'static Fault> {
        match self {
            Row::One(fault) => vec![fault],
            Row::Two(first, second) => vec![first, second],
        }
    }
}

/// Result of a row.
pub(super) struct Outcome {
    name: String,
    /// Time until the doctor of the faulty node names the fault. `told` is the time until the other nodes name the faulty node.
    named: Option<Duration>,
    told: Option<Duration>,
    error: Option<String>,
}

/// Runs fault cases from `next` until no case remains.
pub(super) fn walk(
    title: &str,
    network: &str,
    next: &Mutex<std::slice::Iter<'_, Row>>,
    outcomes: &Mutex<Vec<Outcome>>,
) -> Result<()> {
    let take = || {
        next.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next()
            .copied()
    };
    while let Some(first) = take() {
        let mut row = first;
        Bench::run(title, network, |bench| {
            loop {
                let outcome = one(bench, row);
                let failed = outcome.error.is_some();
                outcomes
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(outcome);
                match take() {
                    Some(another) => {
                        row = another;
                        if failed {
                            recover(bench)?;
                        }
                    }
                    None => return Ok(()),
                }
            }
        })?;
    }
    Ok(())
}

/// Restarts all daemons after a failed case.
fn recover(bench: &mut Bench<'_>) -> Result<()> {
    for node in bench.nodes.iter_mut() {
        node.restart()?;
        node.ready()?;
        node.grown()?;
    }
    Ok(())
}

fn one(bench: &mut Bench<'_>, row: Row) -> Outcome {
    let mut outcome = Outcome {
        name: row.name(),
        named: None,
        told: None,
        error: None,
    };
    let done = match row {
        Row::One(fault) => tell_and_mend(bench, fault, &mut outcome),
        Row::Two(first, second) => tell_both(bench, [first, second], &mut outcome),
    };
    let cleared = clear(bench, &row.faults());
    outcome.error = done.and(cleared).err().map(|error| format!("{error:#}"));
    outcome
}

fn tell_and_mend(
    bench: &mut Bench<'_>,
    fault: &'static Fault,
    outcome: &mut Outcome,
) -> Result<()> {
    let begun = Instant::now();
    make(bench, fault)?;
    outcome.named = Some(named(bench.faulty()?, fault.here, begun).context("the node")?);
    if !fault.here.is_empty() {
        alone(bench.faulty()?, fault.here).context("the node")?;
    }
    if !fault.words.is_empty() {
        let first = bench.faulty()?.first()?.to_string();
        ensure!(
            lab::code_or_text(fault.here, fault.words)
                .split('|')
                .all(|words| first.contains(words)),
            "no word of {}: {first}",
            fault.words
        );
    }
    if fault.cuts {
        let matrix = PingMatrix::of(&bench.pods)?;
        ensure!(
            matrix.require_complete().is_err(),
            "pods reach each other: {matrix}"
        );
    }
    tried(bench.faulty()?, fault).context("what is tried")?;
    for number in [0, 2] {
        let node = &mut bench.nodes[number];
        if fault.spares_third && number == 2 {
            continue;
        }
        let at = if fault.there.is_empty() || fault.of_pair && number == 2 {
            nothing(node).with_context(|| format!("node {number}"))?;
            begun.elapsed()
        } else {
            told(node, fault.there, begun).with_context(|| format!("node {number}"))?
        };
        outcome.told = outcome.told.max(Some(at));
    }
    if fault.by_hand {
        return Ok(());
    }
    bench.faulty()?.mend().context("mending it")?;
    quiet(bench).context("after its commands")
}

/// Checks that probes on the path of pods have the result that the fault's `tried` expects.
fn tried(node: &mut Node, fault: &Fault) -> Result<()> {
    let lost = match fault.tried {
        Tried::Lost => true,
        Tried::Pass => false,
        Tried::AsPods if fault.cuts && fault.there.is_empty() => true,
        // Here the result depends on which nodes reply to this node: none, or only some.
        Tried::AsPods => return Ok(()),
    };
    until_ok("probes on the path of pods agree", || {
        let paths = pod_paths(node)?;
        // A bridge that is down, or has no address, has no port for these probes.
        let is_lost = |path: &Value| {
            path["state"] == "some" || path["state"] == "all" || path["obstacle"] == "no-bridge"
        };
        let agrees = if lost {
            paths.iter().any(is_lost)
        } else {
            are_well(&paths)
        };
        ensure!(agrees, "pods are lost: {lost}, and {paths:?}");
        Ok(())
    })
}

/// Returns a node's results of the probes on the path of pods, one result per address family.
pub(super) fn pod_paths(node: &mut Node) -> Result<Vec<Value>> {
    let (_, text) = node.daemon()?.api("/api/v1/node")?;
    let document: Value = serde_json::from_str(&text)?;
    let paths = document["pod_paths"].as_array();
    paths.cloned().with_context(|| format!("no paths: {text}"))
}

fn are_well(paths: &[Value]) -> bool {
    !paths.is_empty() && paths.iter().all(|path| path["state"] == "well")
}

fn make(bench: &mut Bench<'_>, fault: &Fault) -> Result<()> {
    if !fault.wire.is_empty() {
        let table = format!(
            "table bridge faults {{ chain c {{ type filter hook forward priority 0; policy accept;\n{}\n}}; }}\n",
            fault.wire
        );
        bench.lan.netns().feed("nft", &["-f", "-"], &table)?;
    }
    if !fault.stranger.is_empty() {
        // The pings resolve the addresses of others, which learn this host's own.
        let stranger = fault.stranger;
        let script = format!(
            "ip link add stranger type veth peer name stranger-port; ip link set stranger-port master br0 up
            ip link set stranger up; ip address add {stranger} dev stranger
            for peer in 101 103; do ping -c 1 -W 1 -I stranger 192.168.56.$peer || true; done"
        );
        bench.lan.netns().exec("sh", &["-ec", &script])?;
    }
    bench
        .faulty()?
        .type_in(&[fault.make.to_owned()])
        .with_context(|| format!("making {}", fault.name))
}

/// Maximum number of findings whose commands the test runs one after the other.
const ROUNDS: usize = 6;

/// Checks two simultaneous faults: the first finding is about one of the two faults. Each other finding of
/// severity `broken` is about one of the faults, or another finding explains it. The test repeatedly runs the commands of the first finding,
/// until both faults are fixed.
fn tell_both(bench: &mut Bench<'_>, both: [&Fault; 2], outcome: &mut Outcome) -> Result<()> {
    let begun = Instant::now();
    both.iter().try_for_each(|fault| make(bench, fault))?;
    let joined = |of: fn(&Fault) -> &'static str| {
        let parts: Vec<&str> = both.iter().map(|fault| of(fault)).collect();
        parts.join(" ").trim().to_owned()
    };
    let (here, there) = (joined(|fault| fault.here), joined(|fault| fault.there));
    outcome.named = Some(named(bench.faulty()?, &here, begun).context("the node")?);
    until_ok("both are found, and nothing else", || {
        alone(bench.faulty()?, &here)?;
        let report = bench.faulty()?.doctor()?.1;
        let found = report["findings"].as_array().context("no findings")?;
        for fault in both {
            ensure!(
                found.iter().any(|finding| is_one_of(finding, fault.here)),
                "nothing of {}: {}",
                fault.here,
                brief(&report)
            );
        }
        Ok(())
    })
    .context("the node")?;
    for number in [0, 2] {
        let node = &mut bench.nodes[number];
        let at = if there.is_empty() {
            nothing(node).with_context(|| format!("node {number}"))?;
            begun.elapsed()
        } else {
            told(node, &there, begun).with_context(|| format!("node {number}"))?
        };
        outcome.told = outcome.told.max(Some(at));
    }
    mend_all(bench.faulty()?, &here).context("mending them")?;
    quiet(bench).context("after the commands")
}

/// Repeatedly runs the commands of the node's first finding until the node has no finding. Findings from probes remain for some seconds after the fix.
fn mend_all(node: &mut Node, checks: &str) -> Result<()> {
    let mut mended = Vec::new();
    for _ in 0..ROUNDS {
        let next = until_ok("the finding is gone", || {
            let report = node.doctor()?.1;
            let first = &report["findings"][0];
            let key = [first["check"].clone(), first["about"].clone()];
            ensure!(
                first.is_null() || is_one_of(first, checks) && !mended.contains(&key),
                "{}",
                brief(&report)
            );
            Ok((!first.is_null()).then_some(key))
        })?;
        let Some(key) = next else { return Ok(()) };
        node.mend()?;
        // Right after a start, not all checks have run.
        node.grown()?;
        mended.push(key);
    }
    bail!("{}", brief(&node.doctor()?.1))
}

/// Waits until the node's first finding is from one of the checks in `checks`. Returns the time since `begun`.
fn named(node: &mut Node, checks: &str, begun: Instant) -> Result<Duration> {
    if checks.is_empty() {
        return Ok(begun.elapsed());
    }
    until_ok("the first finding names the cause", || {
        let report = node.doctor()?.1;
        ensure!(
            is_one_of(&report["findings"][0], checks),
            "not {checks} but {}",
            brief(&report)
        );
        Ok(begun.elapsed())
    })
}

/// Checks that the findings of `checks` explain all other findings of severity `broken`.
fn alone(node: &mut Node, checks: &str) -> Result<()> {
    let report = node.doctor()?.1;
    let others = report["findings"].as_array().into_iter().flatten();
    let loud = others
        .filter(|finding| finding["explained_by"].is_null() && finding["severity"] == "broken")
        .filter(|finding| !is_one_of(finding, checks))
        .count();
    ensure!(loud == 0, "not only {checks} but {}", brief(&report));
    Ok(())
}

/// Waits until the first finding of another node names the faulty node. Returns the time since `begun`.
fn told(node: &mut Node, checks: &str, begun: Instant) -> Result<Duration> {
    until_ok("the first finding names the faulty node", || {
        let report = node.doctor()?.1;
        let first = &report["findings"][0];
        let names = ["about", "what", "why", "remedy", "evidence"]
            .iter()
            .any(|field| first[field].to_string().contains("h2"));
        ensure!(
            is_one_of(first, checks) && names,
            "not {checks} about h2 but {}",
            brief(&report)
        );
        Ok(begun.elapsed())
    })
}

/// Checks that the node has no findings.
fn nothing(node: &mut Node) -> Result<()> {
    let report = node.doctor()?.1;
    let found = report["findings"].as_array().context("no findings")?;
    ensure!(found.is_empty(), "{}", brief(&report));
    Ok(())
}

fn is_one_of(finding: &Value, checks: &str) -> bool {
    checks
        .split(' ')
        .any(|check| finding["check"].as_str() == Some(check))
}

/// Returns the findings, one per line.
fn brief(report: &Value) -> String {
    let lines = report["findings"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|finding| {
            format!(
                "\n      {} {} [{}]: {} {} explained by {}; {}",
                finding["severity"],
                finding["check"],
                finding["about"],
                finding["what"],
                finding["why"],
                finding["explained_by"],
                finding["evidence"],
            )
        });
    let all: String = lines.collect();
    if all.is_empty() {
        "nothing".to_owned()
    } else {
        all
    }
}

/// Waits until no node has a finding.
fn quiet(bench: &mut Bench<'_>) -> Result<()> {
    for (number, node) in bench.nodes.iter_mut().enumerate() {
        until_ok("nothing is found", || {
            nothing(node)?;
            let paths = pod_paths(node)?;
            ensure!(are_well(&paths), "{paths:?}");
            Ok(())
        })
        .with_context(|| format!("node {number}"))?;
    }
    Ok(())
}

fn clear(bench: &mut Bench<'_>, faults: &[&Fault]) -> Result<()> {
    if faults.iter().any(|fault| !fault.wire.is_empty()) {
        bench
            .lan
            .netns()
            .exec("nft", &["delete", "table", "bridge", "faults"])?;
    }
    if faults.iter().any(|fault| !fault.stranger.is_empty()) {
        bench
            .lan
            .netns()
            .exec("ip", &["link", "delete", "stranger"])?;
        for node in bench.nodes.iter_mut() {
            node.run("ip neighbour flush dev enp0s8")?;
        }
    }
    let node = bench.faulty()?;
    for fault in faults {
        node.type_in(&[fault.clear.to_owned()])
            .with_context(|| format!("clearing {}", fault.name))?;
    }
    node.run(KEPT).context("clearing what is kept")?;
    if bench.faulty()?.daemon()?.is_running() {
        bench.faulty()?.ready()?;
    }
    quiet(bench).context("cleared")
}

/// Script that removes the files in which remedies save settings for the next boot of the host.
const KEPT: &str =
    "rm -f /etc/systemd/system/flannel-* /etc/sysctl.d/99-zz-flannel.conf /etc/modules-load.d/*";

/// Prints the rows. Returns an error if a case failed.
pub(super) fn report(outcomes: &[Outcome], wanted: usize) -> Result<()> {
    let seconds = |time: Option<Duration>| {
        time.map_or_else(
            || "-".to_owned(),
            |time| format!("{:.1}", time.as_secs_f64()),
        )
    };
    for outcome in outcomes {
        println!(
            "{:92} {:>5} {:>5}  {}",
            outcome.name,
            seconds(outcome.named),
            seconds(outcome.told),
            outcome.error.as_deref().unwrap_or("")
        );
    }
    let failed = outcomes
        .iter()
        .filter(|outcome| outcome.error.is_some())
        .count();
    if outcomes.len() != wanted {
        bail!("{} rows of {wanted}", outcomes.len());
    }
    ensure!(failed == 0, "{failed} of {wanted} rows failed");
    Ok(())
}
