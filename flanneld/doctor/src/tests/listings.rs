//! Tests of the findings about firewall rules and sysctls, and of the sysctls that flanneld corrects.

use super::healthy::healthy;
use super::{causes, only, report};
use crate::correct::corrections;
use crate::fact::Fact;
use crate::facts::host::{Checksums, Route, Sysctls};
use crate::facts::{Facts, Network};
use crate::finding::{Severity, code_or_text};
use crate::firewalls::{Barrier, Firewalls, Table};
use crate::passage;
use crate::surroundings::Surroundings;
use ipnet::IpNet;
use proptest::prelude::*;
use traffic_rules::programs::Variant;
use traffic_rules::reader::nft::Extent;
use traffic_rules::reader::{Rules, iptables, nft};
use types::{Dual, Encapsulation, Family};

const NET: &str = "10.244.0.0/16";

pub(super) fn network() -> Network {
    healthy().network.known().unwrap().clone()
}

/// Returns the underlay and the peers of the node in [`healthy`].
pub(super) fn around() -> Surroundings {
    let peers =
        ["192.0.2.2", "192.0.2.3", "2001:db8::2", "2001:db8::3"].map(|peer| peer.parse().unwrap());
    Surroundings {
        underlay: Some("eth0".to_owned()),
        bridge: None,
        peers: peers.to_vec(),
        near: Vec::new(),
    }
}

/// Returns the doctor's view of the rules in the output of `iptables-save`.
pub(super) fn table(
    saved: &str,
    net: &IpNet,
    tunnel: Option<Encapsulation>,
    around: &Surroundings,
    command: &str,
) -> Table {
    let rules = iptables::read(saved, Family::from(net.addr()), Variant::Nft);
    passage::table(
        &rules,
        net,
        &Network {
            encapsulation: tunnel,
            ..network()
        },
        around,
        command,
    )
}

/// Returns the chains of an nft listing that drop packets of the pod networks `nets`.
pub(super) fn barriers(listing: &serde_json::Value, nets: &[IpNet]) -> Vec<Barrier> {
    let rules: Rules = nft::read(listing, Extent::Rules);
    let gates = passage::gates(&rules, &[Family::V4]);
    gates
        .iter()
        .flat_map(|gate| {
            nets.iter()
                .filter_map(|net| passage::barrier(&rules, gate, net, &network(), &around()))
        })
        .collect()
}

fn sysctls() -> Sysctls {
    healthy().host.sysctls.known().unwrap().clone()
}

fn with(network: &Network, sysctls: &Sysctls, firewalls: Firewalls) -> Facts {
    let mut facts = healthy();
    (facts.network, facts.host.sysctls, facts.host.firewalls) = (
        Fact::Known(network.clone()),
        Fact::Known(sysctls.clone()),
        Fact::Known(firewalls),
    );
    facts.pods.env = Fact::Known(crate::facts::pods::Env {
        subnets: Some(network.own),
        ..Default::default()
    });
    super::healthy::forget_probes(&mut facts);
    facts
}

fn checks(network: &Network, sysctls: &Sysctls) -> Vec<String> {
    report(&with(network, sysctls, Firewalls::default()))
        .findings
        .into_iter()
        .map(|finding| finding.check)
        .collect()
}

fn by_tables(network: &Network, tables: &[Table]) -> Facts {
    with(
        network,
        &sysctls(),
        Firewalls {
            tables: tables.to_vec(),
            ..Firewalls::default()
        },
    )
}

/// Returns the findings about the output of `iptables-save` for one family.
fn seen(network: &Network, saved: &str) -> Vec<String> {
    let of = |text: &str| {
        let facts = by_tables(
            network,
            &[table(
                text,
                &NET.parse().unwrap(),
                network.tunnel(),
                &around(),
                "iptables",
            )],
        );
        report(&facts)
            .findings
            .into_iter()
            .map(|finding| finding.check)
            .collect::<Vec<_>>()
    };
    let plain = of(saved);
    // The format of `iptables-save -c`.
    let counted: Vec<String> = saved
        .lines()
        .map(|line| {
            if line.starts_with("-A") {
                format!("[12:3456] {line}")
            } else {
                line.to_owned()
            }
        })
        .collect();
    assert_eq!(of(&counted.join("\n")), plain);
    plain
}

