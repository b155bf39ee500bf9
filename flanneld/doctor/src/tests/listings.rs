//! Findings about firewall rules and sysctls, and the sysctls that flanneld corrects.

use super::cases::{inside, paths};
use super::healthy::healthy;
use super::{causes, commands_of, report};
use crate::correct::corrections;
use crate::fact::Fact;
use crate::facts::host::{Checksums, Route, Sysctls};
use crate::facts::{Facts, Network};
use crate::finding::Severity;
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

/// The surroundings of the node in [`healthy`].
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

/// `saved` is the output of `iptables-save`.
pub(super) fn table(
    saved: &str,
    net: &IpNet,
    tunnel: Option<Encapsulation>,
    around: &Surroundings,
    command: &str,
) -> Table {
    let rules = iptables::read(saved, Family::from(net.addr()), Variant::Nft);
    passage::table(&rules, net, &Network { encapsulation: tunnel, ..network() }, around, command)
}

/// The chains that drop packets of the pod networks `nets`.
pub(super) fn barriers(listing: &serde_json::Value, nets: &[IpNet]) -> Vec<Barrier> {
    let rules: Rules = nft::read(listing, Extent::Rules);
    let gates = passage::gates(&rules, &[Family::V4]);
    gates
        .iter()
        .flat_map(|gate| {
            nets.iter().filter_map(|net| passage::barrier(&rules, gate, net, &network(), &around()))
        })
        .collect()
}

fn sysctls() -> Sysctls {
    healthy().host.sysctls.known().unwrap().clone()
}

fn with(network: &Network, sysctls: &Sysctls, firewalls: Firewalls) -> Facts {
    let mut facts = healthy();
    (facts.network, facts.host.sysctls, facts.host.firewalls) =
        (Fact::Known(network.clone()), Fact::Known(sysctls.clone()), Fact::Known(firewalls));
    facts.pods.env =
        Fact::Known(crate::facts::pods::Env { subnets: Some(network.own), ..Default::default() });
    super::healthy::forget_probes(&mut facts);
    facts
}

fn found(facts: &Facts) -> Vec<String> {
    let findings = report(facts).findings.into_iter();
    findings.map(|finding| finding.check).collect()
}

fn checks(network: &Network, sysctls: &Sysctls) -> Vec<String> {
    found(&with(network, sysctls, Firewalls::default()))
}

fn by_tables(network: &Network, tables: &[Table]) -> Facts {
    with(network, &sysctls(), Firewalls { tables: tables.to_vec(), ..Firewalls::default() })
}

fn v4(network: &Network, saved: &str, command: &str) -> Table {
    table(saved, &NET.parse().unwrap(), network.tunnel(), &around(), command)
}

fn seen(network: &Network, saved: &str) -> Vec<String> {
    let of = |text: &str| found(&by_tables(network, &[v4(network, text, "iptables")]));
    let plain = of(saved);
    // The format of `iptables-save -c`.
    assert_eq!(of(&saved.replace("\n-A", "\n[12:3456] -A")), plain);
    plain
}

fn nftables() -> Network {
    Network { nftables: true, ..network() }
}

/// The sysctls that the pod network needs.
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
        ["ip-forward", "ipv6-forwarding", "bridge-nf-call", "bridge-nf-call"]
    );
    let v6 = Network {
        networks: types::Subnets::V6("fd10:244::/48".parse().unwrap()),
        own: types::Subnets::V6("fd10:244:0:1::/64".parse().unwrap()),
        ..network()
    };
    let mut found = checks(&v6, &bad);
    found.retain(|check| check != "stale-bridge");
    assert_eq!(found, ["ipv6-forwarding", "bridge-nf-call"]);
    assert_eq!(checks(&nftables(), &bad), ["ip-forward", "ipv6-forwarding"]);
}

