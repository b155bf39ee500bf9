//! A change of mode loses no packet, and the rules of an earlier mode or family are removed. What each start does with the rules of each origin is in
//! `traffic-rules/tests/kernel/origins.rs`.

use anyhow::{Result, ensure};
use lab::{Programs, until, until_ok};

use super::node::{
    Applier, IptablesLegacy, IptablesNft, Nftables, firewall_rules, has_flannel_rules,
    masquerading_node_scene, run_on_stopped_masquerading_node, start_masqueraded_probe,
};

use crate::healing::scenarios;

/// The daemon writes new rules before it removes the old ones, whether nftables or an iptables variant applies them. A daemon that is killed amid a
/// switch leaves working rules, and the next one completes the switch.
#[test]
fn switching_under_load_loses_nothing() -> Result<()> {
    run_on_stopped_masquerading_node(IptablesNft, &[], |s| {
        s.start_daemons()?;
        let probe = start_masqueraded_probe(s)?;
        for (number, applier) in
            [Nftables, IptablesLegacy, Nftables, IptablesNft].into_iter().enumerate()
        {
            s[0].stop_daemon()?;
            s.store.configure(&applier.net_conf())?;
            let path = Programs::with_both_iptables_variants(
                s.lab,
                &format!("switch-{number}"),
                applier.xtables(),
            )?
            .path();
            s[0].change_options(|options| options.env("PATH", &path));
            s[0].launch_daemon()?;
            until("it writes rules", || has_flannel_rules(&s[0], applier).unwrap_or_default())?;
            s[0].kill_daemon()?;
            s.start_daemons()?;
            until_ok(&format!("only {applier:?} has rules"), || {
                for other in [IptablesNft, IptablesLegacy, Nftables] {
                    ensure!(has_flannel_rules(&s[0], other)? == (other == applier), "{other:?}");
                }
                Ok(())
            })?;
            probe.wait_flowing()?;
        }
        s.require_no_errors()?;
        probe.finish()?.require_clean()
    })
}

scenarios! { rules_of_a_removed_family_are_removed;
    iptables_rules_of_a_removed_family_are_removed => IptablesNft,
    nftables_rules_of_a_removed_family_are_removed => Nftables,
}

/// Rules of a family that the network no longer has.
fn rules_of_a_removed_family_are_removed(applier: Applier) -> Result<()> {
    masquerading_node_scene("family", applier).run(|s| {
        s.start_daemons()?;
        s[0].stop_daemon()?;
        ensure!(firewall_rules(&s[0])?.contains("fd10:244::/48"));
        s.store
            .configure(&applier.net_conf().replace("true,\"IPv6Network", "false,\"IPv6Network"))?;
        s.start_daemons()?;
        until("the rules of IPv6 are gone", || {
            firewall_rules(&s[0]).is_ok_and(|now| !now.contains("fd10:244::/48"))
        })
        .map(drop)
    })
}
