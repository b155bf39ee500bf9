//! Checks that flanneld reverts each change of its rules: at once after a kernel event, and rarely while another program repeats its changes.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use lab::{Lab, Launch, throughout, until};

use crate::healing::scenarios;

use super::node::{
    GUARDED_IPTABLES, GUARDED_NFTABLES, GUARDS, IPTABLES, IptablesNft, NFTABLES, Nftables, Node,
    Stream, complaints, difference, lines_with,
};

scenarios! { damage_is_repaired;
    damage_to_guarded_iptables_is_repaired => (GUARDED_IPTABLES, &[
        "iptables -t raw -F FLANNEL-ENCAP",
        "ip6tables -t raw -D PREROUTING 1",
        "iptables -t raw -D OUTPUT 1",
        "iptables -t raw -D FLANNEL-ENCAP -s 192.168.56.101 -m comment --comment 'flanneld encap' -j RETURN",
    ]),
    damage_to_guarded_nftables_is_repaired => (GUARDED_NFTABLES, &[
        "nft delete element ip flannel-ipv4 peers '{ 192.168.56.101 }'",
        "nft add element ip6 flannel-ipv6 peers '{ fd00::1 }'",
        "nft flush chain ip flannel-ipv4 encap-in",
        "nft delete chain ip6 flannel-ipv6 encap-out",
        "nft flush ruleset",
    ]),
    damage_to_iptables_is_repaired => (IPTABLES, &[
        "iptables -t nat -F",
        "iptables -F FLANNEL-FWD",
        "iptables -t nat -D FLANNEL-POSTRTG 2",
        "iptables -F",
        "nft flush ruleset",
    ]),
    damage_to_nftables_is_repaired => (NFTABLES, &[
        "nft flush ruleset",
        "nft delete table ip flannel-ipv4",
        "nft flush chain ip flannel-ipv4 postrtg",
        "nft add rule ip flannel-ipv4 postrtg drop",
    ]),
}

/// Checks that the daemon repairs each damage to a host's rules, and counts one repair for each damage.
fn damage_is_repaired((config, damages): (&str, &[&str])) -> Result<()> {
    Lab::run("damage", |lab| {
        let mut node = Node::alone(lab, config)?;
        if config.contains("vxlan") {
            node.options = node
                .options
                .arg("--encap-peers=drop")
                .arg(GUARDS[0])
                .arg(GUARDS[1]);
        }
        // Lists one family at a time, because the order in which the two tables are created is undefined.
        let list = || {
            node.host
                .netns()
                .sh("nft -s list ruleset ip; nft -s list ruleset ip6")
        };
        let mut first: Option<String> = None;
        for damage in damages {
            // The daemon makes three repairs a minute at once. This test needs more, so each damage has a daemon of its own.
            let daemon = node.start()?;
            let right = list()?;
            ensure!(right.contains("10.244.0.0/16"), "{right}");
            let first = first.get_or_insert_with(|| right.clone());
            ensure!(
                *first == right,
                "a restart leads back to\n{first}\nand not to\n{right}"
            );
            // The daemon is stopped meanwhile. Otherwise it could repair the damage before the test sees it.
            daemon.stop()?;
            node.host.netns().sh(damage)?;
            ensure!(list()? != right, "{damage} damages nothing");
            daemon.cont()?;
            until(&format!("repaired after {damage}"), || {
                list().is_ok_and(|now| now == right)
            })?;
            until("it is counted", || {
                daemon
                    .metric("flannel_rule_repairs_total")
                    .is_ok_and(|repairs| repairs == 1.0)
            })?;
            ensure!(daemon.metric("flannel_rules_at_war")? == 0.0);
        }
        Ok(())
    })
}

