//! Injects faults into the second of two or three nodes, and checks the doctor's findings on all nodes.

use anyhow::{Context, Result, bail, ensure};
use lab::{FlanneldOptions, PingMatrix, Pod, Scene, until_ok};
use serde_json::Value;

use crate::doctor::node::{Node, create_pod_on_each_node, run_with_healthy_nodes_and_options};
use crate::doctor::{add_switch_nft_rules, remove_switch_fault};

/// Of the second node, with the expected findings.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    pub name: &'static str,
    /// Causes the fault on the second node.
    make: &'static str,
    /// nft rules with which the switch changes or drops frames.
    wire: &'static str,
    /// IPv4 address and prefix length of a host that the test adds to the switch.
    stranger: &'static str,
    /// Checks, separated by spaces: the second node's first finding must come from one of them.
    here: &'static str,
    /// Checks, separated by spaces: the other nodes' first finding must come from one of them and name the second node. If it is empty, they must
    /// have no finding.
    there: &'static str,
    /// Texts that the second node's first finding must contain, separated by `|`.
    words: &'static str,
    /// Removes the remains of the fault and of its remedy. With `by_hand`, it also fixes the fault.
    clear: &'static str,
    by_hand: bool,
    /// The fault affects only the first two nodes.
    of_pair: bool,
    /// The third node's findings depend on chance.
    spares_third: bool,
    /// The pods of the second node are cut off from those of other nodes.
    cuts: bool,
    /// Probes on the path of pods get lost. Without a value, they do if the fault cuts pods off and the other nodes have no finding; otherwise it
    /// depends on which nodes reply.
    loses_probes: Option<bool>,
}

/// The doctor's commands fix it. The other nodes have no finding about it.
pub(super) const fn node_fault(
    name: &'static str,
    make: &'static str,
    here: &'static str,
    clear: &'static str,
) -> Fault {
    Fault {
        name,
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
        loses_probes: None,
    }
}

impl Fault {
    /// Checks of which one must report the fault on the other nodes.
    pub(super) const fn with_finding_on_others(self, there: &'static str) -> Self {
        Self { there, ..self }
    }

    pub(super) const fn by_hand(self) -> Self {
        Self { by_hand: true, ..self }
    }

    pub(super) const fn affecting_first_two_nodes(self) -> Self {
        Self { of_pair: true, ..self }
    }

    pub(super) const fn with_third_node_unchecked(self) -> Self {
        Self { spares_third: true, ..self }
    }

    pub(super) const fn cuts_off_pods(self) -> Self {
        Self { cuts: true, ..self }
    }

    /// Although pings between pods pass.
    pub(super) const fn loses_probes(self) -> Self {
        Self { loses_probes: Some(true), ..self }
    }

    pub(super) const fn passes_probes(self) -> Self {
        Self { loses_probes: Some(false), ..self }
    }

    pub(super) const fn with_finding_texts(self, words: &'static str) -> Self {
        Self { words, ..self }
    }

    pub(super) const fn with_switch_rules(self, wire: &'static str) -> Self {
        Self { wire, ..self }
    }

    pub(super) const fn with_stranger_address(self, stranger: &'static str) -> Self {
        Self { stranger, ..self }
    }
}

/// Removes the files in which remedies save settings for the next boot.
const KEPT: &str =
    "rm -f /etc/systemd/system/flannel-* /etc/sysctl.d/99-zz-flannel.conf /etc/modules-load.d/*";

/// Two or three nodes with a pod each, on one switch. The second one is faulty.
pub(super) struct Bench<'a> {
    scene: &'a Scene<'a>,
    pub nodes: &'a mut [Node],
    pods: Vec<Pod>,
}

