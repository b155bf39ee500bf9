//! Checks that a restart of the daemon changes no rule and loses no packet. A daemon whose rules are complete writes no rules.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Flanneld, Lab, Monitor, throughout};

use crate::healing::scenarios;

use super::node::{
    APPLIERS, Applier, Dump, GUARDS, IptablesLegacy, IptablesNft, Nftables, Node, Stream,
    complaints,
};

/// Time in which the daemon checks the rules several times, at one check per second.
const LOOKS: Duration = Duration::from_secs(3);

scenarios! { restarts_lose_nothing;
    restarts_lose_nothing_with_iptables_nft => (IptablesNft, false),
    restarts_lose_nothing_with_iptables_nft_and_a_guard => (IptablesNft, true),
    restarts_lose_nothing_with_iptables_legacy => (IptablesLegacy, false),
    restarts_lose_nothing_with_iptables_legacy_and_a_guard => (IptablesLegacy, true),
    restarts_lose_nothing_with_nftables => (Nftables, false),
    restarts_lose_nothing_with_nftables_and_a_guard => (Nftables, true),
}

/// Ends and restarts the daemon several times. The restarts lose no packet, let no packet leave with the pod's own address, and change no rule.
fn restarts_lose_nothing((applier, guarded): (Applier, bool)) -> Result<()> {
    let count: u32 = std::env::var("RESTARTS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(10);
    Lab::run("restarts", |lab| {
        let lan = lab.switch("lan")?;
        let mut node = Node::build(lab, &lan, 1, applier)?;
        if guarded {
            node.options = node
                .options
                .arg("--encap-peers=drop")
                .arg(GUARDS[0])
                .arg(GUARDS[1]);
        }
        let mut daemon = node.start()?;
        let dump = node.dump()?;
        let stream = Stream::start(lab, &lan, &node, &daemon)?;
        let mut monitor = Monitor::nft(&node.host)?;
        for number in 0..count {
            if number % 2 == 0 {
                ensure!(daemon.terminate()?.success(), "{}", daemon.log_tail(10));
            } else {
                daemon.kill()?;
            }
            daemon = node.start()?;
            stream.probe.wait_flowing()?;
            ensure!(
                daemon.metric("flannel_rule_writes_total")? == 0.0,
                "restart {number} wrote rules: {}",
                daemon.log_tail(20)
            );
        }
        throughout(LOOKS, "nothing is written", || {
            ensure!(
                daemon.metric("flannel_rule_writes_total")? == 0.0,
                "{}",
                daemon.log_tail(20)
            );
            Ok(())
        })?;
        ensure!(node.dump()? == dump, "the rules changed");
        let reports = monitor.reports()?;
        ensure!(
            reports.is_empty(),
            "{applier:?}: a restart wrote:\n{reports}"
        );
        let report = stream.probe.finish()?;
        println!("{applier:?}, {count} restarts: {report}");
        report.require_clean()
    })
}

/// A host whose rules are complete, so that the daemon has nothing to write.
struct Watched {
    monitor: Monitor,
    daemon: Flanneld,
    node: Node,
    dump: Dump,
}

#[test]
fn idle_daemons_write_nothing() {
    let seconds: f64 = std::env::var("IDLE")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(15.0);
    Lab::run("idle", |lab| {
        let lan = lab.switch("lan")?;
        let mut watched = Vec::new();
        for (number, applier) in (1..).zip(APPLIERS) {
            let node = Node::build(lab, &lan, number, applier)?;
            let daemon = node.start()?;
            watched.push(Watched {
                monitor: Monitor::nft(&node.host)?,
                dump: node.dump()?,
                daemon,
                node,
            });
        }
        let writes = |host: &Watched| host.daemon.metric("flannel_rule_writes_total");
        let before = watched.iter().map(writes).collect::<Result<Vec<f64>>>()?;
        throughout(Duration::from_secs_f64(seconds), "nobody writes", || {
            ensure!(watched.iter().map(writes).collect::<Result<Vec<f64>>>()? == before);
            Ok(())
        })?;
        for Watched {
            monitor,
            daemon,
            node,
            dump,
        } in &mut watched
        {
            let reports = monitor.reports()?;
            ensure!(reports.is_empty(), "somebody wrote:\n{reports}");
            ensure!(node.dump()? == *dump, "the rules changed");
            ensure!(complaints(daemon).is_empty(), "{:?}", complaints(daemon));
        }
        Ok(())
    })
    .unwrap();
}

/// On a host without rules, the daemon creates only the tables for its rules. The daemon's search for other rules creates no tables.
#[test]
fn first_start_creates_only_its_own_tables() {
    Lab::run("fresh", |lab| {
        let lan = lab.switch("lan")?;
        let start = |(number, applier)| {
            let node = Node::build(lab, &lan, number, applier)?;
            Ok((applier, node.start()?, node))
        };
        let started = (1..).zip(APPLIERS).map(start).collect::<Result<Vec<_>>>()?;
        throughout(LOOKS, "there are no other tables", || {
            for (applier, daemon, node) in &started {
                require_tables(node, *applier)?;
                ensure!(complaints(daemon).is_empty(), "{:#?}", complaints(daemon));
            }
            Ok(())
        })
    })
    .unwrap();
}

/// Checks that only the tables of flanneld's rules exist.
fn require_tables(node: &Node, applier: Applier) -> Result<()> {
    let by_nft = match applier {
        IptablesNft => &[
            "table ip filter",
            "table ip nat",
            "table ip6 filter",
            "table ip6 nat",
        ][..],
        IptablesLegacy => &[],
        Nftables => &["table ip flannel-ipv4", "table ip6 flannel-ipv6"],
    };
    let sorted = |text: &str| {
        text.lines()
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    };
    let listed = sorted(&node.run("nft", &["list", "tables"])?);
    ensure!(listed == by_nft, "{applier:?}: nft has {listed:?}");
    for file in ["ip_tables_names", "ip6_tables_names"] {
        let names = sorted(
            &node
                .run("cat", &[&format!("/proc/thread-self/net/{file}")])
                .unwrap_or_default(),
        );
        let wanted: &[&str] = if applier == IptablesLegacy {
            &["filter", "nat"]
        } else {
            &[]
        };
        ensure!(names == wanted, "{applier:?}: {file} has {names:?}");
    }
    Ok(())
}
