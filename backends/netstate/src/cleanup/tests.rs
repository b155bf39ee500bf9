//! Tests that cleanup selects objects by name, kind, protocol number and evidence.

use super::*;
use crate::object::link::LinkKind;
use types::Encapsulation;
use types::profile::{Device, Keys, Overhead};

fn link(name: &str, kind: &str) -> SeenLink {
    let kind = match kind {
        "tun" => LinkKind::Tun { held: false },
        other => LinkKind::Other(other.to_owned()),
    };
    let name = LinkName::parse(name).unwrap();
    SeenLink { index: 7, name, spec: LinkSpec::new(kind, 1450) }
}

fn route(net: &str, via: Option<&str>, dev: &str, protocol: u8) -> (IpNet, u32, RouteSpec) {
    let kind =
        if via.is_none() && dev.is_empty() { RouteKind::Blackhole } else { RouteKind::Unicast };
    let dev = LinkName::parse(dev).unwrap_or_default();
    (
        net.parse().unwrap(),
        0,
        RouteSpec {
            via: via.map(|ip| ip.parse().unwrap()),
            dev,
            onlink: false,
            kind,
            scope: 0,
            protocol,
        },
    )
}

/// The devices of two backends.
const BACKEND: Profile = Profile {
    name: "two",
    devices: &[
        Device { name: "flannel.", is_numbered: true, kinds: &["vxlan", "tun"], family: None },
        Device::shared("flannel0", &["tun"]),
        Device::shared("flannel-wg", &["wireguard", "tun"]),
        Device::shared("flannel.ipip", &["ipip"]),
    ],
    overhead: Overhead::of_both(0),
    encapsulation: Encapsulation::udp(1),
    seen_as: None,
    carries: true,
    encrypts: false,
    needs_links: false,
    shares_address: false,
    keys: Keys { port: None, has_mtu: false },
};

fn evidence() -> Evidence {
    let networks = vec![
        FlannelNetwork {
            network: "10.244.0.0/16".parse().unwrap(),
            own: Some("10.244.1.0/24".parse().unwrap()),
            length: 24,
        },
        FlannelNetwork {
            network: "fd10:244::/48".parse().unwrap(),
            own: Some("fd10:244:0:1::/64".parse().unwrap()),
            length: 64,
        },
    ];
    Evidence {
        backends: vec![&BACKEND],
        networks,
        protocol: 241,
        bridge: false,
        others: OtherDaemons::default(),
    }
}

fn removed(inventory: &Inventory, evidence: &Evidence) -> Vec<String> {
    decide_removals(inventory, evidence).remove.into_iter().map(|(_, what)| what).collect()
}

fn kept(inventory: &Inventory, evidence: &Evidence) -> Vec<String> {
    decide_removals(inventory, evidence).keep.into_iter().map(|kept| kept.command).collect()
}

#[test]
fn devices_are_removed_by_name_and_kind() {
    let ours = [
        ("flannel.7", "tun"),
        ("flannel0", "tun"),
        ("flannel-wg", "wireguard"),
        ("flannel.ipip", "ipip"),
    ];
    let doubtful = [
        ("flannel.1", "bridge"),
        ("flannel0", "wireguard"),
        ("flannel-wg", "device"),
        ("flannel.ipip", "ip6tnl"),
    ];
    let others = [
        ("flannel", "tun"),
        ("flannelx", "tun"),
        ("flannel.x", "tun"),
        ("my-flannel.1", "tun"),
        ("vx0", "vxlan"),
        ("tunl0", "ipip"),
        ("flannel.", "tun"),
        ("flannel00", "tun"),
        ("wg0", "wireguard"),
        ("docker0", "bridge"),
    ];
    for (list, gone, keeps) in
        [(&ours[..], true, false), (&doubtful, false, true), (&others, false, false)]
    {
        for (name, kind) in list {
            let inventory = Inventory { links: vec![link(name, kind)], routes: Vec::new() };
            assert_eq!(
                (
                    !removed(&inventory, &evidence()).is_empty(),
                    !kept(&inventory, &evidence()).is_empty()
                ),
                (gone, keeps),
                "{name} {kind}"
            );
        }
    }
}

