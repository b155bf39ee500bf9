//! Tests of flanneld's checks of its own host: findings appear and disappear with their causes. If
//! `--ip-blackhole-route` is set, no packet to an unassigned pod address uses the default route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use lab::{
    Bed, FlanneldOptions, Host, Lab, PingOptions, Programs, Store, SubnetEnv, Uplink, Xtables,
    code_or_text, ping, texts, until,
};

fn store(lab: &Lab, config: &str) -> Store {
    let store = Store::dir(&lab.folder("leases").unwrap());
    store.configure(config).unwrap();
    store
}

fn reaches(from: &lab::Netns, to: IpAddr) -> bool {
    ping(
        from,
        to,
        &PingOptions::default().timeout(Duration::from_millis(700)),
    )
    .unwrap()
    .is_some()
}

/// Returns one unassigned address from each of the node's subnets.
fn unassigned_addresses(env: &SubnetEnv) -> [IpAddr; 2] {
    let v4 = Ipv4Addr::from(u32::from(env.subnet.unwrap().network()) + 77);
    let v6 = Ipv6Addr::from(u128::from(env.v6_subnet.unwrap().network()) + 77);
    [v4.into(), v6.into()]
}

/// Returns the number of packets for the pod network that reached a host.
fn counted(gateway: &Host) -> u64 {
    let listing = gateway
        .netns()
        .exec("nft", &["list", "table", "inet", "seen"])
        .unwrap();
    let words: Vec<&str> = listing.split_whitespace().collect();
    words
        .windows(2)
        .filter(|pair| pair[0] == "packets")
        .map(|pair| pair[1].parse::<u64>().unwrap())
        .sum()
}

#[test]
fn packets_to_unassigned_addresses_skip_the_default_route() {
    for backend in ["vxlan", "alloc"] {
        let lab = Lab::new("blackhole").unwrap();
        let config = format!(
            r#"{{"EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd10:244::/48","Backend":{{"Type":"{backend}"}}}}"#
        );
        let store = store(&lab, &config);
        let lan = lab.switch("lan").unwrap();
        let gateway = lab.host("gw", &[Uplink::enp0s8(&lan, 9).unwrap()]).unwrap();
        let leaving = Uplink::enp0s8(&lan, 1)
            .unwrap()
            .gateway("192.168.56.109")
            .unwrap()
            .gateway("fd00:56::109")
            .unwrap();
        let host = lab.host("h1", &[leaving]).unwrap();
        let other = lab.host("h2", &[Uplink::enp0s8(&lan, 2).unwrap()]).unwrap();
        gateway
            .netns()
            .feed("nft", &["-f", "-"], "table inet seen { chain c { type filter hook prerouting priority 0; ip daddr 10.244.0.0/16 counter; ip6 daddr fd10:244::/48 counter; }; }")
            .unwrap();
        let options = FlanneldOptions::new(&store).iface("enp0s8");
        let daemon = host.flanneld(&options).unwrap();
        let env = daemon.subnet_env().unwrap();
        for nobody in unassigned_addresses(&env) {
            assert!(!reaches(host.netns(), nobody));
        }
        // Waits for both packets before the count below: a packet may wait for its neighbour longer than ping waits for a reply.
        until("without the flag they leave", || counted(&gateway) >= 2).unwrap();
        drop(daemon);

        let before = counted(&gateway);
        let daemon = host
            .flanneld(&options.clone().arg("--ip-blackhole-route"))
            .unwrap();
        for nobody in unassigned_addresses(&env) {
            let output = host
                .netns()
                .output("ping", &["-n", "-c1", "-W5", &nobody.to_string()])
                .unwrap();
            let text = texts(&output);
            assert!(text.contains("Invalid argument"), "refused at once: {text}");
        }
        if backend == "vxlan" {
            let far = other.flanneld(&options).unwrap();
            let pod = other.pod("p1", &far.subnet_env().unwrap()).unwrap();
            for nobody in unassigned_addresses(&env) {
                assert!(!reaches(pod.netns(), nobody));
            }
            // The route of the first pod's bridge takes precedence over the blackhole.
            let near = host.pod("p1", &env).unwrap();
            for target in near.addresses() {
                until("pods reach each other", || reaches(pod.netns(), target)).unwrap();
            }
        }
        assert_eq!(
            counted(&gateway),
            before,
            "{backend}: none left by the default route"
        );
        assert!(daemon.errors().is_empty(), "{:?}", daemon.errors());
        drop(daemon);
        // Without the flag, flanneld removes the blackholes.
        let _daemon = host.flanneld(&options).unwrap();
        assert_eq!(
            host.netns()
                .sh("ip route show type blackhole; ip -6 route show type blackhole")
                .unwrap(),
            ""
        );
    }
}

