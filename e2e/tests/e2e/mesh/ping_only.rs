//! Go flannel's nodes, which reply to pings but not to probes, are healthy peers and cause no finding.

use anyhow::{Context, Result, ensure};
use lab::{Flanneld, Host, stdout_json, until_ok};
use serde_json::Value;

/// flanneld reports all other nodes as healthy by ping only, in both families, and the doctor has no finding about them.
pub(crate) fn wait_peers_well_by_ping_alone(ours: &Flanneld, others: &[&Host]) -> Result<()> {
    until_ok("Go flannel's nodes are well, by ping alone", || {
        let document = stdout_json(&ours.flannelctl(&["peers", "-o", "json"])?)?;
        let peers = document["peers"].as_array().context("no peers")?;
        let verdicts = peers.iter().filter_map(|peer| peer["verdicts"].as_array());
        let verdicts: Vec<&Value> = verdicts.flatten().collect();
        let by_ping = |verdict: &&Value| verdict["state"] == "well" && verdict["ping_only"] == true;
        ensure!(verdicts.len() == 2 * others.len() && verdicts.iter().all(by_ping), "{document:#}");
        Ok(())
    })?;
    until_ok("the doctor has run", || ours.metric("flannel_doctor_round_age_seconds").map(drop))?;
    let report = stdout_json(&ours.flannelctl(&["doctor", "-o", "json"])?)?;
    let mut findings = report["findings"].as_array().context("no findings")?.iter();
    // A busy machine may cause these findings.
    let of_load = ["slow", "lossy", "hangs"];
    ensure!(
        findings.all(|finding| of_load.iter().any(|check| finding["check"] == *check)),
        "{report:#}"
    );
    Ok(())
}
