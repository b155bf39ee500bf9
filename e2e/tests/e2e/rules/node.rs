//! A node for tests of traffic rules: its programs, its rules, and the warnings in its log.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use lab::{Flanneld, Host, Probe, ProbeOptions, Programs, Scene, SceneOptions, Uplink, Xtables};

/// Guard rules for the tunnel's port.
pub(super) const GUARD: [&str; 3] = ["--encap-peers=drop", "--encap-notrack", "--encap-bar-pods"];

/// What applies the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Applier {
    IptablesNft,
    IptablesLegacy,
    Nftables,
}
pub(super) use Applier::{IptablesLegacy, IptablesNft, Nftables};

impl Applier {
    pub(super) fn net_conf(self) -> String {
        let nftables = self == Nftables;
        format!(
            r#"{{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48","EnableNFTables":{nftables},"Backend":{{"Type":"vxlan"}}}}"#
        )
    }

    /// The variant that the command `iptables` runs on a host where this program applies the rules.
    pub(super) fn xtables(self) -> Xtables {
        if self == IptablesLegacy { Xtables::Legacy } else { Xtables::Nft }
    }
}

/// Stopped, with masquerade rules that it checks each second.
pub(super) fn masquerading_node_scene(title: &str, applier: Applier) -> SceneOptions<'static> {
    let flags = Scene::with_title(title).daemon_arg("--ip-masq").daemon_arg("--iptables-resync=1");
    flags.nodes(1).net(&applier.net_conf()).without_daemons()
}

/// The node finds all programs.
pub(super) fn run_on_stopped_masquerading_node(
    applier: Applier,
    flags: &[&str],
    work: impl FnOnce(&mut Scene<'_>) -> Result<()>,
) -> Result<()> {
    masquerading_node_scene("rules", applier).run(|s| {
        let path = Programs::with_both_iptables_variants(s.lab, "all", applier.xtables())?.path();
        s[0].change_options(|options| {
            let options = options.env("PATH", &path);
            flags.iter().fold(options, |options, flag| options.arg(flag))
        });
        work(s)
    })
}

/// The rules of nftables and of both variants of iptables, without counters.
pub(crate) fn firewall_rules(host: &Host) -> Result<String> {
    // One family at a time, because the order in which the two tables are created is undefined.
    host.netns().sh(
        r"nft -s list ruleset ip; nft -s list ruleset ip6
        for family in iptables ip6tables; do $family-legacy-save | grep -v '^#' | sed 's/ \[.*//'; done",
    )
}

/// Rules or chains of flannel for `applier`.
pub(super) fn has_flannel_rules(host: &Host, applier: Applier) -> Result<bool> {
    let listed = host.netns().sh(match applier {
        IptablesNft => "iptables-nft-save; ip6tables-nft-save",
        IptablesLegacy => "iptables-legacy-save; ip6tables-legacy-save",
        Nftables => "nft list tables",
    })?;
    Ok(listed.to_lowercase().contains("flannel"))
}

/// Warnings and errors in the log, without the one that a node is not ready: it only repeats the reasons of others.
pub(super) fn logged_warnings_and_errors(daemon: &Flanneld) -> Vec<String> {
    let log = daemon.log();
    let is_complaint = |line: &&str| {
        let mut words = line.split_whitespace().take(3);
        words.any(|word| matches!(word, "WARN" | "ERROR"))
            && !line.contains("WARN not ready reason=")
    };
    log.lines().filter(is_complaint).map(str::to_owned).collect()
}

/// Runs from a pod of the first node through masquerade rules to a machine outside, each packet in a separate connection.
pub(super) fn start_masqueraded_probe(s: &mut Scene<'_>) -> Result<Probe> {
    let outside = s.lab.create_host("outside", &[Uplink::enp0s8(&s.lan, 50)?])?;
    let node = IpAddr::V4(s[0].v4()?);
    // There are a thousand new connections a second, so conntrack must forget them soon.
    s[0].netns().sysctl("net/netfilter/nf_conntrack_udp_timeout", "3")?;
    let pod = s[0].create_pod("p1")?;
    let each = ProbeOptions::default().interval(Duration::from_millis(1));
    let target = (outside.netns(), IpAddr::V4(outside.v4()?));
    let probe = Probe::start_between_addresses(
        (pod.netns(), pod.address()?),
        target,
        &each.new_port_per_packet().seen_as(node),
    )?;
    probe.wait_flowing()?;
    Ok(probe)
}
