//! Kernel events suffice for flanneld to repair damage by other programs, without audits.

use crate::bed::*;

/// Damages a dual-stack vxlan node with three peers, and waits until the node restores the previous state.
fn heals(damage: &'static str) {
    in_namespace(move || async move {
        let node = Node::start(setup(DUAL, r#"{"Type":"vxlan"}"#), [1, 2, 3, 4]).await;
        node.idle().await;
        let before = state();
        sh(damage);
        // Damage on the underlay is repaired by the test, not by the node.
        until(&format!("healed: {damage}"), || state() == before).await;
        node.finish().await;
    });
}

#[test]
fn link_deleted() {
    heals("ip link del flannel.1; ip link del flannel-v6.1");
}

#[test]
fn link_down() {
    heals("ip link set flannel.1 down; ip link set flannel-v6.1 down");
}

#[test]
fn link_down_and_up() {
    heals("ip link set flannel.1 down; ip link set flannel.1 up");
}

#[test]
fn routes_flushed() {
    heals("ip route flush proto 241; ip -6 route flush proto 241");
}

#[test]
fn route_changed() {
    heals("ip route replace 10.244.2.0/24 via 192.168.56.7 dev eth0 proto 241");
}

#[test]
fn ipv6_route_changed_or_made_multipath() {
    heals("ip -6 route replace fd10:244:0:2::/64 via fd00:56::7 dev eth0 proto 241 metric 1024");
    heals("ip -6 route append fd10:244:0:2::/64 via fd00:56::7 dev eth0 proto 241 metric 1024");
}

#[test]
fn unwanted_routes_with_our_protocol() {
    heals(
        "ip route add 10.244.99.0/24 via 192.168.56.7 dev eth0 proto 241 metric 7; ip route add blackhole 10.244.98.0/24 proto 241",
    );
    heals(
        "ip -6 route add fd10:244:0:99::/64 proto 241 metric 9 nexthop via fd00:56::7 dev eth0 nexthop via fd00:56::8 dev eth0",
    );
}

#[test]
fn fdb_flushed() {
    heals(
        "for mac in $(bridge fdb show dev flannel.1 | cut -d' ' -f1); do bridge fdb del $mac dev flannel.1; done; bridge fdb del 02:00:06:00:00:03 dev flannel-v6.1",
    );
}

#[test]
fn fdb_changed() {
    heals("bridge fdb replace 02:00:04:00:00:02 dev flannel.1 dst 192.168.56.77 self permanent");
}

#[test]
fn fdb_extra() {
    heals("bridge fdb add 02:00:04:00:00:99 dev flannel.1 dst 192.168.56.77 self permanent");
}

#[test]
fn neighbors_flushed() {
    heals(
        "ip neigh flush dev flannel.1 nud permanent; ip -6 neigh flush dev flannel-v6.1 nud permanent",
    );
}

#[test]
fn neighbor_turned_stale() {
    heals("ip neigh replace 10.244.2.0 lladdr 02:00:00:00:00:99 nud stale dev flannel.1");
}

#[test]
fn address_removed() {
    heals(
        "ip addr del 10.244.1.0/32 dev flannel.1; ip addr del fd10:244:0:1::/128 dev flannel-v6.1",
    );
}

#[test]
fn address_inside_the_network_added() {
    heals("ip addr add 10.244.77.1/24 dev flannel.1");
}

#[test]
fn mac_changed() {
    heals(
        "ip link set flannel.1 address 02:11:22:33:44:55; ip link set flannel-v6.1 address 02:11:22:33:44:56",
    );
}

#[test]
fn mtu_changed() {
    heals("ip link set flannel.1 mtu 1300");
}

#[test]
fn vxlan_attributes_changed() {
    heals("ip link set flannel.1 type vxlan learning local 192.168.56.55");
}

#[test]
fn accept_ra_changed_with_something_else() {
    in_namespace(|| async {
        let node = Node::start(setup(V4, r#"{"Type":"vxlan"}"#), [1, 2]).await;
        sh("sysctl -qw net.ipv6.conf.flannel/1.accept_ra=1; ip link set flannel.1 mtu 1300");
        until("accept_ra is off", || {
            sh("cat /proc/sys/net/ipv6/conf/flannel.1/accept_ra").trim() == "0"
        })
        .await;
        node.stop().await;
    });
}

#[test]
fn underlay_down_and_up() {
    in_namespace(|| async {
        let node = Node::start(setup(DUAL, r#"{"Type":"host-gw"}"#), [1, 2, 3]).await;
        let before = state();
        sh("ip link set eth0 down");
        until("the problem is reported", || node.status().kernel.trouble.is_some()).await;
        sh("ip link set eth0 up; ip addr replace fd00:56::101/64 dev eth0 nodad");
        until("the routes are back", || state() == before).await;
        node.finish().await;
    });
}

#[test]
fn underlay_renamed() {
    for backend in [r#"{"Type":"vxlan","DirectRouting":true}"#, r#"{"Type":"host-gw"}"#] {
        in_namespace(move || async move {
            let node = Node::start(setup(V4, backend), [1, 2, 3]).await;
            node.idle().await;
            let (before, writes) = (state(), node.writes());
            sh("ip link property add dev eth0 altname keep; ip link set eth0 name uplink7");
            node.idle().await;
            assert_eq!(node.writes(), writes, "a new name causes no writes");
            let after = state().into_iter().map(|line| line.replace("uplink7", "eth0")).collect();
            assert_eq!(before, after);
            sh("ip route flush proto 241");
            until("routes heal under the new name", || count("dev uplink7 proto 241") == 2).await;
            node.stop().await;
        });
    }
}

#[test]
fn underlay_mtu_is_followed() {
    in_namespace(|| async {
        let mut node = Node::start(setup(DUAL, r#"{"Type":"vxlan"}"#), [1, 2]).await;
        for mtu in [1400, 9000, 1500] {
            sh(&format!("ip link set eth0 mtu {mtu}"));
            until("the devices follow", || {
                let has = |name: &str, mtu: u32| shows(&format!("link {name} mtu {mtu} "));
                has("flannel.1", mtu - 50) && has("flannel-v6.1", mtu - 70)
            })
            .await;
            node.out.wait_for(|announced| announced.mtu == mtu - 50).await.unwrap();
        }
        node.finish().await;
    });
}

#[test]
fn underlay_address_is_followed_in_place() {
    in_namespace(|| async {
        let node = Node::start(setup(V4, r#"{"Type":"vxlan"}"#), [1, 2]).await;
        let first = index();
        sh("ip addr add 192.168.56.200/24 dev eth0");
        node.underlay.send_modify(|underlay| {
            let ip = "192.168.56.200".parse().unwrap();
            underlay.addresses = types::Addresses::V4(ip);
            underlay.public = underlay.addresses;
        });
        until("the device's local address follows", || shows("local 192.168.56.200")).await;
        node.idle().await;
        assert_eq!(index(), first, "not rebuilt");
        assert!(shows("fdb flannel.1 02:00:04:00:00:02"));
        node.stop().await;
    });
}

#[test]
fn a_mac_that_keeps_being_changed_is_announced() {
    in_namespace(|| async {
        let mut node = Node::start(setup(V4, r#"{"Type":"vxlan"}"#), [1, 2]).await;
        let theirs = "mac 02:11:22:33:44:55";
        let accepted =
            |node: &Node| theirs.ends_with(&mac_of(node.out.borrow().data.as_ref().unwrap()));
        until("the MAC is accepted", || {
            if !shows(theirs) {
                sh("ip link set flannel.1 address 02:11:22:33:44:55");
            }
            accepted(&node)
        })
        .await;
        assert!(node.out.has_changed().unwrap());
        node.out.borrow_and_update();
        node.idle().await;
        assert!(shows(theirs) && shows("neighbour flannel.1 10.244.2.0 02:00:04:00:00:02"));
        node.stop().await;
    });
}

#[test]
fn underlay_replaced_with_another_index() {
    for backend in
        [r#"{"Type":"vxlan"}"#, r#"{"Type":"vxlan","DirectRouting":true}"#, r#"{"Type":"host-gw"}"#]
    {
        in_namespace(move || async move {
            let node = Node::start(setup(V4, backend), [1, 2, 3]).await;
            node.idle().await;
            let before = state();
            sh("ip link del eth0");
            // The daemon follows the interface. Without the daemon, the node only reports what fails.
            until("its absence is reported", || {
                node.status().kernel.trouble.is_some() && !node.status().kernel.in_sync
            })
            .await;
            sh("ip link add more type veth peer name evenmore");
            create_underlay();
            sh("ip link del more");
            node.underlay.send_replace(underlay(false));
            until("everything is back", || state() == before).await;
            node.finish().await;
        });
    }
}

#[test]
fn more_notifications_than_the_socket_holds() {
    in_namespace(|| async {
        let node = Node::start(setup(V4, r#"{"Type":"vxlan"}"#), [1, 2, 3]).await;
        node.idle().await;
        let before = state();
        // The runtime is blocked meanwhile. So notifications are not read, not even those of our own routes.
        // `ip route flush` gives up after 30 s. A busy machine may need more time, and the next call deletes the remaining routes.
        sh(
            "for n in 1 2 3; do for i in $(seq 0 16000); do echo route add 11.$((i / 250)).$((i % 250)).0/24 dev eth0; done | ip -batch -; for try in 1 2 3 4; do ip route flush root 11.0.0.0/8 && break; done; done",
        );
        sh("ip route flush proto 241");
        until("our routes are back", || state() == before).await;
        node.finish().await;
    });
}
