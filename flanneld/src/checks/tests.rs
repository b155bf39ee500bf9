//! Facts in, findings out; listings in, facts out.

use super::firewalls::{Firewalld, Firewalls, Table, firewalld, table};
use super::judge::{CHECKS, Facts, corrections, judge};
use super::*;
use crate::health::condition::Condition;
use proptest::prelude::*;
use subnet_lease::Subnets;

const NET: &str = "10.244.0.0/16";

fn subject() -> Subject {
    let networks = Subnets::Both(NET.parse().unwrap(), "fd10:244::/48".parse().unwrap());
    let own = Subnets::Both("10.244.1.0/24".parse().unwrap(), "fd10:244:0:1::/64".parse().unwrap());
    Subject { networks, own, port: Some(8472), nftables: false, forward: true, set: true }
}

/// A host on which nothing is wrong.
fn well() -> Facts {
    Facts {
        underlay: "eth0".to_owned(),
        ip_forward: Some(1),
        v6_forwarding: Some(1),
        accept_ra: Some(1),
        br_netfilter: true,
        call_iptables: Some(1),
        call_ip6tables: Some(1),
        ..Facts::default()
    }
}

fn checks(subject: &Subject, facts: &Facts) -> Vec<&'static str> {
    judge(subject, facts).into_iter().map(|finding| finding.check).collect()
}

fn with(tables: &[Table]) -> Facts {
    Facts { firewalls: Firewalls { tables: tables.to_vec(), ..Firewalls::default() }, ..well() }
}

/// The findings for one family of iptables as `iptables-save` prints it.
fn seen(subject: &Subject, saved: &str) -> Vec<&'static str> {
    let plain = checks(subject, &with(&[table(saved, &NET.parse().unwrap(), subject.port, "iptables")]));
    // As `iptables-save -c` prints it.
    let counted: Vec<String> = saved.lines().map(|line| if line.starts_with("-A") { format!("[12:3456] {line}") } else { line.to_owned() }).collect();
    assert_eq!(checks(subject, &with(&[table(&counted.join("\n"), &NET.parse().unwrap(), subject.port, "iptables")])), plain);
    plain
}

#[test]
fn a_healthy_host_has_no_findings() {
    assert_eq!(checks(&subject(), &well()), [""; 0]);
    assert_eq!(corrections(&subject(), &well()), []);
    // A value that cannot be read is no finding.
    let unknown = Facts { br_netfilter: true, ..Facts::default() };
    assert_eq!((checks(&subject(), &unknown), corrections(&subject(), &unknown)), (vec![], vec![]));
}

#[test]
fn sysctls_are_named_for_the_families_in_use() {
    let bad = Facts { ip_forward: Some(0), v6_forwarding: Some(0), call_iptables: Some(0), call_ip6tables: Some(0), ..well() };
    assert_eq!(checks(&subject(), &bad), ["ip-forward", "ipv6-forwarding", "bridge-nf-call", "bridge-nf-call"]);
    let v6 = Subject { networks: Subnets::V6("fd10:244::/48".parse().unwrap()), ..subject() };
    let strict = Facts { strict_tunnels: vec!["flannel.1".to_owned()], ..bad.clone() };
    assert_eq!(checks(&v6, &strict), ["ipv6-forwarding", "bridge-nf-call"]);
    let nft = Subject { nftables: true, ..subject() };
    assert_eq!(checks(&nft, &bad), ["ip-forward", "ipv6-forwarding"]);
    let text = judge(&subject(), &bad)[0].to_string();
    assert_eq!(
        text,
        "net.ipv4.ip_forward is 0: this node forwards no IPv4 packets between pods and other nodes; remedy: sysctl -w net.ipv4.ip_forward=1 (or start flanneld with --set-sysctls)"
    );
}

#[test]
fn a_missing_module_is_reported_with_the_reason() {
    let facts = Facts { br_netfilter: false, call_iptables: None, call_ip6tables: None, module: Some("not permitted".to_owned()), ..well() };
    let found = judge(&subject(), &facts);
    assert!(found.len() == 1 && found[0].what.ends_with("br_netfilter is not loaded and could not be loaded (not permitted)"), "{found:?}");
    assert_eq!(checks(&Subject { nftables: true, ..subject() }, &facts), [""; 0]);
}

#[test]
fn strict_rp_filter_is_reported_by_device() {
    let facts = Facts { strict_tunnels: vec!["flannel.1".to_owned()], astray: vec!["192.168.56.2".parse().unwrap()], ..well() };
    let found = judge(&subject(), &facts);
    assert_eq!(
        found.iter().map(|finding| (finding.check, finding.about.as_str())).collect::<Vec<_>>(),
        [("rp-filter", "flannel.1"), ("rp-filter", "eth0")]
    );
    assert_eq!(found[0].remedy, "sysctl -w net/ipv4/conf/flannel.1/rp_filter=2");
    assert!(found[1].what.contains("192.168.56.2"), "{}", found[1].what);
}

