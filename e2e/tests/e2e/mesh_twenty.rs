//! Tests of twenty real nodes on one switch: number of probes, faults of many peers at once, and time until each node detects the faults.

mod hundred;
mod wire;

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Bed, Flanneld, Host, Lab, Switch, json, until_ok};
use serde_json::Value;

use crate::mesh::V4;

const NODES: u8 = 20;
/// Deadline: twenty times the expected 15 seconds.
const DEADLINE: Duration = Duration::from_secs(300);
/// Interval at which the test reads a node's probe results.
const LOOK: Duration = Duration::from_millis(100);
const REST: Duration = Duration::from_secs(6);
/// The time during which the test checks for wrong verdicts. A wrong verdict on a running peer appears within two probe cycles.
const AFTERWARDS: Duration = Duration::from_secs(12);

/// Returns a node's probe results: the object `mesh` of the node's status document.
fn mesh(daemon: &Flanneld) -> Result<Value> {
    let (code, text) = daemon.api("/api/v1/node")?;
    ensure!(code == 200, "{code}: {text}");
    let document: Value = serde_json::from_str(&text)?;
    Ok(document["mesh"].clone())
}

/// Returns the state of a peer, by the number of its host.
fn state(mesh: &Value, of: usize) -> Option<&str> {
    let name = format!("h{}", of + 1);
    let peers = mesh["peers"].as_array()?;
    let peer = peers
        .iter()
        .find(|peer| peer["name"].as_str() == Some(&name))?;
    peer["state"].as_str()
}

/// Returns the number of peers in the state `state`.
fn tally(mesh: &Value, state: &str) -> usize {
    let peers = mesh["peers"].as_array().into_iter().flatten();
    peers.filter(|peer| peer["state"] == state).count()
}

/// Waits until `knows` holds on each node in `nodes`. Returns the seconds until `knows` is true on the first node and on the last node.
fn learnt(
    bed: &Bed,
    nodes: Range<usize>,
    what: &str,
    knows: impl Fn(&Value) -> bool,
) -> Result<(f64, f64)> {
    let begun = Instant::now();
    let (mut waiting, mut first): (Vec<usize>, _) = (nodes.collect(), None);
    loop {
        let mut still = Vec::new();
        for node in waiting {
            if knows(&mesh(&bed.daemons[node])?) {
                first.get_or_insert_with(|| begun.elapsed().as_secs_f64());
            } else {
                still.push(node);
            }
        }
        waiting = still;
        match (waiting.first(), first) {
            (None, Some(first)) => return Ok((first, begun.elapsed().as_secs_f64())),
            (Some(node), _) => ensure!(
                begun.elapsed() < DEADLINE,
                "h{} does not know that {what}: {:#}",
                node + 1,
                mesh(&bed.daemons[*node])?
            ),
            (None, None) => return Ok((0.0, 0.0)),
        }
        std::thread::sleep(LOOK);
    }
}

/// Waits until `knows` is true on each node in `nodes`, and prints the times of the first and the last node in seconds.
fn learn(bed: &Bed, nodes: Range<usize>, what: &str, knows: impl Fn(&Value) -> bool) -> Result<()> {
    let (first, last) = learnt(bed, nodes, what, knows)?;
    println!("{what}: known to the first after {first:.1} s, to all after {last:.1} s");
    Ok(())
}

/// Waits until all nodes reach each other. Then waits six seconds, until each node may again send its maximum number of probes for faults at once.
fn at_rest(bed: &Bed) -> Result<()> {
    let others = usize::from(NODES - 1);
    let (_, last) = learnt(bed, 0..others + 1, "all reach each other", |mesh| {
        // On a busy machine replies may be late, and count as lost.
        let reached: usize = ["well", "slow", "loses-some"]
            .iter()
            .map(|state| tally(mesh, state))
            .sum();
        reached == others && mesh["faults"].as_array().is_some_and(Vec::is_empty)
    })?;
    println!("  all reach each other after {last:.1} s");
    std::thread::sleep(REST);
    Ok(())
}

