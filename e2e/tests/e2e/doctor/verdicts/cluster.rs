//! `flannelctl doctor --cluster` without Kubernetes, where a daemon requests the findings of the others.

use anyhow::{Context, Result, ensure};
use lab::until_ok;
use serde_json::{Value, json};

use super::fault::Bench;
use super::rows::NETWORK;
use crate::doctor::node::Node;

fn wait_cluster_report(node: &mut Node, what: &str, holds: fn(&Value) -> bool) -> Result<()> {
    until_ok(what, || {
        let (code, text) = node.sh("flannelctl doctor --cluster -o json")?;
        let document: Value =
            serde_json::from_str(&text).with_context(|| format!("{code}: {text}"))?;
        ensure!(holds(&document), "{document:#}");
        Ok(())
    })
}

/// It names the faulty node, and lists the other nodes' findings that the fault explains. It also names a node whose daemon ended.
#[test]
fn cluster_doctor_without_kubernetes_collects_findings_of_peers() -> Result<()> {
    Bench::run_with_nodes_and_pods(NETWORK, 3, |bench| {
        wait_cluster_report(&mut bench.nodes[0], "nothing is found anywhere", |document| {
            document["findings"] == json!([])
                && document["source"] == "probes"
                && document["answered"] == json!(["h1", "h2", "h3"])
        })?;
        // Packets to the node still pass, and so do rows.
        bench.nodes[1].run(
            "sysctl -w net.ipv4.ip_forward=0; iptables -A OUTPUT -p udp --dport 8472 -j DROP",
        )?;
        wait_cluster_report(&mut bench.nodes[0], "the fault is the second node's", |document| {
            let of = |list: &Value| list.as_array().cloned().unwrap_or_default();
            let findings = of(&document["findings"]);
            findings.first().is_some_and(|first| first["finding"]["severity"] == "broken")
                && findings.iter().all(|shared| shared["nodes"] == json!(["h2"]))
                && findings
                    .iter()
                    .flat_map(|shared| of(&shared["explains"]))
                    .any(|one| one["node"] == "h3")
        })?;
        bench.nodes[2].stop()?;
        wait_cluster_report(&mut bench.nodes[0], "the node without a daemon is named", |document| {
            document["unanswered"].to_string().contains("\"h3\"")
        })
    })
}
