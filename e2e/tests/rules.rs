//! Proves that traffic rules are Go flannel's to the letter, work on packets, heal, and are not touched where they are right.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "clippy.toml allows it in tests, but does not know their helpers")]

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use e2e::{FlanneldOptions, Host, Lab, Launch, PingOptions, Store, eventually, ping};

const DEADLINE: Duration = Duration::from_secs(20);
const IPTABLES: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#;
const NFTABLES: &str = r#"{"Network":"10.244.0.0/16","EnableNFTables":true,"Backend":{"Type":"host-gw"}}"#;

/// The four listings of a capture.
fn listings(host: &Host) -> String {
    let mut out = String::new();
    for (program, table) in [("iptables", "nat"), ("iptables", "filter"), ("ip6tables", "nat"), ("ip6tables", "filter")] {
        out.push_str(&format!("# {program} -t {table} -S\n"));
        out.push_str(&host.netns().exec(program, &["-t", table, "-S"]).unwrap());
    }
    out
}

fn store(lab: &Lab, config: &str) -> Store {
    let store = Store::dir(&lab.folder("leases").unwrap());
    store.configure(config).unwrap();
    store
}

fn reaches(from: &e2e::Netns, to: IpAddr) -> bool {
    ping(from, to, &PingOptions::default().timeout(Duration::from_millis(700))).unwrap().is_some()
}

#[test]
fn the_kernel_lists_what_go_flannel_left_there() {
    for case in ["masq-plain", "masq-dual", "masq-noforward", "vxlan-dual"] {
        let lab = Lab::new("rules").unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flanneld/tests/golden").join(case);
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
        let store = store(&lab, read("net-conf.json").trim());
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 1).unwrap();
        let mut options = FlanneldOptions::new(&store).iface("enp0s8");
        for flag in read("flags").split_whitespace() {
            options = options.arg(flag);
        }
        let daemon = hosts[0].flanneld(&options).unwrap();
        let ours = daemon.subnet_env().unwrap();
        let capture = read("subnet.env");
        let mut wanted = read("iptables.txt");
        for (key, own) in [("FLANNEL_SUBNET=", ours.subnet.map(ipnet::IpNet::V4)), ("FLANNEL_IPV6_SUBNET=", ours.v6_subnet.map(ipnet::IpNet::V6))] {
            let Some(captured) = capture.lines().find_map(|line| line.strip_prefix(key)) else { continue };
            let captured: ipnet::IpNet = captured.parse().unwrap();
            wanted = wanted.replace(&captured.trunc().to_string(), &own.unwrap().trunc().to_string());
        }
        assert_eq!(listings(&hosts[0]), wanted, "{case}");
        assert!(daemon.errors().is_empty(), "{:?}", daemon.errors());
    }
}

/// A host outside knows no way to pods: it answers only what comes under the node's address.
#[test]
fn pods_reach_the_outside_by_the_nodes_address() {
    for config in [IPTABLES, NFTABLES] {
        let lab = Lab::new("rules").unwrap();
        let store = store(&lab, config);
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 3).unwrap();
        let outside = IpAddr::V4(hosts[2].v4().unwrap());
        let options = FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq");
        let one = hosts[0].flanneld(&options).unwrap();
        let two = hosts[1].flanneld(&options.clone().arg("--non-masquerade-cidr=192.168.56.103/32")).unwrap();
        let (pod_one, pod_two) = (hosts[0].pod("p1", &one.subnet_env().unwrap()).unwrap(), hosts[1].pod("p2", &two.subnet_env().unwrap()).unwrap());
        assert!(reaches(pod_one.netns(), outside), "{config}: masqueraded");
        assert!(!reaches(pod_two.netns(), outside), "{config}: excepted");
        assert!(reaches(pod_one.netns(), pod_two.address().unwrap()), "{config}: pods reach pods");
        // A policy of DROP, as Docker sets it, stops nothing of ours.
        hosts[0].netns().exec("iptables", &["-P", "FORWARD", "DROP"]).unwrap();
        if config == IPTABLES {
            assert!(reaches(pod_one.netns(), pod_two.address().unwrap()), "the forward rules let it pass");
        }
    }
}

