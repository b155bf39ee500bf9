//! Checks that each start ends with the rules that a first start in the same mode writes, regardless of
//! earlier rules. A change of mode loses no packet.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::{Lab, Programs, Store, Xtables, until};

use crate::healing::scenarios;

use super::node::{
    APPLIERS, Applier, Dump, IPTABLES, IptablesLegacy, IptablesNft, NFTABLES, Nftables, Node,
    Stream, VARIANTS, difference, lines_with,
};

/// Replaces all rules on a host with rules of another program, in nftables and in each table of both iptables variants.
pub(super) fn with_rules_of_others(node: &Node) -> Result<()> {
    node.run("nft", &["flush", "ruleset"])?;
    for (variant, family) in VARIANTS {
        let (one, many) = if family == "ip" {
            ("198.51.100.7", "198.51.100.0/24")
        } else {
            ("fd99::7", "fd99::/64")
        };
        let payload = format!(
            "*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A PREROUTING -s {one} -j ACCEPT\nCOMMIT\n\
             *mangle\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n\
             -A PREROUTING -s {one} -j MARK --set-xmark 0x7/0xffffffff\nCOMMIT\n\
             *nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n:THEIRS - [0:0]\n\
             -A POSTROUTING -j THEIRS\n-A THEIRS -s {many} -m comment --comment \"not flanneld\" -j MASQUERADE\nCOMMIT\n\
             *filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A FORWARD -s {one} -j DROP\nCOMMIT\n"
        );
        node.feed(&format!("{family}tables-{variant}-restore"), &[], &payload)?;
    }
    let foreign = "table inet foreign { chain forward { type filter hook forward priority 10; policy accept; ip saddr 198.51.100.7 drop; }\n}\n\
                   table ip foreign { chain postrouting { type nat hook postrouting priority 110; policy accept; ip saddr 198.51.100.0/24 masquerade; }\n}\n";
    node.feed("nft", &["-f", "-"], foreign)
}

/// Rules of flannel that a host may have when flanneld starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Ours(Applier),
    /// Go flannel's chains as captured, with the host's current lease (`true`) or with an earlier lease (`false`).
    GoChains(Xtables, bool),
    /// Only Go flannel's chain for forwarded packets, with one of its rules.
    GoForward(Xtables),
    /// Rules that Go flannel v0.17 to v0.19 wrote directly into the built-in chains.
    GoRules(Xtables),
    /// Go flannel's nftables tables.
    GoNftables,
}

const BEFORE: [Before; 11] = [
    Before::Nothing,
    Before::Ours(IptablesNft),
    Before::Ours(IptablesLegacy),
    Before::Ours(Nftables),
    Before::GoChains(Xtables::Nft, true),
    Before::GoChains(Xtables::Nft, false),
    Before::GoChains(Xtables::Legacy, true),
    Before::GoForward(Xtables::Legacy),
    Before::GoRules(Xtables::Nft),
    Before::GoRules(Xtables::Legacy),
    Before::GoNftables,
];

impl Before {
    /// Returns the program with which the daemon applies the rules after a start with `target`. For iptables, flannel's existing rules determine the variant.
    fn end(self, target: Applier) -> Applier {
        let there = match self {
            Before::Ours(IptablesNft)
            | Before::GoChains(Xtables::Nft, _)
            | Before::GoForward(Xtables::Nft)
            | Before::GoRules(Xtables::Nft) => IptablesNft,
            Before::Ours(IptablesLegacy)
            | Before::GoChains(Xtables::Legacy, _)
            | Before::GoForward(Xtables::Legacy)
            | Before::GoRules(Xtables::Legacy) => IptablesLegacy,
            Before::Nothing | Before::Ours(Nftables) | Before::GoNftables => target,
        };
        if target == Nftables { Nftables } else { there }
    }

