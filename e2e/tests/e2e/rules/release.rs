//! The daemon knows its rules again in the output of another release's nft and iptables.

use anyhow::{Result, ensure};
use lab::{binaries, until_ok};

use crate::healing::scenarios;

use super::node::{Applier, GUARD, IptablesNft, Nftables, masquerading_node_scene};

scenarios! { other_release_repairs_and_writes_nothing_else;
    iptables_nft_of_debian_13_repairs_and_writes_nothing_else => (IptablesNft, "iptables -t nat -D FLANNEL-POSTRTG 2"),
    nftables_of_debian_13_repairs_and_writes_nothing_else => (Nftables, "nft flush chain ip flannel-ipv4 postrtg"),
}

fn other_release_repairs_and_writes_nothing_else((applier, damage): (Applier, &str)) -> Result<()> {
    masquerading_node_scene("release", applier).run(|s| {
        let programs = binaries::nft_and_iptables_folder()?;
        s[0].change_options(|options| {
            let options = options.env("PATH", &programs.to_string_lossy());
            GUARD.iter().fold(options, |options, flag| options.arg(flag))
        });
        s.start_daemons()?;
        // nft 1.0.6 of Debian 12 crashes on some rules of nft 1.1.3.
        let nft = programs.join("nft");
        let list =
            format!("for family in ip ip6; do {} -s list ruleset $family; done", nft.display());
        let right = s[0].sh(&list)?;
        ensure!(right.contains("10.244.0.0/16"), "{right}");
        s[0].daemon()?.send_sigstop()?;
        s[0].sh(damage)?;
        s[0].daemon()?.send_sigcont()?;
        until_ok("the damage is repaired", || {
            let now = s[0].sh(&list)?;
            ensure!(now == right, "{now}");
            Ok(())
        })?;
        s[0].wait_metric_value("flannel_rule_repairs_total", 1.0)?;
        s[0].wait_metric_value("flannel_rules_at_war", 0.0)?;
        // After a restart the rules are found, not written.
        s[0].restart_daemon()?;
        s[0].wait_metric_value("flannel_rule_writes_total", 0.0)?;
        ensure!(s[0].sh(&list)? == right, "a restart changes rules");
        Ok(())
    })
}
