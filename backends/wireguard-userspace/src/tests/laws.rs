//! Properties of a device that hold for any datagrams and any configuration changes.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A packet is delivered only if its datagram arrives exactly as a peer sent it. No datagram causes a
    /// panic.
    #[test]
    fn junk_is_dropped(junk in vec((any::<prop::sample::Index>(), 1u8.., vec(any::<u8>(), 0..200), 0u32..6, prop::sample::select(vec![4usize, 16, 32, 40, 64, 92, 148, 200])), 1..20)) {
        let (a, mut b) = pair_with_session();
        let (_, good) = a.pod_sends(&udp_packet(parse_ip("10.5.1.9"), parse_ip("10.5.2.9"), b"good")).unwrap().unwrap();
        for (at, bits, noise, kind, length) in junk {
            let mut damaged = good.clone();
            let at = at.index(damaged.len());
            damaged[at] ^= bits;
            let _ = b.receives(a.address, &damaged);
            let _ = b.receives(a.address, &noise);
            let mut typed = noise.clone();
            typed.resize(length, 0xff);
            typed[..4].copy_from_slice(&kind.to_le_bytes());
            let _ = b.receives(a.address, &typed);
            // A datagram for an existing session.
            let mut aimed = good[..8].to_vec();
            aimed.extend([0xff; 8]);
            aimed.extend(&noise);
            let _ = b.receives(a.address, &aimed);
            b.work();
        }
        prop_assert!(b.delivered.is_empty());
        b.receives(a.address, &good).unwrap();
        prop_assert_eq!(b.delivered.len(), 1);
    }

    /// However allowed IPs move between peers: packets are sealed only for the destination's owner and
    /// accepted only from the source's owner.
    #[test]
    fn a_packet_is_only_opened_by_its_owner(steps in vec((0usize..3, 0usize..3, 0u8..4, prop::sample::select(vec![24u8, 25, 26]), 0usize..3, 0u8..4), 1..40)) {
        let mut nodes: Vec<Node> = (1..=3).map(Node::new).collect();
        let keys: Vec<PublicKey> = nodes.iter().map(|node| node.key).collect();
        let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.address).collect();
        for (here, node) in nodes.iter().enumerate() {
            let mut change = node.device.change();
            for (there, key) in keys.iter().enumerate().filter(|(there, _)| *there != here) {
                change.set_peer(*key, Some(addresses[there]), None, 0).unwrap();
            }
        }
        let [a, b, c] = &mut nodes[..] else { panic!() };
        exchange_all(&mut [a, b, c]);
        let mut owners = vec![std::collections::BTreeMap::<IpNet, usize>::new(); 3];
        let quarter = |n: u8| Ipv4Addr::new(10, 5, 0, n * 64 + 1);
        let owner = |owners: &std::collections::BTreeMap<IpNet, usize>, ip: Ipv4Addr| {
            owners.iter().filter(|(net, _)| net.contains(&IpAddr::V4(ip))).max_by_key(|(net, _)| net.prefix_len()).map(|(_, owner)| *owner)
        };
        for (at, peer, part, length, sender, target) in steps {
            if at != peer {
                let net = IpNet::new(quarter(part).into(), length).unwrap().trunc();
                if owners[at].get(&net) == Some(&peer) {
                    prop_assert!(nodes[at].device.change().remove_allowed_ip(net, &keys[peer]));
                    owners[at].remove(&net);
                } else {
                    nodes[at].device.change().set_allowed_ip(net, keys[peer]).unwrap();
                    owners[at].insert(net, peer);
                }
            }
            let (from, to) = (quarter(part), quarter(target));
            let sent = nodes[sender].pod_sends(&udp_packet(from.into(), to.into(), b"x"));
            let Some(wanted) = owner(&owners[sender], to) else {
                prop_assert_eq!(sent, Err(DropError::NoRoute));
                continue;
            };
            let (way, datagram) = sent.unwrap().unwrap();
            prop_assert_eq!(way, addresses[wanted]);
            for receiver in 0..3 {
                let right = owner(&owners[receiver], from) == Some(sender);
                let result = nodes[receiver].receives(addresses[sender], &datagram);
                match (receiver == wanted, right) {
                    (true, true) => prop_assert_eq!(result, Ok(())),
                    (true, false) => prop_assert_eq!(result, Err(DropError::Spoofed)),
                    (false, _) => prop_assert!(matches!(result, Err(DropError::NoSession | DropError::BadTag)), "{:?}", result),
                }
            }
        }
    }
}