#[test]
fn corrections_keep_router_advertisements() {
    let bad = Facts { ip_forward: Some(0), v6_forwarding: Some(0), call_iptables: Some(0), call_ip6tables: Some(0), ..well() };
    let list = |facts: &Facts| -> Vec<String> {
        corrections(&subject(), facts).iter().map(|c| format!("{} {} -> {}", c.path.display(), c.old, c.new)).collect()
    };
    assert_eq!(
        list(&bad),
        [
            "/proc/sys/net/ipv4/ip_forward 0 -> 1",
            "/proc/sys/net/ipv6/conf/eth0/accept_ra 1 -> 2",
            "/proc/sys/net/ipv6/conf/all/forwarding 0 -> 1",
            "/proc/sys/net/bridge/bridge-nf-call-iptables 0 -> 1",
            "/proc/sys/net/bridge/bridge-nf-call-ip6tables 0 -> 1",
        ]
    );
    for accept_ra in [Some(0), Some(2), None] {
        assert!(!list(&Facts { accept_ra, ..bad.clone() }).iter().any(|line| line.contains("accept_ra")), "{accept_ra:?}");
    }
    let vlan = Facts { underlay: "eth0.7".to_owned(), ..bad };
    assert!(list(&vlan)[1].starts_with("/proc/sys/net/ipv6/conf/eth0.7/accept_ra"), "{:?}", list(&vlan));
}

#[test]
fn dockers_policy_matters_only_without_our_rules() {
    let docker = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n:DOCKER - [0:0]\n:DOCKER-USER - [0:0]\n-A FORWARD -j DOCKER-USER\n-A FORWARD -o docker0 -j DOCKER\n-A DOCKER-USER -j RETURN\n";
    let (nft, off) = (Subject { nftables: true, ..subject() }, Subject { forward: false, ..subject() });
    let plain = format!("{docker}COMMIT\n");
    assert_eq!(seen(&subject(), &plain), [""; 0], "our jump will be added");
    assert_eq!((seen(&nft, &plain), seen(&off, &plain)), (vec!["forward-policy"], vec!["forward-policy"]));
    let found = judge(&nft, &with(&[table(&plain, &NET.parse().unwrap(), None, "iptables")]));
    assert_eq!(found[0].remedy, "iptables -I DOCKER-USER -s 10.244.0.0/16 -j ACCEPT; iptables -I DOCKER-USER -d 10.244.0.0/16 -j ACCEPT");
    assert!(found[0].what.contains("Docker"));
    let fixed = format!("{docker}-A DOCKER-USER -s 10.244.0.0/16 -j ACCEPT\nCOMMIT\n");
    assert_eq!(seen(&nft, &fixed), [""; 0]);
    // Our jump in one variant does not help against the other's policy.
    let ours = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD\nCOMMIT\n";
    let both = [table(ours, &NET.parse().unwrap(), None, "iptables-nft"), table(&plain, &NET.parse().unwrap(), None, "iptables-legacy")];
    let found = judge(&subject(), &with(&both));
    assert!(found.len() == 1 && found[0].check == "forward-policy" && found[0].remedy.starts_with("iptables-legacy -I DOCKER-USER"), "{found:?}");
}

#[test]
fn a_reject_rule_counts_if_it_comes_first() {
    let listing = |rules: &[&str]| format!("*filter\n:FORWARD ACCEPT [0:0]\n{}\nCOMMIT\n*nat\n-A FORWARD -j REJECT\nCOMMIT\n", rules.join("\n"));
    const JUMP: &str = "-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD";
    const REJECT: &str = "-A FORWARD -j REJECT --reject-with icmp-host-prohibited";
    const NAMED: &str = "-A FORWARD -m comment --comment \"the rest -j ACCEPT\" -j DROP";
    let nft = Subject { nftables: true, ..subject() };
    assert_eq!(seen(&subject(), &listing(&[REJECT, JUMP])), ["forward-reject"]);
    assert_eq!(seen(&subject(), &listing(&[NAMED, JUMP])), ["forward-reject"]);
    assert_eq!(seen(&subject(), &listing(&[JUMP, REJECT])), [""; 0]);
    assert_eq!(seen(&nft, &listing(&[REJECT])), ["forward-reject"]);
    assert_eq!(seen(&nft, &listing(&["-A FORWARD -s 10.0.0.0/8 -j ACCEPT", REJECT])), [""; 0]);
    assert_eq!(seen(&subject(), &listing(&["-A FORWARD -i eth9 -j REJECT", "-A FORWARD -m conntrack --ctstate INVALID -j DROP", JUMP])), [""; 0]);
}

