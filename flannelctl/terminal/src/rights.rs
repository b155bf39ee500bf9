//! Checks of permissions before a command begins. A failed check prints a message of one line.

use anyhow::{Result, bail};

/// The kernel's number for the capability CAP_NET_ADMIN.
const NET_ADMIN: u32 = 12;

/// `what` completes the sentence "only root may …".
pub fn root(what: &str) -> Result<()> {
    if !is_root() {
        bail!("only root may {what}; use sudo");
    }
    Ok(())
}

/// Root or CAP_NET_ADMIN; `what` completes the sentence "only root may …".
pub fn network(what: &str) -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !is_root() && !may(&status) {
        bail!("only root or a process with CAP_NET_ADMIN may {what}; use sudo");
    }
    Ok(())
}

/// The effective user counts.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Whether a process has CAP_NET_ADMIN, according to its /proc/PID/status.
fn may(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> NET_ADMIN & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_is_read_from_status() {
        for (status, has) in [
            ("Name:\tx\nCapEff:\t0000000000001000\n", true),
            ("CapEff:\t000001ffffffffff\n", true),
            ("CapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\n", false),
            ("CapEff:\tx\n", false),
            ("", false),
        ] {
            assert_eq!(may(status), has, "{status:?}");
        }
    }
}
