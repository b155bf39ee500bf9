//! Benchmarks of `diff`, which compares two kernel states of 100 or 5000 peers. The states are equal, the states differ by one peer, or the actual state is empty.

use divan::{Bencher, black_box};
use ipnet::{IpNet, Ipv4Net};
use netstate::diff::diff;
use netstate::names::{LinkName, Mac};
use netstate::object::route::{RouteKind, RouteSpec};
use netstate::object::{KernelState, Key, Value};
use std::net::{IpAddr, Ipv4Addr};

const PEERS: [u16; 2] = [100, 5000];

fn main() {
    divan::main();
}

/// Each peer has a route, a neighbour and an FDB entry.
fn state(peers: u16) -> KernelState {
    let device = LinkName::parse("flannel.1").unwrap_or_default();
    let objects = (0..peers).flat_map(|peer| {
        let [high, low] = peer.to_be_bytes();
        let via = IpAddr::V4(Ipv4Addr::new(10, 200, high, low));
        let mac = Mac([2, 0, 0, 0, high, low]);
        let subnet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, high, low, 0), 24));
        let route = RouteSpec {
            via: Some(via),
            dev: device,
            onlink: true,
            kind: RouteKind::Unicast,
            scope: 0,
            protocol: 241,
        };
        [
            (Key::Route(subnet, 0), Value::Route(route)),
            (Key::Neighbor(device, via), Value::Neighbor(mac)),
            (Key::Fdb(device, mac), Value::Fdb(IpAddr::V4(Ipv4Addr::new(192, 168, high, low)))),
        ]
    });
    let mut state = KernelState::default();
    state.add(objects);
    state
}

#[divan::bench(args = PEERS)]
fn in_sync(bencher: Bencher, peers: u16) {
    let (want, have) = (state(peers), state(peers));
    bencher.bench_local(|| diff(black_box(&want), black_box(&have)));
}

#[divan::bench(args = PEERS)]
fn one_peer_more(bencher: Bencher, peers: u16) {
    let (want, have) = (state(peers + 1), state(peers));
    bencher.bench_local(|| diff(black_box(&want), black_box(&have)));
}

#[divan::bench(args = PEERS)]
fn all_missing(bencher: Bencher, peers: u16) {
    let (want, have) = (state(peers), KernelState::default());
    bencher.bench_local(|| diff(black_box(&want), black_box(&have)));
}
