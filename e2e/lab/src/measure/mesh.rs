//! Probes between all pods at once.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::host::pod::Pod;
use crate::measure::probe::{Probe, ProbeOptions};
use crate::measure::report::ProbeReport;

/// From each pod to every other pod.
#[derive(Debug)]
pub struct Mesh {
    probes: Vec<(String, Probe)>,
}

impl Mesh {
    pub fn start(pods: &[Pod], options: &ProbeOptions) -> Result<Mesh> {
        let mut probes = Vec::new();
        for from in pods {
            for to in pods.iter().filter(|to| to.name() != from.name()) {
                probes.push((
                    format!("{} to {}", from.name(), to.name()),
                    Probe::start(from, to, options)?,
                ));
            }
        }
        ensure!(!probes.is_empty(), "a mesh needs two pods");
        Ok(Mesh { probes })
    }

    /// Waits until packets sent from now on arrive on each path. The result is the duration for the slowest path.
    pub fn wait_flowing(&self) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        for (path, probe) in &self.probes {
            longest = longest.max(probe.wait_flowing().with_context(|| path.clone())?);
        }
        Ok(longest)
    }

    /// The reports with their paths, such as `h1/p1 to h2/p1`.
    pub fn finish(self) -> Result<Vec<(String, ProbeReport)>> {
        self.probes.into_iter().map(|(path, probe)| Ok((path, probe.finish()?))).collect()
    }

    /// Ends all probes. Fails if a packet was lost or an unexpected one arrived.
    pub fn finish_and_require_clean(self) -> Result<()> {
        for (path, report) in self.finish()? {
            report.require_clean().with_context(|| path)?;
        }
        Ok(())
    }
}
