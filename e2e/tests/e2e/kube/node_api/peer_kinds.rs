//! The mark in the backend data distinguishes flannel-rs' nodes from Go flannel's, even if a node does not reply to probes.

use anyhow::{Context, Result, ensure};
use lab::{ANNOTATIONS, Lab, stdout_json, until_ok};
use serde_json::Value;

use crate::kube::testbed::{ApiTestbed, VXLAN};

/// `h2` in the status document of `h1`.
fn h2_status_on_h1(bed: &ApiTestbed) -> Result<Value> {
    let (_, text) = bed.daemons[0].get_status_api("/api/v1/node")?;
    let document: Value = serde_json::from_str(&text)?;
    let peers = document["mesh"]["peers"].as_array();
    let peer = peers
        .into_iter()
        .flatten()
        .find(|peer| peer["name"] == "h2")
        .with_context(|| format!("no h2 in {text}"))?;
    Ok(peer.clone())
}

/// The doctor of `h1` reports a flannel-rs node that does not reply to probes.
fn doctor_reports_probe_filtered(bed: &ApiTestbed) -> Result<bool> {
    let report = stdout_json(&bed.daemons[0].flannelctl(&["doctor", "-o", "json"])?)?;
    let findings = report["findings"].as_array().context("no findings")?;
    Ok(findings.iter().any(|finding| finding["check"] == "probe-filtered"))
}

fn wait_h2_well_on_h1(bed: &ApiTestbed, what: &str, id: &Value, ping_only: bool) -> Result<()> {
    until_ok(what, || {
        let peer = h2_status_on_h1(bed)?;
        ensure!(
            peer["id"] == *id && peer["state"] == "well" && peer["ping_only"] == ping_only,
            "{peer}"
        );
        Ok(())
    })
}

#[test]
fn node_without_mark_is_treated_as_go_flannel() -> Result<()> {
    Lab::run("Node API: kinds", |lab| {
        let mut bed = ApiTestbed::populated_with_fake_api(lab, 2, VXLAN)?;
        let probe = bed.probe_first_to_second_pod()?;
        wait_h2_well_on_h1(&bed, "ours, and it answers", &"h2".into(), false)?;
        // The kernel still carries packets and replies to pings.
        bed.daemons[1].terminate()?;
        wait_h2_well_on_h1(&bed, "ours, and silent", &"h2".into(), true)?;
        until_ok("which the doctor tells", || {
            ensure!(doctor_reports_probe_filtered(&bed)?, "not yet");
            Ok(())
        })?;
        let name = format!("{ANNOTATIONS}backend-data");
        let data = bed.admin().flannel_annotation("h2", "backend-data")?.context("backend-data")?;
        let of_go = data.replacen(r#""FlannelRs":1,"#, "", 1);
        ensure!(of_go != data, "{data} has no mark");
        bed.admin().annotate("h2", &name, Some(&of_go))?;
        wait_h2_well_on_h1(&bed, "Go flannel's", &Value::Null, true)?;
        until_ok("the doctor is content", || {
            ensure!(!doctor_reports_probe_filtered(&bed)?, "not yet");
            Ok(())
        })?;
        bed.start_daemon_again(1)?;
        wait_h2_well_on_h1(&bed, "ours again", &"h2".into(), false)?;
        ensure!(bed.admin().flannel_annotation("h2", "backend-data")? == Some(data), "another MAC");
        probe.finish()?.require_clean()
    })
}
