//! Tests of flanneld's checks of its own host: findings appear and disappear with their causes. If
//! `--ip-blackhole-route` is set, no packet to an unassigned pod address uses the default route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{
    Netns, Node, PingOptions, Programs, Scene, Uplink, Xtables, ping_address, stdout_and_stderr,
    until, until_ok,
};

use crate::healing::scenarios;

const DUAL: &str = r#"{"EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd10:244::/48","Backend":{"Type":"vxlan"}}"#;

fn v4_vxlan_net_conf(nftables: bool) -> String {
    format!(
        r#"{{"Network":"10.244.0.0/16","EnableNFTables":{nftables},"Backend":{{"Type":"vxlan"}}}}"#
    )
}

fn ping_gets_reply(from: &Netns, to: IpAddr) -> Result<bool> {
    let options = PingOptions::default().timeout(Duration::from_millis(700));
    Ok(ping_address(from, to, &options)?.is_some())
}

/// Waits until the daemon reports this number of findings for each check.
fn wait_for_finding_counts(node: &Node, counts: &[(&str, u32)]) -> Result<()> {
    counts.iter().try_for_each(|(check, count)| {
        until_ok(&format!("{check} has {count} findings"), || {
            let now = node.daemon()?.findings(check)?;
            ensure!(now == Some(*count), "{now:?}");
            Ok(())
        })
    })
}

#[test]
fn packets_to_unassigned_addresses_skip_the_default_route() -> Result<()> {
    Scene::with_title("blackhole").net(DUAL).without_daemons().run(|s| {
        let gateway = s.lab.create_host("gw", &[Uplink::enp0s8(&s.lan, 9)?])?;
        gateway.netns().sh("nft 'table inet seen { chain c { type filter hook prerouting priority 0; ip daddr 10.244.0.0/16 counter; ip6 daddr fd10:244::/48 counter; }; }'")?;
        // The number of packets for the pod network that reached the gateway.
        let count = || -> Result<u64> {
            let counts = gateway.netns().sh("nft list table inet seen | sed -n 's/.* packets \\([0-9]*\\) .*/\\1/p'")?;
            counts.lines().map(|count| Ok(count.parse::<u64>()?)).sum()
        };
        s[0].sh("ip route add default via 192.168.56.109; ip -6 route add default via fd00:56::109")?;
        s[0].start_daemon()?;
        let env = s[0].daemon()?.subnet_env()?;
        let nobody: [IpAddr; 2] = [
            Ipv4Addr::from(u32::from(env.subnet.context("a subnet")?.network()) + 77).into(),
            Ipv6Addr::from(u128::from(env.v6_subnet.context("a subnet")?.network()) + 77).into(),
        ];
        // Without the flag they leave.
        for address in nobody {
            until("they leave by the default route", || {
                let before = count().unwrap_or_default();
                ping_gets_reply(s[0].netns(), address).is_ok_and(|is| !is) && count().is_ok_and(|now| now > before)
            })?;
        }
        s[0].stop_daemon()?;
        let plain = s[0].options.clone();
        s[0].change_options(|options| options.arg("--ip-blackhole-route"));
        s[0].start_daemon()?;
        let before = count()?;
        for address in nobody {
            let text = stdout_and_stderr(&s[0].netns().output("ping", &["-n", "-c1", "-W5", &address.to_string()])?);
            ensure!(text.contains("Invalid argument"), "not refused at once: {text}");
        }
        // The route of the first pod's bridge takes precedence over the blackhole.
        s.start_daemons_and_connected_pods()?;
        ensure!(count()? == before, "a packet left by the default route");
        s.require_no_errors()?;
        // Without the flag, flanneld removes the blackholes.
        s[0].options = plain;
        s[0].restart_daemon()?;
        ensure!(s[0].sh("ip route show type blackhole; ip -6 route show type blackhole")?.is_empty());
        Ok(())
    })
}

