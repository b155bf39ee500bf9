//! `flannelctl doctor --cluster` lists all of a hundred real nodes, and names the one with a fault.

use anyhow::{Result, ensure};
use lab::{Scene, stdout_json, until_ok};
use serde_json::Value;

const NODES: u8 = 100;

fn array_length(list: &Value) -> usize {
    list.as_array().map_or(0, Vec::len)
}

#[test]
#[ignore = "a hundred daemons: a part of `make soak`"]
fn cluster_doctor_queries_hundred_nodes() -> Result<()> {
    // All namespaces share the kernel's ARP table, in which each node has an entry for each other node.
    lab::raise_kernel_limit(
        "net/ipv4/neigh/default/gc_thresh3",
        16_384,
        "a hundred nodes have a hundred neighbours each",
    );
    Scene::with_title("mesh-hundred").nodes(NODES).without_pods().run(|s| {
        let look =
            || stdout_json(&s[0].daemon()?.flannelctl(&["doctor", "--cluster", "-o", "json"])?);
        until_ok("all nodes answer, and none has a finding", || {
            let document = look()?;
            let [answered, found] =
                ["answered", "findings"].map(|list| array_length(&document[list]));
            ensure!(
                answered == usize::from(NODES) && found == 0,
                "{answered} answered: {:#}",
                document["findings"]
            );
            Ok(())
        })?;
        s[41].sh("iptables -I OUTPUT -p udp --dport 8472 -j DROP")?;
        until_ok("the fault is that node's", || {
            let first = look()?["findings"][0].clone();
            ensure!(first["nodes"] == serde_json::json!(["h42"]), "{first:#}");
            ensure!(first["finding"]["check"] == "encap-blocked", "{first:#}");
            Ok(())
        })?;
        s.require_no_errors()
    })
}
