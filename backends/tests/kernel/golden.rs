//! The kernel state equals captures of Go flannel 0.28.9, except for MACs, leases and the protocol
//! number.

use crate::bed::*;

/// The lines of [`state`] about flannel's objects.
fn ours() -> Vec<String> {
    state()
        .into_iter()
        .filter(|line| !line.contains("fe80::"))
        .filter(|line| {
            line.contains("flannel") || line.contains("10.244") || line.contains("fd10:")
        })
        .collect()
}

#[test]
fn vxlan() {
    in_namespace(|| async {
        let node = Node::start(setup(V4, r#"{"Type":"vxlan"}"#), [1, 2]).await;
        let mac = mac_of(node.announced.data.as_ref().unwrap());
        assert_eq!(
            (node.announced.mtu, node.announced.backend.as_str(), &node.announced.v6_data),
            (1450, "vxlan", &None)
        );
        assert_eq!(
            node.announced.data.as_ref().unwrap().as_str(),
            format!(r#"{{"VNI":1,"VtepMAC":"{mac}"}}"#)
        );
        assert_eq!(
            ours(),
            [
                "address flannel.1 10.244.1.0/32".to_owned(),
                "fdb flannel.1 02:00:04:00:00:02 192.168.56.2 [self] permanent".to_owned(),
                format!("link flannel.1 mtu 1450 mac {mac} up true vni 1 local 192.168.56.101 lower eth0 port 8472 learning false txqlen 0"),
                "neighbour flannel.1 10.244.2.0 02:00:04:00:00:02".to_owned(),
                "route unicast 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 241 scope global metric null [onlink]".to_owned(),
            ]
        );
        let link = &json("ip -d -j link show flannel.1")[0];
        let data = &link["linkinfo"]["info_data"];
        for (key, value) in [
            ("ttl", "0"),
            ("ageing", "300"),
            ("udp_csum", "true"),
            ("udp_zero_csum6_tx", "false"),
            ("udp_zero_csum6_rx", "false"),
            ("df", "\"unset\""),
        ] {
            assert_eq!(data[key].to_string(), value, "{key}");
        }
        assert_eq!(link["inet6_addr_gen_mode"], "eui64");
        assert_eq!(sh("cat /proc/sys/net/ipv6/conf/flannel.1/accept_ra").trim(), "0");
        node.stop().await;
    });
}

#[test]
fn vxlan_dual() {
    in_namespace(|| async {
        let node = Node::start(setup(DUAL, r#"{"Type":"vxlan"}"#), [1, 2]).await;
        let (mac, mac6) = (
            mac_of(node.announced.data.as_ref().unwrap()),
            mac_of(node.announced.v6_data.as_ref().unwrap()),
        );
        assert_ne!(mac, mac6);
        assert_eq!(node.announced.mtu, 1450);
        assert_eq!(
            ours(),
            [
                "address flannel-v6.1 fd10:244:0:1::/128".to_owned(),
                "address flannel.1 10.244.1.0/32".to_owned(),
                "fdb flannel-v6.1 02:00:06:00:00:02 fd00:56::1002 [self] permanent".to_owned(),
                "fdb flannel.1 02:00:04:00:00:02 192.168.56.2 [self] permanent".to_owned(),
                format!("link flannel-v6.1 mtu 1430 mac {mac6} up true vni 1 local fd00:56::101 lower eth0 port 8472 learning false txqlen 0"),
                format!("link flannel.1 mtu 1450 mac {mac} up true vni 1 local 192.168.56.101 lower eth0 port 8472 learning false txqlen 0"),
                "neighbour flannel-v6.1 fd10:244:0:2:: 02:00:06:00:00:02".to_owned(),
                "neighbour flannel.1 10.244.2.0 02:00:04:00:00:02".to_owned(),
                "route unicast 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 241 scope global metric null [onlink]".to_owned(),
                "route unicast fd10:244:0:1:: via null dev flannel-v6.1 proto kernel scope global metric 256 []".to_owned(),
                "route unicast fd10:244:0:2::/64 via fd10:244:0:2:: dev flannel-v6.1 proto 241 scope global metric 1024 [onlink]".to_owned(),
            ]
        );
        assert!(sh("ip -6 addr show dev flannel-v6.1").contains("nodad"));
        node.stop().await;
    });
}

#[test]
fn vxlan_v6_only_has_the_v6_devices_mtu() {
    in_namespace(|| async {
        let node = Node::start(setup(V6, r#"{"Type":"vxlan"}"#), [1, 2]).await;
        assert_eq!((node.announced.mtu, node.announced.data.is_none()), (1430, true));
        assert_eq!((count("flannel.1"), ours().len()), (0, 6));
        node.stop().await;
    });
}

#[test]
fn vxlan_direct() {
    in_namespace(|| async {
        // Peer 2 is on the underlay's network, peer 0x102 (10.245.2.0, 192.168.57.2) is outside ours, and peer 3 is routed by a gateway.
        sh("ip route add 192.168.56.3/32 via 192.168.56.254 dev eth0");
        let node =
            Node::start(setup(V4, r#"{"Type":"vxlan","DirectRouting":true}"#), [1, 2, 3, 0x102])
                .await;
        let lines = ours();
        assert!(
            lines.contains(&"route unicast 10.244.2.0/24 via 192.168.56.2 dev eth0 proto 241 scope global metric null []".to_owned()),
            "{lines:#?}"
        );
        assert!(
            lines.contains(&"route unicast 10.244.3.0/24 via 10.244.3.0 dev flannel.1 proto 241 scope global metric null [onlink]".to_owned()),
            "{lines:#?}"
        );
        assert_eq!(
            (lines.iter().filter(|line| line.starts_with("fdb")).count(), lines.len()),
            (1, 6)
        );
        // The underlay changes: the peer is on-link now.
        sh("ip route del 192.168.56.3/32");
        until("peer 3 gets a plain route", || {
            ours().iter().any(|line| line.contains("10.244.3.0/24 via 192.168.56.3 dev eth0"))
        })
        .await;
        until("its other objects are removed", || ours().len() == 4).await;
        node.stop().await;
    });
}

#[test]
fn host_gw_and_dual() {
    in_namespace(|| async {
        let node = Node::start(setup(DUAL, r#"{"Type":"host-gw"}"#), [1, 2]).await;
        assert_eq!(
            (node.announced.mtu, node.announced.backend.as_str(), &node.announced.data),
            (1500, "host-gw", &None)
        );
        assert_eq!(
            ours(),
            [
                "route unicast 10.244.2.0/24 via 192.168.56.2 dev eth0 proto 241 scope global metric null []",
                "route unicast fd10:244:0:2::/64 via fd00:56::1002 dev eth0 proto 241 scope global metric 1024 []",
            ]
        );
        node.peers([1]);
        until("the routes are removed with the lease", || ours().is_empty()).await;
        node.stop().await;
    });
}

#[test]
fn alloc_touches_nothing() {
    in_namespace(|| async {
        let before = state();
        let mut node = Node::start(setup(V4, r#"{"Type":"alloc"}"#), [1, 2]).await;
        assert_eq!((node.announced.mtu, node.announced.backend.as_str()), (1500, ""));
        sh("ip link set eth0 mtu 9000");
        wait::complete("the MTU is announced", node.out.changed()).await.unwrap().unwrap();
        assert_eq!(node.out.borrow().mtu, 9000);
        assert_eq!((state(), node.writes()), (before, 0));
        node.stop().await;
    });
}