const DUAL: &str = r#"{"EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd10:244::/48","Backend":{"Type":"vxlan"}}"#;

/// Returns the number of findings that the daemon reports for a check.
fn findings(daemon: &lab::Flanneld, check: &str) -> Option<u32> {
    daemon.findings(check).ok().flatten()
}

fn sysctl(host: &Host, key: &str) -> String {
    host.netns()
        .exec("cat", &[format!("/proc/sys/{key}")])
        .unwrap()
        .trim()
        .to_owned()
}

#[test]
fn finding_is_logged_when_it_appears_and_disappears() {
    let lab = Lab::new("findings").unwrap();
    let store = store(&lab, DUAL);
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 1).unwrap();
    let host = &hosts[0];
    host.netns().sysctl("net/ipv4/ip_forward", "0").unwrap();
    host.netns()
        .sysctl("net/bridge/bridge-nf-call-ip6tables", "0")
        .unwrap();
    host.netns()
        .sysctl("net/ipv4/conf/all/rp_filter", "1")
        .unwrap();
    let daemon = host
        .flanneld(&FlanneldOptions::new(&store).iface("enp0s8"))
        .unwrap();
    for (check, count) in [
        ("ip-forward", 1),
        ("ipv6-forwarding", 0),
        ("bridge-nf-call", 1),
        ("rp-filter", 0),
        ("br-netfilter", 0),
        ("ufw", 0),
    ] {
        until(check, || findings(&daemon, check) == Some(count)).unwrap();
    }
    assert!(daemon.is_ready(), "readiness is another matter");
    assert_eq!(
        sysctl(host, "net/ipv4/ip_forward"),
        "0",
        "nothing is set unasked"
    );
    let status: serde_json::Value =
        serde_json::from_str(&daemon.get("/status").unwrap().1).unwrap();
    let reported = status["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|finding| finding["check"] == "ip-forward")
        .unwrap();
    assert_eq!(
        reported["remedy"]["commands"][0], "sysctl -w net.ipv4.ip_forward=1",
        "{reported}"
    );
    let times = |message: &str| {
        let error = code_or_text("error=ip-forward", "error=\"net.ipv4.ip_forward is 0\"");
        let log = daemon.log();
        let lines = log
            .lines()
            .filter(|line| line.contains(message) && line.contains(" check=ip-forward "));
        lines.filter(|line| line.contains(error)).count()
    };
    for round in 1..=2 {
        until("it is named", || times("this node has a problem") == round).unwrap();
        host.netns().sysctl("net/ipv4/ip_forward", "1").unwrap();
        until("it is gone", || findings(&daemon, "ip-forward") == Some(0)).unwrap();
        until("its end is logged", || {
            times("a problem of this node is resolved") == round
        })
        .unwrap();
        assert_eq!(times("this node has a problem"), round, "logged once");
        host.netns().sysctl("net/ipv4/ip_forward", "0").unwrap();
    }
}

