//! Proves that traffic rules are Go flannel's to the letter, work on packets, heal, and are not touched where they are right.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{FlanneldOptions, Host, Lab, Launch, PingOptions, Store, eventually, ping};

const DEADLINE: Duration = Duration::from_secs(20);
const IPTABLES: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#;
const NFTABLES: &str = r#"{"Network":"10.244.0.0/16","EnableNFTables":true,"Backend":{"Type":"host-gw"}}"#;

const GUARDED_IPTABLES: &str =
    r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","IPv6SubnetLen":64,"Backend":{"Type":"vxlan"}}"#;
const GUARDED_NFTABLES: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","IPv6SubnetLen":64,"EnableNFTables":true,"Backend":{"Type":"vxlan"}}"#;
const GUARDS: [&str; 2] = ["--encap-notrack", "--encap-bar-pods"];

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

fn reaches(from: &lab::Netns, to: IpAddr) -> bool {
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
            GUARDED_IPTABLES,
            &[
                "iptables -t raw -F FLANNEL-ENCAP",
                "ip6tables -t raw -D PREROUTING 1",
                "iptables -t raw -D OUTPUT 1",
                "iptables -t raw -D FLANNEL-ENCAP -s 192.168.56.101 -m comment --comment 'flanneld encap' -j RETURN",
            ][..],
        ),
        (
            GUARDED_NFTABLES,
            &[
                "nft delete element ip flannel-ipv4 peers '{ 192.168.56.101 }'",
                "nft add element ip6 flannel-ipv6 peers '{ fd00::1 }'",
                "nft flush chain ip flannel-ipv4 encap-in",
                "nft delete chain ip6 flannel-ipv6 encap-out",
                "nft flush ruleset",
            ][..],
        ),
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
        let mut options = FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq").arg("--iptables-resync=1");
        if config.contains("vxlan") {
            options = options.arg("--encap-peers=drop").arg(GUARDS[0]).arg(GUARDS[1]);
        }
        let mut daemon = host.flanneld(&options).unwrap();
        // Somebody else's rules, which are never touched by us.
        // A family at a time: which of the two tables is made first is nobody's business.
        let list = || host.netns().sh("nft -s list ruleset ip; nft -s list ruleset ip6").unwrap();
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
            eventually(DEADLINE, "it is counted", || daemon.metric("flannel_rule_repairs_total").unwrap() == 1.0).unwrap();
            assert_eq!(daemon.metric("flannel_rules_at_war").unwrap(), 0.0);
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
    // What Go flannel left in legacy tables is found: that variant is used then, and its rules are right already or become so.
    host.netns().sh("iptables-legacy -N FLANNEL-FWD; iptables-legacy -A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT; iptables-legacy -A FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD").unwrap();
    let has = |what: &str| host.netns().exec("nft", &["list", "ruleset"]).unwrap().contains(what);
    let legacy = || host.netns().exec("iptables-legacy-save", &[] as &[&str]).unwrap().contains("FLANNEL-POSTRTG");
    for (config, iptables, old) in [(IPTABLES, false, true), (NFTABLES, false, false), (IPTABLES, true, false)] {
        store.configure(config).unwrap();
        let daemon = host.flanneld(&options).unwrap();
        eventually(DEADLINE, "one set is there, and no other", || {
            has("FLANNEL-POSTRTG") == iptables && has("table ip flannel-ipv4") != (iptables || old) && legacy() == old
        })
        .unwrap();
        assert!(has("1.2.3.4"), "what is not ours stays");
        drop(daemon);
    }
}

/// A family that the network has no more keeps no rules.
#[test]
fn a_family_that_goes_takes_its_rules_along() {
    let lab = Lab::new("rules").unwrap();
    let dual = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","EnableNFTables":NFT,"Backend":{"Type":"host-gw"}}"#;
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 1).unwrap();
    for (number, (nft, single)) in [("true", NFTABLES), ("false", IPTABLES)].into_iter().enumerate() {
        let folder = lab.folder(&format!("leases-{number}")).unwrap();
        let store = Store::dir(&folder);
        let options = FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq");
        let has = || hosts[0].netns().exec("nft", &["list", "ruleset"]).unwrap().contains("fd00:244::/48");
        store.configure(&dual.replace("NFT", nft)).unwrap();
        drop(hosts[0].flanneld(&options).unwrap());
        assert!(has());
        store.configure(single).unwrap();
        let _daemon = hosts[0].flanneld(&options).unwrap();
        eventually(DEADLINE, "they are gone", || !has()).unwrap();
    }
}

