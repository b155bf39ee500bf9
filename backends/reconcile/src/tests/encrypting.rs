//! Tests of a plan that encrypts packets. The plan's first pass removes all narrower routes that bypass the encrypting device.

use super::*;
use netstate::{LinkSpec, PublicKey, Secret, WireguardPeer, WireguardSpec};
use std::net::IpAddr;

/// One route into a WireGuard device and a peer for each lease of the WireGuard backend.
struct Encrypting(Routes);

fn device() -> LinkName {
    LinkName::parse("flannel-wg").unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn dual() -> Subnets {
    Subnets::Both("10.244.0.0/16".parse().unwrap(), "fd00:244::/48".parse().unwrap())
}

fn subnets_of(n: u8) -> Subnets {
    Subnets::Both(
        format!("10.244.{n}.0/24").parse().unwrap(),
        format!("fd00:244:0:{n}::/64").parse().unwrap(),
    )
}

fn encrypting() -> Encrypting {
    let scope =
        Scope { links: vec![device()], networks: dual(), own: subnets_of(1), ..routes().scope };
    Encrypting(Routes { scope, device: Some(device()) })
}

/// True for a peer that uses the WireGuard backend.
fn leases(peers: &BTreeMap<u8, bool>, unreadable: &BTreeSet<u8>) -> LeaseTable {
    let lease = |(n, encrypts): (&u8, &bool)| Lease {
        subnets: subnets_of(*n),
        attrs: LeaseAttrs {
            public_ip: Some([192, 168, 56, *n].into()),
            public_ipv6: Some(format!("fd00:56::{n:x}").parse().unwrap()),
            backend: if *encrypts { "wireguard" } else { "host-gw" }.to_owned(),
            ..LeaseAttrs::default()
        },
        term: Term::Leased,
        since: i64::from(*n),
    };
    LeaseTable::of(peers.iter().map(lease), unreadable.iter().map(|n| subnets_of(*n)).collect())
}

impl Plan for Encrypting {
    fn scope(&self) -> &Scope {
        &self.0.scope
    }

    fn kinds(&self) -> Kinds {
        Kinds::Only("wireguard")
    }

    fn base(&self, _facts: &Facts) -> KernelState {
        let mut state = KernelState::default();
        let kind =
            LinkKind::Wireguard(WireguardSpec { key: Some(Secret::new([1; 32])), port: 51820 });
        let link = LinkSpec {
            kind,
            mac: None,
            mtu: 1420,
            up: true,
            accept_ra: None,
            checksum_offload: None,
        };
        state.set(Key::Link(device()), Value::Link(Box::new(link)));
        for network in self.0.scope.networks.nets() {
            state.set(
                Key::Route(network, netstate::object::route::metric(&network)),
                Value::Route(route(None, device(), 241)),
            );
            let (key, value) = blackhole::of_network(&network, 241);
            state.set(key, value);
        }
        state
    }

    fn of_peer(&self, peer: &Peer<'_>, _facts: &Facts) -> Vec<(Key, Value)> {
        let key = PublicKey([peer.lease.attrs.public_ip.unwrap().octets()[3]; 32]);
        let value = WireguardPeer { endpoint: None, preshared: None, keepalive: 0 };
        vec![
            (Key::WireguardPeer(device(), key), Value::WireguardPeer(Box::new(value))),
            (Key::AllowedIp(device(), peer.subnet), Value::AllowedIp(key)),
        ]
    }

    fn announced(&self, facts: &Facts) -> Announced {
        self.0.announced(facts)
    }
}

fn route(via: Option<IpAddr>, dev: LinkName, protocol: u8) -> RouteSpec {
    RouteSpec { via, dev, onlink: false, kind: RouteKind::Unicast, scope: 0, protocol }
}

/// Over the underlay, like the routes of host-gw and DirectRouting.
fn in_the_clear(to: &str, protocol: u8) -> (Key, RouteSpec) {
    let to = net(to);
    let via = if to.addr().is_ipv4() { "192.168.56.57" } else { "fd00:56::57" };
    let via = via.parse().unwrap();
    (
        Key::Route(to, netstate::object::route::metric(&to)),
        route(Some(via), LinkName::parse("eth0").unwrap(), protocol),
    )
}

async fn joined(kernel: &FakeKernel, leases: &LeaseTable) -> Reconciler {
    Reconciler::join(
        Arc::new(encrypting()),
        Box::new(kernel.clone()),
        &underlay(),
        leases,
        Options::default(),
    )
    .await
    .unwrap()
}

#[test]
fn deletion_of_many_peers_waits_a_minute() {
    paused(async {
        let kernel = FakeKernel::default();
        drop(
            joined(&kernel, &leases(&(2..22).map(|n| (n, true)).collect(), &BTreeSet::new())).await,
        );
        let before = kernel.world().state.clone();
        let (key, route) = in_the_clear("10.244.77.0/24", 241);
        kernel.world().state.set(key, Value::Route(route));
        let reconciler = joined(&kernel, &leases(&BTreeMap::new(), &BTreeSet::new())).await;
        assert_eq!(
            kernel.world().state,
            before,
            "the store may be incomplete; the route in the clear goes all the same"
        );
        assert!(reconciler.guard != DeletionGuard::Off);
    });
}

#[test]
fn go_flannels_routes_without_a_lease_stay_if_nothing_encrypts() {
    paused(async {
        let kernel = FakeKernel::default();
        let (key, left) = in_the_clear("10.244.77.0/24", netstate::object::route::BOOT);
        kernel.world().leftovers.insert(key, left);
        start(&kernel, table([(2, 2), (3, 3)])).await.end().await;
        assert!(kernel.world().leftovers.contains_key(&key));
    });
}

/// A network inside or outside the cluster network.
fn any_net() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        3 => (0u8..6, prop_oneof![Just(24), 16u8..=32])
            .prop_map(|(n, length)| IpNet::new([10, 244, n, 0].into(), length).unwrap().trunc()),
        3 => (0u8..6, prop_oneof![Just(64), 48u8..=128]).prop_map(|(n, length)| IpNet::new(
            format!("fd00:244:0:{n}::").parse().unwrap(),
            length
        )
        .unwrap()
        .trunc()),
        1 => Just(net("10.0.0.0/8")),
        1 => Just(net("192.168.7.0/24")),
    ]
}

