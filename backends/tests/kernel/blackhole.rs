//! With every backend, a node drops packets to addresses of its subnet that no pod uses. The
//! blackhole routes do not affect packets to existing pods on the bridge.

use crate::bed::*;

/// One line per route.
fn holes() -> Vec<String> {
    let lines = ["-4", "-6"].map(|family| sh(&format!("ip {family} route show type blackhole")));
    lines
        .iter()
        .flat_map(|text| text.lines())
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

const V4_HOLE: &str = "blackhole 10.244.1.0/24 proto 241 metric 65535";
const V6_HOLE: &str = "blackhole fd10:244:0:1::/64 dev lo proto 241 metric 65535 pref medium";

/// The route that the kernel selects for packets to an address.
fn way(ip: &str) -> String {
    sh(&format!("ip route get {ip} 2>&1 || true"))
}

#[test]
fn every_backend_adds_them_only_with_the_flag() {
    for backend in
        [r#"{"Type":"vxlan"}"#, r#"{"Type":"host-gw"}"#, r#"{"Type":"alloc"}"#, r#"{"Type":"udp"}"#]
    {
        in_namespace(move || async move {
            sh("ip route add default via 192.168.56.9; ip -6 route add default via fd00:56::9");
            let node = Node::start_with_blackholes(setup(DUAL, backend), [1, 2]).await;
            node.idle().await;
            assert_eq!(holes(), [V4_HOLE, V6_HOLE]);
            // The routes are repaired by event, because there is no audit here.
            sh("ip route flush proto 241; ip -6 route flush proto 241");
            until("they are back", || holes() == [V4_HOLE, V6_HOLE]).await;
            node.finish().await;
            let node = Node::start_with_blackholes(setup(DUAL, backend), [1, 2]).await;
            node.idle().await;
            // A TUN device is deleted with its process.
            assert!(node.writes() == 0 || backend.contains("udp"), "a warm restart writes nothing");
            node.stop().await;
            let node = Node::start(setup(DUAL, backend), [1, 2]).await;
            node.idle().await;
            assert_eq!(holes(), [""; 0]);
            node.stop().await;
        });
    }
}

#[test]
fn the_bridge_wins_in_any_order() {
    const BRIDGE: &str = "ip link add cni0 type bridge; ip link set cni0 up; ip addr add 10.244.1.1/24 dev cni0; ip addr add fd10:244:0:1::1/64 dev cni0 nodad";
    for bridge_first in [true, false] {
        in_namespace(move || async move {
            sh("ip route add default via 192.168.56.9; ip -6 route add default via fd00:56::9");
            if bridge_first {
                sh(BRIDGE);
            }
            let node =
                Node::start_with_blackholes(setup(DUAL, r#"{"Type":"vxlan"}"#), [1, 2]).await;
            node.idle().await;
            if !bridge_first {
                for ip in ["10.244.1.7", "fd10:244:0:1::7"] {
                    assert!(way(ip).contains("Invalid argument"), "{}", way(ip));
                }
                sh(BRIDGE);
            }
            node.idle().await;
            for ip in ["10.244.1.7", "fd10:244:0:1::7"] {
                assert!(way(ip).contains("dev cni0"), "{}", way(ip));
            }
            assert_eq!(holes(), [V4_HOLE, V6_HOLE]);
            sh("ip link del cni0");
            node.idle().await;
            for ip in ["10.244.1.7", "fd10:244:0:1::7"] {
                assert!(way(ip).contains("Invalid argument"), "{}", way(ip));
            }
            node.stop().await;
        });
    }
}

#[test]
fn routes_of_go_flannel_are_replaced_and_others_stay() {
    // Without a metric, Go flannel's route would take precedence over a bridge that is created later.
    const LEFT: &str = "ip route add blackhole 10.244.1.0/24; ip route add blackhole 10.244.1.64/26; ip -6 route add blackhole fd10:244:0:1::/64";
    const OTHERS: &str = "ip route add blackhole 10.244.50.0/24; ip route add blackhole 10.244.1.0/24 metric 7 proto 80; \
         ip -6 route add blackhole fd10:244:0:1::/64 metric 7 proto 80";
    in_namespace(|| async {
        sh(&format!("{LEFT}; {OTHERS}"));
        let node = Node::start_with_blackholes(setup(DUAL, r#"{"Type":"vxlan"}"#), [1, 2]).await;
        node.idle().await;
        let mut after = holes();
        assert!(
            after.contains(&V4_HOLE.to_owned()) && after.contains(&V6_HOLE.to_owned()),
            "{after:#?}"
        );
        after.retain(|line| !line.contains("proto 241"));
        assert_eq!(
            after,
            [
                "blackhole 10.244.1.0/24 proto 80 metric 7".to_owned(),
                "blackhole 10.244.50.0/24".to_owned(),
                "blackhole fd10:244:0:1::/64 dev lo proto 80 metric 7 pref medium".to_owned(),
            ]
        );
        // The route is added again while the node runs, and replaced again by event.
        sh(LEFT);
        until("it is replaced", || {
            holes().iter().filter(|line| line.contains(" 10.244.1.0/24")).count() == 2
        })
        .await;
        node.finish().await;
    });
    in_namespace(|| async {
        sh(LEFT);
        let before = holes();
        let node = Node::start(setup(DUAL, r#"{"Type":"host-gw"}"#), [1, 2]).await;
        node.idle().await;
        assert_eq!(holes(), before, "without the flag it stays: it may be an operator's");
        node.stop().await;
    });
}
