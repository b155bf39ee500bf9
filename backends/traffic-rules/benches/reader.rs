//! Benchmarks that parse a host's rules and follow a packet through the rules, with as many rules as kube-proxy writes.

use divan::{Bencher, black_box};
use std::fmt::Write;
use traffic_rules::reader::{Device, HookPath, Packet, Walk, iptables, nft};
use traffic_rules::variant::Variant;
use types::Family;

const SERVICES: [usize; 2] = [100, 2000];

fn main() {
    divan::main();
}

/// There are three rules and two chains for each Service, as on a node with kube-proxy.
fn saved(services: usize) -> String {
    let mut text = String::from(
        "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n:KUBE-FORWARD - [0:0]\n:FLANNEL-FWD - [0:0]\n",
    );
    text.push_str("-A FORWARD -j KUBE-FORWARD\n-A FORWARD -j FLANNEL-FWD\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n");
    text.push_str("-A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT\n-A FLANNEL-FWD -d 10.244.0.0/16 -j ACCEPT\nCOMMIT\n*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n");
    for service in 0..services {
        let _ = writeln!(text, ":KUBE-SVC-{service:016} - [0:0]\n:KUBE-SEP-{service:016} - [0:0]");
    }
    text.push_str("-A PREROUTING -j KUBE-SERVICES\n");
    for service in 0..services {
        let (high, low) = (service / 250, service % 250 + 1);
        let _ = writeln!(
            text,
            "-A KUBE-SERVICES -d 10.96.{high}.{low}/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-{service:016}\n\
             -A KUBE-SVC-{service:016} -j KUBE-SEP-{service:016}\n\
             -A KUBE-SEP-{service:016} -p tcp -m tcp -j DNAT --to-destination 10.244.{high}.{low}:8080"
        );
    }
    text.push_str("COMMIT\n");
    text
}

/// There is a rule for each Service.
fn listing(services: usize) -> serde_json::Value {
    let mut items = vec![
        serde_json::json!({"table": {"family": "ip", "name": "filter", "handle": 1}}),
        serde_json::json!({"chain": {"family": "ip", "table": "filter", "name": "forward", "handle": 1, "type": "filter",
            "hook": "forward", "prio": 0, "policy": "drop"}}),
        serde_json::json!({"chain": {"family": "ip", "table": "filter", "name": "services", "handle": 2}}),
        serde_json::json!({"rule": {"family": "ip", "table": "filter", "chain": "forward", "handle": 3, "expr": [{"jump": {"target": "services"}}]}}),
    ];
    for service in 0..services {
        let address = format!("10.96.{}.{}", service / 250, service % 250 + 1);
        items.push(serde_json::json!({"rule": {"family": "ip", "table": "filter", "chain": "services", "handle": service + 4, "expr": [
            {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": address}},
            {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 80}},
            {"accept": null}
        ]}}));
    }
    serde_json::json!({ "nftables": items })
}

fn forwarded() -> Packet {
    Packet::new(HookPath::Forward, Family::V4, Device::named("eth0"), Device::named("cni0"))
}

#[divan::bench(args = SERVICES)]
fn read_iptables(bencher: Bencher, services: usize) {
    let text = saved(services);
    bencher.bench_local(|| iptables::read(black_box(&text), Family::V4, Variant::Nft));
}

#[divan::bench(args = SERVICES)]
fn read_nftables(bencher: Bencher, services: usize) {
    let listing = listing(services);
    bencher.bench_local(|| nft::read(black_box(&listing), nft::Extent::Rules));
}

#[divan::bench(args = SERVICES)]
fn follow_a_packet(bencher: Bencher, services: usize) {
    let rules = nft::read(&listing(services), nft::Extent::Rules);
    let packet = forwarded();
    bencher.bench_local(|| Walk::through(black_box(&rules)).fate(black_box(&packet)));
}
