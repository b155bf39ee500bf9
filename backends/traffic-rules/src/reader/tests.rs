//! Tests whether given rules accept or drop packets.

use super::nft::Extent;
use super::packet::{Mark, Packet};
use super::{Device, Fate, HookPath, Ranges, Rules, Walk, iptables, nft};
use crate::programs::Variant;
use crate::tests::netns;
use types::Family;

/// As the real nft lists them after a script.
fn by_nft(script: &str) -> Rules {
    let listing = netns(&format!("nft -f - <<'X'\n{script}\nX\nnft -j -a list ruleset"));
    nft::read(&serde_json::from_str(&listing).unwrap(), Extent::Rules)
}

fn by_iptables(saved: &str) -> Rules {
    iptables::read(saved, Family::V4, Variant::Legacy)
}

/// Packets from this node's pods to pods of another node.
fn pods() -> Packet {
    let net = Ranges::net(&"10.244.0.0/16".parse().unwrap());
    Packet {
        source: net.clone(),
        destination: net,
        port_in: Some(Device::named("veth1")),
        ..Packet::new(
            HookPath::Forward,
            Family::V4,
            Device::named("cni0"),
            Device::named("flannel.1"),
        )
    }
}

/// A vxlan packet from another node to this node.
fn tunnel() -> Packet {
    Packet {
        source: Ranges::net(&"192.0.2.2/32".parse().unwrap()),
        protocol: Ranges::one(17_u32),
        destination_port: Ranges::one(8472_u32),
        ..Packet::new(HookPath::Input, Family::V4, Device::named("eth0"), Device::none())
    }
}

/// The rule that drops a packet, `passes`, or `perhaps` if the result is unknown.
fn word(rules: &Rules, packet: &Packet) -> String {
    match Walk::through(rules).fate(packet) {
        Fate::Yes { .. } => "passes".to_owned(),
        Fate::No(stop) => format!(
            "{} {}{}",
            stop.table,
            stop.chain,
            stop.place.map(|place| format!(" {place}")).unwrap_or_default()
        ),
        Fate::Perhaps { .. } => "perhaps".to_owned(),
    }
}

#[test]
fn hooks_of_bridges_and_devices_are_on_the_path() {
    let of = |script: &str| (word(&by_nft(script), &pods()), word(&by_nft(script), &tunnel()));
    let chain = |table: &str, hook: &str, rule: &str| {
        format!("table {table} {{ chain c {{ type filter hook {hook} priority -5; {rule}\n }}\n }}")
    };
    assert_eq!(of(&chain("bridge b", "input", "ip daddr 10.244.0.0/16 drop")).0, "b c 1");
    assert_eq!(of(&chain("bridge b", "prerouting", "iifname \"veth*\" drop")).0, "b c 1");
    assert_eq!(of(&chain("bridge b", "forward", "drop")).0, "passes", "it leaves the bridge");
    let ingress = |device: &str| {
        let listing = serde_json::json!({"nftables": [
            {"chain": {"family": "netdev", "table": "n", "name": "c", "hook": "ingress", "type": "filter", "prio": 0, "policy": "accept", "dev": device}},
            {"rule": {"family": "netdev", "table": "n", "chain": "c", "handle": 2, "expr": [{"drop": null}]}},
        ]});
        word(&nft::read(&listing, Extent::Rules), &tunnel())
    };
    assert_eq!((ingress("eth0"), ingress("eth1")), ("n c 1".to_owned(), "passes".to_owned()));
    assert_eq!(
        of(&chain("netdev n", "ingress device lo", "udp dport 8472 drop")).1,
        "perhaps",
        "older nft lists no device"
    );
    assert_eq!(of(&chain("inet n", "prerouting", "udp dport 8472 drop")).1, "n c 1");
    assert_eq!(
        of(&chain("inet n", "forward", "iifname \"cni0\" oifname \"flannel.1\" drop")).0,
        "n c 1"
    );
    assert_eq!(of(&chain("ip6 n", "forward", "drop")).0, "passes");
}

