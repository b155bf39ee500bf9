//! Kernel changes on a host, as `ip monitor` and `nft monitor` report them.

use anyhow::{Result, ensure};

use crate::host::Host;
use crate::host::process::{Launch, Process};
use wait::{until, until_ok};

/// Harmless changes that the monitor makes before it reads reports. When `ip` or `nft` reports one, it has already reported all earlier changes.
#[derive(Debug, Clone, Copy)]
enum Marks {
    Routes,
    Tables,
}

/// `ip monitor` or `nft monitor`, which already listens.
#[derive(Debug)]
pub struct Monitor {
    process: Process,
    host: Host,
    marks: Marks,
    made: u8,
    read: usize,
}

impl Monitor {
    /// Watches `route` and the object types in `objects`.
    pub fn watch_routes_and_objects(host: &Host, objects: &[&str]) -> Result<Monitor> {
        Monitor::start_until_listening(
            host,
            Marks::Routes,
            &Launch::new("ip").args(["monitor", "route"]).args(objects),
        )
    }

    /// Every change of nf_tables rules, including those by iptables-nft.
    pub fn watch_nft_rules(host: &Host) -> Result<Monitor> {
        Monitor::start_until_listening(host, Marks::Tables, &Launch::new("nft").arg("monitor"))
    }

    fn start_until_listening(host: &Host, marks: Marks, launch: &Launch) -> Result<Monitor> {
        let process = host.spawn("monitor", launch)?;
        let mut monitor = Monitor { process, host: host.clone(), marks, made: 0, read: 0 };
        // A change before it listens is not reported.
        until_ok("the monitor listens", || {
            let mark = monitor.make_test_change()?;
            ensure!(monitor.has_reported(&mark), "{mark} is not reported");
            Ok(())
        })?;
        monitor.read_new_reports()?;
        Ok(monitor)
    }

    /// Those since the last call, or since the monitor's start.
    pub fn read_new_reports(&mut self) -> Result<String> {
        let mark = self.make_test_change()?;
        until("the monitor reports a mark", || self.has_reported(&mark))?;
        let log = self.process.log();
        let new = log.get(self.read..).unwrap_or_default();
        let lines = new.lines().filter(|line| {
            !line.contains(self.mark_prefix()) && !line.starts_with("# new generation")
        });
        let reports = lines.map(|line| format!("{line}\n")).collect();
        self.read = log.len();
        Ok(reports)
    }

    /// A test change; the result is its name.
    fn make_test_change(&mut self) -> Result<String> {
        self.made += 1;
        let mark = format!("{}{}", self.mark_prefix(), self.made);
        let netns = self.host.netns();
        match self.marks {
            Marks::Routes => netns.run_ip_batch(&format!(
                "route add {mark} dev lo table 99\nroute del {mark} dev lo table 99"
            )),
            Marks::Tables => {
                netns.sh(&format!("nft add table ip {mark}; nft delete table ip {mark}"))
            }
        }?;
        Ok(mark)
    }

    /// Both changes of a mark are in the log; the second one comes last.
    fn has_reported(&self, mark: &str) -> bool {
        let (log, inside) = (self.process.log(), format!("{mark} "));
        log.lines().filter(|line| line.ends_with(mark) || line.contains(&inside)).count() >= 2
    }

    /// The prefix of all test routes or test tables.
    fn mark_prefix(&self) -> &'static str {
        match self.marks {
            Marks::Routes => "198.18.255.",
            Marks::Tables => "monitor-mark-",
        }
    }
}
