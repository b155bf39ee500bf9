//! flanneld reverts each change of its rules: at once after a kernel event, and rarely while another program repeats its changes.

use anyhow::{Result, ensure};
use lab::{Launch, until, until_ok};

use crate::healing::scenarios;

use super::node::{
    Applier, GUARD, IptablesNft, Nftables, firewall_rules, logged_warnings_and_errors,
    run_on_stopped_masquerading_node,
};

type Damages = (Applier, &'static [&'static str], &'static [&'static str]);

scenarios! { damage_is_repaired;
    damage_to_guarded_iptables_is_repaired => (IptablesNft, &GUARD, &[
        "iptables -t raw -F FLANNEL-ENCAP",
        "ip6tables -t raw -D PREROUTING 1",
        "iptables -t raw -D OUTPUT 1",
        "iptables -t raw -I FLANNEL-ENCAP -s 192.168.56.101 -m comment --comment 'flanneld encap' -j RETURN",
    ]),
    damage_to_guarded_nftables_is_repaired => (Nftables, &GUARD, &[
        "nft add element ip flannel-ipv4 peers '{ 192.168.56.101 }'",
        "nft add element ip6 flannel-ipv6 peers '{ fd00::1 }'",
        "nft flush chain ip flannel-ipv4 encap-in",
        "nft delete chain ip6 flannel-ipv6 encap-out",
        "nft flush ruleset",
    ]),
    damage_to_iptables_is_repaired => (IptablesNft, &[], &[
        "iptables -t nat -F",
        "iptables -F FLANNEL-FWD",
        "iptables -t nat -D FLANNEL-POSTRTG 2",
        "iptables -F",
        "nft flush ruleset",
    ]),
    // Only the kernel's event can trigger the repair, because the next periodic check is minutes away.
    damage_to_nftables_is_repaired => (Nftables, &["--iptables-resync=600"], &[
        "nft flush ruleset",
        "nft delete table ip flannel-ipv4",
        "nft flush chain ip flannel-ipv4 postrtg",
        "nft add rule ip flannel-ipv4 postrtg drop",
    ]),
}

/// The daemon counts one repair for each damage.
fn damage_is_repaired((applier, flags, damages): Damages) -> Result<()> {
    run_on_stopped_masquerading_node(applier, flags, |s| {
        let mut first: Option<String> = None;
        for damage in damages {
            // The daemon makes three repairs a minute at once. This test needs more, so each damage has a daemon of its own.
            s.start_daemons()?;
            let right = firewall_rules(&s[0])?;
            ensure!(right.contains("10.244.0.0/16"), "{right}");
            ensure!(
                *first.get_or_insert(right.clone()) == right,
                "a restart leads from\n{first:?}\nto\n{right}"
            );
            // The daemon is stopped meanwhile. Otherwise it could repair the damage before the test sees it.
            s[0].daemon()?.send_sigstop()?;
            s[0].sh(damage)?;
            ensure!(firewall_rules(&s[0])? != right, "{damage} damages nothing");
            s[0].daemon()?.send_sigcont()?;
            until_ok(&format!("{damage} is repaired"), || {
                let now = firewall_rules(&s[0])?;
                ensure!(now == right, "{now}");
                Ok(())
            })?;
            // A pass that was under way may have looked at one family before the damage, and the next pass repairs that family.
            let most = if damage.contains("ruleset") { 2.0 } else { 1.0 };
            until("the repair is counted", || {
                (1.0..=most).contains(&s[0].metric_or_zero("flannel_rule_repairs_total"))
            })?;
            s[0].wait_metric_value("flannel_rules_at_war", 0.0)?;
            s[0].stop_daemon()?;
        }
        Ok(())
    })
}

scenarios! { busy_writer_delays_no_repair;
    busy_writer_delays_no_repair_by_iptables => (IptablesNft, "nft flush chain ip nat FLANNEL-POSTRTG"),
    busy_writer_delays_no_repair_by_nftables => (Nftables, "nft delete table ip flannel-ipv4"),
}

/// Another program commits nftables transactions all the time. If one collides with flanneld's, flanneld must try again.
fn busy_writer_delays_no_repair((applier, damage): (Applier, &str)) -> Result<()> {
    run_on_stopped_masquerading_node(applier, &[], |s| {
        s.start_daemons()?;
        let right = firewall_rules(&s[0])?;
        let writes = "while :; do nft 'add table inet busy; add chain inet busy c; delete table inet busy'; sleep 0.01; done";
        let mut writer = s[0].spawn("writer", &Launch::new("sh").args(["-c", writes]))?;
        for _ in 0..3 {
            s[0].sh(damage)?;
            until("it is repaired in spite of the other writer", || {
                firewall_rules(&s[0]).is_ok_and(|now| now == right)
            })?;
        }
        writer.kill()?;
        let complaints = logged_warnings_and_errors(s[0].daemon()?);
        ensure!(complaints.is_empty(), "{complaints:#?}");
        Ok(())
    })
}

scenarios! { endless_changes_slow_repairs_down;
    endless_changes_to_iptables_slow_repairs_down => (IptablesNft, "iptables -F FLANNEL-FWD"),
    endless_changes_to_nftables_slow_repairs_down => (Nftables, "nft flush chain ip flannel-ipv4 forward"),
}

/// Another program changes the rules as fast as the daemon repairs them. The daemon reports the conflict once and then repairs rarely.
fn endless_changes_slow_repairs_down((applier, damage): (Applier, &str)) -> Result<()> {
    run_on_stopped_masquerading_node(applier, &[], |s| {
        s.start_daemons()?;
        until_ok("there is a conflict", || {
            s[0].sh(damage)?;
            let at_war = s[0].daemon()?.metric("flannel_rules_at_war")?;
            ensure!(at_war == 1.0);
            Ok(())
        })?;
        let repairs = s[0].daemon()?.metric("flannel_rule_repairs_total")?;
        // Without the conflict, the daemon would repair each of these within two checks.
        let uptime = s[0].daemon()?.metric("flannel_uptime_seconds")?;
        until_ok("it could have repaired the rules", || {
            s[0].sh(damage)?;
            ensure!(s[0].daemon()?.metric("flannel_uptime_seconds")? >= uptime + 3.0);
            Ok(())
        })?;
        s[0].wait_metric_value("flannel_rule_repairs_total", repairs)?;
        let complaints = logged_warnings_and_errors(s[0].daemon()?);
        ensure!(complaints.len() == 1, "{complaints:#?}");
        Ok(())
    })
}