/// Returns the sysctls that the pod network needs, all of them off.
fn all_off() -> Sysctls {
    Sysctls {
        ip_forward: Some(0),
        v6_forwarding: Some(0),
        call_iptables: Some(0),
        call_ip6tables: Some(0),
        ..sysctls()
    }
}

#[test]
fn sysctls_are_named_for_the_families_in_use() {
    let bad = all_off();
    assert_eq!(
        checks(&network(), &bad),
        [
            "ip-forward",
            "ipv6-forwarding",
            "bridge-nf-call",
            "bridge-nf-call"
        ]
    );
    let own = types::Subnets::V6("fd10:244:0:1::/64".parse().unwrap());
    let v6 = Network {
        networks: types::Subnets::V6("fd10:244::/48".parse().unwrap()),
        own,
        ..network()
    };
    assert_eq!(
        checks(&v6, &bad)
            .iter()
            .filter(|check| *check != "stale-bridge")
            .collect::<Vec<_>>(),
        ["ipv6-forwarding", "bridge-nf-call"]
    );
    assert_eq!(
        checks(
            &Network {
                nftables: true,
                ..network()
            },
            &bad
        ),
        ["ip-forward", "ipv6-forwarding"]
    );
    let facts = with(&network(), &bad, Firewalls::default());
    assert_eq!(
        only(&facts, "ip-forward").to_string(),
        "ip-forward: net.ipv4.ip_forward is 0: this node forwards no IPv4 packets between pods and other nodes; flanneld sets this sysctl if you start flanneld with \
         --set-sysctls; remedy: sysctl -w net.ipv4.ip_forward=1; echo 'net.ipv4.ip_forward = 1' >> /etc/sysctl.d/99-zz-flannel.conf"
    );
}

#[test]
fn forwarding_is_turned_on_after_router_advertisements_are_kept() {
    let bad = all_off();
    let facts = with(&network(), &bad, Firewalls::default());
    // accept_ra comes first. Otherwise the kernel removes the default route that a router announced.
    assert_eq!(
        only(&facts, "ipv6-forwarding").remedy.commands,
        [
            "sysctl -w net/ipv6/conf/eth0/accept_ra=2",
            "echo 'net/ipv6/conf/eth0/accept_ra = 2' >> /etc/sysctl.d/99-zz-flannel.conf",
            "sysctl -w net.ipv6.conf.all.forwarding=1",
            "echo 'net.ipv6.conf.all.forwarding = 1' >> /etc/sysctl.d/99-zz-flannel.conf"
        ]
    );
    // The same applies to interfaces other than the underlay's.
    let nat = Sysctls {
        announced: vec!["enp0s3".to_owned(), "eth0".to_owned()],
        ..bad
    };
    assert_eq!(
        only(
            &with(&network(), &nat, Firewalls::default()),
            "ipv6-forwarding"
        )
        .remedy
        .commands,
        ["enp0s3", "eth0", "all"]
            .map(|name| match name {
                "all" => crate::persist::sysctl("net.ipv6.conf.all.forwarding", 1),
                device => crate::persist::sysctl(&format!("net/ipv6/conf/{device}/accept_ra"), 2),
            })
            .concat()
    );
}

#[test]
fn missing_sysctls_are_no_finding() {
    let none = Sysctls {
        br_netfilter: true,
        ..Sysctls::default()
    };
    assert_eq!(
        (checks(&network(), &none), corrections(&network(), &none)),
        (vec![], vec![])
    );
    assert_eq!(
        checks(
            &Network {
                nftables: true,
                ..network()
            },
            &Sysctls {
                br_netfilter: false,
                ..sysctls()
            }
        ),
        [""; 0]
    );
}