    fn make(self, node: &Node, own: &[String], fresh: &[Fresh]) -> Result<()> {
        let replaced = |text: String, captured: [&str; 2]| {
            captured
                .iter()
                .zip(own)
                .fold(text, |text, (captured, subnet)| {
                    text.replace(captured, subnet)
                })
        };
        match self {
            Before::Nothing => Ok(()),
            Before::Ours(applier) => {
                let fresh = fresh
                    .iter()
                    .find(|fresh| fresh.applier == applier)
                    .context("a fresh start")?;
                let mut daemon = fresh.node.start_as(applier)?;
                ensure!(
                    fresh.node.dump()? == fresh.dump,
                    "{applier:?} does not do the same twice"
                );
                daemon.terminate().map(drop)
            }
            Before::GoChains(which, same_lease) => {
                let text = golden("../../flanneld/tests/golden/masq-dual/iptables.txt")?;
                let text = if same_lease {
                    replaced(text, ["10.244.90.0/24", "fd10:244:0:22::/64"])
                } else {
                    text
                };
                for (header, lines) in sections(&text) {
                    // A part of the capture begins with a line such as `# iptables -t nat -S`.
                    let words: Vec<&str> = header.split_whitespace().collect();
                    let [program, _, table, ..] = words[..] else {
                        bail!("{header}")
                    };
                    let rules: String = lines
                        .iter()
                        .filter(|line| !line.starts_with("-P"))
                        .map(|line| format!("{line}\n"))
                        .collect();
                    restore(
                        node,
                        &program.replace("tables", &format!("tables-{}", which.name())),
                        &format!("*{table}\n{rules}COMMIT\n"),
                    )?;
                }
                Ok(())
            }
            Before::GoForward(which) => {
                for (family, network) in [("ip", "10.244.0.0/16"), ("ip6", "fd10:244::/48")] {
                    let payload = format!(
                        "*filter\n:FLANNEL-FWD - [0:0]\n-A FLANNEL-FWD -s {network} -j ACCEPT\n\
                         -A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD\nCOMMIT\n"
                    );
                    restore(node, &format!("{family}tables-{}", which.name()), &payload)?;
                }
                Ok(())
            }
            Before::GoRules(which) => go_rules(node, own, which),
            Before::GoNftables => {
                let text = replaced(
                    golden("golden/nft-dual/nft.txt")?,
                    ["10.244.39.0/24", "fd10:244:0:12::/64"],
                );
                node.feed("nft", &["-f", "-"], &text)
            }
        }
    }
}

/// Adds the rules that Go flannel v0.17 to v0.19 wrote directly into the built-in chains.
fn go_rules(node: &Node, own: &[String], which: Xtables) -> Result<()> {
    let families = [
        ("ip", "10.244.0.0/16", "224.0.0.0/4"),
        ("ip6", "fd10:244::/48", "ff00::/8"),
    ];
    for ((family, network, multicast), subnet) in families.iter().zip(own) {
        let (masq, forward) = (
            "-m comment --comment \"flanneld masq\" -j",
            "-m comment --comment \"flanneld forward\" -j",
        );
        let payload = format!(
            "*nat\n-A POSTROUTING -s {network} -d {network} {masq} RETURN\n-A POSTROUTING -s {network} ! -d {multicast} {masq} MASQUERADE --random-fully\n\
             -A POSTROUTING ! -s {network} -d {subnet} {masq} RETURN\n-A POSTROUTING ! -s {network} -d {network} {masq} MASQUERADE --random-fully\nCOMMIT\n\
             *filter\n-A FORWARD -s {network} {forward} ACCEPT\n-A FORWARD -d {network} {forward} ACCEPT\nCOMMIT\n"
        );
        restore(node, &format!("{family}tables-{}", which.name()), &payload)?;
    }
    Ok(())
}

fn restore(node: &Node, program: &str, payload: &str) -> Result<()> {
    node.feed(&format!("{program}-restore"), &["--noflush"], payload)
}

fn golden(path: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(path);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Returns the sections of a capture: the title without `# `, and the lines of each section.
fn sections(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("# "), found.last_mut()) {
            (Some(title), _) => found.push((title, Vec::new())),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => {}
        }
    }
    found
}

/// Rules that flanneld writes in a mode at its first start on a host without flannel's objects.
struct Fresh {
    applier: Applier,
    /// Host with the programs of the mode.
    node: Node,
    dump: Dump,
}

scenarios! { switch_leaves_nothing_behind;
    switch_to_iptables_nft_leaves_nothing_behind => IptablesNft,
    switch_to_iptables_legacy_leaves_nothing_behind => IptablesLegacy,
    switch_to_nftables_leaves_nothing_behind => Nftables,
}