#[test]
fn firewalls_are_reported_by_name() {
    const NFTABLES: &str =
        r#"{"Network":"10.244.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}"#;
    let lab = Lab::new("firewalls").unwrap();
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 1).unwrap();
    let host = &hosts[0];
    host.netns()
        .sh("nft 'table inet firewalld {
                 chain input_zones { }; chain forward_zones { }
                 chain filter_INPUT { type filter hook input priority 10; iifname lo accept; ip6 nexthdr icmpv6 accept; jump input_zones; reject; }
                 chain filter_FORWARD { type filter hook forward priority 10; jump forward_zones; reject; }; }'
             iptables -N ufw-before-input; iptables -A INPUT -j ufw-before-input; iptables -P INPUT DROP; iptables -I INPUT -i lo -j ACCEPT
             iptables -N DOCKER-USER; iptables -A FORWARD -j DOCKER-USER; iptables -P FORWARD DROP
             iptables -A FORWARD -m comment --comment 'the rest' -j REJECT --reject-with icmp-host-prohibited")
        .unwrap();
    for (config, policy) in [(DUAL, 0), (NFTABLES, 1)] {
        let store = store(&lab, config);
        let daemon = host
            .flanneld(&FlanneldOptions::new(&store).iface("enp0s8"))
            .unwrap();
        for (check, count) in [
            ("firewalld", 1),
            ("ufw", 1),
            ("forward-reject", 1),
            ("forward-policy", policy),
        ] {
            until(check, || findings(&daemon, check) == Some(count)).unwrap();
        }
        assert!(
            daemon.is_ready()
                && daemon.log().contains(
                    "ufw allow in on enp0s8 from 192.168.56.0/24 to any port 8472 proto udp"
                )
        );
    }
    // Applies the remedies that the daemon prints. firewalld does not run here, so the rules that it would add are added directly.
    host.netns()
        .sh("nft add rule inet firewalld input_zones udp dport 8472 accept; nft add rule inet firewalld forward_zones ip saddr 10.244.0.0/16 accept
             iptables -N ufw-user-input; iptables -A ufw-before-input -j ufw-user-input
             iptables -A ufw-user-input -s 192.168.56.0/24 -p udp --dport 8472 -j ACCEPT
             iptables -I DOCKER-USER -s 10.244.0.0/16 -j ACCEPT; iptables -I DOCKER-USER -d 10.244.0.0/16 -j ACCEPT")
        .unwrap();
    let store = store(&lab, NFTABLES);
    let daemon = host
        .flanneld(&FlanneldOptions::new(&store).iface("enp0s8"))
        .unwrap();
    for check in ["firewalld", "ufw", "forward-reject", "forward-policy"] {
        until(check, || findings(&daemon, check) == Some(0)).unwrap();
    }
    assert!(
        !daemon
            .log()
            .lines()
            .rev()
            .take_while(|line| !line.contains("flanneld starts"))
            .any(|line| line.contains("this node has a problem"))
    );
}

/// flanneld reports an nftables chain with policy drop soon after the chain appears, whether flanneld's rules are in iptables or in nftables.
/// The finding disappears soon after the chain accepts pods' packets.
#[test]
fn nftables_firewall_is_noticed_with_iptables_rules() {
    a_firewall_in_nftables_is_seen_when_it_comes(false);
}

#[test]
fn nftables_firewall_is_noticed_with_nftables_rules() {
    a_firewall_in_nftables_is_seen_when_it_comes(true);
}