/// Returns a node's findings that no other finding explains, in the doctor's order.
fn causes(daemon: &Flanneld) -> Result<Vec<String>> {
    let report = json(&daemon.flannelctl(&["doctor", "-o", "json"])?)?;
    let findings = report["findings"].as_array().context("no findings")?;
    let causes = findings
        .iter()
        .filter(|finding| finding["explained_by"].is_null() && finding["severity"] == "broken");
    Ok(causes
        .filter_map(|finding| finding["check"].as_str())
        .map(str::to_owned)
        .collect())
}

fn wait_cause(daemon: &Flanneld, check: &str) -> Result<()> {
    until_ok(&format!("the doctor names {check}"), || {
        let causes = causes(daemon)?;
        ensure!(
            causes.first().map(String::as_str) == Some(check),
            "{causes:?}"
        );
        Ok(())
    })
}

/// Makes the switch drop the IPv4 and ARP packets that match any of `matches`.
fn drop_on(lan: &Switch, matches: &[&str]) -> Result<()> {
    let rules: String = matches
        .iter()
        .map(|text| format!("{text} drop\n"))
        .collect();
    let table = format!(
        "table bridge faults {{ chain c {{ type filter hook forward priority 0; policy accept;\n{rules}}}; }}\n"
    );
    lan.netns().feed("nft", &["-f", "-"], &table).map(drop)
}

fn mend(lan: &Switch) -> Result<()> {
    lan.netns()
        .exec("nft", &["delete", "table", "bridge", "faults"])
        .map(drop)
}

/// Disconnects one node. All other nodes detect the fault, and `flannelctl probe` detects the fault at once. The disconnected node reports its isolation.
fn one_dead(bed: &Bed) -> Result<()> {
    let dead = usize::from(NODES - 1);
    let before = wire::broadcasts(&bed.lan)?;
    let begun = Instant::now();
    bed.hosts[dead].cut("enp0s8")?;
    let asked = json(&bed.daemons[0].flannelctl(&["probe", "h20", "-o", "json"])?)?;
    ensure!(asked["state"] == "cut-off", "{asked:#}");
    println!(
        "one node is off: known to who asks after {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    learn(bed, 1..dead, "one node is off", |mesh| {
        state(mesh, dead) == Some("cut-off")
    })?;
    learn(bed, dead..dead + 1, "  nobody answers that node", |mesh| {
        tally(mesh, "cut-off") == dead
    })?;
    wait_cause(&bed.daemons[dead], "isolated")?;
    let mesh = mesh(&bed.daemons[dead])?;
    let fault = &mesh["faults"][0];
    ensure!(
        fault["state"] == "cut-off"
            && fault["peers"] == dead
            && fault["asked"] == fault["failed"]
            && fault["asked"].as_u64() >= Some(8),
        "{fault}"
    );
    let seconds = begun.elapsed().as_secs_f64();
    let broadcasts = (wire::broadcasts(&bed.lan)? - before) as f64 / seconds;
    println!("  meanwhile {broadcasts:.1} ARP broadcasts a second of all nodes");
    // A node probes broken peers from a budget of one probe a second. The kernel resolves the neighbour at most once a second.
    ensure!(
        broadcasts <= f64::from(2 * NODES),
        "{broadcasts:.1} broadcasts a second"
    );
    bed.hosts[dead].reconnect("enp0s8")?;
    at_rest(bed)
}