#[test]
fn finding_is_logged_when_it_appears_and_disappears() -> Result<()> {
    Scene::with_title("findings").nodes(1).net(DUAL).without_daemons().run(|s| {
        let set =
            |s: &Scene<'_>, key: &str, value| s[0].netns().sysctl(&format!("net/{key}"), value);
        set(s, "ipv4/ip_forward", "0")?;
        set(s, "bridge/bridge-nf-call-ip6tables", "0")?;
        set(s, "ipv4/conf/all/rp_filter", "1")?;
        s[0].start_daemon()?;
        wait_for_finding_counts(
            &s[0],
            &[
                ("ip-forward", 1),
                ("ipv6-forwarding", 0),
                ("bridge-nf-call", 1),
                ("rp-filter", 0),
                ("br-netfilter", 0),
                ("ufw", 0),
            ],
        )?;
        s[0].require_ready()?;
        let set_unasked = s[0].sh("cat /proc/sys/net/ipv4/ip_forward")?;
        ensure!(set_unasked.trim() == "0", "{set_unasked}");
        let findings = s[0].status("/findings")?.to_string();
        ensure!(findings.contains("sysctl -w net.ipv4.ip_forward=1"), "{findings}");
        let count = |s: &Scene<'_>, message: &str| {
            let log = s[0].daemon()?.log();
            Ok::<_, anyhow::Error>(
                log.lines()
                    .filter(|line| line.contains(message) && line.contains(" check=ip-forward "))
                    .count(),
            )
        };
        for round in 1..=2 {
            wait_for_finding_counts(&s[0], &[("ip-forward", 1)])?;
            set(s, "ipv4/ip_forward", "1")?;
            wait_for_finding_counts(&s[0], &[("ip-forward", 0)])?;
            until("its end is logged", || {
                count(s, "is resolved").is_ok_and(|times| times == round)
            })?;
            ensure!(count(s, "has a problem")? == round, "{}", s[0].daemon()?.log());
            set(s, "ipv4/ip_forward", "0")?;
        }
        Ok(())
    })
}