/// A folder with these programs and no others, to be the daemon's PATH. A program with a text is a script.
fn programs(lab: &Lab, name: &str, programs: &[(&str, Option<&str>)]) -> String {
    let folder = lab.folder(name).unwrap();
    for (program, script) in programs {
        let path = folder.join(program);
        match script {
            Some(script) => {
                std::fs::write(&path, script).unwrap();
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
            None => symlink(PathBuf::from("/usr/sbin").join(program), path).unwrap(),
        }
    }
    folder.display().to_string()
}

const NFT_PROGRAMS: [(&str, Option<&str>); 4] =
    [("iptables-nft-save", None), ("iptables-nft-restore", None), ("ip6tables-nft-save", None), ("ip6tables-nft-restore", None)];

const LEGACY_PROGRAMS: [(&str, Option<&str>); 4] =
    [("iptables-legacy-save", None), ("iptables-legacy-restore", None), ("ip6tables-legacy-save", None), ("ip6tables-legacy-restore", None)];

fn told(log: &str, what: &str) -> usize {
    log.lines().filter(|line| line.contains(what)).count()
}

/// nftables mode needs no program of iptables, not even to remove the set that iptables-nft holds.
#[test]
fn nft_alone_removes_the_iptables_set() {
    let lab = Lab::new("rules").unwrap();
    let store = store(&lab, IPTABLES);
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 1).unwrap();
    let host = &hosts[0];
    let options = FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq");
    host.netns().exec("iptables", &["-A", "FORWARD", "-s", "1.2.3.4", "-j", "DROP"]).unwrap();
    drop(host.flanneld(&options).unwrap());
    let list = || host.netns().exec("nft", &["list", "ruleset"]).unwrap();
    assert!(list().contains("FLANNEL-POSTRTG"));
    store.configure(NFTABLES).unwrap();
    let path = programs(&lab, "bin", &[("nft", None)]);
    let daemon = host.flanneld(&options.clone().env("PATH", &path)).unwrap();
    eventually(DEADLINE, "the iptables set is gone", || !list().contains("FLANNEL")).unwrap();
    assert!(list().contains("1.2.3.4") && list().contains("postrtg"), "{}", list());
    assert_eq!(told(&daemon.log(), "WARN"), 0, "{}", daemon.log());
    drop(daemon);
    // Old tables that no program here can read are told, once.
    host.netns().exec("iptables-legacy", &["-A", "FORWARD", "-s", "1.2.3.4", "-j", "DROP"]).unwrap();
    let daemon = host.flanneld(&options.env("PATH", &path)).unwrap();
    eventually(DEADLINE, "it is told", || told(&daemon.log(), "no iptables-legacy") == 1).unwrap();
}

