//! Properties of vxlan's plan, its announcement, and the leases that it accepts.

use super::*;
use crate::tests::fixture::{self, facts, table};
use netstate::Op;
use netstate::diff::diff;
use proptest::prelude::*;
use reconcile::desired::{Desired, on_link_queries};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use subnet_lease::NetworkConfig;
use types::Family;

fn vxlan(backend: &str) -> Vxlan {
    let text = format!(
        r#"{{"EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd10:244::/48","Backend":{backend}}}"#
    );
    Vxlan::new(&Setup::of(NetworkConfig::parse(&text).unwrap())).unwrap()
}

fn plan(backend: &str) -> Arc<dyn Plan> {
    let macs = Some(Dual::Both(mac(200), mac(201)));
    Vxlan { macs, ..vxlan(backend) }.plan(lease(1, 1, 1).subnets).unwrap()
}

fn encapsulating() -> Arc<dyn Plan> {
    plan(r#"{"Type":"vxlan"}"#)
}

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn lease(n: u8, hardware: u8, ip: u8) -> Lease {
    let data = |prefix| {
        RawJson::parse(&format!(r#"{{"VNI":1,"VtepMAC":"02:{prefix}:00:00:00:{hardware:02x}"}}"#))
            .unwrap()
    };
    let attrs = LeaseAttrs {
        backend: KIND.to_owned(),
        data: Some(data("00")),
        v6_data: Some(data("06")),
        ..LeaseAttrs::default()
    };
    fixture::lease(n, ip, attrs)
}

fn desired(plan: &dyn Plan, leases: &LeaseTable, facts: &Facts) -> KernelState {
    Desired::whole(plan, leases, facts).state
}

/// The operations that a change of the `Backend` keys causes.
fn change(from: &str, to: &str) -> Vec<Op> {
    let state = |keys: &str| {
        desired(&*plan(&format!(r#"{{"Type":"vxlan"{keys}}}"#)), &table([]), &facts([]))
    };
    diff(&state(to), &state(from))
}

#[test]
fn default_values_and_unset_offload_change_nothing() {
    for keys in [
        r#","Port":8472"#,
        r#","Port":0"#,
        r#","VNI":1"#,
        r#","GBP":false"#,
        r#","Learning":false"#,
        r#","MTU":1500"#,
        r#","MTU":0"#,
    ] {
        assert_eq!(change(keys, ""), [], "{keys} is the default");
    }
    // By default, the setting is the operator's, and a workaround must not be undone.
    for (from, to, changes) in
        [("off", "auto", false), ("off", "on", true), ("on", "auto", false), ("on", "off", true)]
    {
        let ops = change(
            &format!(r#","ChecksumOffload":"{from}""#),
            &format!(r#","ChecksumOffload":"{to}""#),
        );
        assert_eq!(!ops.is_empty(), changes, "{from} to {to}: {ops:?}");
    }
}

#[test]
fn the_oldest_lease_keeps_its_mac() {
    let plan = plan(r#"{"Type":"vxlan"}"#);
    let state = desired(&*plan, &table([lease(3, 7, 3), lease(2, 7, 2)]), &facts([]));
    assert_eq!(
        state.0.get(&Key::Fdb(LinkName::parse("flannel.1").unwrap(), mac(7))),
        Some(&Value::Fdb([192, 168, 56, 2].into()))
    );
    assert!(!state.0.contains_key(&Key::Route("10.244.3.0/24".parse().unwrap(), 0)));
}

#[test]
fn unusable_leases_are_not_peers() {
    let plan = plan(r#"{"Type":"vxlan"}"#);
    let bare = desired(&*plan, &table([]), &facts([]));
    let mut own_mac = lease(2, 200, 2);
    own_mac.attrs.v6_data = None;
    let mut other_kind = lease(3, 3, 3);
    other_kind.attrs.backend = "host-gw".to_owned();
    let mut outside = lease(4, 4, 4);
    outside.subnets = Dual::V4("10.99.4.0/24".parse().unwrap());
    let mut overlapping = lease(5, 5, 5);
    overlapping.subnets = Dual::V4("10.244.0.0/22".parse().unwrap());
    for unusable in [lease(1, 9, 9), own_mac, other_kind, outside, overlapping, lease(6, 6, 1)] {
        assert_eq!(desired(&*plan, &table([unusable.clone()]), &facts([])), bare, "{unusable:?}");
    }
}

#[test]
fn derived_macs_are_stable_and_differ() {
    let macs: BTreeSet<Mac> =
        [("a", 1, Family::V4), ("a", 1, Family::V6), ("a", 2, Family::V4), ("b", 1, Family::V4)]
            .map(|(node, vni, family)| derived_mac(node, vni, family))
            .into();
    assert_eq!(macs.len(), 4);
    assert!(macs.iter().all(|mac| mac.is_station() && mac.0[0] & 2 == 2));
    assert_eq!(derived_mac("a", 1, Family::V4), derived_mac("a", 1, Family::V4));
}

#[test]
fn unusable_leases_are_refused_with_their_reason() {
    let rules = vxlan(r#"{"Type":"vxlan"}"#).rules();
    assert_eq!(rules.accepts(&lease(2, 2, 2)), Ok(()));
    let with = |data: Option<&str>, v6_data: Option<&str>| {
        let mut lease = lease(2, 2, 2);
        lease.attrs.data = data.map(|text| RawJson::parse(text).unwrap());
        lease.attrs.v6_data = v6_data.map(|text| RawJson::parse(text).unwrap());
        rules.accepts(&lease).map_err(|refusal| refusal.to_string())
    };
    let good = r#"{"vtepmac":"02-00-00-00-00-02"}"#;
    assert_eq!(with(Some(good), None), Ok(()));
    assert_eq!(with(None, Some(good)), Ok(()));
    assert_eq!(with(Some("null"), Some(good)), Ok(()));
    for (bad, part) in [
        (r#"{"VtepMAC":"02:00:00:00:00:00:00:02"}"#, "is not a MAC address"),
        (r#"{"VtepMAC":""}"#, "is not a MAC address"),
        (r#"{"VtepMAC":"01:00:5e:00:00:01"}"#, "is not a valid device address"),
        (r#"{"VtepMAC":"00:00:00:00:00:00"}"#, "is not a valid device address"),
        (r#"{"VtepMAC":7}"#, "VtepMAC"),
        (r#"{"VNI":1}"#, "has no VtepMAC"),
        ("[]", "not a JSON object"),
    ] {
        for result in
            [with(Some(bad), Some(good)), with(Some(good), Some(bad)), with(Some(bad), None)]
        {
            assert!(result.clone().unwrap_err().contains(part), "{bad}: {result:?}");
        }
    }
    assert!(with(None, None).is_err());
    let mut other = lease(2, 2, 2);
    (other.attrs.backend, other.attrs.data) = ("host-gw".to_owned(), None);
    assert_eq!(rules.accepts(&other), Ok(()));
}

proptest! {
    #[test]
    fn the_order_of_leases_does_not_matter(peers in proptest::collection::vec((2u8..30, 0u8..6, 2u8..9), 0..12), near in any::<bool>()) {
        let plan = plan(r#"{"Type":"vxlan","DirectRouting":true}"#);
        let peers: BTreeMap<u8, (u8, u8)> = peers.into_iter().map(|(n, hardware, ip)| (n, (hardware, ip))).collect();
        let leases: Vec<Lease> = peers.iter().map(|(n, (hardware, ip))| lease(*n, *hardware, *ip)).collect();
        let facts = facts(near.then_some(IpAddr::from([192, 168, 56, 4])));
        let forwards = desired(&*plan, &table(leases.clone()), &facts);
        let backwards = desired(&*plan, &table(leases.into_iter().rev().chain([lease(1, 1, 1)])), &facts);
        prop_assert_eq!(&forwards, &backwards);
        // Every route into the tunnel has its neighbour and its FDB entry.
        for value in forwards.0.values() {
            let Value::Route(RouteSpec { via: Some(via), dev, onlink: true, .. }) = value else { continue };
            let Some(Value::Neighbor(mac)) = forwards.0.get(&Key::Neighbor(*dev, *via)) else { panic!("no neighbour {via}") };
            prop_assert!(forwards.0.contains_key(&Key::Fdb(*dev, *mac)));
        }
    }

    /// Even if leases claim the same MACs and addresses.
    #[test]
    fn a_change_equals_the_whole_computation(
        tables in proptest::collection::vec(proptest::collection::btree_map(1u8..12, (0u8..10, 2u8..6, 0i64..4), 0..8), 2..6),
        near in proptest::collection::btree_set(2u8..6, 0..3),
        direct in any::<bool>(),
        userspace in any::<bool>(),
    ) {
        let mode = if userspace { "userspace" } else { "kernel" };
        let plan = plan(&format!(r#"{{"Type":"vxlan","DirectRouting":{direct},"Mode":"{mode}"}}"#));
        let facts = facts(near.into_iter().map(|ip| IpAddr::from([192, 168, 56, ip])));
        let tables = tables.iter().map(|peers| {
            table(peers.iter().map(|(n, (hardware, ip, since))| Lease { since: *since, ..lease(*n, *hardware, *ip) }))
        });
        fixture::assert_changes_equal_the_whole(&*plan, tables, &facts);
    }
}

#[test]
fn peers_without_shared_objects_change_alone() {
    let plan = encapsulating();
    let before = table((2..20).map(|n| lease(n, n, n)));
    let after = table((3..25).map(|n| lease(n, n, if n == 5 { 99 } else { n })));
    let known = Desired::whole(&*plan, &before, &facts([]));
    let change = known.change(&*plan, &before, &after, &facts([])).unwrap();
    // One removed, one moved, five new: three objects for each family.
    assert_eq!((change.before.0.len(), change.after.0.len()), (2 * 2 * 3, 6 * 2 * 3));
    assert_eq!(on_link_queries(&*plan, &before, &after), Vec::<IpAddr>::new());
    // Two peers with one MAC affect each other's objects.
    let conflicting = table((2..20).map(|n| lease(n, n.min(18), n)));
    assert_eq!(known.change(&*plan, &before, &conflicting, &facts([])), None);
    // Two leases with one endpoint share its FDB entry, which stays when one of them goes.
    let twins = table([lease(2, 7, 2), lease(3, 7, 2)]);
    let known = Desired::whole(&*plan, &twins, &facts([]));
    let one = table([lease(2, 7, 2)]);
    assert_eq!(known.change(&*plan, &twins, &one, &facts([])), None);
}

#[test]
fn the_device_of_a_dropped_family_is_ours_and_not_desired() {
    let text = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
    let former =
        Some(Subnets::Both("10.244.0.0/16".parse().unwrap(), "fd10:244::/48".parse().unwrap()));
    let setup = Setup { former, ..Setup::of(NetworkConfig::parse(text).unwrap()) };
    let own = Subnets::V4("10.244.1.0/24".parse().unwrap());
    let vxlan = Vxlan { macs: Some(Dual::V4(mac(200))), ..Vxlan::new(&setup).unwrap() };
    let plan = vxlan.plan(own).unwrap();
    let names: Vec<&str> = plan.scope().links.iter().map(LinkName::as_str).collect();
    assert_eq!(names, ["flannel.1", "flannel-v6.1"]);
}

#[test]
fn forwarding_names_the_device_the_mtu_and_the_vtep_of_each_family() {
    let plan = plan(r#"{"Type":"vxlan","Mode":"userspace"}"#);
    let forwarding = plan.forwarding(&table([lease(1, 1, 1), lease(2, 2, 2)]), &facts([]));
    let named: Vec<_> = forwarding
        .iter()
        .map(|family| (family.device.to_string(), family.mtu, family.peers.len()))
        .collect();
    assert_eq!(named, [("flannel.1".to_owned(), 1450, 1), ("flannel-v6.1".to_owned(), 1430, 1)]);
    let [(subnet, hop)] = <[_; 1]>::try_from(forwarding[0].peers.clone()).unwrap();
    assert_eq!(
        (subnet.to_string(), hop.address.to_string(), hop.mac),
        ("10.244.2.0/24".to_owned(), "192.168.56.2:8472".to_owned(), Some(mac(2)))
    );
    assert!(
        encapsulating().forwarding(&table([lease(2, 2, 2)]), &facts([])).is_empty(),
        "the kernel does it all"
    );
}
