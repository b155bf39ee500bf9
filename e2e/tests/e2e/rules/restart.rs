//! A restart of the daemon changes no rule and loses no packet. A daemon whose rules are complete writes none.

use anyhow::{Result, ensure};
use lab::{Monitor, env_number};

use crate::healing::scenarios;

use super::node::{
    Applier, GUARD, IptablesNft, Nftables, firewall_rules, run_on_stopped_masquerading_node,
    start_masqueraded_probe,
};

scenarios! { restarts_lose_nothing;
    restarts_lose_nothing_with_iptables_nft => (IptablesNft, &[]),
    restarts_lose_nothing_with_nftables_and_a_guard => (Nftables, &GUARD),
}

/// Several restarts let no packet leave with the pod's own address, and change no rule.
fn restarts_lose_nothing((applier, flags): (Applier, &[&str])) -> Result<()> {
    run_on_stopped_masquerading_node(applier, flags, |s| {
        s.start_daemons()?;
        let (before, probe) = (firewall_rules(&s[0])?, start_masqueraded_probe(s)?);
        let mut monitor = Monitor::watch_nft_rules(&s[0])?;
        for number in 0..env_number("RESTARTS", 10) {
            if number % 2 == 0 {
                s[0].stop_daemon()?;
            } else {
                s[0].kill_daemon()?;
            }
            s.start_daemons()?;
            probe.wait_flowing()?;
            s[0].wait_metric_value("flannel_rule_writes_total", 0.0)?;
        }
        let reports = monitor.read_new_reports()?;
        ensure!(reports.is_empty(), "a restart wrote:\n{reports}");
        let after = firewall_rules(&s[0])?;
        ensure!(after == before, "{before}\n{after}");
        probe.finish()?.require_clean()
    })
}
