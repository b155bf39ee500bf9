//! Tests that thousands of peers need one pass and few system calls, and that the node is idle afterwards.

use crate::bed::*;
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// A network configuration with room for the subnets of thousands of nodes.
const WIDE: &str = r#"{"Network":"10.240.0.0/12","Backend":BACKEND}"#;

/// Returns the processor time of this thread, which does all the work of a node. The load of other programs does not change the processor time of the thread.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .unwrap()
        .into()
}

#[test]
fn three_thousand_peers() {
    in_namespace(|| async {
        sh("ip route add 192.168.0.0/16 dev eth0");
        let began = processor_time();
        let node = Node::start(
            setup(WIDE, r#"{"Type":"vxlan"}"#),
            (0..=3000).filter(|n| *n != 101),
        )
        .await;
        let took = processor_time() - began;
        assert!(took < Duration::from_secs(10), "{took:?}");
        node.idle().await;
        let count = |kind: &str| {
            state()
                .iter()
                .filter(|line| {
                    line.starts_with(kind) && line.contains("flannel.1") && !line.contains("fe80::")
                })
                .count()
        };
        assert_eq!(
            (count("fdb"), count("neighbour"), count("route")),
            (2999, 2999, 2999)
        );
        let writes = node.writes();
        assert_eq!(writes, 2 + 3 * 2999);
        node.peers([1]);
        // Listing thousands of objects would take the time in which the node deletes them, so only the node's own number is polled.
        until("all are deleted", || node.writes() >= writes + 3 * 2999).await;
        node.idle().await;
        assert_eq!(
            (count("fdb"), count("neighbour"), count("route")),
            (0, 0, 0)
        );
        node.stop().await;
    });
}

#[test]
fn many_direct_peers() {
    in_namespace(|| async {
        sh("ip route add 192.168.0.0/16 dev eth0");
        let peers = (0..=3000).filter(|n| ![101, 255].contains(n));
        let node = Node::start(
            setup(WIDE, r#"{"Type":"vxlan","DirectRouting":true}"#),
            peers,
        )
        .await;
        node.idle().await;
        assert_eq!(
            state()
                .iter()
                .filter(|line| line.contains("dev eth0 proto 241"))
                .count(),
            2998
        );
        node.stop().await;
    });
}

/// Measures passes with ten thousand peers: `cargo test --release -p backends --test kernel -- --ignored --nocapture ten_thousand`.
#[test]
#[ignore = "a measurement, not a check"]
fn ten_thousand_peers_measured() {
    for backend in [
        r#"{"Type":"vxlan"}"#,
        r#"{"Type":"vxlan","DirectRouting":true}"#,
        r#"{"Type":"host-gw"}"#,
    ] {
        in_namespace(move || async move {
            sh("ip route add 192.168.0.0/16 dev eth0");
            let peers = || (0..=4000u16).filter(|n| ![101, 255].contains(n));
            let wide = r#"{"Network":"10.0.0.0/8","Backend":BACKEND}"#;
            let all = |setup: &backends::Setup| {
                let mut leases: Vec<_> = peers().map(|n| lease(setup, n)).collect();
                for n in 0..6000u16 {
                    let [high, low] = n.to_be_bytes();
                    let mut more = lease(setup, n);
                    more.subnets = types::Subnets::V4(
                        format!("10.{}.{low}.0/24", 100 + high).parse().unwrap(),
                    );
                    more.attrs.public_ip =
                        Some(format!("192.168.{}.{low}", 100 + high).parse().unwrap());
                    more.attrs.data = more.attrs.data.map(|data| {
                        subnet_lease::RawJson::parse(&data.as_str().replace("02:00", "02:01"))
                            .unwrap()
                    });
                    leases.push(more);
                }
                subnet_lease::LeaseTable::of(leases, Default::default())
            };
            let setup = setup(wide, backend);
            let table = all(&setup);
            let began = Instant::now();
            let node = Node::start_with(setup.clone(), table.clone()).await;
            let cold = began.elapsed();
            node.idle().await;
            node.stop().await;
            let began = Instant::now();
            let node = Node::start_with(setup, table).await;
            let warm = began.elapsed();
            node.idle().await;
            println!(
                "{backend}: cold {cold:?}, warm {warm:?}, writes at the warm start {}",
                node.writes()
            );
            println!(
                "{}",
                std::fs::read_to_string("/proc/self/status")
                    .unwrap()
                    .lines()
                    .filter(|line| line.starts_with("VmHWM"))
                    .collect::<String>()
            );
            node.stop().await;
        });
    }
}
