//! Tests of the findings about firewalld's table.

use super::healthy::healthy;
use super::listings::listed;
use super::report;
use crate::fact::Fact;
use crate::facts::Network;
use crate::finding::Finding;
use crate::firewalls::{Firewalld, Firewalls};
use crate::surroundings::Surroundings;
use traffic_rules::reader::nft::{self, Extent};

/// A table like firewalld's. `input` and `forward` are rules that send packets to a zone. `open` and `through` are rules of the zone `public` for
/// incoming and forwarded packets.
fn table(input: &str, forward: &str, open: &str, through: &str) -> String {
    let steps = |name: &str| {
        format!(
            "jump {name}_pre; jump {name}_log; jump {name}_deny; jump {name}_allow; jump {name}_post;"
        )
    };
    let chains = |name: &str, allow: &str| {
        let empty = ["pre", "log", "deny", "post"]
            .map(|step| format!("chain {name}_{step} {{ }}\n"))
            .concat();
        format!("{empty}chain {name}_allow {{ {allow}\n }}\n")
    };
    format!(
        "table inet firewalld {{\n{}{}
        chain filter_IN_trusted {{ accept\n }}
        chain filter_FWD_trusted {{ accept\n }}
        chain filter_IN_public {{ {} meta l4proto {{ icmp, ipv6-icmp }} accept; reject with icmpx admin-prohibited; }}
        chain filter_FWD_public {{ {} meta l4proto {{ icmp, ipv6-icmp }} accept; reject with icmpx admin-prohibited; }}
        chain filter_INPUT_ZONES {{ {input}\n goto filter_IN_public; }}
        chain filter_FORWARD_ZONES {{ {forward}\n goto filter_FWD_public; }}
        chain filter_INPUT {{ type filter hook input priority 10; policy accept;
            ct state {{ established, related }} accept; ct status dnat accept; iifname \"lo\" accept; ct state invalid drop;
            jump filter_INPUT_ZONES; reject with icmpx admin-prohibited; }}
        chain filter_FORWARD {{ type filter hook forward priority 10; policy accept;
            ct state {{ established, related }} accept; ct status dnat accept; iifname \"lo\" accept; ct state invalid drop;
            ip6 daddr {{ ::/96, 2002::/24 }} reject with icmpv6 addr-unreachable;
            jump filter_FORWARD_ZONES; reject with icmpx admin-prohibited; }}
        chain nat_POSTROUTING {{ type nat hook postrouting priority 110; policy accept; }}
        }}",
        chains("filter_IN_public", open),
        chains("filter_FWD_public", through),
        steps("filter_IN_public"),
        steps("filter_FWD_public"),
    )
}

fn network() -> Network {
    healthy().network.known().unwrap().clone()
}

fn firewalld(listing: &serde_json::Value, network: &Network, around: &Surroundings) -> Firewalld {
    crate::passage::firewalld(&nft::read(listing, Extent::Rules), network, around)
}

fn found_in(script: &str, around: &Surroundings) -> Vec<Finding> {
    let known = firewalld(&listed(script)[1], &network(), around);
    let mut facts = healthy();
    facts.host.firewalls =
        Fact::Known(Firewalls { firewalld: Some(known), ..Firewalls::default() });
    super::healthy::forget_probes(&mut facts);
    report(&facts).findings
}

fn around(peers: &[&str]) -> Surroundings {
    Surroundings {
        underlay: Some("eth0".to_owned()),
        bridge: None,
        peers: peers.iter().map(|peer| peer.parse().unwrap()).collect(),
        near: Vec::new(),
    }
}

/// What the commands of the findings open in firewalld, as one word each.
fn refused(input: &str, forward: &str, open: &str, through: &str) -> Vec<&'static str> {
    let found =
        found_in(&table(input, forward, open, through), &around(&["192.0.2.2", "192.0.2.3"]));
    let commands: Vec<&str> =
        found.iter().flat_map(|finding| &finding.remedy.commands).map(String::as_str).collect();
    [
        ("--add-source=10.244.0.0/16", "v4"),
        ("--add-source=fd10:244::/48", "v6"),
        ("port port=8472 protocol=udp", "port"),
    ]
    .into_iter()
    .filter(|(part, _)| commands.iter().any(|command| command.contains(part)))
    .map(|(_, word)| word)
    .collect()
}

const SOURCES: [&str; 2] = [
    "ip saddr 10.244.0.0/16 goto filter_IN_trusted; ip6 saddr fd10:244::/48 goto filter_IN_trusted;",
    "ip saddr 10.244.0.0/16 goto filter_FWD_trusted; ip6 saddr fd10:244::/48 goto filter_FWD_trusted;",
];
/// firewalld's default rules of the zone `public`.
const USUAL: &str = "tcp dport 22 accept; ip6 daddr fe80::/64 udp dport 546 accept;";