#[test]
fn the_bridge_is_removed_only_on_request() {
    let inventory = Inventory { links: vec![link("cni0", "bridge")], routes: Vec::new() };
    assert_eq!(
        (removed(&inventory, &evidence()).len(), kept(&inventory, &evidence())),
        (0, vec!["ip link delete cni0".to_owned()])
    );
    let asked = Evidence { bridge: true, ..evidence() };
    assert_eq!(
        (removed(&inventory, &asked), kept(&inventory, &asked).len()),
        (vec!["device cni0 (bridge)".to_owned()], 0)
    );
    let other = Inventory { links: vec![link("cni0", "device")], routes: Vec::new() };
    assert!(removed(&other, &asked).is_empty());
}

#[test]
fn routes_are_removed_by_protocol_or_clear_evidence() {
    let routes = vec![
        // Our protocol number, with any destination.
        route("10.244.2.0/24", Some("192.168.56.2"), "eth0", 241),
        route("10.9.0.0/16", Some("192.168.56.2"), "eth0", 241),
        route("10.244.1.0/24", None, "", 241),
        // Routes and a blackhole of Go flannel's host-gw.
        route("10.244.3.0/24", Some("192.168.56.3"), "eth0", 3),
        route("fd10:244:0:3::/64", Some("fd00:56::3"), "eth0", 3),
        route("10.244.1.0/24", None, "", 3),
        // Removed with its device.
        route("10.244.4.0/24", Some("10.244.4.0"), "flannel.1", 3),
        // Foreign routes inside the network.
        route("10.244.128.0/17", Some("192.168.56.3"), "eth0", 3),
        route("10.244.9.0/24", None, "", 3),
        // This node's subnet had another length before.
        route("10.244.16.0/21", None, "", 3),
        route("10.244.0.0/16", None, "", 3),
        route("10.244.7.7/32", None, "", 3),
        // Other routes.
        route("10.244.5.0/24", Some("192.168.56.5"), "eth0", 4),
        route("10.244.5.0/24", None, "eth0", 3),
        route("10.244.6.7/32", Some("192.168.56.5"), "eth0", 3),
        route("10.9.1.0/24", Some("192.168.56.5"), "eth0", 3),
        route("0.0.0.0/0", Some("192.168.56.1"), "eth0", 3),
        route("10.244.1.0/24", None, "cni0", 2),
    ];
    let inventory =
        Inventory { links: vec![link("flannel.1", "tun"), link("eth0", "veth")], routes };
    assert_eq!(
        removed(&inventory, &evidence()),
        [
            "route 10.244.2.0/24 via 192.168.56.2 dev eth0 proto 241",
            "route 10.9.0.0/16 via 192.168.56.2 dev eth0 proto 241",
            "route blackhole 10.244.1.0/24 proto 241",
            "route 10.244.3.0/24 via 192.168.56.3 dev eth0 proto boot",
            "route fd10:244:0:3::/64 via fd00:56::3 dev eth0 proto boot",
            "route blackhole 10.244.1.0/24 proto boot",
            "route blackhole 10.244.9.0/24 proto boot",
            "route blackhole 10.244.16.0/21 proto boot",
            "device flannel.1 (tun)",
        ]
    );
    assert_eq!(
        kept(&inventory, &evidence()),
        [
            "ip route delete 10.244.128.0/17 via 192.168.56.3 dev eth0 proto boot",
            "ip route delete blackhole 10.244.0.0/16 proto boot",
            "ip route delete blackhole 10.244.7.7/32 proto boot"
        ]
    );
    // Without evidence, only the protocol number and the devices identify flannel's objects.
    let nothing = Evidence { networks: Vec::new(), ..evidence() };
    assert_eq!((removed(&inventory, &nothing).len(), kept(&inventory, &nothing).len()), (4, 5));
}