/// Otherwise the kernel removes the default routes that routers announced on the underlay and on other interfaces.
#[test]
fn forwarding_is_turned_on_after_router_advertisements_are_kept() {
    let nat = Sysctls { announced: vec!["enp0s3".to_owned(), "eth0".to_owned()], ..all_off() };
    let facts = with(&network(), &nat, Firewalls::default());
    let commands = commands_of(&facts, "ipv6-forwarding");
    let of = |at: usize| commands[at].as_str();
    assert_eq!(
        [of(0), of(2), of(4)],
        [
            "sysctl -w net/ipv6/conf/enp0s3/accept_ra=2",
            "sysctl -w net/ipv6/conf/eth0/accept_ra=2",
            "sysctl -w net.ipv6.conf.all.forwarding=1"
        ]
    );
}

#[test]
fn missing_sysctls_are_no_finding() {
    let none = Sysctls { br_netfilter: true, ..Sysctls::default() };
    assert_eq!((checks(&network(), &none), corrections(&network(), &none)), (vec![], vec![]));
    let without_module = Sysctls { br_netfilter: false, ..sysctls() };
    assert_eq!(checks(&nftables(), &without_module), [""; 0]);
}

#[test]
fn corrections_keep_router_advertisements() {
    let list = |announced: &[&str]| -> Vec<String> {
        let sysctls = Sysctls {
            announced: announced.iter().map(|name| (*name).to_owned()).collect(),
            ..all_off()
        };
        corrections(&network(), &sysctls)
            .iter()
            .map(|c| format!("{} {} -> {}", c.path.display(), c.old, c.new))
            .collect()
    };
    assert_eq!(
        list(&["eth0.7"]),
        [
            "/proc/sys/net/ipv4/ip_forward 0 -> 1",
            "/proc/sys/net/ipv6/conf/eth0.7/accept_ra 1 -> 2",
            "/proc/sys/net/ipv6/conf/all/forwarding 0 -> 1",
            "/proc/sys/net/bridge/bridge-nf-call-iptables 0 -> 1",
            "/proc/sys/net/bridge/bridge-nf-call-ip6tables 0 -> 1",
        ]
    );
    assert_eq!(list(&[]).len(), 4);
}

#[test]
fn docker_policy_matters_only_without_our_rules() {
    let docker = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n:DOCKER - [0:0]\n:DOCKER-USER - [0:0]\n-A FORWARD -j DOCKER-USER\n-A FORWARD -o docker0 -j DOCKER\n-A DOCKER-USER -j RETURN\n";
    let off = Network { forward: false, ..network() };
    let plain = format!("{docker}COMMIT\n");
    assert_eq!(seen(&network(), &plain), [""; 0], "our jump will be added");
    assert_eq!(seen(&off, &plain), ["forward-policy"]);
    assert_eq!(seen(&nftables(), &plain), ["forward-policy"]);
    let by = |network: &Network, tables: &[Table]| {
        commands_of(&by_tables(network, tables), "forward-policy")
    };
    assert_eq!(
        by(&nftables(), &[v4(&nftables(), &plain, "iptables")])[..2],
        [
            "iptables -A FORWARD -s 10.244.0.0/16 -j ACCEPT",
            "iptables -A FORWARD -d 10.244.0.0/16 -j ACCEPT"
        ]
    );
    let fixed = plain.replace("-j RETURN", "-s 10.244.0.0/16 -j ACCEPT");
    assert_eq!(seen(&nftables(), &fixed), [""; 0]);
    // flannel's jump in one variant does not override the policy of the other.
    let ours = "*filter\n:FORWARD ACCEPT [0:0]\n:FLANNEL-FWD - [0:0]\n-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD\nCOMMIT\n";
    let both = [(ours, "iptables-nft"), (&plain, "iptables-legacy")]
        .map(|(text, command)| v4(&network(), text, command));
    let commands = by(&network(), &both);
    assert!(commands[0].starts_with("iptables-legacy -A FORWARD"), "{commands:?}");
}