impl Bench<'_> {
    /// All nodes are healthy at first.
    pub(super) fn run_with_nodes_and_pods(
        network: &str,
        nodes: u8,
        work: impl FnOnce(&mut Bench<'_>) -> Result<()>,
    ) -> Result<()> {
        // Pod probes are on, because their results must agree with what the doctor computes about packets of pods.
        let options = FlanneldOptions::bare().arg("--probe-pods");
        let scene = Scene::with_title("verdicts").net(network).nodes(nodes);
        run_with_healthy_nodes_and_options(scene, &options, |scene, nodes| {
            let pods = create_pod_on_each_node(nodes)?;
            for (name, pod) in ["POD1", "POD2", "POD3"].into_iter().zip(&pods) {
                let address = pod.v4()?.to_string();
                nodes.iter_mut().for_each(|node| node.variables.push((name, address.clone())));
            }
            work(&mut Bench { scene, nodes, pods })
        })
    }

    /// Causes faults, checks the findings on all nodes, and runs the commands of the first finding until none is left. A single fault is fixed by the
    /// commands of one finding.
    pub(super) fn cause_find_and_mend(&mut self, faults: &[&Fault]) -> Result<()> {
        let names: Vec<&str> = faults.iter().map(|fault| fault.name).collect();
        let done = self.cause_and_find(faults).and_then(|()| self.mend_by_doctor_commands(faults));
        done.and_then(|()| self.clear_faults_and_wait_healthy(faults))
            .with_context(|| names.join(" + "))
    }

    fn cause_and_find(&mut self, faults: &[&Fault]) -> Result<()> {
        for fault in faults {
            self.cause_fault(fault)?;
        }
        let joined = |of: fn(&Fault) -> &'static str| {
            let parts: Vec<&str> = faults.iter().map(|fault| of(fault)).collect();
            parts.join(" ").trim().to_owned()
        };
        let (here, there) = (joined(|fault| fault.here), joined(|fault| fault.there));
        let [first, faulty, others @ ..] = &mut *self.nodes else { bail!("two nodes") };
        until_ok("the first finding names the cause, and no other is unexplained", || {
            faulty.run_doctor()?;
            let found = faulty.findings();
            let other = |finding: &&Value| {
                finding["explained_by"].is_null()
                    && finding["severity"] == "broken"
                    && !is_one_of(finding, &here)
            };
            let all = faults
                .iter()
                .all(|fault| found.iter().any(|finding| is_one_of(finding, fault.here)));
            ensure!(
                all && is_one_of(faulty.first_finding()?, &here)
                    && found.iter().find(other).is_none(),
                "not {here} but {found:#?}"
            );
            Ok(())
        })?;
        if let [fault] = faults {
            fault
                .words
                .split('|')
                .try_for_each(|words| faulty.require_first_finding_contains(words))?;
            if let Some(lost) =
                fault.loses_probes.or((fault.cuts && there.is_empty()).then_some(true))
            {
                until_ok("probes on the path of pods agree", || {
                    let paths = get_pod_path_probes(faulty)?;
                    // A bridge that is down, or has no address, has no port for these probes.
                    let is_lost = |path: &Value| {
                        path["state"] == "some"
                            || path["state"] == "all"
                            || path["obstacle"] == "no-bridge"
                    };
                    let agrees = if lost { paths.iter().any(is_lost) } else { are_well(&paths) };
                    ensure!(agrees, "pods are lost: {lost}, and {paths:?}");
                    Ok(())
                })?;
            }
        }
        if faults.iter().any(|fault| fault.cuts) {
            let matrix = PingMatrix::of_main_addresses(&self.pods)?;
            ensure!(matrix.require_complete().is_err(), "pods reach each other: {matrix}");
        }
        let any = |is: fn(&Fault) -> bool| faults.iter().any(|fault| is(fault));
        wait_finding_about_h2_or_none(first, &there).context("the first node")?;
        for third in others {
            match (any(|fault| fault.spares_third), any(|fault| fault.of_pair)) {
                (true, _) => Ok(()),
                (false, true) => require_no_findings(third),
                (false, false) => wait_finding_about_h2_or_none(third, &there),
            }
            .context("the third node")?;
        }
        Ok(())
    }

    /// Runs the commands of the faulty node's first finding until it has none. Findings from probes remain for some seconds after the fix.
    fn mend_by_doctor_commands(&mut self, faults: &[&Fault]) -> Result<()> {
        if faults.iter().any(|fault| fault.by_hand) {
            return Ok(());
        }
        let node = &mut self.nodes[1];
        let mut mended: Vec<[Value; 2]> = Vec::new();
        for _ in 0..[1, 6][faults.len() - 1] {
            let is_found = until_ok("the finding is gone", || {
                node.run_doctor()?;
                let Ok(first) = node.first_finding() else {
                    return Ok(false);
                };
                let is_ours = faults.iter().any(|fault| is_one_of(first, fault.here));
                ensure!(is_ours && !mended.contains(&finding_key(first)), "{first:#}");
                Ok(true)
            })?;
            if !is_found {
                break;
            }
            mended.push(finding_key(node.first_finding()?));
            node.run_first_finding_commands()?;
            // Right after a start, not all checks have run.
            node.wait_past_grace_periods()?;
        }
        self.wait_healthy_without_findings()
    }

    fn cause_fault(&mut self, fault: &Fault) -> Result<()> {
        let lan = &self.scene.lan;
        if !fault.wire.is_empty() {
            add_switch_nft_rules(lan, fault.wire)?;
        }
        if !fault.stranger.is_empty() {
            // Its requests tell the others its hardware address, so their packets go to it until the device is gone.
            let stranger = fault.stranger;
            lan.netns().sh(&format!(
                "ip link add stranger type veth peer name stranger-port; ip link set stranger-port master br0 up
                ip link set stranger up; ip address add {stranger} dev stranger
                while ip neighbour flush dev stranger; do
                    for peer in 101 103; do ping -c 1 -W 1 -I stranger 192.168.56.$peer || true; done
                done > /dev/null 2>&1 &"
            ))?;
        }
        self.nodes[1].run_commands(&[fault.make.to_owned()])
    }

    fn clear_faults_and_wait_healthy(&mut self, faults: &[&Fault]) -> Result<()> {
        for fault in faults {
            if !fault.wire.is_empty() {
                remove_switch_fault(&self.scene.lan)?;
            }
            if !fault.stranger.is_empty() {
                self.scene.lan.netns().sh("ip link delete stranger")?;
                for node in self.nodes.iter_mut() {
                    node.run("ip neighbour flush dev enp0s8")?;
                }
            }
            self.nodes[1].run_commands(&[fault.clear.to_owned()])?;
        }
        self.nodes[1].run(KEPT)?;
        self.wait_healthy_without_findings().context("cleared")
    }

    /// Waits until no node has a finding.
    fn wait_healthy_without_findings(&mut self) -> Result<()> {
        self.nodes.iter_mut().try_for_each(|node| {
            until_ok("nothing is found", || {
                require_no_findings(node)?;
                let paths = get_pod_path_probes(node)?;
                ensure!(are_well(&paths), "{}: {paths:?}", node.host.name());
                Ok(())
            })
        })
    }
}