#[test]
fn sets_maps_and_pairs_decide_for_whole_networks() {
    let of = |rules: &str| {
        word(
            &by_nft(&format!(
                "table inet t {{ set nets {{ type ipv4_addr . ipv4_addr; flags interval; elements = {{ 10.244.0.0/16 . 10.244.0.0/16 }}; }}\n \
                 map pairs {{ type ifname . ifname : verdict; elements = {{ \"cni0\" . \"flannel.1\" : jump own }}; }}\n chain own {{ accept\n }}\n \
                 chain c {{ type filter hook forward priority 0; policy drop; {rules}\n }}\n }}"
            )),
            &pods(),
        )
    };
    for (rules, wanted) in [
        ("ip saddr . ip daddr @nets accept", "passes"),
        ("iifname . oifname vmap @pairs", "passes"),
        ("ip saddr 10.244.0.0/17 accept; ip saddr 10.244.128.0/17 accept", "passes"),
        ("ip saddr 10.244.0.0/17 accept", "perhaps"),
        ("ct state vmap { established : accept, new : goto own }", "passes"),
        ("meta mark set 0x10; meta mark & 0x10 == 0x10 accept", "passes"),
        ("meta mark 7 accept", "t c"),
        ("limit rate 5/second accept", "perhaps"),
        ("ct state established,related accept; tcp dport 22 accept", "t c"),
        ("ct state != established,related accept", "passes"),
        ("notrack; ct state new accept", "t c"),
    ] {
        assert_eq!(of(rules), wanted, "{rules}");
    }
}

#[test]
fn states_are_not_known_before_connections_are_looked_up() {
    let of = |priority: &str, rule: &str| {
        word(
            &by_nft(&format!(
                "table inet t {{ chain c {{ type filter hook prerouting priority {priority}; {rule}\n }}\n }}"
            )),
            &pods(),
        )
    };
    assert_eq!(of("raw", "ct state new drop"), "passes");
    assert_eq!(of("raw", "ct state invalid drop"), "t c 1");
    assert_eq!(of("mangle", "ct state new drop"), "t c 1");
}

#[test]
fn mark_that_is_not_known_decides_nothing() {
    let rules = by_iptables(
        "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT\nCOMMIT\n",
    );
    let unknown = Packet { mark: Mark { value: 0, known: 0x4000 }, ..pods() };
    assert_eq!(
        (word(&rules, &unknown), word(&rules, &pods())),
        ("perhaps".to_owned(), "filter FORWARD".to_owned())
    );
    let Fate::Perhaps { why, unless } = Walk::through(&rules).fate(&unknown) else {
        panic!("it is known")
    };
    assert!(
        why.contains("0x10000/0x10000") && unless.is_some_and(|stop| stop.is_policy()),
        "{why}"
    );
}

#[test]
fn next_drop_is_found_behind_the_first() {
    let rules = by_iptables(
        "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -i eth9 -j DROP\n-A FORWARD -j REJECT\nCOMMIT\n",
    );
    let stops = Walk::through(&rules).stops(&pods());
    let words: Vec<(Option<usize>, bool)> =
        stops.iter().map(|(stop, doubt)| (stop.number, *doubt)).collect();
    assert_eq!(words, [(Some(2), false), (None, false)]);
}

#[test]
fn chain_that_was_not_listed_is_named_and_decides_nothing() {
    let listing = serde_json::json!({"nftables": [
        {"chain": {"family": "ip", "table": "t", "name": "c", "hook": "forward", "type": "filter", "prio": 0, "policy": "drop"}},
        {"chain": {"family": "ip", "table": "t", "name": "more"}},
    ]});
    let mut rules = nft::read(&listing, Extent::Names);
    let names = |rules: &Rules| {
        Walk::through(rules)
            .missing(&pods())
            .into_iter()
            .map(|missing| missing.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (names(&rules), word(&rules, &pods())),
        (vec!["c".to_owned()], "perhaps".to_owned())
    );
    let rule = serde_json::json!({"nftables": [
        {"chain": {"family": "ip", "table": "t", "name": "c", "hook": "forward", "type": "filter", "prio": 0, "policy": "drop"}},
        {"rule": {"family": "ip", "table": "t", "chain": "c", "handle": 4, "expr": [{"jump": {"target": "more"}}]}},
    ]});
    rules.extend(nft::read(&rule, Extent::Rules));
    assert_eq!(names(&rules), ["more"]);
}

/// The kernel would refuse rules whose jumps form a loop.
#[test]
fn ring_of_jumps_ends() {
    let jump = |chain: &str| format!("-A {chain} -j a\n-A {chain} -j b\n");
    let ring = format!(
        "*filter\n:FORWARD DROP [0:0]\n:a - [0:0]\n:b - [0:0]\n{}{}{}COMMIT\n",
        jump("FORWARD"),
        jump("a"),
        jump("b")
    );
    assert_eq!(word(&by_iptables(&ring), &pods()), "perhaps");
}