/// Where ports cannot be chosen at random they are not, and a restart finds that right.
#[test]
fn random_ports_are_tried_first() {
    for (config, program) in [(IPTABLES, "iptables-nft-restore"), (NFTABLES, "nft")] {
        let lab = Lab::new("rules").unwrap();
        let store = store(&lab, config);
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 1).unwrap();
        let host = &hosts[0];
        let old = format!(
            "#!/bin/sh\ninput=$(/bin/cat)\ncase \"$input\" in *random*) echo 'unknown option' >&2; exit 2;; esac\nprintf '%s\\n' \"$input\" | /usr/sbin/{program} \"$@\"\n"
        );
        let old = if program == "nft" {
            old.replace("input=$(/bin/cat)", "case \"$*\" in *list*) exec /usr/sbin/nft \"$@\";; esac\ninput=$(/bin/cat)")
        } else {
            old
        };
        let mut all: Vec<(&str, Option<&str>)> = NFT_PROGRAMS.to_vec();
        all.push(("nft", None));
        all.retain(|(name, _)| *name != program);
        all.push((program, Some(&old)));
        let path = programs(&lab, "bin", &all);
        let options = FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq").arg("--iptables-resync=1").env("PATH", &path);
        let list = || host.netns().exec("nft", &["-s", "list", "ruleset"]).unwrap();
        for restart in [false, true] {
            let daemon = host.flanneld(&options).unwrap();
            assert!(list().contains("10.244.0.0/16") && !list().contains("random"), "{config}: {}", list());
            eventually(DEADLINE, "time passes", || daemon.metric("flannel_uptime_seconds").unwrap() >= 3.0).unwrap();
            assert_eq!(daemon.metric("flannel_rule_writes_total").unwrap(), if restart { 0.0 } else { 1.0 }, "{}", daemon.log());
            let log = daemon.log();
            assert_eq!(told(&log, "not chosen at random"), if restart { 2 } else { 1 }, "once a start: {log}");
        }
    }
}

/// The variant that was picked stays, whatever the system's choice becomes, and its name is in the log.
#[test]
fn the_variant_is_picked_told_and_kept() {
    let lab = Lab::new("rules").unwrap();
    let store = store(&lab, IPTABLES);
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 1).unwrap();
    let host = &hosts[0];
    host.netns().sh("iptables-legacy -t nat -N KUBE-SERVICES; iptables-legacy -t nat -A KUBE-SERVICES -j RETURN").unwrap();
    host.netns().sh("iptables-nft -N DOCKER; iptables-nft -A DOCKER -j RETURN").unwrap();
    let daemon = host.flanneld(&FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq").arg("--iptables-resync=1")).unwrap();
    let log = daemon.log();
    assert!(log.contains("rules go to iptables (legacy): kube-proxy's or kubelet's rules are there"), "{log}");
    assert_eq!(told(&log, "both variants of iptables hold rules of other programs (nf_tables: DOCKER; legacy: KUBE-SERVICES)"), 1, "{log}");
    let legacy = || host.netns().exec("iptables-legacy-save", &[] as &[&str]).unwrap().contains("FLANNEL-POSTRTG");
    let nft = || host.netns().exec("iptables-nft-save", &[] as &[&str]).unwrap().contains("FLANNEL");
    assert!(legacy() && !nft());
    // What it was picked by goes, and so do our rules.
    host.netns().sh("iptables-legacy -t nat -F; iptables-legacy -t nat -X").unwrap();
    eventually(DEADLINE, "healed where it was", &legacy).unwrap();
    assert!(!nft());
}

#[test]
fn rules_without_comment_are_told_and_stay() {
    for config in [IPTABLES, NFTABLES] {
        let lab = Lab::new("rules").unwrap();
        let store = store(&lab, config);
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 1).unwrap();
        let host = &hosts[0];
        host.netns()
            .sh("iptables -t nat -A POSTROUTING -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE; iptables -A FORWARD -d 10.244.0.0/16 -j ACCEPT")
            .unwrap();
        let before = host.netns().exec("iptables-save", &[] as &[&str]).unwrap();
        let daemon = host.flanneld(&FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq")).unwrap();
        eventually(DEADLINE, "it is told", || daemon.log().contains("before v0.17")).unwrap();
        let log = daemon.log();
        let after = host.netns().exec("iptables-save", &[] as &[&str]).unwrap();
        for line in before.lines().filter(|line| line.starts_with("-A")) {
            assert!(after.contains(line), "{line} stays");
        }
        // The commands do what they say.
        let commands: Vec<&str> =
            log.lines().find(|line| line.contains("before v0.17")).unwrap().split("removed by: ").nth(1).unwrap().split("; ").collect();
        assert_eq!(commands.len(), 2, "{commands:?}");
        for command in commands {
            host.netns().sh(command).unwrap();
        }
    }
}

