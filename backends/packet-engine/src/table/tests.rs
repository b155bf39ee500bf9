use super::*;
use crate::table::prefixes::Prefixes;
use ipnet::{Ipv4Net, Ipv6Net};
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::Ipv4Addr;

fn dual_stack_settings() -> TableSettings {
    TableSettings {
        networks: Networks {
            v4: Some("10.5.0.0/16".parse().unwrap()),
            v6: Some("fd00:5::/48".parse().unwrap()),
        },
        own: Networks {
            v4: Some("10.5.1.0/24".parse().unwrap()),
            v6: Some("fd00:5:0:1::/64".parse().unwrap()),
        },
        checks: Checks::Cluster,
        mtu: 1472,
        routed: true,
        encap_port: 8285,
        address: None,
    }
}

fn peer_at_address(address: &str) -> Peer {
    Peer {
        address: format!("{address}:8285").parse().unwrap(),
        mac: [0; 6],
        carries_v6: true,
        outer_ecn: false,
    }
}

fn numbered_peer(n: u32) -> Peer {
    peer_at_address(&Ipv4Addr::from_bits(0xc0a8_0000 + n).to_string())
}

fn parse_ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Reference lookup over all subnets: the longest prefix takes precedence, then the last entry.
fn longest_prefix_peer(peers: &[(IpNet, Peer)], ip: IpAddr) -> Option<&Peer> {
    peers
        .iter()
        .filter(|(net, _)| net.contains(&ip))
        .max_by_key(|(net, _)| net.prefix_len())
        .map(|(_, peer)| peer)
}

fn is_flat(table: &Table) -> [bool; 2] {
    let DualPrefixes { v4, v6 } = &table.subnets;
    [matches!(v4, Prefixes::Flat { .. }), matches!(v6, Prefixes::Flat { .. })]
}

/// The first and last address of each subnet, and addresses next to them.
fn subnet_edge_addresses(peers: &[(IpNet, Peer)]) -> Vec<IpAddr> {
    let edges = |net: &IpNet| {
        [-1, 0, 1].map(|step: i8| {
            [net.network(), net.broadcast()].map(|ip| match ip {
                IpAddr::V4(ip) => IpAddr::V4(ip.to_bits().wrapping_add_signed(step.into()).into()),
                IpAddr::V6(ip) => IpAddr::V6(ip.to_bits().wrapping_add_signed(step.into()).into()),
            })
        })
    };
    let all = ["0.0.0.0/0", "::/0"].map(|net| net.parse().unwrap());
    all.iter().chain(peers.iter().map(|(net, _)| net)).flat_map(edges).flatten().collect()
}

fn check_lookups(nets: Vec<IpNet>, more: Vec<IpAddr>) -> Result<Table, TestCaseError> {
    let peers: Vec<(IpNet, Peer)> =
        nets.into_iter().enumerate().map(|(n, net)| (net, numbered_peer(n as u32))).collect();
    let table = Table::build(dual_stack_settings(), peers.clone());
    for ip in subnet_edge_addresses(&peers).into_iter().chain(more) {
        prop_assert_eq!(table.lookup(ip), longest_prefix_peer(&peers, ip), "{}", ip);
    }
    for n in 0..peers.len() as u32 + 2 {
        let address = numbered_peer(n).address.ip();
        prop_assert_eq!(
            table.is_peer_address(address),
            peers.iter().any(|(_, peer)| peer.address.ip() == address)
        );
    }
    Ok(table)
}

fn ipv4_subnet(bits: u32, prefix: u8) -> IpNet {
    Ipv4Net::new(bits.into(), prefix).unwrap().into()
}

fn ipv6_subnet(bits: u128, prefix: u8) -> IpNet {
    Ipv6Net::new(bits.into(), prefix).unwrap().into()
}

proptest! {

    #[test]
    fn a_cluster_of_one_size(subnets in vec(0u32..256, 0..25), subnets_v6 in vec(0u128..65536, 0..25)) {
        let v4 = subnets.iter().map(|n| ipv4_subnet(0x0a05_0000 | n << 8, 24));
        let v6 = subnets_v6.iter().map(|n| ipv6_subnet(0xfd00_0005 << 96 | n << 64, 64));
        let table = check_lookups(v4.chain(v6).collect(), (0..=256).map(|n| IpAddr::V4((0x0a05_0007 + (n << 8)).into())).collect())?;
        prop_assert_eq!(is_flat(&table), [true, true]);
    }

    #[test]
    fn different_sizes_close_together(subnets in vec((0u32..1 << 14, 18u8..=32), 0..20), subnets_v6 in vec((0u128..1 << 18, 46u8..=64), 0..20)) {
        let v4 = subnets.iter().map(|(n, prefix)| ipv4_subnet(0x0a05_0000 | n, *prefix));
        let v6 = subnets_v6.iter().map(|(n, prefix)| ipv6_subnet((0xfd00_0005 << 32 | n) << 64, *prefix));
        let table = check_lookups(v4.chain(v6).collect(), (0..200).map(|n| IpAddr::V4((0x0a05_0000 + n * 83).into())).collect())?;
        prop_assert_eq!(is_flat(&table), [true, true]);
    }

    #[test]
    fn any_prefixes_anywhere(
        subnets in vec((any::<u32>(), 0u8..=32), 0..30),
        subnets_v6 in vec((any::<u128>(), 0u8..=128), 0..30),
        nested in vec((any::<prop::sample::Index>(), 0u8..=128), 0..20),
        others in vec((any::<u32>(), any::<u128>()), 0..50),
    ) {
        let mut nets: Vec<IpNet> = subnets.iter().map(|(bits, prefix)| ipv4_subnet(*bits, *prefix)).chain(subnets_v6.iter().map(|(bits, prefix)| ipv6_subnet(*bits, *prefix))).collect();
        for (index, prefix) in nested {
            if !nets.is_empty() {
                let net = nets[index.index(nets.len())];
                nets.push(IpNet::new(net.addr(), prefix.min(net.max_prefix_len())).unwrap());
            }
        }
        let others = others.into_iter().flat_map(|(v4, v6)| [IpAddr::V4(v4.into()), IpAddr::V6(v6.into())]).collect();
        check_lookups(nets, others)?;
    }
}

