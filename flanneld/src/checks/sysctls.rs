//! Implements `--set-sysctls`: corrects sysctls, and counts the writes.

use doctor::correct::{Correction, corrections};
use doctor::facts::Network;
use doctor::look;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};

/// Minimum interval between two log lines about the same sysctl.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct SysctlWriter {
    written: Mutex<BTreeMap<String, Written>>,
}

/// The number of writes of one sysctl, the time of the last log line, and whether the last write failed.
struct Written {
    times: u32,
    logged: Instant,
    failed: bool,
}

impl SysctlWriter {
    /// Corrects unsuitable values. Logs the first and second write of each sysctl, then at most one write per minute.
    pub fn apply(&self, network: &Network, underlay: &str) {
        let mut written = self.written.lock();
        for Correction { name, path, old, new, why } in
            corrections(network, &look::sysctls(underlay))
        {
            let result = std::fs::write(path, new.to_string());
            let now = Instant::now();
            let last = written.get(&name);
            let times = last.map_or(1, |last| last.times.saturating_add(1));
            let failed = result.is_err();
            // The second write means that another program reverted the first.
            let due = times == 2
                || last.is_none_or(|last| {
                    last.failed != failed || now.duration_since(last.logged) >= LOG_INTERVAL
                });
            let logged = if due { now } else { last.map_or(now, |last| last.logged) };
            match &result {
                Err(error) if due => {
                    warn!(
                        name,
                        to = new,
                        error = %error,
                        remedy = "make /proc/sys writable and give the daemon CAP_NET_ADMIN",
                        "cannot set a sysctl"
                    );
                }
                Ok(()) if times == 1 => {
                    info!(name, from = old, to = new, reason = why, "set a sysctl");
                }
                Ok(()) if due => warn!(
                    name,
                    from = old,
                    to = new,
                    count = times,
                    remedy = "find the program that manages the sysctl",
                    "another program changed a sysctl; restored the value"
                ),
                _ => {}
            }
            written.insert(name, Written { times, logged, failed });
        }
    }
}
