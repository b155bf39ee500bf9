//! Tests of `flannelctl doctor --cluster` without Kubernetes, where a daemon requests the findings of the other daemons.

use anyhow::{Context, Result, ensure};
use lab::until_ok;
use serde_json::{Value, json};

use super::bench::{Bench, FAULTY};
use super::rows::NETWORK;
use crate::doctor::node::Node;

fn document(node: &mut Node) -> Result<Value> {
    let (code, text) = node.sh("flannelctl doctor --cluster -o json")?;
    serde_json::from_str(&text).with_context(|| format!("exit code {code}: {text}"))
}

/// On one node, `flannelctl doctor --cluster` names the faulty node, and lists the other nodes' findings that the
/// fault explains. The doctor also names a node whose daemon ended.
#[test]
fn cluster_doctor_without_kubernetes_collects_findings_of_peers() -> Result<()> {
    Bench::run("verdicts of all", NETWORK, |bench| {
        let node = &mut bench.nodes[0];
        until_ok("nothing is found anywhere", || {
            let document = document(node)?;
            ensure!(
                document["findings"] == json!([])
                    && document["source"] == "probes"
                    && document["answered"] == json!(["h1", "h2", "h3"]),
                "{document:#}"
            );
            Ok(())
        })?;
        // Packets to the node still pass, and so do rows.
        bench.nodes[FAULTY].run(
            "sysctl -w net.ipv4.ip_forward=0; iptables -A OUTPUT -p udp --dport 8472 -j DROP",
        )?;
        let node = &mut bench.nodes[0];
        until_ok("the fault is the second node's", || {
            let document = document(node)?;
            let first = &document["findings"][0];
            ensure!(
                first["nodes"] == json!(["h2"]) && first["finding"]["severity"] == "broken",
                "{document:#}"
            );
            let alone = document["findings"].as_array().into_iter().flatten();
            ensure!(
                alone.clone().all(|shared| shared["nodes"] == json!(["h2"]))
                    && alone
                        .flat_map(|shared| shared["explains"].as_array().into_iter().flatten())
                        .any(|one| one["node"] == "h3"),
                "{document:#}"
            );
            Ok(())
        })?;
        bench.nodes[2].stop()?;
        let node = &mut bench.nodes[0];
        until_ok("the node without a daemon is named", || {
            let document = document(node)?;
            let silent = &document["unanswered"];
            ensure!(
                silent
                    .as_array()
                    .is_some_and(|silent| silent.iter().any(|one| one["node"] == "h3")),
                "{document:#}"
            );
            Ok(())
        })
    })
}