#[test]
fn distant_subnets_use_sorted_lists() {
    let nets = vec![
        ipv4_subnet(0x0a00_0000, 32),
        ipv4_subnet(0x0aff_ff00, 24),
        ipv4_subnet(0x0a80_0000, 9),
        ipv6_subnet(1 << 127, 128),
        ipv6_subnet(1, 128),
        ipv6_subnet(1 << 126, 3),
    ];
    let table = check_lookups(nets, vec![]).unwrap();
    assert_eq!(is_flat(&table), [false, false]);
}

#[test]
fn the_array_size_is_limited() {
    // 2^20 subnets of 16 addresses in a /8 just fit.
    let ends = |last: u32| {
        is_flat(
            &check_lookups(vec![ipv4_subnet(0x0a00_0000, 28), ipv4_subnet(last, 28)], vec![])
                .unwrap(),
        )[0]
    };
    assert!(ends(0x0aff_fff0));
    assert!(!ends(0x0b00_0000));
}

#[test]
fn table_without_peers_has_no_routes() {
    let table = Table::build(dual_stack_settings(), []);
    assert_eq!(
        (
            table.lookup(parse_ip("10.5.2.1")),
            table.lookup(parse_ip("::")),
            table.is_peer_address(parse_ip("0.0.0.0"))
        ),
        (None, None, false)
    );
    assert!(
        table.in_own_subnet(parse_ip("10.5.1.0"))
            && table.in_own_subnet(parse_ip("fd00:5:0:1::9"))
            && !table.in_own_subnet(parse_ip("10.5.2.0"))
    );
    assert!(
        table.in_network(parse_ip("10.5.255.255"))
            && !table.in_network(parse_ip("10.6.0.0"))
            && !table.in_network(parse_ip("fd00:6::"))
    );
}

#[test]
fn a_peer_inside_a_subnet_is_refused() {
    // The addresses of these peers are inside the peer's own, another peer's or our subnet. A node may be inside the network, but outside of leased
    // subnets. Host bits of a subnet are ignored, the last of equal subnets wins, and mapped addresses are IPv4 addresses.
    let peers = [
        ("10.5.2.0/24", "10.5.98.9", "10.5.2.9", Some("10.5.99.9")),
        ("10.5.2.77/24", "10.5.99.9", "10.5.2.1", Some("10.5.99.9")),
        ("10.5.3.0/24", "10.5.3.7", "10.5.3.9", None),
        ("fd00:5:0:4::/64", "[fd00:5::1]", "fd00:5:0:4::9", Some("[fd00:5::1]")),
        ("10.5.5.0/24", "[::ffff:10.5.2.9]", "10.5.5.9", None),
        ("10.5.6.0/24", "10.5.1.9", "10.5.6.9", None),
        ("10.5.7.0/24", "[::ffff:192.168.0.2]", "10.5.7.9", Some("192.168.0.2")),
    ];
    let net = |net: &str| net.parse::<IpNet>().unwrap();
    let table = Table::build(
        dual_stack_settings(),
        peers.map(|(subnet, address, ..)| (net(subnet), peer_at_address(address))),
    );
    assert_eq!(table.refused, ["10.5.3.0/24", "10.5.5.0/24", "10.5.6.0/24"].map(net));
    for (_, _, pod, found) in peers {
        assert_eq!(table.lookup(parse_ip(pod)), found.map(peer_at_address).as_ref(), "{pod}");
    }
    for (node, known) in [("10.5.3.7", false), ("192.168.0.2", true), ("10.5.99.9", true)] {
        assert_eq!(table.is_peer_address(parse_ip(node)), known, "{node}");
    }
}

#[test]
fn the_last_address_of_a_subnet_is_its_broadcast() {
    for (own, ip, is) in [
        ("10.5.1.0/24", "10.5.1.255", true),
        ("10.5.1.0/30", "10.5.1.3", true),
        ("10.5.1.0/24", "10.5.1.254", false),
        ("10.5.1.0/24", "10.5.2.255", false),
        ("10.5.1.0/31", "10.5.1.1", false),
        ("10.5.1.1/32", "10.5.1.1", false),
        ("10.5.1.0/24", "::a05:1ff", false),
    ] {
        let mut settings = dual_stack_settings();
        settings.own.v4 = Some(own.parse().unwrap());
        let table = Table::build(settings, []);
        assert_eq!(table.is_own_broadcast(ip.parse().unwrap()), is, "{ip} in {own}");
    }
}
