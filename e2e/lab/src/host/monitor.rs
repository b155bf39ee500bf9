//! Kernel changes on a host, as `ip monitor` and `nft monitor` report them.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::host::Host;
use crate::host::process::{Launch, Process};
use crate::wait::eventually_ok;

const DEADLINE: Duration = Duration::from_secs(20);
/// Time after which the monitor repeats its first test change, because `ip` or `nft` may start to listen after the first change.
const FIRST: Duration = Duration::from_millis(200);

/// Types of test changes: harmless changes that the monitor makes before it reads reports. When `ip` or `nft` reports a
/// test change, the program has already reported all earlier changes.
#[derive(Debug, Clone, Copy)]
enum Marks {
    Routes,
    Tables,
}

/// A running `ip monitor` or `nft monitor`, which already listens for changes.
#[derive(Debug)]
pub struct Monitor {
    process: Process,
    host: Host,
    marks: Marks,
    made: u8,
    read: usize,
}

impl Monitor {
    /// Starts `ip monitor` for `route` and the object types in `objects`.
    ///
    /// # Errors
    /// Returns an error if the monitor does not start or reports nothing.
    pub fn ip(host: &Host, objects: &[&str]) -> Result<Monitor> {
        Monitor::start(
            host,
            Marks::Routes,
            &Launch::new("ip").args(["monitor", "route"]).args(objects),
        )
    }

    /// Starts `nft monitor`, which reports every change of nf_tables rules, including changes by iptables-nft.
    ///
    /// # Errors
    /// Returns an error if the monitor does not start or reports nothing.
    pub fn nft(host: &Host) -> Result<Monitor> {
        Monitor::start(host, Marks::Tables, &Launch::new("nft").arg("monitor"))
    }

    fn start(host: &Host, marks: Marks, launch: &Launch) -> Result<Monitor> {
        let process = host.spawn("monitor", launch)?;
        let mut monitor = Monitor {
            process,
            host: host.clone(),
            marks,
            made: 0,
            read: 0,
        };
        eventually_ok(DEADLINE, "the monitor listens", || monitor.mark(FIRST))?;
        monitor.reports()?;
        Ok(monitor)
    }

    /// Returns the reports since the last call of this function, or since the monitor's start.
    ///
    /// # Errors
    /// Returns an error if the monitor has ended.
    pub fn reports(&mut self) -> Result<String> {
        self.mark(DEADLINE)?;
        let log = self.process.log();
        let new = log.get(self.read..).unwrap_or_default();
        let lines = new
            .lines()
            .filter(|line| !line.contains(self.common()) && !line.starts_with("# new generation"));
        let reports = lines.map(|line| format!("{line}\n")).collect();
        self.read = log.len();
        Ok(reports)
    }

    /// Makes a test change and waits until the monitor reports the change.
    fn mark(&mut self, deadline: Duration) -> Result<()> {
        self.made += 1;
        let mark = format!("{}{}", self.common(), self.made);
        let netns = self.host.netns();
        match self.marks {
            Marks::Routes => netns.ip(&format!(
                "route add {mark} dev lo table 99\nroute del {mark} dev lo table 99"
            )),
            Marks::Tables => netns.sh(&format!(
                "nft add table ip {mark}; nft delete table ip {mark}"
            )),
        }?;
        // Wait for both changes of the mark, because the second one comes last.
        eventually_ok(deadline, "the monitor reports a mark", || {
            ensure!(
                self.process
                    .log()
                    .lines()
                    .filter(|line| line.ends_with(&mark) || line.contains(&format!("{mark} ")))
                    .count()
                    >= 2
            );
            Ok(())
        })
    }

    /// Returns the common prefix of the monitor's test routes or test tables.
    fn common(&self) -> &'static str {
        match self.marks {
            Marks::Routes => "198.18.255.",
            Marks::Tables => "monitor-mark-",
        }
    }
}