#[test]
fn ufw_counts_while_it_blocks_the_tunnel() {
    let ufw = |policy: &str, more: &str| {
        format!(
            "*filter\n:INPUT {policy} [0:0]\n:FORWARD DROP [0:0]\n:ufw-before-input - [0:0]\n-A INPUT -j ufw-before-input\n-A FORWARD -j ufw-before-forward\n-A ufw-before-input -i lo -j ACCEPT\n-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT\n{more}\nCOMMIT\n"
        )
    };
    assert_eq!(seen(&subject(), &ufw("DROP", "")), ["ufw"]);
    assert_eq!(seen(&subject(), &ufw("ACCEPT", "-A ufw-reject-input -j REJECT")), ["ufw"]);
    assert_eq!(seen(&subject(), &ufw("ACCEPT", "")), [""; 0]);
    for open in ["-p udp -m udp --dport 8472", "-p udp -m multiport --dports 53,8472", "-s 192.168.56.0/24"] {
        assert_eq!(seen(&subject(), &ufw("DROP", &format!("-A ufw-user-input {open} -j ACCEPT"))), [""; 0], "{open}");
    }
    assert_eq!(seen(&subject(), &ufw("DROP", "-A ufw-user-input -p udp -m udp --dport 8472 -j DROP")), ["ufw"]);
    assert_eq!(seen(&Subject { port: None, ..subject() }, &ufw("DROP", "")), [""; 0], "no port is needed");
    // When ufw is disabled, its chains may remain without jumps.
    assert_eq!(seen(&subject(), "*filter\n:INPUT DROP [0:0]\n:ufw-before-input - [0:0]\nCOMMIT\n"), [""; 0]);
}

#[test]
fn firewalld_counts_until_it_accepts_our_networks() {
    let rule = |left: &str, right: serde_json::Value| serde_json::json!({"rule": {"expr": [{"match": {"op": "==", "left": {"payload": {"protocol": "x", "field": left}}, "right": right}}]}});
    let source = |addr: &str, len: u8| rule("saddr", serde_json::json!({"prefix": {"addr": addr, "len": len}}));
    let read = |rules: Vec<serde_json::Value>| firewalld(&serde_json::json!({"nftables": rules}), subject().networks.nets(), Some(8472));
    let found = |known: Firewalld| judge(&subject(), &Facts { firewalls: Firewalls { firewalld: Some(known), ..Firewalls::default() }, ..well() });
    let nothing = found(read(vec![source("10.0.0.0", 8), rule("dport", 22.into())]));
    assert_eq!(
        nothing[0].remedy,
        "firewall-cmd --permanent --zone=trusted --add-source=10.244.0.0/16 && firewall-cmd --permanent --zone=trusted --add-source=fd10:244::/48 \
         && firewall-cmd --permanent --add-port=8472/udp && firewall-cmd --reload"
    );
    let half = found(read(vec![source("10.244.0.0", 16), rule("dport", serde_json::json!({"set": [53, 8472]}))]));
    assert!(half.len() == 1 && half[0].what.ends_with("does not accept fd10:244::/48"), "{half:?}");
    assert_eq!(found(read(vec![source("10.244.0.0", 16), source("fd10:244::", 48), rule("dport", 8472.into())])), []);
}

#[test]
fn each_finding_is_logged_and_counted_once() {
    let (_keep, underlay) = watch::channel(Underlay {
        index: 1,
        name: "lo".to_owned(),
        mtu: 1500,
        addresses: subnet_lease::Addresses::V4([127, 0, 0, 1].into()),
        public: subnet_lease::Addresses::V4([127, 0, 0, 1].into()),
        local: Vec::new(),
    });
    let (_keep, leases) = watch::channel(Arc::new(LeaseTable::default()));
    let health = Health::new();
    health.condition(Condition::Start, None);
    let mut checks = Checks::new(subject(), underlay, leases, Arc::new(|_| true), health.clone(), watch::channel(0).1);
    checks.report(judge(&subject(), &Facts { ip_forward: Some(0), ..well() }));
    let line = |value: u8| format!("flannel_findings{{check=\"ip-forward\"}} {value}");
    assert!(health.metrics().lines().any(|have| have == line(1)), "{}", health.metrics());
    assert!(CHECKS.iter().all(|check| health.metrics().contains(&format!("flannel_findings{{check=\"{check}\"}}"))));
    assert_eq!(health.status()["findings"][0]["check"], "ip-forward");
    assert!(health.ready(), "findings never change readiness");
    checks.report(Vec::new());
    assert!(health.metrics().lines().any(|have| have == line(0)));
    assert_eq!(health.status()["findings"], serde_json::json!([]));
}

