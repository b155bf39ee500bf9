//! Probes between all pods at once.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::host::pod::Pod;
use crate::measure::probe::{Probe, ProbeOptions};
use crate::measure::report::ProbeReport;

/// A running probe from each pod to every other pod.
#[derive(Debug)]
pub struct Mesh {
    probes: Vec<(String, Probe)>,
}

impl Mesh {
    /// Starts a probe from each pod to every other pod.
    ///
    /// # Errors
    /// Returns an error if a probe cannot bind its sockets.
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
        Ok(Mesh { probes })
    }

    /// Waits until packets sent from now on arrive on each path. Returns the duration of the wait for the slowest path.
    ///
    /// # Errors
    /// Returns an error that names a path on which no packet arrives until the test reaches its guard.
    pub fn wait_flowing(&self) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        for (path, probe) in &self.probes {
            longest = longest.max(probe.wait_flowing().with_context(|| path.clone())?);
        }
        Ok(longest)
    }

    /// Ends all probes. Returns the reports with their paths, such as `h1/p1 to h2/p1`.
    ///
    /// # Errors
    /// Returns an error if a thread of a probe panicked.
    pub fn finish(self) -> Result<Vec<(String, ProbeReport)>> {
        self.probes.into_iter().map(|(path, probe)| Ok((path, probe.finish()?))).collect()
    }

    /// Ends all probes and checks that no packet was lost and no unexpected packet arrived.
    ///
    /// # Errors
    /// Returns an error that names the path of a probe with lost or unexpected packets.
    pub fn require_clean(self) -> Result<()> {
        for (path, report) in self.finish()? {
            report.require_clean().with_context(|| path)?;
        }
        Ok(())
    }
}