#[test]
fn deleted_table_is_restored_at_once() {
    Lab::run("deleted", |lab| {
        let lan = lab.switch("lan")?;
        let mut node = Node::build(lab, &lan, 1, Nftables)?;
        // Only the kernel's event can trigger the repair, because the next periodic check is minutes away.
        node.options = node.options.arg("--iptables-resync=600");
        let daemon = node.start()?;
        let stream = Stream::start(lab, &lan, &node, &daemon)?;
        let dump = node.dump()?;
        let mut times = Vec::new();
        // A fourth damage within a minute would be a conflict loop.
        for damage in [
            "delete table ip flannel-ipv4",
            "flush chain ip flannel-ipv4 postrtg",
            "flush ruleset",
        ] {
            let start = Instant::now();
            node.run("nft", &damage.split(' ').collect::<Vec<_>>())?;
            until(&format!("repaired after {damage}"), || {
                node.dump().is_ok_and(|now| now == dump)
            })?;
            times.push(start.elapsed());
            stream.probe.wait_flowing()?;
        }
        let report = stream.probe.finish()?;
        println!(
            "repaired after {times:.0?}; {} packets under the pod's own address; {report}",
            report.wrong
        );
        ensure!(
            report.wrong > 0,
            "nothing was ever not masqueraded: this test proves nothing"
        );
        // The stream sends one packet each millisecond, and none is wrong once the rules are back.
        let repairs: Duration = times.iter().sum();
        ensure!(
            u128::from(report.wrong) <= repairs.as_millis() + 100 && report.lost == report.wrong,
            "{report}"
        );
        ensure!(
            daemon.metric("flannel_rule_repairs_total")? == 3.0,
            "{}",
            daemon.log_tail(20)
        );
        Ok(())
    })
    .unwrap();
}

/// Another program commits nftables transactions all the time. If another program's transaction
/// collides with flanneld's transaction, flanneld must try again.
#[test]
fn busy_writer_delays_no_repair() {
    Lab::run("busy", |lab| {
        let lan = lab.switch("lan")?;
        for (number, applier, damage) in [(1, IptablesNft, "delete table ip nat"), (2, Nftables, "delete table ip flannel-ipv4")] {
            let node = Node::build(lab, &lan, number, applier)?;
            let daemon = node.start_as(applier)?;
            let dump = node.dump()?;
            let writes = "while :; do nft 'add table ip busy; add chain ip busy c; delete table ip busy'; sleep 0.01; done";
            let mut writer = node.host.spawn("writer", &Launch::new("sh").args(["-c", writes]))?;
            let before = daemon.cpu_seconds()?;
            let start = Instant::now();
            for _ in 0..3 {
                node.run("nft", &damage.split(' ').collect::<Vec<_>>())?;
                let healed = || node.has_rules(applier);
                until("healed in spite of the other writer", healed)?;
            }
            println!("{applier:?}: three repairs in {:.0?}, {:.2} s of processor time", start.elapsed(), daemon.cpu_seconds()? - before);
            writer.kill()?;
            if until("all is as it was", || node.dump().is_ok_and(|now| now == dump)).is_err() {
                bail!("{applier:?}: not all is as it was:\n{}", difference(&dump, &node.dump()?));
            }
            ensure!(complaints(&daemon).is_empty(), "{:#?}", complaints(&daemon));
        }
        Ok(())
    })
    .unwrap();
}

scenarios! { endless_changes_slow_repairs_down;
    endless_changes_to_iptables_slow_repairs_down => (IPTABLES, "iptables -F FLANNEL-FWD"),
    endless_changes_to_nftables_slow_repairs_down => (NFTABLES, "nft flush chain ip flannel-ipv4 forward"),
}

/// Another program changes the rules as fast as the daemon repairs them. Checks that the daemon reports the conflict once and then repairs rarely.
fn endless_changes_slow_repairs_down((config, damage): (&str, &str)) -> Result<()> {
    Lab::run("war", |lab| {
        let node = Node::alone(lab, config)?;
        let daemon = node.start()?;
        let attack = || -> Result<()> { node.host.netns().sh(damage).map(drop) };
        until("at war", || {
            attack().is_ok()
                && daemon
                    .metric("flannel_rules_at_war")
                    .is_ok_and(|war| war == 1.0)
        })?;
        let repairs = daemon.metric("flannel_rule_repairs_total")?;
        throughout(
            Duration::from_secs(2),
            "it repairs once a minute from now on",
            || {
                attack()?;
                ensure!(daemon.metric("flannel_rule_repairs_total")? == repairs);
                Ok(())
            },
        )?;
        ensure!(
            lines_with(&daemon.log(), "keeps changing the traffic rules") == 1,
            "{}",
            daemon.log()
        );
        Ok(())
    })
}