/// The findings for what the real nft makes of a script.
fn barred(script: &str) -> Vec<(&'static str, String)> {
    let list = "nft -f - && nft -j list chains && nft -j list ruleset";
    let mut child = std::process::Command::new("unshare")
        .args(["-n", "sh", "-ec", list])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), format!("{script}\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "nft refuses\n{script}");
    let text = String::from_utf8(output.stdout).unwrap();
    let listings: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let all = nftables::bases(&listings[0], [true, false]);
    let barriers =
        all.iter().flat_map(|base| subject().networks.nets().filter_map(|net| nftables::barrier(base, &listings[1], &net)).collect::<Vec<_>>());
    let facts = Facts { firewalls: Firewalls { barriers: barriers.collect(), ..Firewalls::default() }, ..well() };
    judge(&subject(), &facts).into_iter().map(|finding| (finding.check, finding.about)).collect()
}

#[test]
fn nftables_chains_that_drop_are_reported_until_they_accept() {
    let (v4, v6) = (NET, "fd10:244::/48");
    let chain = |family: &str, policy: &str, more: &str| {
        format!(
            "table {family} wall {{ set pods {{ type ipv4_addr; flags interval; elements = {{ 10.244.0.0/16, 192.0.2.1 }}; }}\n chain inner {{ ip saddr {v4} accept; }}\n chain gate {{ type filter hook forward priority 5; policy {policy}; {more}\n }}\n }}"
        )
    };
    let name = |family: &str, net: &str| ("forward-policy", format!("{family} wall gate {net}"));
    assert_eq!(barred(&chain("inet", "drop", "")), [name("inet", v4), name("inet", v6)]);
    assert_eq!(barred(&chain("ip", "drop", "")), [name("ip", v4)]);
    assert_eq!(barred("table ip6 wall { chain gate { type filter hook forward priority 0; policy drop; }; }"), [name("ip6", v6)]);
    assert_eq!(barred(&chain("inet", "accept", "")), []);
    // A rule that does not match pods does not help them; one that does helps its family.
    for (more, left) in [
        ("ct state established,related accept", 2),
        ("ip saddr 10.9.0.0/16 accept", 2),
        ("tcp dport 22 accept", 2),
        ("iifname \"eth0\" accept", 2),
        ("ip saddr 10.244.0.0/16 tcp dport 22 accept", 2),
        ("ip saddr 10.244.0.0/16 accept; ip daddr 10.244.0.0/16 accept", 1),
        ("ip saddr 10.0.0.0/8 counter accept", 1),
        ("ip daddr { 192.0.2.0/24, 10.244.0.0/16 } accept", 1),
        ("ip saddr @pods accept", 1),
        ("ip saddr 10.244.0.0-10.244.255.255 accept", 1),
        ("jump inner", 1),
        ("meta nfproto ipv4 jump inner", 1),
        ("tcp dport 80 jump inner", 2),
        ("meta nfproto ipv6 accept", 1),
        ("iifname \"flannel*\" accept; oifname \"flannel*\" accept", 0),
        ("oifname { \"cni0\", \"flannel.1\" } accept", 0),
        ("accept", 0),
    ] {
        assert_eq!(barred(&chain("inet", "drop", more)).len(), left, "{more}");
    }
    // A rule without conditions acts like a policy.
    let rejects = |more: &str| barred(&chain("inet", "accept", more)).iter().filter(|(check, _)| *check == "forward-reject").count();
    assert_eq!(
        (rejects("reject"), rejects("drop; ip saddr 10.244.0.0/16 accept"), rejects("ip saddr 10.244.0.0/16 accept; counter drop")),
        (2, 2, 1)
    );
    assert_eq!((rejects("tcp dport 22 drop"), rejects("ct state invalid drop")), (0, 0));
    // Chains covered by other checks: iptables was listed by its own program, ip6tables was not.
    let theirs = |table: &str, chain: &str| format!("table {table} {{ chain {chain} {{ type filter hook forward priority 0; policy drop; }}; }}\n");
    assert_eq!(barred(&(theirs("inet firewalld", "x") + &theirs("ip flannel-ipv4", "forward") + &theirs("ip filter", "FORWARD"))), []);
    assert_eq!(barred(&theirs("ip6 filter", "FORWARD")).len(), 1);
}

proptest! {
    #[test]
    fn no_listing_panics(text in "(\\*filter\n)?(-A |:)?(FORWARD|INPUT|DOCKER-USER|ufw-user-input)?( -j| -s|-m comment --comment|\"|DROP|REJECT|--dport| |\n|[a-z0-9./]){0,20}") {
        let _ = table(&text, &NET.parse().unwrap(), Some(8472), "iptables");
    }
}
