//! Tests that inspect prepared kernel states.

use super::*;
use crate::diff::diff;
use crate::kernel::FailureKind;
use crate::names::Mac;
use crate::object::KernelState;
use crate::object::link::LinkSpec;
use crate::object::route::RouteKind;
use crate::object::route::RouteSpec;
use crate::report::survey::Survey;
use ipnet::IpNet;
use netlink::kernel_refusal;
use proptest::prelude::*;
use std::collections::BTreeSet;
use types::kernel_object::Holder;
use types::{Errno, Problem, Subnets};

fn refused(code: i32) -> Problem {
    kernel_refusal(Errno(code))
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
    let dev = if dev.is_empty() { LinkName::default() } else { device(dev) };
    Value::Route(RouteSpec {
        via: via.parse().ok(),
        dev,
        onlink: dev.as_str().starts_with("flannel"),
        kind: RouteKind::Unicast,
        scope: 0,
        protocol,
    })
}

/// A vxlan node in sync with peers 2 and 3.
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
            (Key::Fdb(name, mac(number)), Value::Fdb(format!("192.0.2.{number}").parse().unwrap())),
            (Key::Neighbor(name, subnet.addr()), Value::Neighbor(mac(number))),
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
        SeenLink {
            index: 2,
            name: device("eth1"),
            spec: LinkSpec { kind: LinkKind::Other("device".to_owned()), ..tunnel(1) },
        },
        SeenLink { index: 3, name, spec: tunnel(1) },
    ];
    sighting.survey.objects = surveyed(&sighting.have);
    sighting
}

fn surveyed(have: &KernelState) -> Vec<Seen> {
    let on_devices = have
        .0
        .iter()
        .filter(|(key, _)| matches!(key, Key::Fdb(..) | Key::Neighbor(..) | Key::Route(..)));
    on_devices.map(|(key, value)| seen(*key, value.clone(), Origin::Set)).collect()
}

fn seen(key: Key, value: Value, origin: Origin) -> Seen {
    Seen { key, value, origin }
}

impl Sighting {
    fn has(&mut self, key: Key, value: Value) {
        self.have.set(key, value);
        self.survey.objects = surveyed(&self.have);
    }

    fn lacks(&mut self, key: Key) {
        self.have.0.remove(&key);
        self.survey.objects = surveyed(&self.have);
    }

    /// Adds a foreign route over eth1.
    fn meets(&mut self, to: &str, metric: u32, protocol: u8) {
        let route = route("192.0.2.250", "eth1", protocol);
        self.survey.objects.push(seen(Key::Route(net(to), metric), route, Origin::Set));
    }

    fn fails(&mut self, verb: &'static str, key: Key, kind: FailureKind, why: Problem) {
        self.errors = vec![OpError { verb, key, kind, why }];
    }
}

fn look(sighting: &Sighting) -> Inspection {
    inspect_kernel(sighting, Protocols::default())
}

/// Text, state and error of each object that is not in sync.
fn wrong(inspection: &Inspection) -> Vec<(&str, ObjectState, Option<&str>)> {
    inspection
        .objects
        .iter()
        .filter(|object| object.state != ObjectState::InSync)
        .map(|object| (object.text.as_str(), object.state, object.why.as_deref()))
        .collect()
}

fn first_wrong(inspection: &Inspection) -> &Object {
    let mut objects = inspection.objects.iter();
    objects.find(|object| object.state != ObjectState::InSync).unwrap()
}

fn conflicts(inspection: &Inspection) -> Vec<&[String]> {
    inspection.foreign.iter().map(|foreign| &foreign.conflicts_with[..]).collect()
}

#[test]
fn healthy_node_is_in_sync() {
    let found = look(&healthy());
    assert_eq!((wrong(&found), found.foreign.len(), found.objects.len()), (vec![], 0, 8));
    for (object, (kind, text, node)) in found.objects.iter().zip([
        (
            ObjectKind::Link,
            "flannel.1 mtu 1450 up address 02:00:00:00:00:01 vxlan id 1 local 192.0.2.1 dev eth1 dstport 8472 nolearning",
            None,
        ),
        (ObjectKind::Address, "10.244.1.0/32 dev flannel.1", None),
        (ObjectKind::Fdb, "02:00:00:00:00:02 dev flannel.1 dst 192.0.2.2 self permanent", Some("node-2")),
    ]) {
        let holder = object.holder.as_ref().and_then(|holder| holder.node.as_deref());
        assert_eq!((object.kind, object.text.as_str(), holder), (kind, text, node));
    }
}