#[test]
fn reject_rule_is_reported_if_it_comes_first() {
    const JUMP: &str = "-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD";
    const REJECT: &str = "-A FORWARD -j REJECT --reject-with icmp-host-prohibited";
    const NAMED: &str = "-A FORWARD -m comment --comment \"the rest -j ACCEPT\" -j DROP";
    let others = "-A FORWARD -i eth9 -j REJECT\n-A FORWARD -m conntrack --ctstate INVALID -j DROP";
    for (network, first, then, is) in [
        (network(), REJECT, JUMP, true),
        (network(), NAMED, JUMP, true),
        (network(), JUMP, REJECT, false),
        (network(), others, JUMP, false),
        (nftables(), "", REJECT, true),
        (nftables(), "-A FORWARD -s 10.0.0.0/8 -j ACCEPT", REJECT, false),
        (nftables(), "-A FORWARD -i cni0 -j ACCEPT", REJECT, false),
        (nftables(), "-A FORWARD -o flannel+ -j ACCEPT", REJECT, false),
        (nftables(), "-A FORWARD ! -i eth0 -j ACCEPT", REJECT, false),
        (nftables(), "-A FORWARD -i eth0 -j ACCEPT", REJECT, true),
        (nftables(), "-A FORWARD ! -i cni0 -j ACCEPT", REJECT, true),
    ] {
        let text = format!(
            "*filter\n:FORWARD ACCEPT [0:0]\n:FLANNEL-FWD - [0:0]\n-A FLANNEL-FWD -s {NET} -j ACCEPT\n{first}\n{then}\nCOMMIT\n*nat\n-A FORWARD -j REJECT\nCOMMIT\n"
        );
        let wanted: &[&str] = if is { &["forward-reject"] } else { &[] };
        assert_eq!(seen(&network, &text), wanted, "{first}\n{then}");
    }
}

/// Prints ufw's rules like `iptables-save`, with a policy of INPUT and additional rules.
fn ufw(policy: &str, more: &str) -> String {
    format!(
        "*filter\n:INPUT {policy} [0:0]\n:FORWARD DROP [0:0]\n:ufw-before-input - [0:0]\n-A INPUT -j ufw-before-input\n-A FORWARD -j ufw-before-forward\n-A ufw-before-input -i lo -j ACCEPT\n-A ufw-before-input -j ufw-user-input\n-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT\n{more}\nCOMMIT\n"
    )
}

#[test]
fn ufw_is_reported_where_it_refuses_by_default() {
    let without_tunnel = Network { encapsulation: None, ..network() };
    // ufw may leave its chains without jumps when it is disabled.
    let disabled = "*filter\n:INPUT DROP [0:0]\n:ufw-before-input - [0:0]\nCOMMIT\n";
    for (network, text, is) in [
        (network(), ufw("DROP", ""), true),
        (
            network(),
            ufw("ACCEPT", "-A ufw-reject-input -j REJECT\n-A INPUT -j ufw-reject-input"),
            true,
        ),
        (network(), ufw("DROP", "-A ufw-user-input -p udp -m udp --dport 8472 -j DROP"), true),
        (network(), ufw("ACCEPT", ""), false),
        (without_tunnel, ufw("DROP", ""), false),
        (network(), disabled.to_owned(), false),
    ] {
        let wanted: &[&str] = if is { &["ufw"] } else { &[] };
        assert_eq!(seen(&network, &text), wanted, "{text}");
    }
}