#[test]
fn a_restart_writes_nothing_and_damage_heals() {
    for (config, damages) in [
        (
            IPTABLES,
            &["iptables -t nat -F", "iptables -F FLANNEL-FWD", "iptables -t nat -D FLANNEL-POSTRTG 2", "iptables -F", "nft flush ruleset"][..],
        ),
        (
            NFTABLES,
            &[
                "nft flush ruleset",
                "nft delete table ip flannel-ipv4",
                "nft flush chain ip flannel-ipv4 postrtg",
                "nft add rule ip flannel-ipv4 postrtg drop",
            ][..],
        ),
    ] {
        let lab = Lab::new("rules").unwrap();
        let store = store(&lab, config);
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 1).unwrap();
        let host = &hosts[0];
        let options = FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq").arg("--iptables-resync=1");
        let mut daemon = host.flanneld(&options).unwrap();
        // Somebody else's rules, which are never touched by us.
        let list = || host.netns().exec("nft", &["-s", "list", "ruleset"]).unwrap();
        let right = list();
        assert!(right.contains("10.244.0.0/16"), "{right}");
        let monitor = host.spawn("monitor", &Launch::new("nft").args(["monitor"])).unwrap();
        for kill in [false, true] {
            if kill {
                daemon.kill().unwrap();
            } else {
                assert!(daemon.terminate(DEADLINE).unwrap().success());
            }
            drop(daemon);
            daemon = host.flanneld(&options).unwrap();
        }
        // Two looks later.
        let looks = daemon.metric("flannel_uptime_seconds").unwrap();
        eventually(DEADLINE, "time passes", || daemon.metric("flannel_uptime_seconds").unwrap() >= looks + 3.0).unwrap();
        let told = monitor.log();
        assert!(!told.contains("add ") && !told.contains("delete "), "{config}: a restart wrote: {told}");
        assert_eq!(list(), right);
        for damage in damages {
            // Stopped meanwhile, or it heals before we look.
            daemon.stop().unwrap();
            host.netns().sh(damage).unwrap();
            assert_ne!(list(), right, "{damage} damages");
            daemon.cont().unwrap();
            // Three repairs a minute are made at once; this test makes more, so each has a daemon of its own.
            eventually(DEADLINE, &format!("healed after {damage}"), || list() == right).unwrap();
            daemon.kill().unwrap();
            drop(daemon);
            daemon = host.flanneld(&options).unwrap();
        }
    }
}

#[test]
fn switching_leaves_nothing_behind() {
    let lab = Lab::new("rules").unwrap();
    let store = store(&lab, IPTABLES);
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 1).unwrap();
    let host = &hosts[0];
    let options = FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq");
    host.netns().exec("iptables", &["-A", "FORWARD", "-s", "1.2.3.4", "-j", "DROP"]).unwrap();
    // What Go flannel leaves in legacy tables counts too.
    host.netns().sh("iptables-legacy -N FLANNEL-FWD; iptables-legacy -A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT; iptables-legacy -A FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD").unwrap();
    let has = |what: &str| host.netns().exec("nft", &["list", "ruleset"]).unwrap().contains(what);
    let legacy = || host.netns().exec("iptables-legacy-save", &[] as &[&str]).unwrap().contains("FLANNEL");
    for (config, iptables) in [(IPTABLES, true), (NFTABLES, false), (IPTABLES, true)] {
        store.configure(config).unwrap();
        let daemon = host.flanneld(&options).unwrap();
        eventually(DEADLINE, "one set is there, and no other", || {
            has("FLANNEL-POSTRTG") == iptables && has("table ip flannel-ipv4") != iptables && !legacy()
        })
        .unwrap();
        assert!(has("1.2.3.4"), "what is not ours stays");
        drop(daemon);
    }
}
