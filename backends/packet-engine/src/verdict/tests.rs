use super::*;
use crate::packet::Fragment;
use crate::table::Networks;
use ipnet::IpNet;
use proptest::prelude::*;
use std::sync::LazyLock;
use types::Family;

fn parse_ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn parse_net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Subnets of peers: three of node 2, one of node 3, two of node 4, and one of node 6. Node 4 runs Go flannel
/// and does not accept IPv6.
const LEASES: [(&str, &str, bool); 7] = [
    ("10.5.2.0/24", "192.168.0.2", true),
    ("fd00:5:0:2::/64", "192.168.0.2", true),
    ("10.5.20.0/24", "192.168.0.2", true),
    ("10.5.3.0/24", "192.168.0.3", true),
    ("10.5.4.0/24", "192.168.0.4", false),
    ("fd00:5:0:4::/64", "192.168.0.4", false),
    ("fd00:5:0:6::/64", "fd77::6", true),
];
const HERE: &str = "192.168.0.1";
const OWN: [&str; 2] = ["10.5.1.0/24", "fd00:5:0:1::/64"];
const NETWORKS: [&str; 2] = ["10.5.0.0/16", "fd00:5::/48"];

fn table_settings(
    networks: Networks,
    own: Networks,
    checks: Checks,
    routed: bool,
) -> TableSettings {
    TableSettings {
        networks,
        own,
        checks,
        mtu: 1472,
        routed,
        encap_port: 8285,
        address: Some(parse_ip(HERE)),
    }
}

fn peer_at_address(address: &str, carries_v6: bool) -> Peer {
    Peer { address: (parse_ip(address), 8285).into(), mac: [0; 6], carries_v6, outer_ecn: false }
}

fn build_table(checks: Checks, routed: bool) -> Table {
    let both = |nets: [&str; 2]| Networks {
        v4: Some(nets[0].parse().unwrap()),
        v6: Some(nets[1].parse().unwrap()),
    };
    Table::build(
        table_settings(both(NETWORKS), both(OWN), checks, routed),
        LEASES
            .iter()
            .map(|(subnet, address, v6)| (parse_net(subnet), peer_at_address(address, *v6))),
    )
}

/// For all combinations of settings, built only once.
static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
    let settings = |checks| [false, true].map(|routed| build_table(checks, routed));
    [Checks::Cluster, Checks::Strict, Checks::Off].into_iter().flat_map(settings).collect()
});

fn prebuilt_table(checks: Checks, routed: bool) -> &'static Table {
    TABLES
        .iter()
        .find(|table| (table.settings.checks, table.settings.routed) == (checks, routed))
        .unwrap()
}

fn udp_packet_header(source: IpAddr, destination: IpAddr, ttl: u8, len: usize) -> Header {
    let family = Family::from(source);
    let fragment = Fragment::No;
    Header {
        family,
        transport: family.pick(20, 40),
        protocol: 17,
        total_len: len,
        ttl,
        tos: 0,
        source,
        destination,
        fragment,
    }
}

/// A packet of zeros except for the destination port. The tests pass all other header fields in a parsed
/// `Header`.
fn packet_to_port(header: &Header, port: u16) -> Vec<u8> {
    let mut packet = vec![0; header.total_len];
    packet[header.transport + 2..header.transport + 4].copy_from_slice(&port.to_be_bytes());
    packet
}

const MARTIANS: [&str; 10] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/128",
    "::1/128",
    "fe80::/10",
    "ff00::/8",
    "::ffff:0:0/96",
];

static MARTIAN_NETS: LazyLock<Vec<IpNet>> = LazyLock::new(|| MARTIANS.map(parse_net).into());

fn is_in_martian_nets(ip: &IpAddr) -> bool {
    MARTIAN_NETS.iter().any(|range| range.contains(ip))
}

/// Whether a packet goes to the UDP port of the tunnel at an address of a node.
fn is_datagram_to_tunnel_port(header: &Header, port: u16) -> bool {
    let is_node = header.destination == parse_ip(HERE)
        || LEASES.iter().any(|(_, address, _)| parse_ip(address) == header.destination);
    header.protocol == 17 && header.fragment != Fragment::Later && port == 8285 && is_node
}