/// The rules accept packets; each says whether flannel's are among them over UDP port 8472, over the ports 51820 and 51821, and over IPIP.
#[test]
fn ufw_is_no_finding_once_rules_accept_the_tunnel() {
    let of = |encapsulation| Network { encapsulation: Some(encapsulation), ..network() };
    let two = Encapsulation::Udp { ports: Dual::Both(51820, 51821), outer: None };
    let tunnels = [network(), of(two), of(Encapsulation::Ipip)];
    for (accepted, wanted) in [
        ("-p udp -m udp --dport 8472", [true, false, false]),
        ("-p udp -m multiport --dports 53,8472", [true, false, false]),
        ("-p udp -m udp --dport 8000:9000", [true, false, false]),
        ("-p udp -m multiport --dports 53,8400:8500", [true, false, false]),
        ("-s 192.0.2.0/24", [true; 3]),
        ("-i eth0", [true; 3]),
        ("-p 4", [false, false, true]),
        ("-p ipencap", [false, false, true]),
        ("-p udp", [true, true, false]),
        ("-p udp -m udp --dport 51820", [false; 3]),
        ("-p udp -m udp --dport 51820:51821", [false, true, false]),
        ("-p udp -m udp --dport 8473:9000", [false; 3]),
        ("-p udp -m multiport --dports 53,8000:8471", [false; 3]),
        ("-i lo", [false; 3]),
        ("-m conntrack --ctstate ESTABLISHED", [false; 3]),
        ("-s 203.0.113.5/32", [false; 3]),
        ("-p tcp -m tcp --dport 8472", [false; 3]),
        ("-i docker0", [false; 3]),
        ("-s 203.0.113.5/32 -p udp -m udp --dport 8472", [false; 3]),
    ] {
        // The remedy of `encap-blocked` inserts a rule into INPUT.
        for chain in ["ufw-user-input", "INPUT"] {
            let text = ufw("DROP", &format!("-A {chain} {accepted} -j ACCEPT"));
            let accepts = tunnels.each_ref().map(|network| seen(network, &text).is_empty());
            assert_eq!(accepts, wanted, "{text}");
        }
    }
}

/// The tunnel carries both families over one family of the underlay, so the firewall of the other family does not have to accept it.
#[test]
fn ufw_matters_only_in_the_outer_family_of_the_tunnel() {
    let of = |encapsulation, net: &str| {
        let network = Network { encapsulation: Some(encapsulation), ..network() };
        let net = net.parse().unwrap();
        let refused = table(&ufw("DROP", ""), &net, network.tunnel(), &around(), "iptables");
        found(&by_tables(&network, &[refused]))
    };
    let outer = |family| Encapsulation::Udp { ports: Dual::Both(8472, 8472), outer: Some(family) };
    assert_eq!(of(outer(Family::V4), NET), ["ufw"]);
    assert_eq!(of(outer(Family::V6), NET), [""; 0]);
    assert_eq!(of(Encapsulation::Ipip, "fd10:244::/48"), [""; 0], "it travels over IPv4");
}

/// Loads an nft script into a new network namespace. nft lists it twice: the chains, and the whole ruleset.
pub(super) fn listed(script: &str) -> Vec<serde_json::Value> {
    let list = "nft -f - && nft -j list chains && nft -j list ruleset";
    let mut child = std::process::Command::new("unshare")
        .args(["-n", "sh", "-ec", list])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), format!("{script}\n").as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "nft refuses\n{script}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Loads an nft script into a new network namespace.
fn barred(script: &str) -> Vec<(String, String)> {
    let barriers = barriers(&listed(script)[1], &network().networks.nets().collect::<Vec<_>>());
    let facts = with(&network(), &sysctls(), Firewalls { barriers, ..Firewalls::default() });
    report(&facts).findings.into_iter().map(|finding| (finding.check, finding.about)).collect()
}

/// A table whose forward chain has the policy and additional rules.
fn wall(family: &str, policy: &str, more: &str) -> String {
    format!(
        "table {family} wall {{ set pods {{ type ipv4_addr; flags interval; elements = {{ 10.244.0.0/16, 192.0.2.1 }}; }}\n chain inner {{ ip saddr {NET} accept; }}\n chain gate {{ type filter hook forward priority 5; policy {policy}; {more}\n }}\n }}"
    )
}