#[test]
fn where_there_is_no_port_nothing_is_guarded() {
    let lab = Lab::new("rules").unwrap();
    let store = store(&lab, NFTABLES);
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 1).unwrap();
    let daemon = hosts[0].flanneld(&FlanneldOptions::new(&store).iface("enp0s8").arg("--encap-peers=drop").arg(GUARDS[0]).arg(GUARDS[1])).unwrap();
    assert_eq!(told(&daemon.log(), "the backend host-gw has no encapsulation port to guard"), 1, "{}", daemon.log());
    assert!(!hosts[0].netns().exec("nft", &["list", "ruleset"]).unwrap().contains("encap"));
}

/// A socket in a namespace; port 0 is a free one.
fn socket(netns: &lab::Netns, address: &str) -> UdpSocket {
    let socket = netns.run(|| UdpSocket::bind(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    socket
}

/// Whether any of three packets comes.
fn comes(from: &UdpSocket, to: &str, receiver: &UdpSocket) -> bool {
    let to: SocketAddr = to.parse().unwrap();
    (0..3).for_each(|_| drop(from.send_to(b"x", to)));
    receiver.recv(&mut [0; 16]).is_ok()
}

/// A host that is no node makes itself a tunnel to a node, and sends to a pod through it.
struct Forger {
    v4: UdpSocket,
    v6: UdpSocket,
}

impl Forger {
    fn new(host: &Host, node: &Host, pod: &lab::Pod) -> Forger {
        let mac = |device: &str| {
            let text = node.netns().exec("ip", &["-o", "link", "show", "dev", device]).unwrap();
            text.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
        };
        let (v4, v6) = (mac("flannel.1"), mac("flannel-v6.1"));
        host.netns()
            .ip(&format!(
                "link add forge4 type vxlan id 1 dstport 8472 local {} nolearning\n\
                 link set forge4 up\naddress add 10.244.250.1/32 dev forge4\n\
                 route add {} dev forge4 src 10.244.250.1\nneighbour add {} dev forge4 lladdr {v4}\n\
                 link add forge6 type vxlan id 1 dstport 8472 local {} nolearning udp6zerocsumrx\n\
                 link set forge6 up\naddress add fd00:244:0:fafa::1/128 dev forge6 nodad\n\
                 route add {} dev forge6 src fd00:244:0:fafa::1\nneighbour add {} dev forge6 lladdr {v6}",
                host.v4().unwrap(),
                pod.v4().unwrap(),
                pod.v4().unwrap(),
                host.v6().unwrap(),
                pod.v6().unwrap(),
                pod.v6().unwrap(),
            ))
            .unwrap();
        host.netns()
            .sh(&format!(
                "bridge fdb append {v4} dev forge4 dst {}; bridge fdb append {v6} dev forge6 dst {}",
                node.v4().unwrap(),
                node.v6().unwrap()
            ))
            .unwrap();
        Forger { v4: socket(host.netns(), "10.244.250.1:0"), v6: socket(host.netns(), "[fd00:244:0:fafa::1]:0") }
    }
}

/// Tunnel packets of others than nodes are let in, counted or dropped; those of nodes always come; pods cannot make any.
#[test]
fn the_encapsulation_port_is_guarded() {
    for (config, legacy) in [(GUARDED_IPTABLES, false), (GUARDED_IPTABLES, true), (GUARDED_NFTABLES, false)] {
        let lab = Lab::new("rules").unwrap();
        let store = store(&lab, config);
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 4).unwrap();
        let plain = FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq").arg("--iptables-resync=1");
        let plain = if legacy { plain.env("PATH", &programs(&lab, "bin", &LEGACY_PROGRAMS)) } else { plain };
        let two = hosts[1].flanneld(&plain).unwrap();
        let pod_two = hosts[1].pod("p2", &two.subnet_env().unwrap()).unwrap();
        let mut pod_one = None;
        let mut forger = None;
        // Off comes last: what the kernel tracked once it knows for half a minute.
        for mode in ["drop", "count", "off"] {
            let mut options = plain.clone().arg(&format!("--encap-peers={mode}"));
            if mode != "off" {
                options = options.arg(GUARDS[0]).arg(GUARDS[1]);
            }
            let one = hosts[0].flanneld(&options).unwrap();
            let pod_one = pod_one.get_or_insert_with(|| hosts[0].pod("p1", &one.subnet_env().unwrap()).unwrap());
            let forger = forger.get_or_insert_with(|| Forger::new(&hosts[2], &hosts[0], pod_one));
            eventually(DEADLINE, "pods reach pods", || {
                reaches(pod_two.netns(), pod_one.v4().unwrap().into()) && reaches(pod_two.netns(), pod_one.v6().unwrap().into())
            })
            .unwrap_or_else(|error| panic!("{config} {mode}: {error}"));
            let (v4, v6) = (socket(pod_one.netns(), "0.0.0.0:5000"), socket(pod_one.netns(), "[::]:5001"));
            let came = (
                comes(&forger.v4, &format!("{}:5000", pod_one.v4().unwrap()), &v4),
                comes(&forger.v6, &format!("[{}]:5001", pod_one.v6().unwrap()), &v6),
            );
            assert_eq!(came, (mode != "drop", mode != "drop"), "{config} {mode}: forged packets");
            let metric = "flannel_encap_stranger_packets";
            if mode == "off" {
                assert!(one.metric(metric).is_err());
            } else {
                // nftables tells the count at its next look, which a change of any table brings about.
                eventually(DEADLINE, "they are counted", || one.metric(metric).is_ok_and(|count| count >= 6.0)).unwrap();
            }
            // Whatever a pod sends out of the network to that port is gone; another port is its own business.
            for (port, passes) in [(4000, true), (8472, mode == "off")] {
                let (v4, v6) = (format!("192.168.56.104:{port}"), format!("[fd00:56::104]:{port}"));
                let receivers = (socket(hosts[3].netns(), &v4), socket(hosts[3].netns(), &v6));
                let senders = (socket(pod_one.netns(), "0.0.0.0:0"), socket(pod_one.netns(), "[::]:0"));
                assert_eq!(
                    (comes(&senders.0, &v4, &receivers.0), comes(&senders.1, &v6, &receivers.1)),
                    (passes, passes),
                    "{config} {mode}: pod to {port}"
                );
            }
            let tracked = hosts[0].netns().output("cat", &["/proc/net/nf_conntrack"]).unwrap();
            if tracked.status.success() {
                let tracked = String::from_utf8_lossy(&tracked.stdout).into_owned();
                let from_peer = tracked.lines().filter(|line| line.contains("src=192.168.56.102 dst=192.168.56.101") && line.contains("dport=8472"));
                assert_eq!(from_peer.count() > 0, mode == "off", "{config} {mode}: {tracked}");
            }
        }
        // Who becomes a node is let in.
        let one = hosts[0].flanneld(&plain.clone().arg("--encap-peers=drop").arg(GUARDS[0]).arg(GUARDS[1])).unwrap();
        let four = hosts[3].flanneld(&plain).unwrap();
        let pod_four = hosts[3].pod("p4", &four.subnet_env().unwrap()).unwrap();
        let pod_one = pod_one.unwrap();
        eventually(DEADLINE, "a new node is let in", || {
            reaches(pod_four.netns(), pod_one.v4().unwrap().into()) && reaches(pod_four.netns(), pod_one.v6().unwrap().into())
        })
        .unwrap();
        // And who is none any more is not.
        let guarded = || {
            hosts[0]
                .netns()
                .sh("iptables-nft-save; iptables-legacy-save; nft list tables | grep -q flannel && nft list table ip flannel-ipv4 || true")
                .unwrap()
                .contains("192.168.56.104")
        };
        assert!(guarded());
        drop(four);
        let leases = std::fs::read_dir(lab.folder("leases").unwrap().join("subnets")).unwrap().map(|entry| entry.unwrap().path());
        let file = leases.filter(|path| path.is_file()).find(|path| std::fs::read_to_string(path).unwrap().contains("192.168.56.104"));
        std::fs::remove_file(file.unwrap()).unwrap();
        eventually(DEADLINE, "a node that left is not let in", || !guarded()).unwrap();
        assert_eq!(one.metric("flannel_rule_repairs_total").unwrap(), 0.0, "that is no repair");
    }
}

/// Why the node is not ready, as `/readyz` tells it; empty where it is.
fn reasons(daemon: &lab::Flanneld) -> String {
    daemon.get("/readyz").map(|(status, text)| if status == 200 { String::new() } else { text }).unwrap_or_default()
}

/// Somebody holds xtables' lock for ever: the node works but for its rules, says so once, and goes on by itself afterwards.
#[test]
fn a_held_lock_holds_up_the_rules_only() {
    let lab = Lab::new("rules").unwrap();
    let store = store(&lab, r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"host-gw"}}"#);
    let lan = lab.switch("lan").unwrap();
    let hosts = lab.hosts(&lan, 2).unwrap();
    let options = FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq").arg("--iptables-resync=1");
    let path = programs(&lab, "bin", &LEGACY_PROGRAMS);
    let run = hosts[0].folder().unwrap().join("run");
    std::fs::create_dir_all(&run).unwrap();
    let file = std::fs::File::create(run.join("xtables.lock")).unwrap();
    let lock = nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusive).unwrap();
    let mut one = hosts[0].start_flanneld(&options.clone().env("PATH", &path)).unwrap();
    let two = hosts[1].flanneld(&options).unwrap();
    eventually(DEADLINE, "the start is not held up", || one.subnet_env().is_ok()).unwrap();
    let (pod_one, pod_two) = (hosts[0].pod("p1", &one.subnet_env().unwrap()).unwrap(), hosts[1].pod("p2", &two.subnet_env().unwrap()).unwrap());
    eventually(DEADLINE, "packets flow", || reaches(pod_two.netns(), pod_one.v4().unwrap().into())).unwrap();
    eventually(DEADLINE, "readiness names the lock", || reasons(&one).contains("/run/xtables.lock")).unwrap();
    // Two families wait one after the other, again and again, and one line tells of it.
    let since = one.metric("flannel_uptime_seconds").unwrap();
    eventually(2 * DEADLINE, "time passes", || one.metric("flannel_uptime_seconds").unwrap() >= since + 14.0).unwrap();
    assert!(reasons(&one).contains("/run/xtables.lock"));
    assert_eq!(told(&one.log(), "/run/xtables.lock"), 1, "{}", one.log());
    drop(lock);
    one.wait_ready(3 * DEADLINE).unwrap();
    assert!(hosts[0].netns().exec("iptables-legacy-save", &[] as &[&str]).unwrap().contains("FLANNEL-POSTRTG"));
    assert_eq!(told(&one.log(), "the traffic rules are in place"), 1, "{}", one.log());
}

