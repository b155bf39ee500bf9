//! Tests of nodes with another build of flanneld, together with nodes of the current build.
//!
//! `make test-mixed BEFORE=/path/to/flanneld` runs the tests. `BEFORE` is the path of the other build's flanneld.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Bed, Lab, ProbeOptions, throughout};

use crate::mesh::{V4, peer, reached_v4_now, wait_verdict_v4};

/// Variable with the path of the other build's flanneld.
const BEFORE: &str = "FLANNEL_BEFORE";

fn before() -> Result<PathBuf> {
    let path = std::env::var_os(BEFORE).map(PathBuf::from);
    path.filter(|path| path.is_file()).with_context(|| {
        format!("{BEFORE} names no flanneld (make test-mixed BEFORE=/path/to/flanneld)")
    })
}

/// All nodes reply to each other, and nodes of both builds notice a fault. The upgrade of each node in turn loses no packet and changes no verdict
/// on other nodes.
#[test]
#[ignore = "needs another build of flanneld: make test-mixed BEFORE=/path/to/flanneld"]
fn nodes_of_two_builds_probe_each_other_and_are_upgraded() -> Result<()> {
    let other = before()?;
    Lab::run("mesh-mixed", |lab| {
        let mut bed = Bed::start(lab, 4, V4, |node, options| {
            if node < 3 {
                options.binary(&other)
            } else {
                options
            }
        })?;
        let pairs: Vec<(usize, usize)> = (0..4)
            .flat_map(|a| (0..4).filter(move |b| a != *b).map(move |b| (a, b)))
            .collect();
        wait_verdict_v4(&bed, "well", &pairs)?;
        for (node, of) in &pairs {
            let (_, peer) = peer(&bed, *node, *of, false)?;
            ensure!(peer["ping_only"] == false, "{node} of {of}: {peer}");
        }
        bed.hosts[3].cut("enp0s8")?;
        let cut: Vec<_> = (0..3).flat_map(|node| [(node, 3), (3, node)]).collect();
        wait_verdict_v4(&bed, "cut-off", &cut)?;
        bed.hosts[3].reconnect("enp0s8")?;
        wait_verdict_v4(&bed, "well", &pairs)?;
        let probes = [(0, 1), (1, 2), (3, 0)].map(|(from, to)| {
            lab::Probe::start(&bed.pods[from], &bed.pods[to], &ProbeOptions::default())
        });
        let ours = lab::FlanneldOptions::new(&bed.store).iface("enp0s8");
        for node in 0..3 {
            bed.daemons[node].terminate()?;
            bed.daemons[node] = bed.hosts[node].start_flanneld(&ours)?;
            bed.daemons[node].wait_ready()?;
            let others: Vec<_> = pairs
                .iter()
                .copied()
                .filter(|(from, to)| *from != node && *to != node)
                .collect();
            throughout(Duration::from_secs(12), "an upgrade raises nothing", || {
                reached_v4_now(&bed, &others)
            })?;
            wait_verdict_v4(&bed, "well", &pairs)?;
        }
        for probe in probes {
            probe?.finish()?.require_clean()?;
        }
        bed.require_no_errors()
    })
}
