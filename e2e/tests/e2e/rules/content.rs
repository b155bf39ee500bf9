//! Checks that flanneld's rules equal Go flannel's rules exactly, use the host's variant of iptables, and use random ports where possible.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{FlanneldOptions, Host, Lab, Programs, Xtables, throughout, until};

use crate::healing::scenarios;

use super::node::{
    IPTABLES, IptablesLegacy, IptablesNft, NFTABLES, Node, complaints, lines_with, reaches,
};

/// Time in which the daemon checks the rules several times, at one check per second.
const LOOKS: Duration = Duration::from_secs(3);

/// Returns the host's rules in the four listings that a capture contains.
fn listings(host: &Host) -> Result<String> {
    let mut out = String::new();
    for (program, table) in [
        ("iptables", "nat"),
        ("iptables", "filter"),
        ("ip6tables", "nat"),
        ("ip6tables", "filter"),
    ] {
        out.push_str(&format!("# {program} -t {table} -S\n"));
        out.push_str(&host.netns().exec(program, &["-t", table, "-S"])?);
    }
    Ok(out)
}

scenarios! { iptables_rules_equal_those_of_go_flannel;
    masq_plain_rules_equal_those_of_go_flannel => "masq-plain",
    masq_dual_rules_equal_those_of_go_flannel => "masq-dual",
    masq_noforward_rules_equal_those_of_go_flannel => "masq-noforward",
    vxlan_dual_rules_equal_those_of_go_flannel => "vxlan-dual",
}

fn iptables_rules_equal_those_of_go_flannel(case: &str) -> Result<()> {
    Lab::run(case, |lab| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../flanneld/tests/golden")
            .join(case);
        let read = |file: &str| {
            std::fs::read_to_string(folder.join(file)).with_context(|| file.to_owned())
        };
        let node = Node::alone(lab, read("net-conf.json")?.trim())?;
        let mut options = FlanneldOptions::new(&node.store).iface("enp0s8");
        for flag in read("flags")?.split_whitespace() {
            options = options.arg(flag);
        }
        let daemon = node.host.flanneld(&options)?;
        let ours = daemon.subnet_env()?;
        let (capture, mut wanted) = (read("subnet.env")?, read("iptables.txt")?);
        for (key, own) in [
            ("FLANNEL_SUBNET=", ours.subnet.map(ipnet::IpNet::V4)),
            ("FLANNEL_IPV6_SUBNET=", ours.v6_subnet.map(ipnet::IpNet::V6)),
        ] {
            let Some(captured) = capture.lines().find_map(|line| line.strip_prefix(key)) else {
                continue;
            };
            let captured: ipnet::IpNet = captured.parse()?;
            wanted = wanted.replace(
                &captured.trunc().to_string(),
                &own.context("no subnet of ours")?.trunc().to_string(),
            );
        }
        assert_eq!(listings(&node.host)?, wanted, "{case}");
        ensure!(daemon.errors().is_empty(), "{:?}", daemon.errors());
        Ok(())
    })
}

scenarios! { pods_reach_the_outside_from_the_nodes_address;
    iptables_masquerades_packets_to_the_outside => IPTABLES,
    nftables_masquerades_packets_to_the_outside => NFTABLES,
}

/// Checks that a host outside the pod network, without routes to pods, receives pods' packets with the node's source address.
fn pods_reach_the_outside_from_the_nodes_address(config: &str) -> Result<()> {
    Lab::run("outside", |lab| {
        let store = lab::Store::dir(&lab.folder("leases")?);
        store.configure(config)?;
        let lan = lab.switch("lan")?;
        let hosts = lab.hosts(&lan, 3)?;
        let outside = IpAddr::V4(hosts[2].v4()?);
        let options = FlanneldOptions::new(&store)
            .iface("enp0s8")
            .arg("--ip-masq");
        let one = hosts[0].flanneld(&options)?;
        let two = hosts[1].flanneld(
            &options
                .clone()
                .arg("--non-masquerade-cidr=192.168.56.103/32"),
        )?;
        let (pod_one, pod_two) = (
            hosts[0].pod("p1", &one.subnet_env()?)?,
            hosts[1].pod("p2", &two.subnet_env()?)?,
        );
        ensure!(reaches(pod_one.netns(), outside), "{config}: masqueraded");
        ensure!(!reaches(pod_two.netns(), outside), "{config}: excepted");
        ensure!(
            reaches(pod_one.netns(), pod_two.address()?),
            "{config}: pods reach pods"
        );
        // Packets of pods pass despite a policy of DROP, as Docker sets it.
        hosts[0]
            .netns()
            .exec("iptables", &["-P", "FORWARD", "DROP"])?;
        if config == IPTABLES {
            ensure!(
                reaches(pod_one.netns(), pod_two.address()?),
                "the forward rules let it pass"
            );
        }
        Ok(())
    })
}

scenarios! { random_ports_are_tried_first;
    random_ports_are_tried_first_by_iptables => (IPTABLES, "iptables-nft-restore"),
    random_ports_are_tried_first_by_nftables => (NFTABLES, "nft"),
}