/// Without the programs the node is not ready and says what to install; once they are there it goes on.
#[test]
fn missing_programs_are_told_and_awaited() {
    for (config, needed, remedy) in
        [(IPTABLES, &NFT_PROGRAMS[..], "install the package iptables"), (NFTABLES, &[("nft", None)][..], "install the package nftables")]
    {
        let lab = Lab::new("rules").unwrap();
        let store = store(&lab, config);
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 1).unwrap();
        let path = programs(&lab, "bin", &[]);
        let options = FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq").arg("--iptables-resync=1").env("PATH", &path);
        let mut daemon = hosts[0].start_flanneld(&options).unwrap();
        eventually(DEADLINE, "readiness tells the remedy", || reasons(&daemon).contains(remedy)).unwrap();
        assert!(daemon.subnet_env().is_ok() || reasons(&daemon).contains("start"), "the start goes on");
        eventually(DEADLINE, "time passes", || daemon.metric("flannel_uptime_seconds").unwrap() >= 4.0).unwrap();
        assert_eq!(told(&daemon.log(), remedy), 1, "{}", daemon.log());
        programs(&lab, "bin", needed);
        daemon.wait_ready(DEADLINE).unwrap();
        assert!(hosts[0].netns().exec("nft", &["list", "ruleset"]).unwrap().contains("10.244.0.0/16"));
    }
}