#[test]
fn firewalld_refusals_are_reported_with_commands() {
    assert_eq!(refused("", "", USUAL, ""), ["v4", "v6", "port"]);
    assert_eq!(refused(SOURCES[0], SOURCES[1], USUAL, ""), ["port"], "nodes are no pods");
    assert_eq!(
        found_in(&table(SOURCES[0], SOURCES[1], USUAL, ""), &around(&[])).len(),
        1,
        "nor where the nodes are not known"
    );
    assert_eq!(
        refused(SOURCES[0], SOURCES[1], "udp dport 8472 accept", ""),
        [""; 0],
        "what the commands make of it"
    );
    assert_eq!(refused("", "", "udp dport 8472 accept", ""), ["v4", "v6"]);
    let half = "ip saddr 10.244.0.0/16 goto filter_FWD_trusted;";
    assert_eq!(refused("", half, "udp dport 8472 accept", ""), ["v6"]);
}

#[test]
fn port_is_open_by_range_zone_or_source() {
    for (input, open, is_open) in [
        ("", "udp dport 8000-9000 accept", true),
        ("", "udp dport { 53, 8472 } accept", true),
        ("", "udp dport { 53, 8400-8500 } accept", true),
        ("", "meta l4proto udp accept", true),
        ("", "ip protocol udp accept", true),
        ("", "ip saddr 192.0.2.0/24 accept", true),
        ("", "udp dport 8473-9000 accept", false),
        ("", "tcp dport 8472 accept", false),
        ("", "udp sport 8472 accept", false),
        ("", "ct state { established } accept", false),
        ("", "ip saddr 203.0.113.7 accept", false),
        ("", "iifname \"eth1\" accept", false),
        ("", "meta l4proto icmp accept", false),
        ("", "ip protocol icmp accept", false),
        ("", "ip6 nexthdr ipv6-icmp accept", false),
        ("", "udp dport 8472 drop; udp dport 8472 accept", false),
        ("iifname \"eth0\" goto filter_IN_trusted", USUAL, true),
        ("iifname \"eth*\" goto filter_IN_trusted", USUAL, true),
        ("ip saddr 192.0.2.0/24 goto filter_IN_trusted", USUAL, true),
        ("iifname \"eth1\" goto filter_IN_trusted", USUAL, false),
        // Accepting only some nodes is not reported, because flannel does not decide which hosts may be neighbours of a node.
        ("ip saddr 192.0.2.2 goto filter_IN_trusted", USUAL, true),
    ] {
        let wanted: &[&str] = if is_open { &[] } else { &["port"] };
        assert_eq!(refused(input, SOURCES[1], open, ""), wanted, "{input} {open}");
    }
}

#[test]
fn pods_are_forwarded_by_devices_or_wider_networks() {
    for (forward, through, wanted) in [
        (
            "iifname { \"cni0\", \"flannel.1\", \"flannel-v6.1\" } goto filter_FWD_trusted",
            "",
            &[][..],
        ),
        // One direction.
        ("iifname \"cni0\" goto filter_FWD_trusted", "", &["v4", "v6"]),
        (
            "iifname \"flannel.1\" goto filter_FWD_trusted; iifname \"cni0\" goto filter_FWD_trusted",
            "",
            &["v6"],
        ),
        (
            "ip saddr 10.0.0.0/8 goto filter_FWD_trusted; meta nfproto ipv6 goto filter_FWD_trusted",
            "",
            &[],
        ),
        (
            "ip saddr 10.245.0.0/16 goto filter_FWD_trusted",
            "oifname \"eth0\" accept",
            &["v4", "v6"],
        ),
        ("", "accept", &[]),
        ("", "ip protocol icmp accept; ip6 nexthdr ipv6-icmp accept", &["v4", "v6"]),
    ] {
        assert_eq!(
            refused("", forward, "udp dport 8472 accept", through),
            wanted,
            "{forward} {through}"
        );
    }
}

#[test]
fn firewalld_listing_never_panics() {
    let network = network();
    for text in [
        "null",
        "{\"nftables\":[{\"chain\":{\"hook\":\"input\",\"type\":\"filter\",\"name\":\"a\"}},{\"rule\":{\"chain\":\"a\",\"expr\":[{\"jump\":{\"target\":\"a\"}}]}}]}",
    ] {
        let known =
            firewalld(&serde_json::from_str(text).unwrap(), &network, &Surroundings::default());
        assert!(known.tunnel, "a table without a verdict lets everything pass");
    }
}