/// Checks that the daemon writes rules without random ports if iptables or nft does not support random ports, and that a restart keeps the rules.
fn random_ports_are_tried_first((config, program): (&str, &str)) -> Result<()> {
    Lab::run("random ports", |lab| {
        let listing = if program == "nft" {
            "case \"$*\" in *list*) exec /usr/sbin/nft \"$@\";; esac\n"
        } else {
            ""
        };
        let old = format!(
            "#!/bin/sh\n{listing}input=$(/bin/cat)\ncase \"$input\" in *random*) echo 'unknown option' >&2; exit 2;; esac\n\
             printf '%s\\n' \"$input\" | /usr/sbin/{program} \"$@\"\n"
        );
        let programs = Programs::none(lab, "old")?
            .with_nft()?
            .with_variant(Xtables::Nft)?
            .with_script(program, &old)?;
        let mut node = Node::alone(lab, config)?;
        node.options = node.options.env("PATH", &programs.path());
        let node = node;
        let list = || node.run("nft", &["-s", "list", "ruleset"]);
        for (writes, lines) in [(1.0, 1), (0.0, 2)] {
            let daemon = node.start()?;
            throughout(LOOKS, "the rules stay as they were written once", || {
                let listed = list()?;
                ensure!(
                    listed.contains("10.244.0.0/16") && !listed.contains("random"),
                    "{config}: {listed}"
                );
                ensure!(
                    daemon.metric("flannel_rule_writes_total")? == writes,
                    "{}",
                    daemon.log()
                );
                Ok(())
            })?;
            ensure!(
                lines_with(&daemon.log(), "cannot use random ports") == lines,
                "once a start: {}",
                daemon.log()
            );
        }
        Ok(())
    })
}

/// The daemon keeps its iptables variant, even if the system's choice changes, and logs the variant's name.
#[test]
fn iptables_variant_is_kept_when_the_system_chooses_another() {
    Lab::run("variant", |lab| {
        let node = Node::alone(lab, IPTABLES)?;
        node.host.netns().sh("iptables-legacy -t nat -N KUBE-SERVICES; iptables-legacy -t nat -A KUBE-SERVICES -j RETURN")?;
        node.host.netns().sh("iptables-nft -N DOCKER; iptables-nft -A DOCKER -j RETURN")?;
        let daemon = node.start()?;
        let log = daemon.log();
        ensure!(log.contains("using iptables (legacy) for traffic rules: it holds rules of kube-proxy or kubelet"), "{log}");
        ensure!(lines_with(&log, "both variants of iptables hold rules of other programs (nf_tables: DOCKER; legacy: KUBE-SERVICES)") == 1, "{log}");
        let legacy = || node.run("iptables-legacy-save", &[]).unwrap().contains("FLANNEL-POSTRTG");
        let nft = || node.run("iptables-nft-save", &[]).unwrap().contains("FLANNEL");
        ensure!(legacy() && !nft());
        // Removes the rules that determined the choice, and ours.
        node.host.netns().sh("iptables-legacy -t nat -F; iptables-legacy -t nat -X")?;
        until("repaired where it was", &legacy)?;
        ensure!(!nft());
        Ok(())
    })
    .unwrap();
}

#[test]
fn both_variants_filled_by_others_are_reported_once() {
    Lab::run("filled", |lab| {
        let lan = lab.switch("lan")?;
        let node = Node::build(lab, &lan, 1, IptablesNft)?;
        super::switch::with_rules_of_others(&node)?;
        let daemon = node.start()?;
        until("the log says so", || !complaints(&daemon).is_empty())?;
        throughout(LOOKS, "it is logged once", || {
            let complaints = complaints(&daemon);
            ensure!(
                complaints.len() == 1
                    && complaints[0].contains("legacy")
                    && complaints[0].contains("nf_tables"),
                "{complaints:#?}"
            );
            Ok(())
        })?;
        ensure!(node.has_rules(IptablesNft) && !node.has_rules(IptablesLegacy));
        Ok(())
    })
    .unwrap();
}

scenarios! { rules_without_comment_are_reported_and_stay;
    rules_without_comment_are_reported_and_stay_with_iptables => IPTABLES,
    rules_without_comment_are_reported_and_stay_with_nftables => NFTABLES,
}

fn rules_without_comment_are_reported_and_stay(config: &str) -> Result<()> {
    Lab::run("uncommented", |lab| {
        let node = Node::alone(lab, config)?;
        node.host.netns().sh(
            "iptables -t nat -A POSTROUTING -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE; iptables -A FORWARD -d 10.244.0.0/16 -j ACCEPT",
        )?;
        let before = node.run("iptables-save", &[])?;
        let daemon = node.start()?;
        until("the log names them", || {
            daemon.log().contains("before v0.17")
        })?;
        let log = daemon.log();
        let after = node.run("iptables-save", &[])?;
        for line in before.lines().filter(|line| line.starts_with("-A")) {
            ensure!(after.contains(line), "{line} is gone");
        }
        // The printed commands work as pasted.
        let line = log
            .lines()
            .find(|line| line.contains("before v0.17"))
            .context("the line")?;
        let commands: Vec<&str> = line
            .split("remedy=\"")
            .nth(1)
            .context("the commands")?
            .trim_end_matches('"')
            .split("; ")
            .collect();
        ensure!(commands.len() == 2, "{commands:?}");
        for command in commands {
            node.host.netns().sh(command)?;
        }
        Ok(())
    })
}