/// What distinguishes a finding from others.
fn finding_key(finding: &Value) -> [Value; 2] {
    ["check", "about"].map(|field| finding[field].clone())
}

/// The node's first finding is from one of the checks and names the faulty node, or it has none.
fn wait_finding_about_h2_or_none(node: &mut Node, checks: &str) -> Result<()> {
    if checks.is_empty() {
        return require_no_findings(node);
    }
    until_ok("the first finding names the faulty node", || {
        node.run_doctor()?;
        let first = node.first_finding()?;
        ensure!(
            is_one_of(first, checks) && first.to_string().contains("h2"),
            "not {checks} about h2 but {first:#}"
        );
        Ok(())
    })
}

/// The node has no findings.
fn require_no_findings(node: &mut Node) -> Result<()> {
    node.run_doctor()?;
    ensure!(node.findings().is_empty(), "{:#?}", node.findings());
    Ok(())
}

fn is_one_of(finding: &Value, checks: &str) -> bool {
    checks.split(' ').any(|check| finding["check"] == check)
}

/// The probes on the path of pods, one result per address family.
pub(crate) fn get_pod_path_probes(node: &mut Node) -> Result<Vec<Value>> {
    let (_, text) = node.daemon()?.get_status_api("/api/v1/node")?;
    let document: Value = serde_json::from_str(&text)?;
    let paths = document["pod_paths"].as_array();
    paths.cloned().with_context(|| format!("no paths: {text}"))
}

pub(crate) fn are_well(paths: &[Value]) -> bool {
    !paths.is_empty() && paths.iter().all(|path| path["state"] == "well")
}