/// Reference implementation of the verdict on received packets: it scans the leases for every rule.
fn reference_inbound_verdict(
    source: IpAddr,
    destination: IpAddr,
    from: IpAddr,
    ttl: u8,
    checks: Checks,
) -> Result<(), DropError> {
    let mapped = |ip: IpAddr| match ip {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4),
        v4 => v4,
    };
    let from = mapped(from);
    if checks != Checks::Off {
        let mut of_sender =
            LEASES.iter().filter(|(_, address, _)| parse_ip(address) == from).peekable();
        if of_sender.peek().is_none() {
            return Err(DropError::UnknownPeer);
        }
        if is_in_martian_nets(&destination) {
            return Err(DropError::Martian);
        }
        if !OWN.iter().any(|own| parse_net(own).contains(&destination)) {
            return Err(DropError::NotOurs);
        }
        if is_in_martian_nets(&source) || destination == parse_ip("10.5.1.255") {
            return Err(DropError::Martian);
        }
        let inside = NETWORKS.iter().any(|network| parse_net(network).contains(&source));
        if !of_sender.any(|(subnet, ..)| parse_net(subnet).contains(&source))
            && (inside || checks == Checks::Strict)
        {
            return Err(DropError::Spoofed);
        }
    }
    if ttl == 0 { Err(DropError::TtlExceeded) } else { Ok(()) }
}

fn any_ip_address() -> impl Strategy<Value = IpAddr> {
    let near = (0u32..30, 0u32..5).prop_map(|(subnet, host)| {
        IpAddr::V4((0x0a05_0000 + (subnet << 8) + host.wrapping_sub(1) % 256).into())
    });
    let near_v6 = (0u128..10, 0u128..4)
        .prop_map(|(subnet, host)| IpAddr::V6((0xfd00_0005 << 96 | subnet << 64 | host).into()));
    let nodes = (0u32..6).prop_map(|n| IpAddr::V4((0xc0a8_0000 + n).into()));
    let martian =
        (proptest::sample::select(MARTIANS.to_vec()), any::<u128>()).prop_map(|(range, bits)| {
            match parse_net(range) {
                IpNet::V4(net) => IpAddr::V4(
                    (net.network().to_bits() | bits as u32 & net.hostmask().to_bits()).into(),
                ),
                IpNet::V6(net) => {
                    IpAddr::V6((net.network().to_bits() | bits & net.hostmask().to_bits()).into())
                }
            }
        });
    let any_v4 = any::<u32>().prop_map(|bits| IpAddr::V4(bits.into()));
    let any_v6 = any::<u128>().prop_map(|bits| IpAddr::V6(bits.into()));
    prop_oneof![4 => near, 4 => near_v6, 2 => nodes, 2 => martian, 1 => any_v4, 1 => any_v6]
}

fn any_sender_address() -> impl Strategy<Value = IpAddr> {
    let known =
        proptest::sample::select(LEASES.to_vec()).prop_map(|(_, address, _)| parse_ip(address));
    let mapped = known.clone().prop_map(|ip| match ip {
        IpAddr::V4(ip) => IpAddr::V6(ip.to_ipv6_mapped()),
        v6 => v6,
    });
    prop_oneof![4 => known, 1 => mapped, 2 => any_ip_address()]
}

fn any_udp_port() -> impl Strategy<Value = u16> {
    prop_oneof![3 => Just(8285), 1 => Just(8284), 1 => any::<u16>()]
}

/// A transport protocol and a fragment state.
fn any_protocol_and_fragment() -> impl Strategy<Value = (u8, Fragment)> {
    let fragments = prop_oneof![3 => Just(Fragment::No), 1 => Just(Fragment::First), 1 => Just(Fragment::Later)];
    (prop_oneof![4 => Just(17), 1 => Just(6)], fragments)
}

fn any_checks() -> impl Strategy<Value = Checks> {
    prop_oneof![Just(Checks::Cluster), Just(Checks::Strict), Just(Checks::Off)]
}