#[test]
fn kernel_route_to_own_address_is_not_foreign() {
    for (to, dev, protocol, foreign) in [
        ("10.244.1.0/32", "flannel.1", 2, 0),
        ("10.244.1.1/32", "flannel.1", 2, 1),
        ("10.244.1.0/32", "cni0", 2, 1),
        ("10.244.1.0/32", "flannel.1", 4, 1),
    ] {
        let mut sighting = healthy();
        let route = seen(Key::Route(net(to), 256), route("", dev, protocol), Origin::Set);
        sighting.survey.objects.push(route);
        assert_eq!(look(&sighting).foreign.len(), foreign, "{to} {dev} {protocol}");
    }
}

#[test]
fn missing_and_different_objects_are_reported() {
    let mut sighting = healthy();
    let name = device("flannel.1");
    sighting.lacks(Key::Neighbor(name, "10.244.2.0".parse().unwrap()));
    sighting.has(Key::Fdb(name, mac(3)), Value::Fdb("192.0.2.33".parse().unwrap()));
    let link = LinkSpec { mtu: 1400, ..tunnel(1) };
    sighting.has(Key::Link(name), Value::Link(Box::new(link)));
    let found = look(&sighting);
    let reported = found.objects.iter().filter(|object| object.state != ObjectState::InSync);
    let reported: Vec<_> =
        reported.map(|object| (object.kind, object.state, object.found.as_deref())).collect();
    let link = "flannel.1 mtu 1400 up address 02:00:00:00:00:01 vxlan id 1 local 192.0.2.1 dev eth1 dstport 8472 nolearning";
    let entry = "02:00:00:00:00:03 dev flannel.1 dst 192.0.2.33 self permanent";
    assert_eq!(
        reported,
        [
            (ObjectKind::Link, ObjectState::Different, Some(link)),
            (ObjectKind::Fdb, ObjectState::Different, Some(entry)),
            (ObjectKind::Neighbour, ObjectState::Missing, None),
        ]
    );
    assert_eq!(found.foreign, []);
}

#[test]
fn a_learned_entry_in_the_place_of_ours_is_shown_there() {
    let mut sighting = healthy();
    let key = Key::Fdb(device("flannel.1"), mac(2));
    sighting.lacks(key);
    let learned = Value::Fdb("192.0.2.9".parse().unwrap());
    sighting.survey.objects.push(seen(key, learned, Origin::Learned));
    let found = look(&sighting);
    let object = first_wrong(&found);
    let text = "02:00:00:00:00:02 dev flannel.1 dst 192.0.2.9 self";
    assert_eq!((object.state, object.found.as_deref()), (ObjectState::Different, Some(text)));
    assert_eq!(found.foreign[0].text, text);
    assert!(found.foreign[0].by.contains("learned"), "{found:?}");
}

#[test]
fn refused_route_has_its_reason_and_the_conflicting_route() {
    let mut sighting = healthy();
    let key = Key::Route(net("10.244.2.0/24"), 0);
    sighting.lacks(key);
    sighting.meets("10.244.2.0/24", 0, 12);
    let why = refused(libc::EEXIST);
    sighting.fails("add", key, FailureKind::Conflict, why.clone());
    let found = look(&sighting);
    let text = "10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 241 onlink";
    assert_eq!(wrong(&found), [(text, ObjectState::Refused, Some(why.to_string().as_str()))]);
    assert_eq!(
        first_wrong(&found).found.as_deref(),
        Some("10.244.2.0/24 via 192.0.2.250 dev eth1 proto bird")
    );
    let conflicts = conflicts(&found);
    assert_eq!(
        (found.foreign[0].by.as_str(), conflicts),
        ("bird", vec![&["10.244.2.0/24 (node-2)".to_owned()][..]])
    );
    // An error of an earlier pass no longer applies once the object exists.
    sighting.has(key, sighting.want.0[&key].clone());
    assert_eq!(wrong(&look(&sighting)), []);
}

#[test]
fn route_conflict_depends_on_prefix_metric_and_order() {
    let ours_v6 = Key::Route(net("fd00:2::/64"), 1024);
    let mut base = healthy();
    base.owners.insert(ours_v6, base.holders.len());
    base.holders.push(Holder {
        node: None,
        subnet: net("fd00:2::/64"),
        address: "fd00:56::2".parse().unwrap(),
    });
    let route = route("fd00:2::", "flannel-v6.1", 241);
    base.want.set(ours_v6, route.clone());
    base.has(ours_v6, route);
    for (to, metric, way) in [
        ("10.244.2.0/25", 100, &["10.244.2.0/24 (node-2)"][..]),
        ("10.244.3.7/32", 0, &["10.244.3.0/24 (node-3)"]),
        ("10.244.2.0/24", 4096, &[]),
        ("10.244.2.0/24", 0, &[]),
        ("10.244.0.0/16", 0, &[]),
        ("10.244.2.0/23", 0, &[]),
        ("10.244.1.0/24", 0, &[]),
        ("10.244.77.0/24", 0, &[]),
        ("fd00:2::/64", 256, &["fd00:2::/64"]),
        ("fd00:2::/64", 2048, &[]),
        ("fd00:2::/80", 2048, &["fd00:2::/64"]),
    ] {
        let mut sighting = base.clone();
        // The route comes after ours: of several equal routes, the kernel uses the first.
        sighting.meets(to, metric, 4);
        let found = look(&sighting);
        assert_eq!(conflicts(&found), [way], "{to} metric {metric}");
        assert_eq!(found.foreign[0].own_subnet, to == "10.244.1.0/24");
        assert_eq!(wrong(&found), [], "{to}");
    }
}

