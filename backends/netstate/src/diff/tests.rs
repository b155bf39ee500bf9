//! Property tests of `diff` with small random kernel states.

use super::*;
use crate::names::Mac;
use crate::object::link::vxlan::VxlanSpec;
use crate::object::link::wireguard::WireguardSpec;
use crate::object::link::{LinkKind, LinkSpec};
use crate::object::route::{RouteKind, RouteSpec};
use crate::object::wireguard_peer::{PublicKey, Secret, WireguardPeer};
use crate::tests::fake::World;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

fn name(n: u8) -> LinkName {
    LinkName::parse(&format!("flannel.{n}")).unwrap()
}

fn subnet(peer: u8) -> IpNet {
    format!("10.244.{peer}.0/24").parse().unwrap()
}

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn public(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 168, 56, n))
}

/// Peers by number: the last byte of the peer's MAC and of its address, and whether the underlay reaches the peer without a tunnel.
type Peers = BTreeMap<u8, (u8, u8, bool)>;

/// The VNI, the number of the MAC, and the MTU of a vxlan link.
type Device = (u32, u8, u32);

fn state(device: Option<Device>, peers: &Peers) -> KernelState {
    let mut state = KernelState::default();
    let dev = name(1);
    if let Some((vni, own, mtu)) = device {
        let spec = link(LinkKind::Vxlan(vxlan(vni)), Some(mac(100 + own)), mtu);
        state.set(Key::Link(dev), Value::Link(Box::new(spec)));
        state.set(Key::Address(dev, "10.244.0.0/32".parse().unwrap()), Value::Address);
    }
    for (peer, (hardware, ip, direct)) in peers {
        let net = subnet(*peer);
        let (via, on) = if *direct {
            (public(*ip), LinkName::parse("eth0").unwrap())
        } else {
            (net.network(), dev)
        };
        if !*direct && device.is_none() {
            continue;
        }
        if !*direct {
            let destination = Value::Fdb(public(*ip));
            if *state.0.entry(Key::Fdb(dev, mac(*hardware))).or_insert(destination.clone())
                != destination
            {
                continue;
            }
            state.set(Key::Neighbor(dev, via), Value::Neighbor(mac(*hardware)));
        }
        state.set(Key::Route(net, 0), route(Some(via), on, !direct));
    }
    state
}

/// Follows route, neighbour and FDB entry.
fn reached(state: &KernelState, peer: u8) -> Option<IpAddr> {
    let Some(Value::Route(route)) = state.0.get(&Key::Route(subnet(peer), 0)) else {
        return None;
    };
    if !route.onlink {
        return route.via;
    }
    let Some(Value::Neighbor(mac)) = state.0.get(&Key::Neighbor(route.dev, route.via?)) else {
        return None;
    };
    let Some(Value::Fdb(ip)) = state.0.get(&Key::Fdb(route.dev, *mac)) else {
        return None;
    };
    state.link(route.dev).filter(|link| link.up).map(|_| *ip)
}

fn peers() -> impl Strategy<Value = Peers> {
    proptest::collection::btree_map(0u8..8, (0u8..8, 2u8..10, any::<bool>()), 0..8)
}

fn device() -> impl Strategy<Value = Option<Device>> {
    proptest::option::weighted(0.9, (1u32..3, 0u8..2, prop_oneof![Just(1450u32), Just(1400)]))
}

/// As `ip route flush` or `ip neigh flush` would.
fn damaged(mut state: KernelState, dropped: &[bool]) -> KernelState {
    let mut dropped = dropped.iter().chain(std::iter::repeat(&false));
    state.0.retain(|key, _| matches!(key, Key::Link(_)) || !dropped.next().unwrap());
    state
}

fn vxlan(vni: u32) -> VxlanSpec {
    VxlanSpec { vni, port: 8472, local: Some(public(1)), lower: 2, learning: false, gbp: false }
}

fn link(kind: LinkKind, mac: Option<Mac>, mtu: u32) -> LinkSpec {
    LinkSpec { kind, mac, mtu, up: true, accept_ra: mac.map(|_| false), checksum_offload: None }
}

fn route(via: Option<IpAddr>, dev: LinkName, onlink: bool) -> Value {
    Value::Route(RouteSpec { via, dev, onlink, kind: RouteKind::Unicast, scope: 0, protocol: 241 })
}

fn operations(want: &KernelState, have: &KernelState) -> Vec<String> {
    let text = |op: &Op| format!("{} {}", op.verb(), op.key());
    diff(want, have).iter().map(text).collect()
}

