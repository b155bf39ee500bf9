//! Nodes with another build of flanneld, together with nodes of the current one.
//!
//! `make test-mixed BEFORE=/path/to/flanneld` runs the tests; `BEFORE` is the other build.

use std::path::PathBuf;

use anyhow::{Context, Result};
use lab::{FlanneldOptions, Scene};

use crate::mesh::{V4, all_pairs, wait_new_answers_without_fault, wait_verdict};

fn earlier_flanneld_path() -> Result<PathBuf> {
    let path = std::env::var_os("FLANNEL_BEFORE").map(PathBuf::from).filter(|path| path.is_file());
    path.context("FLANNEL_BEFORE names no flanneld (make test-mixed BEFORE=/path/to/flanneld)")
}

/// Nodes of both builds notice a fault. The upgrade of each node in turn loses no packet and changes no verdict on other nodes.
#[test]
#[ignore = "needs another build of flanneld: make test-mixed BEFORE=/path/to/flanneld"]
fn nodes_of_two_builds_probe_each_other_and_are_upgraded() -> Result<()> {
    let other = earlier_flanneld_path()?;
    let older = |node, options: FlanneldOptions| {
        if node < 3 { options.binary(&other) } else { options }
    };
    Scene::with_title("mesh-mixed").nodes(4).net(V4).options(older).run(|s| {
        let pairs = all_pairs(s);
        wait_verdict(s, "well", &pairs)?;
        s[3].block_packets("enp0s8")?;
        let (cut, kept): (Vec<_>, Vec<_>) =
            pairs.iter().partition(|(from, to)| *from == 3 || *to == 3);
        wait_verdict(s, "cut-off", &cut)?;
        wait_new_answers_without_fault(s, &kept)?;
        s[3].unblock_packets("enp0s8")?;
        wait_verdict(s, "well", &pairs)?;
        let mesh = s.start_mesh()?;
        mesh.wait_flowing()?;
        for node in 0..3 {
            s[node].stop_daemon()?;
            s[node].options = FlanneldOptions::new(&s.store).iface("enp0s8");
            s[node].start_daemon()?;
            let others: Vec<_> =
                pairs.iter().copied().filter(|(from, to)| *from != node && *to != node).collect();
            wait_new_answers_without_fault(s, &others)?;
            wait_verdict(s, "well", &pairs)?;
        }
        mesh.finish_and_require_clean()?;
        s.require_no_errors()
    })
}