/// Checks that each switch to a mode leads to the rules that a first start in the mode writes.
fn switch_leaves_nothing_behind(target: Applier) -> Result<()> {
    Lab::run("ways", |lab| {
        let lan = lab.switch("lan")?;
        let node = Node::build(lab, &lan, 1, target)?;
        // For a fresh start with the other variant of iptables, that variant's programs have the usual names.
        let usual = node.options.clone();
        let mut fresh: Vec<Fresh> = Vec::new();
        let mut own = Vec::new();
        for applier in APPLIERS {
            with_rules_of_others(&node)?;
            let without = node.dump()?;
            let programs = Programs::all(lab, &format!("fresh-{applier:?}"), applier.xtables())?;
            let node = Node {
                host: node.host.clone(),
                store: node.store.clone(),
                options: usual.clone().env("PATH", &programs.path()),
            };
            let mut daemon = node.start_as(applier)?;
            let env = daemon.subnet_env()?;
            own = vec![
                env.subnet.context("v4")?.trunc().to_string(),
                env.v6_subnet.context("v6")?.trunc().to_string(),
            ];
            let with = node.dump()?;
            ensure!(
                with != without && node.has_rules(applier),
                "no rules of {applier:?}: {with:#?}"
            );
            // The rules of others are unchanged, and only rules of ours were added.
            for (place, lines) in &without {
                let now = with
                    .get(place)
                    .with_context(|| format!("{place} is gone"))?;
                let theirs: Vec<&String> = now
                    .iter()
                    .filter(|line| !line.contains("FLANNEL"))
                    .collect();
                ensure!(
                    theirs == lines.iter().collect::<Vec<_>>(),
                    "{place} has {now:#?}, and had {lines:#?}"
                );
            }
            daemon.terminate()?;
            fresh.push(Fresh {
                applier,
                node,
                dump: with,
            });
        }
        let mut wrong = String::new();
        for before in BEFORE {
            with_rules_of_others(&node)?;
            before.make(&node, &own, &fresh)?;
            let mut daemon = node.start_as(target)?;
            let end = before.end(target);
            let wanted = &fresh
                .iter()
                .find(|fresh| fresh.applier == end)
                .context("a fresh start")?
                .dump;
            if until("the same rules", || {
                node.dump().is_ok_and(|dump| dump == *wanted)
            })
            .is_err()
            {
                wrong.push_str(&format!(
                    "{before:?} -> {target:?}, which ends as {end:?}:\n{}",
                    difference(wanted, &node.dump()?)
                ));
            }
            ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
            daemon.terminate()?;
        }
        ensure!(wrong.is_empty(), "{wrong}");
        Ok(())
    })
}

/// The daemon writes new rules before it removes the old rules, whether nftables or an iptables variant applies the rules.
#[test]
fn switching_under_load_loses_nothing() {
    Lab::run("switching", |lab| {
        let lan = lab.switch("lan")?;
        let node = Node::build(lab, &lan, 1, IptablesNft)?;
        let mut daemon = node.start_as(IptablesNft)?;
        let stream = Stream::start(lab, &lan, &node, &daemon)?;
        for (number, applier) in [Nftables, IptablesLegacy, Nftables, IptablesNft]
            .into_iter()
            .enumerate()
        {
            daemon.terminate()?;
            let programs = Programs::all(lab, &format!("switch-{number}"), applier.xtables())?;
            let options = node.options.clone().env("PATH", &programs.path());
            let node = Node {
                host: node.host.clone(),
                store: node.store.clone(),
                options,
            };
            daemon = node.start_as(applier)?;
            let alone = || {
                // A daemon that stops during the removal leaves the rest to the next one, which may take it for rules of its own applier.
                APPLIERS.iter().all(|other| {
                    if *other == applier {
                        node.has_rules(*other)
                    } else {
                        node.is_clean(*other)
                    }
                })
            };
            until(&format!("only the rules of {applier:?} are there"), alone)?;
            stream.probe.wait_flowing()?;
        }
        let report = stream.probe.finish()?;
        println!("4 switches: {report}");
        report.require_clean()
    })
    .unwrap();
}