#[test]
fn corrections_keep_router_advertisements() {
    let bad = all_off();
    let list = |sysctls: &Sysctls| -> Vec<String> {
        corrections(&network(), sysctls)
            .iter()
            .map(|c| format!("{} {} -> {}", c.path.display(), c.old, c.new))
            .collect()
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
    assert!(
        !list(&Sysctls {
            announced: Vec::new(),
            ..bad.clone()
        })
        .iter()
        .any(|line| line.contains("accept_ra"))
    );
    let vlan = Sysctls {
        announced: vec!["eth0.7".to_owned()],
        ..bad
    };
    assert!(
        list(&vlan)[1].starts_with("/proc/sys/net/ipv6/conf/eth0.7/accept_ra"),
        "{:?}",
        list(&vlan)
    );
}

#[test]
fn docker_policy_matters_only_without_our_rules() {
    let docker = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n:DOCKER - [0:0]\n:DOCKER-USER - [0:0]\n-A FORWARD -j DOCKER-USER\n-A FORWARD -o docker0 -j DOCKER\n-A DOCKER-USER -j RETURN\n";
    let (nft, off) = (
        Network {
            nftables: true,
            ..network()
        },
        Network {
            forward: false,
            ..network()
        },
    );
    let plain = format!("{docker}COMMIT\n");
    assert_eq!(seen(&network(), &plain), [""; 0], "our jump will be added");
    assert_eq!(
        (seen(&nft, &plain), seen(&off, &plain)),
        (
            vec!["forward-policy".to_owned()],
            vec!["forward-policy".to_owned()]
        )
    );
    let found = only(
        &by_tables(
            &nft,
            &[table(
                &plain,
                &NET.parse().unwrap(),
                None,
                &around(),
                "iptables",
            )],
        ),
        "forward-policy",
    );
    assert_eq!(
        found.remedy.commands[..2],
        [
            "iptables -A FORWARD -s 10.244.0.0/16 -j ACCEPT",
            "iptables -A FORWARD -d 10.244.0.0/16 -j ACCEPT"
        ]
    );
    assert!(
        found
            .what
            .contains(&code_or_text("forward-policy", "Docker"))
    );
    let fixed = format!(
        "{}-A DOCKER-USER -s 10.244.0.0/16 -j ACCEPT\nCOMMIT\n",
        docker.replace("-A DOCKER-USER -j RETURN\n", "")
    );
    assert_eq!(seen(&nft, &fixed), [""; 0]);
    // flannel's jump in one variant does not override the policy of the other.
    let ours = "*filter\n:FORWARD ACCEPT [0:0]\n:FLANNEL-FWD - [0:0]\n-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD\nCOMMIT\n";
    let both = [
        table(ours, &NET.parse().unwrap(), None, &around(), "iptables-nft"),
        table(
            &plain,
            &NET.parse().unwrap(),
            None,
            &around(),
            "iptables-legacy",
        ),
    ];
    let found = only(&by_tables(&network(), &both), "forward-policy");
    assert!(
        found.remedy.commands[0].starts_with("iptables-legacy -A FORWARD"),
        "{found:?}"
    );
}

#[test]
fn reject_rule_is_reported_if_it_comes_first() {
    let listing = |rules: &[&str]| {
        format!(
            "*filter\n:FORWARD ACCEPT [0:0]\n:FLANNEL-FWD - [0:0]\n-A FLANNEL-FWD -s {NET} -j ACCEPT\n{}\nCOMMIT\n*nat\n-A FORWARD -j REJECT\nCOMMIT\n",
            rules.join("\n")
        )
    };
    const JUMP: &str = "-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD";
    const REJECT: &str = "-A FORWARD -j REJECT --reject-with icmp-host-prohibited";
    const NAMED: &str = "-A FORWARD -m comment --comment \"the rest -j ACCEPT\" -j DROP";
    let nft = Network {
        nftables: true,
        ..network()
    };
    assert_eq!(
        seen(&network(), &listing(&[REJECT, JUMP])),
        ["forward-reject"]
    );
    assert_eq!(
        seen(&network(), &listing(&[NAMED, JUMP])),
        ["forward-reject"]
    );
    assert_eq!(seen(&network(), &listing(&[JUMP, REJECT])), [""; 0]);
    assert_eq!(seen(&nft, &listing(&[REJECT])), ["forward-reject"]);
    assert_eq!(
        seen(
            &nft,
            &listing(&["-A FORWARD -s 10.0.0.0/8 -j ACCEPT", REJECT])
        ),
        [""; 0]
    );
    for (rule, is) in [
        ("-i cni0", true),
        ("-o flannel+", true),
        ("! -i eth0", true),
        ("-i eth0", false),
        ("! -i cni0", false),
    ] {
        let wanted: &[&str] = if is { &[] } else { &["forward-reject"] };
        assert_eq!(
            seen(
                &nft,
                &listing(&[&format!("-A FORWARD {rule} -j ACCEPT"), REJECT])
            ),
            wanted,
            "{rule}"
        );
    }
    assert_eq!(
        seen(
            &network(),
            &listing(&[
                "-A FORWARD -i eth9 -j REJECT",
                "-A FORWARD -m conntrack --ctstate INVALID -j DROP",
                JUMP
            ])
        ),
        [""; 0]
    );
}

/// Returns ufw's rules as `iptables-save` prints them, with the given policy of INPUT and additional rules.
fn ufw(policy: &str, more: &str) -> String {
    format!(
        "*filter\n:INPUT {policy} [0:0]\n:FORWARD DROP [0:0]\n:ufw-before-input - [0:0]\n-A INPUT -j ufw-before-input\n-A FORWARD -j ufw-before-forward\n-A ufw-before-input -i lo -j ACCEPT\n-A ufw-before-input -j ufw-user-input\n-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT\n{more}\nCOMMIT\n"
    )
}

fn ipip() -> Network {
    Network {
        encapsulation: Some(Encapsulation::Ipip),
        ..network()
    }
}

#[test]
fn ufw_is_reported_where_it_refuses_by_default() {
    assert_eq!(seen(&network(), &ufw("DROP", "")), ["ufw"]);
    assert_eq!(
        seen(
            &network(),
            &ufw(
                "ACCEPT",
                "-A ufw-reject-input -j REJECT\n-A INPUT -j ufw-reject-input"
            )
        ),
        ["ufw"]
    );
    assert_eq!(seen(&network(), &ufw("ACCEPT", "")), [""; 0]);
    assert_eq!(
        seen(
            &network(),
            &ufw(
                "DROP",
                "-A ufw-user-input -p udp -m udp --dport 8472 -j DROP"
            )
        ),
        ["ufw"]
    );
    assert_eq!(
        seen(
            &Network {
                encapsulation: None,
                ..network()
            },
            &ufw("DROP", "")
        ),
        [""; 0],
        "no port is needed"
    );
    // ufw may leave its chains without jumps when it is disabled.
    assert_eq!(
        seen(
            &network(),
            "*filter\n:INPUT DROP [0:0]\n:ufw-before-input - [0:0]\nCOMMIT\n"
        ),
        [""; 0]
    );
}

#[test]
fn ufw_is_no_finding_once_a_rule_accepts_the_tunnel() {
    let ranges = [
        "-p udp -m udp --dport 8000:9000",
        "-p udp -m multiport --dports 53,8400:8500",
        "-i eth0",
    ];
    for open in [
        "-p udp -m udp --dport 8472",
        "-p udp -m multiport --dports 53,8472",
        "-s 192.0.2.0/24",
    ]
    .into_iter()
    .chain(ranges)
    {
        assert_eq!(
            seen(
                &network(),
                &ufw("DROP", &format!("-A ufw-user-input {open} -j ACCEPT"))
            ),
            [""; 0],
            "{open}"
        );
    }
    // The rule that the remedy of `encap-blocked` inserts.
    assert_eq!(
        seen(
            &network(),
            &ufw("DROP", "-A INPUT -p udp -m udp --dport 8472 -j ACCEPT")
        ),
        [""; 0]
    );
}

#[test]
fn ufw_is_reported_where_rules_accept_other_packets() {
    for shut in [
        "-p udp -m udp --dport 8473:9000",
        "-p udp -m multiport --dports 53,8000:8471",
        "-i lo",
        "-m conntrack --ctstate ESTABLISHED",
    ]
    .into_iter()
    // Rules for other senders and other protocols.
    .chain([
        "-s 203.0.113.5/32",
        "-p tcp -m tcp --dport 8472",
        "-i docker0",
        "-s 203.0.113.5/32 -p udp -m udp --dport 8472",
    ]) {
        assert_eq!(
            seen(
                &network(),
                &ufw("DROP", &format!("-A ufw-user-input {shut} -j ACCEPT"))
            ),
            ["ufw"],
            "{shut}"
        );
    }
}

#[test]
fn ufw_matters_only_in_the_outer_family_of_the_tunnel() {
    // The tunnel carries both families over one family of the underlay, so the firewall of the other family does not have to accept it.
    let of = |family| {
        let outer = Encapsulation::Udp {
            ports: Dual::Both(8472, 8472),
            outer: Some(family),
        };
        seen(
            &Network {
                encapsulation: Some(outer),
                ..network()
            },
            &ufw("DROP", ""),
        )
    };
    assert_eq!(
        (of(Family::V4), of(Family::V6)),
        (vec!["ufw".to_owned()], Vec::new())
    );
    let ipip = ipip();
    let v6 = table(
        &ufw("DROP", ""),
        &"fd10:244::/48".parse().unwrap(),
        ipip.tunnel(),
        &around(),
        "ip6tables",
    );
    assert!(
        report(&by_tables(&ipip, &[v6])).findings.is_empty(),
        "it travels over IPv4"
    );
}

#[test]
fn ufw_has_to_accept_the_protocol_of_ipip() {
    let ipip = ipip();
    for (rule, is) in [
        ("-p 4", true),
        ("-p ipencap", true),
        ("-s 192.0.2.0/24", true),
        ("-p udp -m udp --dport 8472", false),
        ("-p udp", false),
    ] {
        let wanted: &[&str] = if is { &[] } else { &["ufw"] };
        assert_eq!(
            seen(
                &ipip,
                &ufw("DROP", &format!("-A ufw-before-input {rule} -j ACCEPT"))
            ),
            wanted,
            "{rule}"
        );
    }
    let facts = by_tables(
        &ipip,
        &[table(
            &ufw("DROP", ""),
            &NET.parse().unwrap(),
            ipip.tunnel(),
            &around(),
            "iptables",
        )],
    );
    let found = only(&facts, "ufw");
    assert!(
        found.what.contains(&code_or_text("ufw", "protocol 4"))
            && found
                .remedy
                .commands
                .last()
                .is_some_and(|last| last == "ufw reload"),
        "{found:?}"
    );
}

#[test]
fn ufw_has_to_accept_both_ports_of_two_tunnels() {
    let two = Network {
        encapsulation: Some(Encapsulation::Udp {
            ports: Dual::Both(51820, 51821),
            outer: None,
        }),
        ..network()
    };
    let one_open = "-A ufw-user-input -p udp -m udp --dport 51820 -j ACCEPT";
    assert_eq!(seen(&two, &ufw("DROP", one_open)), ["ufw"], "half of it");
    assert_eq!(
        seen(
            &two,
            &ufw(
                "DROP",
                &format!("{one_open}\n{}", one_open.replace("51820", "51821"))
            )
        ),
        [""; 0]
    );
}

/// Loads an nft script into a new network namespace and returns two listings by nft: the chains, and the whole ruleset.
pub(super) fn listed(script: &str) -> Vec<serde_json::Value> {
    let list = "nft -f - && nft -j list chains && nft -j list ruleset";
    let mut child = std::process::Command::new("unshare")
        .args(["-n", "sh", "-ec", list])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(
        &mut child.stdin.take().unwrap(),
        format!("{script}\n").as_bytes(),
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "nft refuses\n{script}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Loads an nft script into a new network namespace and returns the findings about the ruleset.
fn barred(script: &str) -> Vec<(String, String)> {
    let barriers = barriers(
        &listed(script)[1],
        &network().networks.nets().collect::<Vec<_>>(),
    );
    let facts = with(
        &network(),
        &sysctls(),
        Firewalls {
            barriers,
            ..Firewalls::default()
        },
    );
    report(&facts)
        .findings
        .into_iter()
        .map(|finding| (finding.check, finding.about))
        .collect()
}

/// Returns an nftables table whose forward chain has the given policy and additional rules.
fn wall(family: &str, policy: &str, more: &str) -> String {
    format!(
        "table {family} wall {{ set pods {{ type ipv4_addr; flags interval; elements = {{ 10.244.0.0/16, 192.0.2.1 }}; }}\n chain inner {{ ip saddr {NET} accept; }}\n chain gate {{ type filter hook forward priority 5; policy {policy}; {more}\n }}\n }}"
    )
}

/// Rules for a dual-stack forward chain with the policy drop, each with the number of families whose pod packets the chain drops.
const RULES_OF_WALL: &[(&str, usize)] = &[
    ("ct state established,related accept", 2),
    ("ip saddr 10.9.0.0/16 accept", 2),
    ("tcp dport 22 accept", 2),
    ("iifname \"eth0\" accept", 2),
    ("ip saddr 10.244.0.0/16 tcp dport 22 accept", 2),
    (
        "ip saddr 10.244.0.0/16 accept; ip daddr 10.244.0.0/16 accept",
        1,
    ),
    ("ip saddr 10.0.0.0/8 counter accept", 1),
    ("ip daddr { 192.0.2.0/24, 10.244.0.0/16 } accept", 1),
    ("ip saddr @pods accept", 1),
    ("ip saddr 10.244.0.0-10.244.255.255 accept", 1),
    ("jump inner", 1),
    ("meta nfproto ipv4 jump inner", 1),
    ("tcp dport 80 jump inner", 2),
    ("meta nfproto ipv6 accept", 1),
    (
        "iifname \"flannel*\" accept; oifname \"flannel*\" accept",
        0,
    ),
    ("oifname { \"cni0\", \"flannel.1\" } accept", 0),
    ("iifname != \"eth0\" accept", 0),
    // The IPv6 device has another name.
    ("iifname != \"flannel.1\" accept", 1),
    ("iifname != { \"flannel.1\", \"flannel-v6.1\" } accept", 2),
    ("ct state != new accept", 2),
    (
        "iifname vmap { \"lo\" : accept, \"cni0\" : accept, \"flannel.1\" : accept }",
        0,
    ),
    ("iifname vmap { \"lo\" : accept, \"cni0\" : jump inner }", 1),
    (
        "ip saddr vmap { 10.244.0.0/16 : accept, 192.0.2.1 : drop }",
        1,
    ),
    ("ct state vmap { established : accept, invalid : drop }", 2),
    ("tcp dport 22 iifname vmap { \"cni0\" : accept }", 2),
    ("accept", 0),
];

#[test]
fn nftables_chain_that_drops_is_reported_for_its_families() {
    let (v4, v6) = (NET, "fd10:244::/48");
    let name = |family: &str, net: &str| {
        (
            "forward-policy".to_owned(),
            format!("{family} wall gate {net}"),
        )
    };
    assert_eq!(
        barred(&wall("inet", "drop", "")),
        [name("inet", v4), name("inet", v6)]
    );
    assert_eq!(barred(&wall("ip", "drop", "")), [name("ip", v4)]);
    assert_eq!(
        barred(
            "table ip6 wall { chain gate { type filter hook forward priority 0; policy drop; }; }"
        ),
        [name("ip6", v6)]
    );
    assert_eq!(barred(&wall("inet", "accept", "")), []);
}

#[test]
fn nftables_chain_that_drops_is_no_finding_once_it_accepts_pods() {
    // Only a rule that matches pod packets ends the finding, and only for its family.
    for (more, left) in RULES_OF_WALL {
        assert_eq!(barred(&wall("inet", "drop", more)).len(), *left, "{more}");
    }
}

#[test]
fn nftables_rule_without_conditions_acts_like_a_policy() {
    let rejects = |more: &str| {
        barred(&wall("inet", "accept", more))
            .iter()
            .filter(|(check, _)| check == "forward-reject")
            .count()
    };
    assert_eq!(
        (
            rejects("reject"),
            rejects("drop; ip saddr 10.244.0.0/16 accept"),
            rejects("ip saddr 10.244.0.0/16 accept; counter drop")
        ),
        (2, 2, 1)
    );
    assert_eq!(
        (
            rejects("tcp dport 22 drop"),
            rejects("ct state invalid drop")
        ),
        (0, 0)
    );
}

#[test]
fn nftables_chains_of_other_checks_are_skipped() {
    // iptables has listed its own chains, ip6tables has not.
    let theirs = |table: &str, chain: &str| {
        format!(
            "table {table} {{ chain {chain} {{ type filter hook forward priority 0; policy drop; }}; }}\n"
        )
    };
    assert_eq!(
        barred(
            &(theirs("inet firewalld", "x")
                + &theirs("ip flannel-ipv4", "forward")
                + &theirs("ip filter", "FORWARD"))
        ),
        []
    );
    assert_eq!(barred(&theirs("ip6 filter", "FORWARD")).len(), 1);
}

proptest! {
    #[test]
    fn iptables_listing_never_panics(text in "(\\*filter\n)?(-A |:)?(FORWARD|INPUT|DOCKER-USER|ufw-user-input)?( -j| -s|-m comment --comment|\"|DROP|REJECT|--dport| |\n|[a-z0-9./]){0,20}") {
        let _ = table(&text, &NET.parse().unwrap(), Some(Encapsulation::udp(8472)), &around(), "iptables");
    }
}

#[test]
fn wrong_checksums_from_elsewhere_are_no_finding() {
    let of = |udp, tcp, refuses| {
        let mut facts = healthy();
        facts.host.checksums = Fact::Known(Checksums { udp, tcp });
        let Fact::Known(mesh) = &mut facts.mesh else {
            panic!("no mesh")
        };
        (mesh.paths[0].verdict.ping_only, mesh.paths[0].refuses) = (true, refuses);
        causes(&facts)
    };
    assert_eq!(of(3, 0, false), ["checksum"]);
    // Too few UDP errors, TCP errors from the Internet, and a peer whose daemon restarts.
    for (udp, tcp, refuses) in [(2, 0, false), (0, 50, false), (50, 50, true)] {
        assert_eq!(
            of(udp, tcp, refuses),
            ["probe-filtered"],
            "{udp} {tcp} {refuses}"
        );
    }
}

#[test]
fn routes_inside_the_network_matter_where_they_win() {
    let of = |to: &str, protocol, index| {
        let mut facts = healthy();
        let Fact::Known(routes) = &mut facts.host.routes else {
            panic!("no routes")
        };
        routes.push(Route {
            index: Some(index),
            protocol,
            ..Route::new(to.parse().unwrap())
        });
        report(&facts)
            .findings
            .iter()
            .map(|finding| (finding.check.clone(), finding.severity))
            .collect::<Vec<_>>()
    };
    let found = |severity| vec![("network-overlap".to_owned(), severity)];
    assert_eq!(
        of("10.244.2.0/25", 4, 2),
        found(Severity::Broken),
        "a part of a peer's subnet"
    );
    assert_eq!(
        of("10.244.2.0/23", 4, 2),
        found(Severity::Risk),
        "flannel's own route is longer"
    );
    assert_eq!(
        of("10.244.128.0/17", 4, 5),
        found(Severity::Risk),
        "nobody has it yet"
    );
    assert_eq!(of("10.244.128.7/32", 4, 2), [], "a node inside the network");
    assert_eq!(
        of("10.0.0.0/8", 4, 5),
        [],
        "flannel's are longer, whoever has a subnet"
    );
    assert_eq!(
        of("10.244.128.0/17", 2, 5),
        [],
        "an address is told by itself"
    );
    assert_eq!(of("10.244.1.7/32", 3, 5), [], "a pod of this node");
    assert_eq!(of("172.31.0.0/16", 4, 5), []);
}

#[test]
fn docker_network_is_an_overlap_and_no_stale_bridge() {
    let mut facts = healthy();
    let own = types::Subnets::V4("172.20.1.0/24".parse().unwrap());
    facts.network = Fact::Known(Network {
        networks: types::Subnets::V4("172.16.0.0/12".parse().unwrap()),
        own,
        ..network()
    });
    let found = report(&facts).findings;
    assert!(
        found.iter().all(|finding| finding.check != "stale-bridge"),
        "{found:#?}"
    );
    assert!(
        found
            .iter()
            .any(|finding| finding.check == "network-overlap"
                && finding.about == "docker0 172.17.0.0/16"),
        "{found:#?}"
    );
}