proptest! {

    #[test]
    fn one_pass_is_enough(a in device(), b in device(), before in peers(), after in peers(), dropped in proptest::collection::vec(any::<bool>(), 0..30)) {
        let (have, want) = (damaged(state(a, &before), &dropped), state(b, &after));
        let mut world = World { state: have.clone(), ..World::default() };
        let ops = diff(&want, &have);
        for op in &ops {
            prop_assert!(world.apply(op).is_ok(), "{:?} after {:?}", op, world.state);
            prop_assert!(want.0.contains_key(op.key()) || have.0.contains_key(op.key()));
        }
        prop_assert_eq!(&world.state, &want);
        prop_assert_eq!(diff(&want, &world.state), vec![]);
    }

    #[test]
    fn reachable_peers_stay_reachable_during_changes(device in (1u32..2, 0u8..1, prop_oneof![Just(1450u32), Just(1400)]), mtu in 1400u32..1450, before in peers(), after in peers()) {
        let (have, want) = (state(Some(device), &before), state(Some((device.0, device.1, mtu)), &after));
        // Except when another lease takes over its MAC: then frames are misdirected for a moment in any order.
        let takes_over = |peer: &u8, hardware: u8| after.iter().any(|(other, (theirs, ..))| other != peer && *theirs == hardware);
        let steady: Vec<u8> = (0..8).filter(|peer| {
            let unchanged = before.get(peer).is_some_and(|(hardware, ..)| !takes_over(peer, *hardware));
            unchanged && reached(&have, *peer).is_some() && reached(&want, *peer).is_some()
        }).collect();
        let mut world = World { state: have.clone(), ..World::default() };
        for op in diff(&want, &have) {
            world.apply(&op).unwrap();
            for peer in &steady {
                let now = reached(&world.state, *peer);
                prop_assert!(now.is_some() && (now == reached(&have, *peer) || now == reached(&want, *peer)), "peer {} is cut by {:?}", peer, op);
            }
        }
    }

    #[test]
    fn preserved_subnets_lose_nothing(device in device(), before in peers(), after in peers(), blank in proptest::collection::btree_set(0u8..8, 0..4)) {
        let have = state(device, &before);
        let after: Peers = after.into_iter().filter(|(peer, (hardware, ip, direct))| {
            // Two peers never share a MAC, so no other peer has the MAC of a preserved one.
            !blank.contains(peer) && !before.iter().any(|(other, was)| blank.contains(other) && (was.0 == *hardware) && (was.1 != *ip || *direct))
        }).collect();
        let mut want = state(device, &after);
        let blanks = blank.iter().map(|peer| Subnets::V4(format!("10.244.{peer}.0/24").parse().unwrap())).collect();
        preserve_objects(&mut want, &have, &blanks);
        let mut world = World { state: have.clone(), ..World::default() };
        for op in diff(&want, &have) {
            world.apply(&op).unwrap();
            for peer in &blank {
                prop_assert_eq!(reached(&world.state, *peer), reached(&have, *peer), "{:?}", op);
            }
        }
    }
}

#[test]
fn a_mac_that_moves_is_one_replacement() {
    let have = state(Some((1, 0, 1450)), &Peers::from([(1, (5, 2, false))]));
    let want = state(Some((1, 0, 1450)), &Peers::from([(2, (5, 3, false))]));
    assert_eq!(
        operations(&want, &have),
        [
            "change FDB entry 02:00:00:00:00:05 on flannel.1",
            "add neighbour 10.244.2.0 on flannel.1",
            "add route to 10.244.2.0/24",
            "delete route to 10.244.1.0/24",
            "delete neighbour 10.244.1.0 on flannel.1",
        ]
    );
}

#[test]
fn an_ipv6_route_that_moves_to_the_tunnel_is_deleted_first() {
    let key = Key::Route("fd10:244:0:2::/64".parse().unwrap(), 1024);
    let state = |via: &str, dev: &str, onlink| {
        let dev = LinkName::parse(dev).unwrap();
        KernelState([(key, route(via.parse().ok(), dev, onlink))].into())
    };
    let direct = state("fd00:56::2", "eth0", false);
    let tunnel = state("fd10:244:0:2::", "flannel-v6.1", true);
    let verbs = |want, have| diff(want, have).iter().map(Op::verb).collect::<Vec<_>>();
    assert_eq!(verbs(&tunnel, &direct), ["delete", "add"]);
    assert_eq!(verbs(&direct, &tunnel), ["change"]);
}