/// For a dual-stack forward chain with the policy drop, each with the number of families whose pod packets it drops.
const RULES_OF_WALL: &[(&str, usize)] = &[
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
    ("iifname != \"eth0\" accept", 0),
    // The IPv6 device has another name.
    ("iifname != \"flannel.1\" accept", 1),
    ("iifname != { \"flannel.1\", \"flannel-v6.1\" } accept", 2),
    ("ct state != new accept", 2),
    ("iifname vmap { \"lo\" : accept, \"cni0\" : accept, \"flannel.1\" : accept }", 0),
    ("iifname vmap { \"lo\" : accept, \"cni0\" : jump inner }", 1),
    ("ip saddr vmap { 10.244.0.0/16 : accept, 192.0.2.1 : drop }", 1),
    ("ct state vmap { established : accept, invalid : drop }", 2),
    ("tcp dport 22 iifname vmap { \"cni0\" : accept }", 2),
    ("accept", 0),
];

#[test]
fn nftables_chain_that_drops_is_reported_for_its_families() {
    let (v4, v6) = (NET, "fd10:244::/48");
    let name = |family: &str, net: &str| {
        ("forward-policy".to_owned(), format!("{family} wall gate {net}"))
    };
    assert_eq!(barred(&wall("inet", "drop", "")), [name("inet", v4), name("inet", v6)]);
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
    for (more, rejects) in [
        ("reject", 2),
        ("drop; ip saddr 10.244.0.0/16 accept", 2),
        ("ip saddr 10.244.0.0/16 accept; counter drop", 1),
        ("tcp dport 22 drop", 0),
        ("ct state invalid drop", 0),
    ] {
        let found = barred(&wall("inet", "accept", more));
        let count = found.iter().filter(|(check, _)| check == "forward-reject").count();
        assert_eq!(count, rejects, "{more}");
    }
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
        let path = &mut paths(&mut facts)[0];
        (path.verdict.ping_only, path.refuses) = (true, refuses);
        causes(&facts)
    };
    assert_eq!(of(3, 0, false), ["checksum"]);
    // Too few UDP errors, TCP errors from the Internet, and a peer whose daemon restarts.
    for (udp, tcp, refuses) in [(2, 0, false), (0, 50, false), (50, 50, true)] {
        assert_eq!(of(udp, tcp, refuses), ["probe-filtered"], "{udp} {tcp} {refuses}");
    }
}

#[test]
fn routes_inside_the_network_matter_where_they_win() {
    for (to, protocol, index, severity, why) in [
        ("10.244.2.0/25", 4, 2, Some(Severity::Broken), "a part of a peer's subnet"),
        ("10.244.2.0/23", 4, 2, Some(Severity::Risk), "flannel's own route is longer"),
        ("10.244.128.0/17", 4, 5, Some(Severity::Risk), "nobody has it yet"),
        ("10.244.128.7/32", 4, 2, None, "a node inside the network"),
        ("10.0.0.0/8", 4, 5, None, "flannel's are longer, whoever has a subnet"),
        ("10.244.128.0/17", 2, 5, None, "an address is told by itself"),
        ("10.244.1.7/32", 3, 5, None, "a pod of this node"),
        ("172.31.0.0/16", 4, 5, None, "another network"),
    ] {
        let mut facts = healthy();
        inside(&mut facts.host.routes).push(Route {
            index,
            protocol,
            net: to.parse().unwrap(),
            ..Route::default()
        });
        let found = report(&facts).findings;
        let severities: Vec<_> = found.iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, Vec::from_iter(severity), "{why}");
        assert!(found.iter().all(|finding| finding.check == "network-overlap"), "{why}");
    }
}

#[test]
fn docker_network_is_an_overlap_and_no_stale_bridge() {
    let mut facts = healthy();
    facts.network = Fact::Known(Network {
        networks: types::Subnets::V4("172.16.0.0/12".parse().unwrap()),
        own: types::Subnets::V4("172.20.1.0/24".parse().unwrap()),
        ..network()
    });
    let found = found(&facts);
    assert!(!found.contains(&"stale-bridge".to_owned()), "{found:?}");
    assert!(found.contains(&"network-overlap".to_owned()), "{found:?}");
}