proptest! {

    #[test]
    fn inbound_equals_the_simple_checker(
        source in any_ip_address(), destination in any_ip_address(), from in any_sender_address(), ttl in 0u8..3, checks in any_checks(), port in any_udp_port(), kind in any_protocol_and_fragment(),
    ) {
        let header = Header { protocol: kind.0, fragment: kind.1, ..udp_packet_header(source, destination, ttl, 100) };
        let nested = if is_datagram_to_tunnel_port(&header, port) { Err(DropError::Loop) } else { Ok(()) };
        let want = reference_inbound_verdict(source, destination, from, ttl, checks).and(nested);
        prop_assert_eq!(judge_inbound_packet(&header, &packet_to_port(&header, port), from, prebuilt_table(checks, true)), want);
    }

    #[test]
    fn outbound_equals_the_simple_checker(
        destination in any_ip_address(), ttl in 0u8..4, len in 1400usize..1500, segment in proptest::option::of(1400usize..1500), routed: bool, checks in any_checks(),
        port in any_udp_port(), kind in any_protocol_and_fragment(),
    ) {
        let table = prebuilt_table(checks, routed);
        let source = if destination.is_ipv4() { parse_ip("10.5.1.2") } else { parse_ip("fd00:5:0:1::2") };
        let header = Header { protocol: kind.0, fragment: kind.1, ..udp_packet_header(source, destination, ttl, len) };
        let lease = LEASES.iter().find(|(subnet, ..)| parse_net(subnet).contains(&destination));
        let want = match lease {
            _ if is_datagram_to_tunnel_port(&header, port) => Err((None, DropError::Loop)),
            _ if is_in_martian_nets(&destination) => Err((None, DropError::Martian)),
            None => Err((Some(Icmp::NetUnreachable), DropError::NoRoute)),
            Some((_, _, false)) if destination.is_ipv6() => Err((Some(Icmp::NetUnreachable), DropError::NoV6Peer)),
            _ if routed && ttl < 2 => Err((Some(Icmp::TimeExceeded), DropError::TtlExceeded)),
            _ if segment.unwrap_or(len) > 1472 => Err((Some(Icmp::TooBig(1472)), DropError::TooBig)),
            Some((_, address, _)) => Ok(parse_ip(address)),
        };
        let got = judge_outbound_packet(&header, &packet_to_port(&header, port), table, segment.unwrap_or(len)).map(|peer| peer.address.ip());
        prop_assert_eq!(got, want);
    }
}

#[test]
fn martian_ranges_have_exact_ends() {
    for net in MARTIAN_NETS.iter() {
        let (first, last) = match net {
            IpNet::V4(net) => (net.network().to_bits().into(), net.broadcast().to_bits().into()),
            IpNet::V6(net) => (net.network().to_bits(), net.broadcast().to_bits()),
        };
        for bits in [first.wrapping_sub(1), first, last, last.wrapping_add(1)] {
            let ip = match net {
                IpNet::V4(_) => IpAddr::V4((bits as u32).into()),
                IpNet::V6(_) => IpAddr::V6(bits.into()),
            };
            assert_eq!(is_martian(&ip), is_in_martian_nets(&ip), "{ip}");
        }
    }
    for ordinary in ["10.5.2.1", "100.64.0.1", "fd00::1", "2001:db8::1", "::10.5.2.1"] {
        assert!(!is_martian(&parse_ip(ordinary)), "{ordinary}");
    }
}

/// The network may no longer contain our lease, a peer's lease may contain ours, and a node may be inside the
/// network.
#[test]
fn peers_send_as_themselves_and_not_from_our_subnet() {
    for (network, own, lease, node, source, cluster, strict) in [
        (
            "10.5.0.0/16",
            "10.6.1.0/24",
            "10.5.2.0/24",
            HERE,
            "10.6.1.0",
            Err(DropError::Spoofed),
            Err(DropError::Spoofed),
        ),
        (
            "10.5.0.0/16",
            "10.5.1.0/24",
            "10.5.0.0/20",
            HERE,
            "10.5.1.0",
            Err(DropError::Spoofed),
            Err(DropError::Spoofed),
        ),
        (
            "10.5.0.0/16",
            "10.5.1.0/24",
            "10.5.2.0/24",
            "10.5.56.2",
            "10.5.56.2",
            Ok(()),
            Err(DropError::Spoofed),
        ),
        ("10.5.0.0/16", "10.5.1.0/24", "10.5.2.0/24", "10.5.56.2", "10.5.2.9", Ok(()), Ok(())),
        (
            "10.5.0.0/16",
            "10.5.1.0/24",
            "10.5.2.0/24",
            "10.5.56.2",
            "10.5.56.3",
            Err(DropError::Spoofed),
            Err(DropError::Spoofed),
        ),
    ] {
        let judge = |checks| {
            let only = |net: &str| Networks { v4: Some(net.parse().unwrap()), v6: None };
            let settings = table_settings(only(network), only(own), checks, true);
            let table = Table::build(settings, [(parse_net(lease), peer_at_address(node, true))]);
            let header = udp_packet_header(parse_ip(source), parse_net(own).addr(), 64, 100);
            judge_inbound_packet(&header, &[], parse_ip(node), &table)
        };
        assert_eq!(
            (judge(Checks::Cluster), judge(Checks::Strict)),
            (cluster, strict),
            "{source} of {node}"
        );
    }
}

#[test]
fn every_reason_has_an_index_and_a_label() {
    let labels: std::collections::BTreeSet<&str> =
        DropError::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(labels.len(), DropError::ALL.len());
    assert!((0..).zip(DropError::ALL).all(|(n, reason)| reason as usize == n));
}