proptest! {

    /// From any initial state, no route of flannel-rs or Go flannel bypasses the encrypting device.
    /// All other routes stay.
    #[test]
    fn flannel_routes_never_bypass_the_encrypting_device(
        ours in proptest::collection::btree_set(any_net(), 0..12),
        boot in proptest::collection::btree_map(any_net(), (any::<bool>(), any::<bool>(), 0u8..8), 0..12),
        peers in proptest::collection::btree_map(2u8..6, any::<bool>(), 0..4),
        unreadable in proptest::collection::btree_set(2u8..6, 0..2),
    ) {
        paused(async move {
            let plan = encrypting();
            let kernel = FakeKernel::default();
            for to in ours.iter().filter(|to| plan.scope().covers(to)) {
                let (key, route) = in_the_clear(&to.to_string(), 241);
                kernel.world().state.set(key, Value::Route(route));
            }
            for (to, (underlay, gateway, kind)) in boot.iter().filter(|(to, _)| plan.scope().covers(to) && !ours.contains(*to)) {
                let (key, mut route) = in_the_clear(&to.to_string(), netstate::object::route::BOOT);
                route.via = route.via.filter(|_| *gateway);
                route.kind = if *kind == 0 { RouteKind::Blackhole } else { route.kind };
                route.dev = if *underlay { route.dev } else { LinkName::parse("eth1").unwrap() };
                kernel.world().leftovers.insert(key, route);
            }
            let before = kernel.world().leftovers.clone();
            drop(joined(&kernel, &leases(&peers, &unreadable)).await);
            let world = kernel.world();
            for (key, value) in &world.state.0 {
                if let Value::Route(route) = value {
                    prop_assert!(route.kind == RouteKind::Blackhole || route.dev == device(), "{key:?} {route:?}");
                }
            }
            for (key, route) in before {
                let Key::Route(to, _) = key else { continue };
                let length = if to.addr().is_ipv4() { 24 } else { 64 };
                let own = plan.scope().own.nets().any(|own| own == to);
                let gos = route.kind == RouteKind::Unicast && to.prefix_len() == length && !own && route.via.is_some() && route.dev.as_str() == "eth0";
                // The kernel replaces or refuses a route in the place of the device's own route.
                prop_assert!(world.leftovers.contains_key(&key) != gos || world.state.0.contains_key(&key), "{key:?} {route:?}");
            }
            Ok(())
        })?;
    }
}