fn a_firewall_in_nftables_is_seen_when_it_comes(nftables: bool) {
    // Shorter than the interval at which flanneld lists the firewalls without an event.
    let config = format!(
        r#"{{"Network":"10.244.0.0/16","EnableNFTables":{nftables},"Backend":{{"Type":"vxlan"}}}}"#
    );
    let lab = Lab::new("firewalls").unwrap();
    let store = store(&lab, &config);
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 2).unwrap();
    // iptables-legacy is left out, because its rules send no netlink events. flanneld lists the firewalls every 30 s, or after an event.
    let programs = Programs::none(&lab, "nft")
        .unwrap()
        .with_nft()
        .unwrap()
        .with_iptables(Xtables::Nft)
        .unwrap();
    let options = FlanneldOptions::new(&store)
        .iface("enp0s8")
        .env("PATH", &programs.path());
    let daemons: Vec<_> = hosts
        .iter()
        .map(|host| host.flanneld(&options).unwrap())
        .collect();
    let (host, daemon) = (&hosts[0], &daemons[0]);
    let pods = Bed::pods(&hosts, &daemons).unwrap();
    let passes = || reaches(pods[1].netns(), pods[0].address().unwrap());
    until("the first look", || {
        findings(daemon, "forward-policy") == Some(0)
    })
    .unwrap();
    until("packets flow", passes).unwrap();
    for family in ["inet", "ip"] {
        host.netns().sh(&format!("nft 'table {family} wall {{ chain gate {{ type filter hook forward priority 7; policy drop; }}; }}'")).unwrap();
        until("it is named", || {
            findings(daemon, "forward-policy") == Some(1)
        })
        .unwrap();
        assert!(!passes(), "and truly stops packets");
        let line = daemon
            .log()
            .lines()
            .rfind(|line| line.contains(&format!("{family} wall gate")))
            .unwrap()
            .to_owned();
        // Skips the part of the remedy for the next boot, which would change files of this machine.
        let remedy = line
            .split_once("remedy=\"")
            .unwrap()
            .1
            .split("; for file in")
            .next()
            .unwrap()
            .replace("\\\"", "\"");
        host.netns().sh(&remedy).unwrap();
        assert!(passes(), "the remedy helps: {remedy}");
        until("its end is logged", || {
            findings(daemon, "forward-policy") == Some(0)
        })
        .unwrap();
        host.netns()
            .sh(&format!("nft delete table {family} wall"))
            .unwrap();
    }
    assert!(
        daemon.is_ready() && daemon.errors().is_empty(),
        "{:?}",
        daemon.errors()
    );
}

#[test]
fn sysctls_are_set_on_request_and_kept() {
    let lab = Lab::new("sysctls").unwrap();
    let store = store(&lab, DUAL);
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 1).unwrap();
    let host = &hosts[0];
    let needed = [
        "net/ipv4/ip_forward",
        "net/ipv6/conf/all/forwarding",
        "net/bridge/bridge-nf-call-iptables",
        "net/bridge/bridge-nf-call-ip6tables",
    ];
    for key in needed {
        host.netns().sysctl(key, "0").unwrap();
    }
    host.netns()
        .sysctl("net/ipv6/conf/enp0s8/accept_ra", "1")
        .unwrap();
    let daemon = host
        .flanneld(
            &FlanneldOptions::new(&store)
                .iface("enp0s8")
                .arg("--set-sysctls"),
        )
        .unwrap();
    // They are set before the daemon is ready, because pods may start then.
    for key in needed {
        assert_eq!(sysctl(host, key), "1", "{key}");
    }
    assert_eq!(
        sysctl(host, "net/ipv6/conf/enp0s8/accept_ra"),
        "2",
        "the router is still listened to"
    );
    for line in [
        "set a sysctl name=net.ipv4.ip_forward from=0 to=1 ",
        "set a sysctl name=net/ipv6/conf/enp0s8/accept_ra from=1 to=2 ",
        "set a sysctl name=net.bridge.bridge-nf-call-iptables from=0 to=1 ",
    ] {
        assert!(daemon.log().contains(line), "{line}");
    }
    for _ in 0..2 {
        host.netns().sysctl("net/ipv4/ip_forward", "0").unwrap();
        until("set again", || sysctl(host, "net/ipv4/ip_forward") == "1").unwrap();
    }
    assert!(
        daemon
            .log()
            .matches(
                "another program changed a sysctl; restored the value name=net.ipv4.ip_forward "
            )
            .count()
            == 1,
        "logged, and not each time"
    );
    // The doctor may have run while the sysctl was wrong.
    until("nothing is found", || {
        findings(&daemon, "ip-forward") == Some(0)
    })
    .unwrap();
    assert!(daemon.errors().is_empty(), "{:?}", daemon.errors());
}