/// A control group that allows no process beside those in it; removed on drop.
struct Full(PathBuf);

impl Full {
    /// None where there is no controller for it.
    fn new(pid: u32) -> Option<Full> {
        let parent = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(PathBuf::from).into_iter().find(|path| {
            path.join("cgroup.procs").exists()
                && (path.ends_with("pids") || std::fs::read_to_string(path.join("cgroup.subtree_control")).is_ok_and(|text| text.contains("pids")))
        })?;
        let group = Full(parent.join(format!("flannel-rules-{pid}")));
        std::fs::create_dir(&group.0).ok()?;
        std::fs::write(group.0.join("cgroup.procs"), pid.to_string()).ok()?;
        std::fs::write(group.0.join("pids.max"), "1").ok()?;
        Some(group)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let parent = self.0.parent().unwrap().join("cgroup.procs");
        for pid in std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = std::fs::write(&parent, pid);
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The system gives no more processes: told once, tried again, healed when it does.
#[test]
fn a_limit_of_processes_is_told_and_outlived() {
    for config in [IPTABLES, NFTABLES] {
        let lab = Lab::new("rules").unwrap();
        let store = store(&lab, config);
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 1).unwrap();
        let host = &hosts[0];
        let daemon = host.flanneld(&FlanneldOptions::new(&store).iface("enp0s8").arg("--ip-masq").arg("--iptables-resync=1")).unwrap();
        let list = || host.netns().exec("nft", &["-s", "list", "ruleset"]).unwrap();
        let right = list();
        // The start's own programs have ended.
        eventually(DEADLINE, "time passes", || daemon.metric("flannel_uptime_seconds").unwrap() >= 3.0).unwrap();
        let Some(full) = Full::new(daemon.pid()) else {
            eprintln!("no pids controller that can be used here: not tested");
            return;
        };
        host.netns().exec("nft", &["flush", "ruleset"]).unwrap();
        eventually(DEADLINE, "readiness names the limit", || reasons(&daemon).contains("no more processes")).unwrap();
        let since = daemon.metric("flannel_uptime_seconds").unwrap();
        eventually(DEADLINE, "time passes", || daemon.metric("flannel_uptime_seconds").unwrap() >= since + 4.0).unwrap();
        assert_ne!(list(), right);
        assert_eq!(told(&daemon.log(), "no more processes"), 1, "{}", daemon.log());
        drop(full);
        eventually(2 * DEADLINE, "healed", || list() == right).unwrap();
        eventually(DEADLINE, "ready", || reasons(&daemon).is_empty()).unwrap();
    }
}

/// Somebody changes the rules as fast as they are repaired: that is told once, and not fought.
#[test]
fn a_war_is_told_and_not_fought() {
    for (config, damage) in [(IPTABLES, "iptables -F FLANNEL-FWD"), (NFTABLES, "nft flush chain ip flannel-ipv4 forward")] {
        let lab = Lab::new("rules").unwrap();
        let store = store(&lab, config);
        let lan = lab.switch("lan").unwrap();
        let hosts = lab.hosts(&lan, 1).unwrap();
        let host = &hosts[0];
        let daemon = host.flanneld(&FlanneldOptions::new(&store).iface("enp0s8").arg("--iptables-resync=1")).unwrap();
        eventually(2 * DEADLINE, "at war", || {
            host.netns().sh(damage).unwrap();
            std::thread::sleep(Duration::from_millis(200));
            daemon.metric("flannel_rules_at_war").unwrap() == 1.0
        })
        .unwrap();
        let repairs = daemon.metric("flannel_rule_repairs_total").unwrap();
        (0..10).for_each(|_| {
            host.netns().sh(damage).unwrap();
            std::thread::sleep(Duration::from_millis(200));
        });
        assert_eq!(daemon.metric("flannel_rule_repairs_total").unwrap(), repairs, "once a minute from now on");
        assert_eq!(told(&daemon.log(), "again and again"), 1, "{}", daemon.log());
    }
}