/// A daemon that is killed at any moment of a switch leaves working rules, and the next daemon completes the switch.
#[test]
fn kills_during_a_switch_lose_nothing() {
    Lab::run("amid", |lab| {
        let lan = lab.switch("lan")?;
        let node = Node::build(lab, &lan, 1, IptablesNft)?;
        let mut daemon = node.start_as(IptablesNft)?;
        let stream = Stream::start(lab, &lan, &node, &daemon)?;
        let dump = node.dump()?;
        let mut both = 0;
        for number in 0..30u64 {
            daemon.kill()?;
            both += u32::from(node.has_rules(IptablesNft) && node.has_rules(Nftables));
            node.store.configure(
                &if number % 3 == 2 {
                    IptablesNft
                } else {
                    Nftables
                }
                .net_conf(),
            )?;
            daemon = node.host.start_flanneld(&node.options)?;
            // The kill may come at any moment, so no event is awaited. A whole switch takes about 100 ms here.
            std::thread::sleep(Duration::from_millis(20 + 13 * number % 130));
        }
        daemon.kill()?;
        daemon = node.start_as(IptablesNft)?;
        if until("all is as at first", || {
            node.dump().is_ok_and(|now| now == dump)
        })
        .is_err()
        {
            bail!(
                "not all is as at first:\n{}",
                difference(&dump, &node.dump()?)
            );
        }
        stream.probe.wait_flowing()?;
        let report = stream.probe.finish()?;
        println!("30 kills, {both} of them between the new set and the old one's end: {report}");
        ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
        report.require_clean()
    })
    .unwrap();
}

/// The daemon removes the rules of an address family that the network no longer has.
#[test]
fn rules_of_a_removed_family_are_removed() {
    Lab::run("family", |lab| {
        let dual = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","EnableNFTables":NFT,"Backend":{"Type":"host-gw"}}"#;
        let mut node = Node::alone(lab, IPTABLES)?;
        for (number, (nft, single)) in [("true", NFTABLES), ("false", IPTABLES)].into_iter().enumerate() {
            node.store = Store::dir(&lab.folder(&format!("leases-of-{number}"))?);
            node.options = lab::FlanneldOptions::new(&node.store).iface("enp0s8").arg("--ip-masq");
            let has = || node.run("nft", &["list", "ruleset"]).unwrap().contains("fd00:244::/48");
            node.store.configure(&dual.replace("NFT", nft))?;
            drop(node.start()?);
            ensure!(has());
            node.store.configure(single)?;
            let _daemon = node.start()?;
            until("the rules of IPv6 are gone", || !has())?;
        }
        Ok(())
    })
    .unwrap();
}

/// In nftables mode, flanneld needs no iptables program, not even to remove the rules that iptables-nft wrote.
#[test]
fn nft_removes_the_iptables_rules_without_iptables() {
    Lab::run("nft alone", |lab| {
        let mut node = Node::alone(lab, IPTABLES)?;
        node.run(
            "iptables",
            &["-A", "FORWARD", "-s", "1.2.3.4", "-j", "DROP"],
        )?;
        drop(node.start()?);
        let list = || node.run("nft", &["list", "ruleset"]).unwrap();
        ensure!(list().contains("FLANNEL-POSTRTG"));
        node.store.configure(NFTABLES)?;
        node.options = node
            .options
            .clone()
            .env("PATH", &Programs::none(lab, "nft-only")?.with_nft()?.path());
        let daemon = node.start()?;
        let list = || node.run("nft", &["list", "ruleset"]).unwrap();
        until("the iptables set is gone", || !list().contains("FLANNEL"))?;
        ensure!(
            list().contains("1.2.3.4") && list().contains("postrtg"),
            "{}",
            list()
        );
        // The daemon may warn only that it is not ready, which happens while the programs are slow.
        let log = daemon.log();
        ensure!(
            lines_with(&log, "WARN") == lines_with(&log, "WARN not ready"),
            "{log}"
        );
        drop(daemon);
        // The daemon reports once that no installed program can read the old tables.
        node.run(
            "iptables-legacy",
            &["-A", "FORWARD", "-s", "1.2.3.4", "-j", "DROP"],
        )?;
        let daemon = node.start()?;
        until("the log names the old tables", || {
            lines_with(&daemon.log(), "iptables-legacy is not installed") == 1
        })?;
        Ok(())
    })
    .unwrap();
}