#[test]
fn a_foreign_link_is_refused_and_left_untouched() {
    let want = state(Some((1, 0, 1450)), &Peers::from([(1, (5, 2, false)), (2, (6, 3, true))]));
    let mut have = KernelState::default();
    let spec = link(LinkKind::Other("bridge".into()), None, 1500);
    have.set(Key::Link(name(1)), Value::Link(Box::new(spec)));
    assert_eq!(
        operations(&want, &have),
        ["take over link flannel.1", "add route to 10.244.2.0/24"]
    );
    // It is not deleted either if the desired state has no such link. Our own link is.
    assert!(diff(&KernelState::default(), &have).is_empty());
    have.set(
        Key::Link(name(1)),
        Value::Link(Box::new(link(LinkKind::Tun { held: false }, None, 1500))),
    );
    assert_eq!(diff(&KernelState::default(), &have).len(), 1);
}

#[test]
fn fixed_properties_rebuild_and_others_change_in_place() {
    use crate::object::link::Fit;
    let spec = |vxlan| link(LinkKind::Vxlan(vxlan), Some(mac(1)), 1450);
    type Change = fn(&mut VxlanSpec);
    let cases: [(Change, Fit); 7] = [
        (|_| (), Fit::Same),
        (|v| v.vni = 2, Fit::Rebuild),
        (|v| v.port = 1, Fit::Rebuild),
        (|v| v.gbp = true, Fit::Rebuild),
        (|v| v.lower = 3, Fit::Change),
        (|v| v.local = None, Fit::Change),
        (|v| v.learning = true, Fit::Change),
    ];
    for (change, fit) in cases {
        let mut other = vxlan(1);
        change(&mut other);
        assert_eq!(spec(other).fit(&spec(vxlan(1))), fit, "{other:?}");
    }
}

/// `peers` maps the number of each peer's subnet to the numbers of its key and endpoint.
fn tunnels(own: u8, peers: &BTreeMap<u8, (u8, u8)>) -> KernelState {
    let mut state = KernelState::default();
    let dev = LinkName::parse("flannel-wg").unwrap();
    let kind =
        LinkKind::Wireguard(WireguardSpec { key: Some(Secret::new([own; 32])), port: 51820 });
    state.set(Key::Link(dev), Value::Link(Box::new(link(kind, None, 1420))));
    state.set(Key::Route("10.244.0.0/16".parse().unwrap(), 0), route(None, dev, false));
    for (peer, (key, endpoint)) in peers {
        let key = PublicKey([*key; 32]);
        let value = WireguardPeer {
            endpoint: Some((public(*endpoint), 51820).into()),
            preshared: None,
            keepalive: 0,
        };
        let id = Key::WireguardPeer(dev, key);
        if state
            .0
            .get(&id)
            .is_some_and(|known| *known != Value::WireguardPeer(Box::new(value.clone())))
        {
            continue;
        }
        state.set(id, Value::WireguardPeer(Box::new(value)));
        state.set(Key::AllowedIp(dev, subnet(*peer)), Value::AllowedIp(key));
    }
    state
}

/// The key with which the node encrypts packets to a peer; `None` if it cannot send them.
fn sealed_for(state: &KernelState, peer: u8) -> Option<PublicKey> {
    let dev = LinkName::parse("flannel-wg").unwrap();
    let Some(Value::AllowedIp(key)) = state.0.get(&Key::AllowedIp(dev, subnet(peer))) else {
        return None;
    };
    state.0.contains_key(&Key::WireguardPeer(dev, *key)).then_some(*key)
}

proptest! {

    /// Peers change keys and swap subnets, and one pass applies all changes. After each operation,
    /// the node encrypts a packet only for the peer that has the subnet before or after the pass.
    /// If the subnet has a peer before and after the pass, each operation leaves a peer for its
    /// packets.
    #[test]
    fn packets_are_sealed_for_their_node_throughout(
        own in 1u8..3,
        before in proptest::collection::btree_map(0u8..8, (10u8..18, 2u8..6), 0..8),
        after in proptest::collection::btree_map(0u8..8, (10u8..18, 2u8..6), 0..8),
    ) {
        let (have, want) = (tunnels(1, &before), tunnels(own, &after));
        let mut world = World { state: have.clone(), ..World::default() };
        for op in diff(&want, &have) {
            prop_assert!(world.apply(&op).is_ok(), "{:?} after {:?}", op, world.state);
            for peer in 0..8 {
                let (was, is, now) = (sealed_for(&have, peer), sealed_for(&want, peer), sealed_for(&world.state, peer));
                prop_assert!(now == was || now == is, "{peer}: {now:?} after {op:?}");
                prop_assert!(now.is_some() || was.is_none() || is.is_none(), "a gap for {peer} after {op:?}");
            }
        }
        prop_assert_eq!(&world.state, &want);
    }
}
