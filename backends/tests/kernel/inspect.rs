//! Tests of the inspection of kernel objects, in comparison with the output of `ip` and `bridge`.

use crate::bed::*;
use netlink::Client;
use netstate::host::read::read_links;
use netstate::report::inspect::Inspection;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use types::kernel_object::{ObjectKind, ObjectState};

/// As `ip` and `bridge` print them, one trimmed line per object.
fn printed() -> BTreeSet<String> {
    let all =
        sh("ip -4 route show; ip -6 route show; ip neigh show nud permanent; bridge fdb show");
    let trimmed = |line: &str| {
        line.split(" pref ")
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    all.lines().map(trimmed).collect()
}

/// The objects that are not in sync.
fn wrong(inspection: &Inspection) -> Vec<&str> {
    inspection
        .objects
        .iter()
        .filter(|object| object.state != ObjectState::InSync)
        .map(|object| object.text.as_str())
        .collect()
}

/// Owner and conflicts of the foreign objects whose text contains `part`.
fn foreign(inspection: &Inspection, part: &str) -> Vec<(String, Vec<String>)> {
    let named = inspection.foreign.iter().filter(|foreign| foreign.text.contains(part));
    named.map(|foreign| (foreign.by.clone(), foreign.conflicts_with.clone())).collect()
}

#[test]
fn every_backends_objects_are_in_sync_and_print_like_ip() {
    for (backend, kinds) in [
        (
            r#"{"Type":"vxlan"}"#,
            vec![
                ObjectKind::Link,
                ObjectKind::Address,
                ObjectKind::Fdb,
                ObjectKind::Neighbour,
                ObjectKind::Route,
                ObjectKind::Blackhole,
            ],
        ),
        (
            r#"{"Type":"vxlan","Mode":"userspace"}"#,
            vec![ObjectKind::Link, ObjectKind::Address, ObjectKind::Route, ObjectKind::Blackhole],
        ),
        (r#"{"Type":"host-gw"}"#, vec![ObjectKind::Route, ObjectKind::Blackhole]),
        (
            r#"{"Type":"udp"}"#,
            vec![ObjectKind::Link, ObjectKind::Address, ObjectKind::Route, ObjectKind::Blackhole],
        ),
    ] {
        in_namespace(move || async move {
            let node = Node::start_with_blackholes(setup(DUAL, backend), [1, 2, 3]).await;
            node.idle().await;
            let passes = (node.status().kernel.passes, node.writes());
            let found = node.inspect().await;
            assert_eq!(wrong(&found), [""; 0], "{backend}");
            assert_eq!(found.foreign, [], "{backend}");
            let seen: BTreeSet<ObjectKind> =
                found.objects.iter().map(|object| object.kind).collect();
            assert_eq!(seen, kinds.into_iter().collect(), "{backend}");
            let printed = printed();
            for object in found
                .objects
                .iter()
                .filter(|object| !matches!(object.kind, ObjectKind::Link | ObjectKind::Address))
            {
                // `ip` prints the device of an IPv6 route that drops packets.
                let text = object.text.replace(" proto", " dev lo proto");
                assert!(
                    printed.contains(&object.text) || printed.contains(&text),
                    "{backend}: {}\n{printed:#?}",
                    object.text
                );
            }
            assert_eq!(
                (node.status().kernel.passes, node.writes()),
                passes,
                "{backend}: looking changes nothing"
            );
            node.stop().await;
        });
    }
}

#[test]
fn foreign_objects_are_reported_as_foreign() {
    in_namespace(|| async {
        let node = Node::start(setup(DUAL, r#"{"Type":"vxlan"}"#), [1, 2, 3]).await;
        node.idle().await;
        for (command, part, by, way) in [
            (
                "ip route add 10.244.200.0/24 via 192.168.56.9 proto bird",
                "10.244.200.0/24",
                "bird",
                None,
            ),
            (
                "ip route add 10.244.2.128/25 via 192.168.56.9 proto dhcp",
                "10.244.2.128/25",
                "a DHCP client",
                Some("10.244.2.0/24"),
            ),
            (
                "ip route add 10.244.3.0/24 via 192.168.56.9 metric 50 proto static",
                "metric 50",
                "an operator, Net",
                None,
            ),
            (
                "ip -6 route add fd10:244:0:2::/64 via fd00:56::9 metric 100 proto static",
                "metric 100",
                "an operator, Net",
                Some("fd10:244:0:2::/64"),
            ),
            (
                "ip link add cni0 type bridge; ip link set cni0 up; ip addr add 10.244.1.1/24 dev cni0",
                "dev cni0 proto kernel",
                "the kernel, for",
                None,
            ),
            (
                "bridge fdb add 02:00:00:00:00:77 dev flannel.1 dst 192.168.56.78 self dynamic",
                "02:00:00:00:00:77",
                "the kernel, which",
                None,
            ),
            (
                "ip neigh add 10.244.9.9 lladdr 02:00:00:00:00:78 nud reachable dev flannel.1",
                "10.244.9.9",
                "the kernel, which",
                None,
            ),
            (
                "ip neigh add 172.16.9.9 lladdr 02:00:00:00:00:79 nud permanent dev flannel.1",
                "172.16.9.9",
                "an operator or",
                None,
            ),
            (
                "ip link add second type vxlan id 2 local 192.168.56.101 dev eth0 dstport 8472",
                "second mtu",
                "an operator or",
                None,
            ),
        ] {
            sh(command);
            let found = node.inspect().await;
            assert_eq!(wrong(&found), [""; 0], "{command}");
            let [(who, cut)] = &foreign(&found, part)[..] else {
                panic!("{command}: {:?}", found.foreign)
            };
            assert!(who.starts_with(by), "{command}: {who}");
            assert_eq!(cut.first().map(String::as_str), way, "{command}");
        }
        assert!(
            node.inspect()
                .await
                .foreign
                .iter()
                .all(|foreign| foreign.own_subnet == foreign.text.contains("cni0"))
        );
        node.stop().await;
    });
}

/// Foreign routes that replace a route of flannel or take precedence over one.
#[test]
fn conflicting_route_is_reported_with_the_kernel_error() {
    in_namespace(|| async {
        let node = Node::start(setup(V4, r#"{"Type":"vxlan"}"#), [1, 2, 3]).await;
        node.idle().await;
        sh("ip route replace 10.244.2.0/24 via 192.168.56.9 dev eth0 proto static");
        until("the conflict is known", || node.failed_peers() == ["10.244.2.0/24"]).await;
        let found = node.inspect().await;
        let [text] = wrong(&found)[..] else { panic!("{found:?}") };
        assert_eq!(text, "10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 241 onlink");
        let object = found.objects.iter().find(|object| object.text == text).unwrap();
        assert!(
            object.state == ObjectState::Refused
                && object.why.as_ref().unwrap().contains("File exists"),
            "{object:?}"
        );
        assert_eq!(
            object.found.as_deref(),
            Some("10.244.2.0/24 via 192.168.56.9 dev eth0 proto static")
        );
        assert_eq!(foreign(&found, "proto static")[0].1, ["10.244.2.0/24"]);
        sh("ip route delete 10.244.2.0/24 via 192.168.56.9");
        node.idle().await;
        assert_eq!(wrong(&node.inspect().await), [""; 0]);

        sh("ip route prepend 10.244.3.0/24 via 192.168.56.9 dev eth0 proto static");
        until("the conflict is known", || node.failed_peers() == ["10.244.3.0/24"]).await;
        let found = node.inspect().await;
        assert_eq!(wrong(&found), ["10.244.3.0/24 via 10.244.3.0 dev flannel.1 proto 241 onlink"]);
        assert_eq!(foreign(&found, "proto static")[0].1, ["10.244.3.0/24"]);
        node.stop().await;
    });
}

/// The kernel on the other end of the link answers for its own addresses of both families.
#[test]
fn holders_of_addresses_answer_on_their_link() {
    in_namespace(|| async {
        sh("ip addr add 192.168.56.7/24 dev wire0; ip addr add fd00:56::7/64 dev wire0 nodad");
        let links = read_links(&mut Client::open().unwrap()).unwrap();
        let of = |name: &str| links.iter().find(|link| link.name == name).unwrap();
        let (asker, other) = (of("eth0").mac.unwrap(), of("wire0").mac.unwrap());
        for (there, absent) in [("192.168.56.7", "192.168.56.8"), ("fd00:56::7", "fd00:56::8")] {
            let asked = [there, absent].map(|ip| ip.parse::<IpAddr>().unwrap());
            let ask = |own: &[_]| {
                netstate::host::arp::find_holders(
                    of("eth0").index,
                    asker,
                    own,
                    &asked,
                    2,
                    Duration::from_secs(1),
                )
                .unwrap()
            };
            assert_eq!(ask(&[asker]), [(asked[0], other)]);
            assert_eq!(ask(&[asker, other]), []);
        }
    });
}