#[test]
fn one_route_for_all_peers_is_beaten_by_any_longer_one() {
    let mut base = healthy();
    (base.want, base.have, base.owners) = Default::default();
    let whole = Key::Route(net("10.244.0.0/16"), 0);
    base.want.set(whole, route("", "flannel0", 241));
    base.has(whole, route("", "flannel0", 241));
    let way = |sighting: &Sighting, to: &str| {
        let mut sighting = sighting.clone();
        sighting.meets(to, 0, 4);
        look(&sighting).foreign[0].conflicts_with.clone()
    };
    for (to, wanted) in [
        ("10.244.2.0/23", &["10.244.2.0/24 (node-2)", "10.244.3.0/24 (node-3)"][..]),
        ("10.244.3.0/24", &["10.244.3.0/24 (node-3)"]),
        ("10.244.1.0/24", &[]),
        ("10.244.9.0/24", &[]),
    ] {
        assert_eq!(way(&base, to), wanted, "{to}");
    }
    // Many peers are counted.
    base.holders.extend((10..60).map(|number| Holder {
        node: None,
        subnet: net(&format!("10.244.{number}.0/24")),
        address: "192.0.2.9".parse().unwrap(),
    }));
    let many = way(&base, "10.244.0.0/18");
    assert_eq!((many.len(), many[16].as_str()), (17, "and 36 more"));
}

#[test]
fn undesired_objects_of_ours_are_leftovers() {
    let mut sighting = healthy();
    let key = Key::Route(net("10.244.9.0/24"), 0);
    sighting.has(key, route("10.244.9.0", "flannel.1", 241));
    let by = |sighting: &Sighting| {
        let found = look(sighting);
        assert_eq!((wrong(&found), conflicts(&found)), (vec![], vec![&[][..]]));
        found.foreign[0].by.clone()
    };
    assert!(by(&sighting).starts_with("left over"));
    sighting.held = true;
    assert!(by(&sighting).contains("minute"));
    let why = refused(libc::EBUSY);
    sighting.fails("delete", key, FailureKind::Other, why.clone());
    assert!(by(&sighting).ends_with(&why.to_string()));
}

#[test]
fn device_with_our_tunnel_conflicts_with_a_missing_one() {
    let mut sighting = healthy();
    let mut far = tunnel(1);
    if let LinkKind::Vxlan(vxlan) = &mut far.kind {
        vxlan.port = 4789;
    }
    for (index, name, spec) in
        [(9, "other", tunnel(1)), (10, "second", tunnel(2)), (11, "elsewhere", far)]
    {
        sighting.survey.links.push(SeenLink { index, name: device(name), spec });
    }
    // The tunnels of both families share a port, and may share a VNI.
    let found = look(&sighting);
    let names = found.foreign.iter().map(|foreign| foreign.text.split(' ').next().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["other", "second"]);
    assert_eq!(conflicts(&found), [&[""; 0]; 2]);
    let key = Key::Link(device("flannel.1"));
    sighting.have.0.remove(&key);
    sighting.fails("add", key, FailureKind::Conflict, refused(libc::EEXIST));
    assert_eq!(conflicts(&look(&sighting)), [&["flannel.1".to_owned()][..], &[]]);
}

#[test]
fn another_kind_under_our_name_is_refused() {
    let mut sighting = healthy();
    let name = device("flannel.1");
    let bridge = LinkSpec { kind: LinkKind::Other("bridge".to_owned()), ..tunnel(1) };
    sighting.have = KernelState::default();
    sighting.has(Key::Link(name), Value::Link(Box::new(bridge)));
    let taken = Problem::new("interface-name-taken", "an interface flannel.1 exists");
    sighting.fails("take over", Key::Link(name), FailureKind::Conflict, taken.clone());
    let found = look(&sighting);
    let link = &found.objects[0];
    assert_eq!((link.state, &link.why), (ObjectState::Refused, &Some(taken.to_string())));
    assert_eq!(
        link.found.as_deref(),
        Some("flannel.1 mtu 1450 up address 02:00:00:00:00:01 bridge")
    );
    assert!(
        found.objects[1..].iter().all(|object| object.state == ObjectState::Missing)
            && found.foreign.is_empty(),
        "{found:?}"
    );
}

proptest! {
    /// Everything is in sync and nothing left over if and only if `diff` has no operations.
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
