//! A datagram from any sender: the packet engine accepts or drops the inner packet, and changes only its ECN
//! field and TTL.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packet_engine::packet::checksum::{fold_sum, ones_complement_sum};
use packet_engine::packet::ecn;
use packet_engine::packet::{Header, decrement_ttl, set_ecn};
use packet_engine::table::{Checks, Networks, Peer, Table, TableSettings};
use packet_engine::verdict::{judge_inbound_packet, judge_outbound_packet};
use std::net::IpAddr;
use std::sync::LazyLock;

const SENDERS: [&str; 4] = ["192.168.0.2", "192.168.0.3", "fd77::4", "192.168.0.9"];

static TABLES: LazyLock<[Table; 3]> = LazyLock::new(|| {
    [Checks::Cluster, Checks::Strict, Checks::Off].map(|checks| {
        let settings = TableSettings {
            networks: Networks {
                v4: Some("10.5.0.0/16".parse().unwrap()),
                v6: Some("fd00:5::/48".parse().unwrap()),
            },
            own: Networks {
                v4: Some("10.5.1.0/24".parse().unwrap()),
                v6: Some("fd00:5:0:1::/64".parse().unwrap()),
            },
            checks,
            mtu: 1472,
            routed: true,
            encap_port: 8285,
            address: None,
        };
        let leases = [
            ("10.5.2.0/24", 0),
            ("fd00:5:0:2::/64", 0),
            ("10.5.3.0/24", 1),
            ("fd00:5:0:3::/64", 1),
            ("fd00:5:0:4::/64", 2),
        ];
        let peer = |n: usize| Peer {
            address: (SENDERS[n].parse::<IpAddr>().unwrap(), 8285).into(),
            mac: [0; 6],
            carries_v6: n != 1,
            outer_ecn: true,
        };
        Table::build(settings, leases.map(|(net, n)| (net.parse().unwrap(), peer(n))))
    })
});

// The first byte selects the sender, the checks and the outer ECN field. The rest is the packet.
fuzz_target!(|data: &[u8]| {
    let Some((choice, packet)) = data.split_first() else {
        return;
    };
    let from: IpAddr = SENDERS[usize::from(choice & 3)].parse().unwrap();
    let table = &TABLES[usize::from(choice >> 2) % 3];
    let mut packet = packet.to_vec();
    let Ok(header) = Header::parse(&packet) else {
        decrement_ttl(&mut packet);
        set_ecn(&mut packet, *choice);
        return;
    };
    assert!(
        header.total_len == packet.len()
            && header.transport <= packet.len()
    );
    if judge_inbound_packet(&header, &packet, from, table).is_ok() && table.settings.checks != Checks::Off {
        assert!(
            table.is_peer_address(from) && table.in_own_subnet(header.destination) && !table.in_own_subnet(header.source)
        );
    }
    if let Ok(peer) = judge_outbound_packet(&header, &packet, table, packet.len()) {
        assert!(
            header.ttl > 1
                && packet.len() <= 1472
                && table.lookup(header.destination) == Some(peer)
        );
    }
    let verdict = ecn::decapsulated_ecn(header.tos, choice >> 6);
    let mark = verdict.unwrap_or(header.tos & 3);
    // Ones' complement has two zeros.
    let residue = |packet: &[u8]| fold_sum(ones_complement_sum(&packet[..20], 0)) % 0xffff;
    let before = residue(&packet);
    set_ecn(&mut packet, mark);
    decrement_ttl(&mut packet);
    let want =
        Header { ttl: header.ttl.saturating_sub(1), tos: header.tos & 0xfc | mark, ..header };
    assert_eq!(Header::parse(&packet), Ok(want));
    assert!(header.family.is_v6() || residue(&packet) == before);
});
