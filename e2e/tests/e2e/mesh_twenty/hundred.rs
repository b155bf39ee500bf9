//! Checks that `flannelctl doctor --cluster` lists all of a hundred real nodes, and names the node that has a fault.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::{Bed, Host, Lab, json, until_ok};
use serde_json::Value;

use crate::mesh::V4;

const NODES: u8 = 100;
const FAULTY: usize = 41;
/// Maximum number of entries in the kernel's ARP table, which all namespaces share: each node has an entry for each other node. The kernel's default is 1024.
const NEIGHBOURS: u32 = 16_384;

/// Returns the JSON document of `flannelctl doctor --cluster`, and the duration of the command.
fn look(bed: &Bed) -> Result<(Value, Duration)> {
    let begun = Instant::now();
    let output = bed.daemons[0].flannelctl(&["doctor", "--cluster", "-o", "json"])?;
    let took = begun.elapsed();
    Ok((json(&output)?, took))
}

fn count(document: &Value, list: &str) -> usize {
    document[list].as_array().map_or(0, Vec::len)
}

#[test]
#[ignore = "a hundred daemons: a part of `make soak`"]
fn cluster_doctor_queries_hundred_nodes_in_seconds() -> Result<()> {
    lab::limits::raise(
        "net/ipv4/neigh/default/gc_thresh3",
        NEIGHBOURS,
        "a hundred nodes have a hundred neighbours each",
    );
    Lab::run("mesh-hundred", |lab| {
        let lan = lab.switch("lan")?;
        let hosts: Vec<Host> = lab.hosts(&lan, NODES)?;
        let bed = Bed::without_pods(lab, &lan, hosts, V4, |_, options| options)?;
        until_ok("all nodes answer, and none has a finding", || {
            let (document, took) = look(&bed)?;
            let answered = count(&document, "answered");
            ensure!(
                answered == usize::from(NODES) && count(&document, "findings") == 0,
                "{answered} answered: {:#}",
                document["findings"]
            );
            println!(
                "{NODES} nodes without a finding: {:.1} s",
                took.as_secs_f64()
            );
            Ok(())
        })?;
        let netns = bed.hosts[FAULTY].netns();
        netns.sh("iptables -I OUTPUT -p udp --dport 8472 -j DROP")?;
        until_ok("the fault is that node's", || {
            let (document, took) = look(&bed)?;
            let first = &document["findings"][0];
            let nodes: Vec<&str> = first["nodes"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            ensure!(
                nodes == [format!("h{}", FAULTY + 1)]
                    && first["finding"]["check"] == "encap-blocked",
                "{first:#}"
            );
            println!(
                "{NODES} nodes, one of which is cut off by its firewall: {:.1} s; {} findings of others are explained by it",
                took.as_secs_f64(),
                count(first, "explains")
            );
            Ok(())
        })?;
        bed.require_no_errors()
    })
}
