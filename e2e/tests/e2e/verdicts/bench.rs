//! Three nodes with a pod each, on one switch.

use anyhow::{Context, Result};
use lab::{FlanneldOptions, Pod, Switch};

use crate::doctor::node::{Node, well_nodes_with};

/// Nodes of a lab. The second node is the faulty node.
pub(super) struct Bench<'a> {
    pub lan: &'a Switch,
    pub nodes: &'a mut [Node],
    pub pods: Vec<Pod>,
}

/// Index of the faulty node in `nodes`.
pub(super) const FAULTY: usize = 1;

impl Bench<'_> {
    /// Runs a test with three healthy nodes.
    pub(super) fn run(
        title: &str,
        network: &str,
        work: impl FnOnce(&mut Bench<'_>) -> Result<()>,
    ) -> Result<()> {
        // Pod probes are on, because their results must agree with what the doctor computes about packets of pods.
        let options = FlanneldOptions::bare().arg("--probe-pods");
        well_nodes_with(network, title, 3, options, |lab, lan, nodes| {
            let mut pods = Vec::new();
            let mut variables = vec![("LEASES", lab.folder("leases")?.display().to_string())];
            for node in nodes.iter_mut() {
                let env = node.daemon()?.subnet_env()?;
                let pod = node.host.pod("p1", &env)?;
                let name = match pods.len() {
                    0 => "POD1",
                    1 => "POD2",
                    _ => "POD3",
                };
                variables.push((name, pod.v4()?.to_string()));
                pods.push(pod);
            }
            for node in nodes.iter_mut() {
                node.variables.extend(variables.clone());
            }
            let mut bench = Bench { lan, nodes, pods };
            work(&mut bench)
        })
    }

    pub(super) fn faulty(&mut self) -> Result<&mut Node> {
        self.nodes.get_mut(FAULTY).context("no second node")
    }
}
