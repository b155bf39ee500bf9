//! Tests that inspect prepared kernel states.

use super::*;
use crate::diff::diff;
use crate::failure::Failure;
use crate::kernel::FailureKind;
use crate::link::LinkSpec;
use crate::names::Mac;
use crate::route::RouteSpec;
use crate::survey::Survey;
use ipnet::IpNet;
use proptest::prelude::*;
use types::Errno;
use types::Subnets;
use types::kernel_object::Holder;

fn refused(code: i32) -> Failure {
    Failure::refused(Errno(code))
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn device(text: &str) -> LinkName {
    LinkName::parse(text).unwrap()
}

fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

fn tunnel(vni: u32) -> LinkSpec {
    let vxlan = VxlanSpec {
        vni,
        port: 8472,
        local: "192.0.2.1".parse().ok(),
        lower: 2,
        learning: false,
        gbp: false,
    };
    LinkSpec {
        kind: LinkKind::Vxlan(vxlan),
        mac: Some(mac(1)),
        mtu: 1450,
        up: true,
        accept_ra: None,
        checksum_offload: None,
    }
}

fn route(via: &str, dev: &str, protocol: u8) -> Value {
    let dev = if dev.is_empty() {
        LinkName::default()
    } else {
        device(dev)
    };
    Value::Route(RouteSpec {
        via: via.parse().ok(),
        dev,
        onlink: dev.as_str().starts_with("flannel"),
        kind: RouteKind::Unicast,
        scope: 0,
        protocol,
    })
}

/// Returns the in-sync state of a vxlan node with peers 2 and 3.
fn healthy() -> Sighting {
    let mut want = KernelState::default();
    let name = device("flannel.1");
    want.set(Key::Link(name), Value::Link(Box::new(tunnel(1))));
    want.set(Key::Address(name, net("10.244.1.0/32")), Value::Address);
    let (mut holders, mut owners) = (Vec::new(), BTreeMap::new());
    for number in [2u8, 3] {
        let gateway = format!("10.244.{number}.0");
        let subnet = net(&format!("{gateway}/24"));
        let objects = [
            (
                Key::Fdb(name, mac(number)),
                Value::Fdb(format!("192.0.2.{number}").parse().unwrap()),
            ),
            (
                Key::Neighbor(name, subnet.addr()),
                Value::Neighbor(mac(number)),
            ),
            (Key::Route(subnet, 0), route(&gateway, "flannel.1", 241)),
        ];
        for (key, value) in objects {
            owners.insert(key, holders.len());
            want.set(key, value);
        }
        holders.push(Holder {
            node: Some(format!("node-{number}")),
            subnet,
            address: format!("192.0.2.{number}").parse().unwrap(),
        });
    }
    let mut sighting = Sighting {
        have: want.clone(),
        want,
        errors: Vec::new(),
        held: false,
        survey: Survey::default(),
        own: Subnets::V4("10.244.1.0/24".parse().unwrap()),
        holders,
        owners,
    };
    sighting.survey.links = vec![
        (
            2,
            device("eth1"),
            LinkSpec {
                kind: LinkKind::Other("device".to_owned()),
                ..tunnel(1)
            },
        ),
        (3, name, tunnel(1)),
    ];
    sighting.survey.objects = surveyed(&sighting.have);
    sighting
}

/// Returns flannel's own objects as a survey reports the objects.
fn surveyed(have: &KernelState) -> Vec<Seen> {
    let on_devices = have
        .0
        .iter()
        .filter(|(key, _)| matches!(key, Key::Fdb(..) | Key::Neighbor(..) | Key::Route(..)));
    on_devices
        .map(|(key, value)| Seen {
            key: *key,
            value: value.clone(),
            origin: Origin::Set,
        })
        .collect()
}

fn look(sighting: &Sighting) -> Inspection {
    inspect(sighting, &Protocols::default())
}

/// Returns the objects that are not in sync: their texts, states and errors.
fn wrong(inspection: &Inspection) -> Vec<(&str, ObjectState, Option<&str>)> {
    inspection
        .objects
        .iter()
        .filter(|object| object.state != ObjectState::InSync)
        .map(|object| (object.text.as_str(), object.state, object.why.as_deref()))
        .collect()
}

fn foreign_object(to: &str, metric: u32, value: Value) -> Seen {
    Seen {
        key: Key::Route(net(to), metric),
        value,
        origin: Origin::Set,
    }
}

#[test]
fn healthy_node_is_in_sync() {
    let found = look(&healthy());
    assert_eq!(
        (wrong(&found), found.foreign.len(), found.objects.len()),
        (vec![], 0, 8)
    );
    let texts: Vec<(ObjectKind, &str, Option<String>)> = found
        .objects
        .iter()
        .map(|object| {
            (
                object.kind,
                object.text.as_str(),
                object
                    .holder
                    .as_ref()
                    .and_then(|holder| holder.node.clone()),
            )
        })
        .collect();
    assert_eq!(
        texts[..3],
        [
            (
                ObjectKind::Link,
                "flannel.1 mtu 1450 up address 02:00:00:00:00:01 vxlan id 1 local 192.0.2.1 dev eth1 dstport 8472 nolearning",
                None
            ),
            (ObjectKind::Address, "10.244.1.0/32 dev flannel.1", None),
            (
                ObjectKind::Fdb,
                "02:00:00:00:00:02 dev flannel.1 dst 192.0.2.2 self permanent",
                Some("node-2".to_owned())
            ),
        ]
    );
}

#[test]
fn kernel_route_to_own_address_is_not_foreign() {
    let mut sighting = healthy();
    sighting.survey.objects.push(foreign_object(
        "10.244.1.0/32",
        256,
        route("", "flannel.1", 2),
    ));
    assert_eq!(look(&sighting).foreign, []);
    for (to, dev, protocol) in [
        ("10.244.1.1/32", "flannel.1", 2),
        ("10.244.1.0/32", "cni0", 2),
        ("10.244.1.0/32", "flannel.1", 4),
    ] {
        let mut sighting = healthy();
        sighting
            .survey
            .objects
            .push(foreign_object(to, 256, route("", dev, protocol)));
        assert_eq!(look(&sighting).foreign.len(), 1, "{to} {dev} {protocol}");
    }
}

#[test]
fn missing_and_different_objects_are_reported() {
    let mut sighting = healthy();
    let name = device("flannel.1");
    sighting
        .have
        .0
        .remove(&Key::Neighbor(name, "10.244.2.0".parse().unwrap()));
    sighting.have.set(
        Key::Fdb(name, mac(3)),
        Value::Fdb("192.0.2.33".parse().unwrap()),
    );
    let Some(Value::Link(spec)) = sighting.have.0.get_mut(&Key::Link(name)) else {
        panic!()
    };
    spec.mtu = 1400;
    sighting.survey.objects = surveyed(&sighting.have);
    let found = look(&sighting);
    let reported: Vec<(ObjectKind, &ObjectState, Option<&str>)> = found
        .objects
        .iter()
        .filter(|object| object.state != ObjectState::InSync)
        .map(|object| (object.kind, &object.state, object.found.as_deref()))
        .collect();
    let link = "flannel.1 mtu 1400 up address 02:00:00:00:00:01 vxlan id 1 local 192.0.2.1 dev eth1 dstport 8472 nolearning";
    assert_eq!(
        reported,
        [
            (ObjectKind::Link, &ObjectState::Different, Some(link)),
            (
                ObjectKind::Fdb,
                &ObjectState::Different,
                Some("02:00:00:00:00:03 dev flannel.1 dst 192.0.2.33 self permanent")
            ),
            (ObjectKind::Neighbour, &ObjectState::Missing, None),
        ]
    );
    assert_eq!(found.foreign, []);
}

#[test]
fn a_learned_entry_in_the_place_of_ours_is_shown_there() {
    let mut sighting = healthy();
    let key = Key::Fdb(device("flannel.1"), mac(2));
    sighting.have.0.remove(&key);
    sighting.survey.objects = surveyed(&sighting.have);
    sighting.survey.objects.push(Seen {
        key,
        value: Value::Fdb("192.0.2.9".parse().unwrap()),
        origin: Origin::Learned,
    });
    let found = look(&sighting);
    let object = found
        .objects
        .iter()
        .find(|object| object.state != ObjectState::InSync)
        .unwrap();
    let text = "02:00:00:00:00:02 dev flannel.1 dst 192.0.2.9 self";
    assert_eq!(
        (&object.state, object.found.as_deref()),
        (&ObjectState::Different, Some(text))
    );
    assert_eq!(found.foreign[0].text, text);
    assert_eq!(
        found.foreign[0].by,
        "the kernel, which learned the entry, or an operator"
    );
}

#[test]
fn refused_route_has_its_reason_and_the_conflicting_route() {
    let mut sighting = healthy();
    let key = Key::Route(net("10.244.2.0/24"), 0);
    sighting.have.0.remove(&key);
    sighting.survey.objects = surveyed(&sighting.have);
    sighting.survey.objects.push(foreign_object(
        "10.244.2.0/24",
        0,
        route("192.0.2.250", "eth1", 12),
    ));
    sighting.errors = vec![OpError {
        verb: "add",
        key,
        kind: FailureKind::Conflict,
        why: refused(libc::EEXIST),
    }];
    let found = look(&sighting);
    assert_eq!(
        wrong(&found),
        [(
            "10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 241 onlink",
            ObjectState::Refused,
            Some(refused(libc::EEXIST).to_string().as_str())
        )]
    );
    let object = found
        .objects
        .iter()
        .find(|object| object.state != ObjectState::InSync)
        .unwrap();
    assert_eq!(
        object.found.as_deref(),
        Some("10.244.2.0/24 via 192.0.2.250 dev eth1 proto bird")
    );
    let [foreign] = &found.foreign[..] else {
        panic!("{:?}", found.foreign)
    };
    assert_eq!(
        (foreign.by.as_str(), foreign.conflicts_with.as_slice()),
        ("bird", &["10.244.2.0/24 (node-2)".to_owned()][..])
    );
    // An error of an earlier pass no longer applies once the object exists.
    sighting.have.set(key, sighting.want.0[&key].clone());
    sighting.survey.objects = surveyed(&sighting.have);
    assert_eq!(wrong(&look(&sighting)), []);
}

#[test]
fn route_conflict_depends_on_prefix_metric_and_order() {
    let (ours_v6, theirs) = (net("fd00:2::/64"), "192.0.2.250");
    let mut base = healthy();
    let holder = Holder {
        node: None,
        subnet: ours_v6,
        address: "fd00:56::2".parse().unwrap(),
    };
    base.owners
        .insert(Key::Route(ours_v6, 1024), base.holders.len());
    base.holders.push(holder);
    base.want.set(
        Key::Route(ours_v6, 1024),
        route("fd00:2::", "flannel-v6.1", 241),
    );
    base.have.set(
        Key::Route(ours_v6, 1024),
        route("fd00:2::", "flannel-v6.1", 241),
    );
    base.survey.objects = surveyed(&base.have);
    for (to, metric, way) in [
        ("10.244.2.0/25", 100, vec!["10.244.2.0/24 (node-2)"]),
        ("10.244.3.7/32", 0, vec!["10.244.3.0/24 (node-3)"]),
        ("10.244.2.0/24", 4096, vec![]),
        ("10.244.2.0/24", 0, vec![]),
        ("10.244.0.0/16", 0, vec![]),
        ("10.244.2.0/23", 0, vec![]),
        ("10.244.1.0/24", 0, vec![]),
        ("10.244.77.0/24", 0, vec![]),
        ("fd00:2::/64", 256, vec!["fd00:2::/64"]),
        ("fd00:2::/64", 2048, vec![]),
        ("fd00:2::/80", 2048, vec!["fd00:2::/64"]),
    ] {
        let mut sighting = base.clone();
        // The route comes after ours: of several equal routes, the kernel uses the first.
        sighting
            .survey
            .objects
            .push(foreign_object(to, metric, route(theirs, "eth1", 4)));
        let found = look(&sighting);
        let [foreign] = &found.foreign[..] else {
            panic!("{to}: {:?}", found.foreign)
        };
        assert_eq!(foreign.conflicts_with, way, "{to} metric {metric}");
        assert_eq!(foreign.own_subnet, to == "10.244.1.0/24");
        assert_eq!(wrong(&found), [], "{to}");
    }
}

#[test]
fn one_route_for_all_peers_is_beaten_by_any_longer_one() {
    let mut sighting = healthy();
    let name = device("flannel0");
    let whole = Key::Route(net("10.244.0.0/16"), 0);
    sighting.want = KernelState::default();
    sighting.want.set(
        whole,
        Value::Route(RouteSpec {
            via: None,
            dev: name,
            onlink: false,
            kind: RouteKind::Unicast,
            scope: 0,
            protocol: 241,
        }),
    );
    (sighting.have, sighting.owners) = (sighting.want.clone(), BTreeMap::new());
    for (to, way) in [
        (
            "10.244.2.0/23",
            vec!["10.244.2.0/24 (node-2)", "10.244.3.0/24 (node-3)"],
        ),
        ("10.244.3.0/24", vec!["10.244.3.0/24 (node-3)"]),
        ("10.244.1.0/24", vec![]),
        ("10.244.9.0/24", vec![]),
    ] {
        sighting.survey.objects = surveyed(&sighting.have);
        sighting
            .survey
            .objects
            .push(foreign_object(to, 0, route("192.0.2.250", "eth1", 4)));
        assert_eq!(look(&sighting).foreign[0].conflicts_with, way, "{to}");
    }
}

#[test]
fn undesired_objects_of_ours_are_leftovers() {
    let mut sighting = healthy();
    let key = Key::Route(net("10.244.9.0/24"), 0);
    sighting
        .have
        .set(key, route("10.244.9.0", "flannel.1", 241));
    sighting.survey.objects = surveyed(&sighting.have);
    let by = |sighting: &Sighting| {
        let found = look(sighting);
        assert_eq!((wrong(&found), found.foreign.len()), (vec![], 1));
        assert_eq!(found.foreign[0].conflicts_with, [""; 0]);
        found.foreign[0].by.clone()
    };
    assert_eq!(by(&sighting), "left over: flanneld removes the object");
    sighting.held = true;
    assert!(by(&sighting).contains("for a minute"));
    sighting.errors = vec![OpError {
        verb: "delete",
        key,
        kind: FailureKind::Other,
        why: refused(libc::EBUSY),
    }];
    assert_eq!(
        by(&sighting),
        format!(
            "left over: flanneld cannot remove the object: {}",
            refused(libc::EBUSY)
        )
    );
}

#[test]
fn device_with_our_tunnel_conflicts_with_a_missing_one() {
    let mut sighting = healthy();
    sighting.survey.links.push((9, device("other"), tunnel(1)));
    sighting
        .survey
        .links
        .push((10, device("second"), tunnel(2)));
    let far = LinkSpec {
        kind: LinkKind::Vxlan(VxlanSpec {
            vni: 1,
            port: 4789,
            local: None,
            lower: 2,
            learning: false,
            gbp: false,
        }),
        ..tunnel(1)
    };
    sighting.survey.links.push((11, device("elsewhere"), far));
    let ways = |sighting: &Sighting| -> Vec<(String, Vec<String>)> {
        let first = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
        look(sighting)
            .foreign
            .iter()
            .map(|foreign| (first(&foreign.text), foreign.conflicts_with.clone()))
            .collect()
    };
    // The tunnels of both families share a port, and may share a VNI.
    assert_eq!(
        ways(&sighting),
        [("other".to_owned(), vec![]), ("second".to_owned(), vec![])]
    );
    let key = Key::Link(device("flannel.1"));
    sighting.have.0.remove(&key);
    sighting.errors = vec![OpError {
        verb: "add",
        key,
        kind: FailureKind::Conflict,
        why: refused(libc::EEXIST),
    }];
    assert_eq!(
        ways(&sighting)[0],
        ("other".to_owned(), vec!["flannel.1".to_owned()])
    );
    assert_eq!(ways(&sighting)[1], ("second".to_owned(), vec![]));
}

#[test]
fn another_kind_under_our_name_is_refused() {
    let mut sighting = healthy();
    let name = device("flannel.1");
    let bridge = LinkSpec {
        kind: LinkKind::Other("bridge".to_owned()),
        ..tunnel(1)
    };
    sighting.have = KernelState::default();
    sighting
        .have
        .set(Key::Link(name), Value::Link(Box::new(bridge)));
    sighting.survey.objects.clear();
    let taken = Failure::NameTaken {
        link: name,
        kind: "dummy".to_owned(),
    };
    sighting.errors = vec![OpError {
        verb: "take over",
        key: Key::Link(name),
        kind: FailureKind::Conflict,
        why: taken.clone(),
    }];
    let found = look(&sighting);
    assert_eq!(
        (found.objects[0].state, found.objects[0].why.clone()),
        (ObjectState::Refused, Some(taken.to_string()))
    );
    assert_eq!(
        found.objects[0].found.as_deref(),
        Some("flannel.1 mtu 1450 up address 02:00:00:00:00:01 bridge")
    );
    assert!(
        found.objects[1..]
            .iter()
            .all(|object| object.state == ObjectState::Missing)
            && found.foreign.is_empty(),
        "{found:?}"
    );
}

#[test]
fn many_peers_behind_one_route_are_counted() {
    let mut sighting = healthy();
    for number in 10..60 {
        sighting.holders.push(Holder {
            node: None,
            subnet: net(&format!("10.244.{number}.0/24")),
            address: "192.0.2.9".parse().unwrap(),
        });
    }
    sighting.want.set(
        Key::Route(net("10.244.0.0/16"), 0),
        route("", "flannel0", 241),
    );
    sighting.survey.objects.push(foreign_object(
        "10.244.0.0/18",
        0,
        route("192.0.2.250", "eth1", 4),
    ));
    let found = look(&sighting);
    let way = &found
        .foreign
        .iter()
        .find(|foreign| foreign.text.starts_with("10.244.0.0/18"))
        .unwrap()
        .conflicts_with;
    assert_eq!(
        (way.len(), way.last().unwrap().as_str()),
        (17, "and 34 more")
    );
}

proptest! {
    /// The inspection reports that all objects are in sync and none is left over if and only if `diff` returns no operations.
    #[test]
    fn inspection_agrees_with_the_diff(
        lost in proptest::collection::btree_set(0usize..8, 0..8),
        changed in proptest::collection::btree_set(0usize..8, 0..3),
        more in proptest::collection::btree_set(4u8..20, 0..3),
    ) {
        let mut sighting = healthy();
        let keys: Vec<Key> = sighting.want.0.keys().copied().collect();
        for place in changed {
            match sighting.have.0.get_mut(&keys[place]) {
                Some(Value::Link(spec)) => spec.mtu = 1300,
                Some(Value::Fdb(ip)) => *ip = "192.0.2.99".parse().unwrap(),
                Some(Value::Neighbor(mac)) => mac.0[5] = 99,
                Some(Value::Route(route)) => route.onlink = false,
                Some(Value::Address | Value::WireguardPeer(_) | Value::AllowedIp(_)) | None => {}
            }
        }
        for place in lost {
            sighting.have.0.remove(&keys[place]);
        }
        for number in more {
            let gateway = format!("10.244.{number}.0");
            sighting.have.set(Key::Route(net(&format!("{gateway}/24")), 0), route(&gateway, "flannel.1", 241));
        }
        sighting.survey.objects = surveyed(&sighting.have);
        let found = look(&sighting);
        let ops = diff(&sighting.want, &sighting.have);
        prop_assert_eq!(wrong(&found).is_empty() && found.foreign.is_empty(), ops.is_empty());
        let touched: BTreeSet<Key> = ops.iter().map(|op| *op.key()).collect();
        for (key, object) in sighting.want.0.keys().zip(&found.objects) {
            // Objects that lose their link or the link's address are added again although they exist now.
            prop_assert!(object.state == ObjectState::InSync || touched.contains(key), "{:?}", object);
        }
    }
}