#[test]
fn firewalls_are_reported_by_name() -> Result<()> {
    Scene::with_title("firewalls").nodes(1).net(DUAL).without_daemons().run(|s| {
        s[0].sh("nft 'table inet firewalld {
                 chain input_zones { }; chain forward_zones { }
                 chain filter_INPUT { type filter hook input priority 10; iifname lo accept; ip6 nexthdr icmpv6 accept; jump input_zones; reject; }
                 chain filter_FORWARD { type filter hook forward priority 10; jump forward_zones; reject; }; }'
             iptables -N ufw-before-input; iptables -A INPUT -j ufw-before-input; iptables -P INPUT DROP; iptables -I INPUT -i lo -j ACCEPT
             iptables -N DOCKER-USER; iptables -A FORWARD -j DOCKER-USER; iptables -P FORWARD DROP
             iptables -A FORWARD -m comment --comment 'the rest' -j REJECT --reject-with icmp-host-prohibited")?;
        for (conf, policy) in [(DUAL, 0), (&v4_vxlan_net_conf(true), 1)] {
            s.store.configure(conf)?;
            s[0].start_daemon()?;
            wait_for_finding_counts(&s[0], &[("firewalld", 1), ("ufw", 1), ("forward-reject", 1), ("forward-policy", policy)])?;
            s[0].require_ready()?;
            s[0].stop_daemon()?;
        }
        // Applies the remedies. firewalld does not run here, so the rules that it would add are added directly.
        s[0].sh("nft add rule inet firewalld input_zones udp dport 8472 accept; nft add rule inet firewalld forward_zones ip saddr 10.244.0.0/16 accept
             iptables -N ufw-user-input; iptables -A ufw-before-input -j ufw-user-input
             iptables -A ufw-user-input -s 192.168.56.0/24 -p udp --dport 8472 -j ACCEPT
             iptables -I DOCKER-USER -s 10.244.0.0/16 -j ACCEPT; iptables -I DOCKER-USER -d 10.244.0.0/16 -j ACCEPT")?;
        s[0].start_daemon()?;
        wait_for_finding_counts(&s[0], &[("firewalld", 0), ("ufw", 0), ("forward-reject", 0), ("forward-policy", 0)])
    })
}

scenarios! { nftables_firewall_is_noticed;
    nftables_firewall_is_noticed_with_iptables_rules => false,
    nftables_firewall_is_noticed_with_nftables_rules => true,
}

/// flanneld reports an nftables chain with policy drop soon after the chain appears, whether flanneld's rules are in iptables or in nftables.
/// The finding disappears soon after the chain accepts pods' packets.
fn nftables_firewall_is_noticed(nftables: bool) -> Result<()> {
    Scene::with_title("wall").net(&v4_vxlan_net_conf(nftables)).without_daemons().run(|s| {
        // iptables-legacy is left out, because its rules send no netlink events. flanneld lists the firewalls every 30 s, or after an event.
        let path = Programs::create_empty(s.lab, "nft")?.with_nft()?.with_iptables(Xtables::Nft)?.path();
        for node in &mut s.nodes {
            node.change_options(|options| options.env("PATH", &path));
        }
        s.start_daemons_and_connected_pods()?;
        let passes = || ping_gets_reply(s[1].pods[0].netns(), s[0].pods[0].address()?);
        wait_for_finding_counts(&s[0], &[("forward-policy", 0)])?;
        for family in ["inet", "ip"] {
            s[0].sh(&format!("nft 'table {family} wall {{ chain gate {{ type filter hook forward priority 7; policy drop; }}; }}'"))?;
            wait_for_finding_counts(&s[0], &[("forward-policy", 1)])?;
            ensure!(!passes()?, "it stops no packets");
            let log = s[0].daemon()?.log();
            let line = log.lines().rfind(|line| line.contains(&format!("{family} wall gate"))).context("a log line")?;
            // Skips the part of the remedy for the next boot, which would change files of this machine.
            let remedy = line.split_once("remedy=\"").and_then(|(_, remedy)| remedy.split("; for file in").next());
            s[0].sh(&remedy.context("a remedy")?.replace("\\\"", "\""))?;
            ensure!(passes()?, "the remedy does not help: {line}");
            wait_for_finding_counts(&s[0], &[("forward-policy", 0)])?;
            s[0].sh(&format!("nft delete table {family} wall"))?;
        }
        s[0].require_ready()?;
        s.require_no_errors()
    })
}

#[test]
fn sysctls_are_set_on_request_and_kept() -> Result<()> {
    const KEYS: [&str; 4] = [
        "net/ipv4/ip_forward",
        "net/ipv6/conf/all/forwarding",
        "net/bridge/bridge-nf-call-iptables",
        "net/bridge/bridge-nf-call-ip6tables",
    ];
    Scene::with_title("sysctls")
        .nodes(1)
        .net(DUAL)
        .daemon_arg("--set-sysctls")
        .without_daemons()
        .run(|s| {
            for key in KEYS {
                s[0].netns().sysctl(key, "0")?;
            }
            s[0].netns().sysctl("net/ipv6/conf/enp0s8/accept_ra", "1")?;
            // They are set before the daemon is ready, because pods may start then. The router is still listened to.
            s[0].start_daemon()?;
            let now = s[0].sh(&format!(
                "cd /proc/sys; cat {} net/ipv6/conf/enp0s8/accept_ra",
                KEYS.join(" ")
            ))?;
            ensure!(now.split_whitespace().eq(["1", "1", "1", "1", "2"]), "{now}");
            for _ in 0..2 {
                s[0].netns().sysctl("net/ipv4/ip_forward", "0")?;
                s[0].wait_output_contains("cat /proc/sys/net/ipv4/ip_forward", "1")?;
            }
            let log = s[0].daemon()?.log();
            ensure!(
                log.contains("name=net.ipv4.ip_forward from=0 to=1")
                    && log.contains("name=net/ipv6/conf/enp0s8/accept_ra from=1 to=2"),
                "{log}"
            );
            // A change by another program is logged, and not each time.
            ensure!(log.matches("changed a sysctl").count() == 1, "{log}");
            // The doctor may have run while the sysctl was wrong.
            wait_for_finding_counts(&s[0], &[("ip-forward", 0)])?;
            s.require_no_errors()
        })
}
