//! Checks that Go flannel's nodes, which reply to pings but not to probes, are healthy peers and cause no finding.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Flanneld, Host, json, stdout, throughout, until_ok};
use serde_json::Value;

/// Delay of the doctor after the daemon's start, plus the duration of one run of the doctor.
const DOCTOR: Duration = Duration::from_secs(22);

/// Checks that flanneld reports all other nodes as healthy by ping only, in both address families, and that the doctor has no finding about them.
pub(crate) fn answer_by_ping_alone(ours: &Flanneld, others: &[&Host]) -> Result<()> {
    until_ok("Go flannel's nodes are well, by ping alone", || {
        let output = ours.flannelctl(&["peers", "-o", "json"])?;
        let document = json(&output)?;
        let peers = document["peers"].as_array().context("no peers")?;
        let verdicts: Vec<&Value> = peers
            .iter()
            .filter_map(|peer| peer["verdicts"].as_array())
            .flatten()
            .collect();
        ensure!(
            output.status.success() && verdicts.len() == 2 * others.len(),
            "{document:#}"
        );
        for verdict in &verdicts {
            ensure!(
                verdict["state"] == "well" && verdict["ping_only"] == true,
                "{verdict:#}"
            );
        }
        for address in others.iter().map(|other| other.v4()) {
            let address = address?.to_string();
            ensure!(
                verdicts
                    .iter()
                    .any(|verdict| verdict["address"] == address.as_str()),
                "{address} is none of {document:#}"
            );
        }
        let text = stdout(&ours.flannelctl(&["peers"])?);
        let whole = format!("{0} of {0} well", verdicts.len());
        ensure!(
            text.matches("ping only").count() == verdicts.len()
                && text.trim_end().ends_with(&whole),
            "{text}"
        );
        Ok(())
    })?;
    throughout(DOCTOR, "nothing is made of it", || {
        let output = ours.flannelctl(&["doctor", "-o", "json"])?;
        let report = json(&output)?;
        let findings = report["findings"].as_array().context("no findings")?;
        // A busy machine may cause these findings.
        ensure!(
            findings.iter().all(|finding| ["slow", "lossy", "hangs"]
                .iter()
                .any(|check| finding["check"] == *check)),
            "{findings:#?}"
        );
        ensure!(
            output.status.success() || !findings.is_empty(),
            "{:?}: {report:#}",
            output.status
        );
        Ok(())
    })
}