/// Drops packets in one direction of a node's link, and then in one direction of the node's tunnel.
fn one_direction(bed: &Bed) -> Result<()> {
    let node = 7;
    let address = bed.hosts[node].v4()?;
    let rows: [(&str, [&str; 2], &str); 4] = [
        ("ip saddr", ["", "arp saddr ip"], "cut-off"),
        ("ip daddr", ["", "arp daddr ip"], "cut-off"),
        ("ip saddr", ["udp dport 8472", ""], "overlay-cut"),
        ("ip daddr", ["udp dport 8472", ""], "one-way"),
    ];
    for (from, [port, arp], wanted) in rows {
        let mut matches = vec![format!("{from} {address} {port}")];
        if !arp.is_empty() {
            matches.push(format!("{arp} {address}"));
        }
        let matches: Vec<&str> = matches.iter().map(String::as_str).collect();
        drop_on(&bed.lan, &matches)?;
        let others = usize::from(NODES - 1);
        let what = format!("{} of one node: {wanted}", matches.join(", "));
        learn(bed, node..node + 1, &what, |mesh| {
            tally(mesh, wanted) == others
        })?;
        mend(&bed.lan)?;
        at_rest(bed)?;
    }
    Ok(())
}

/// Disconnects several nodes at once. Each connected node detects all disconnected nodes, and reports no connected node as broken.
fn many_dead(bed: &Bed, dead: Range<usize>) -> Result<()> {
    let living = dead.end..usize::from(NODES);
    for host in &bed.hosts[dead.clone()] {
        host.cut("enp0s8")?;
    }
    learn(
        bed,
        living.clone(),
        &format!("{} of {NODES} nodes are off", dead.len()),
        |mesh| {
            dead.clone()
                .all(|node| state(mesh, node) == Some("cut-off"))
        },
    )?;
    let begun = Instant::now();
    while begun.elapsed() < AFTERWARDS {
        for node in living.clone() {
            let mesh = mesh(&bed.daemons[node])?;
            let is_broken = |of: &usize| {
                matches!(
                    state(&mesh, *of),
                    Some("cut-off" | "overlay-cut" | "one-way" | "wrong-node")
                )
            };
            let wrong: Vec<usize> = living
                .clone()
                .filter(|of| *of != node && is_broken(of))
                .collect();
            ensure!(
                wrong.is_empty(),
                "h{} takes {wrong:?} for broken: {mesh:#}",
                node + 1
            );
        }
        std::thread::sleep(10 * LOOK);
    }
    for host in &bed.hosts[dead] {
        host.reconnect("enp0s8")?;
    }
    at_rest(bed)
}

/// Blocks the tunnel's port for all nodes. Each node detects that all peers have the same fault.
fn tunnel_blocked(bed: &Bed) -> Result<()> {
    let all = 0..usize::from(NODES);
    drop_on(&bed.lan, &["udp dport 8472"])?;
    learn(bed, all.clone(), "the tunnel's port is blocked", |mesh| {
        tally(mesh, "overlay-cut") > 0
    })?;
    learn(bed, all, "  and that is all peers", |mesh| {
        tally(mesh, "overlay-cut") == usize::from(NODES - 1)
            && mesh["faults"][0]["state"] == "overlay-cut"
    })?;
    wait_cause(&bed.daemons[0], "encap-blocked")?;
    mend(&bed.lan)?;
    at_rest(bed)
}

/// All test cases share one lab, because each case spends most of its time waiting. Only the measurement without faults needs a machine without other load.
#[test]
fn twenty_nodes_probe_rarely_and_detect_each_fault() {
    Lab::run("mesh-twenty", |lab| {
        let lan = lab.switch("lan")?;
        let hosts: Vec<Host> = lab.hosts(&lan, NODES)?;
        let bed = Bed::without_pods(lab, &lan, hosts, V4, |_, options| options)?;
        at_rest(&bed)?;
        wire::count(&lan)?;
        wire::require_frugal(&bed)?;
        one_dead(&bed)?;
        one_direction(&bed)?;
        many_dead(&bed, 0..6)?;
        many_dead(&bed, 0..10)?;
        tunnel_blocked(&bed)?;
        wire::require_bounded_neighbours(&bed.hosts)?;
        bed.require_no_errors()
    })
    .unwrap();
}
