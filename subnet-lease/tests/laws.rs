//! Tests the laws of the lease model with random inputs: the wire format, the table, admission and the hold-down. Keys and values must equal Go
//! flannel's byte by byte.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests say what is wrong by failing"
)]

use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::admission::{AdmissionError, History, LeasesInForce, Reason, Terms, admitted};
use subnet_lease::hold_down::HoldDown;
use subnet_lease::json::Object;
use subnet_lease::{
    Lease, LeaseAttrs, LeaseEvent, LeaseTable, NetworkConfig, NodeId, PeerRules, RawJson, Term,
    wire,
};
use types::Family;
use types::{Dual, Subnets};

fn json_text() -> impl Strategy<Value = RawJson> {
    prop_oneof![
        any::<i64>().prop_map(|n| RawJson::parse(&n.to_string()).unwrap()),
        any::<String>().prop_map(|text| RawJson::of(&text)),
        any::<u8>().prop_map(|last| RawJson::parse(&format!(
            r#"{{"VNI":1,"VtepMAC":"0a:00:00:00:00:{last:02x}"}}"#
        ))
        .unwrap()),
        Just(RawJson::parse(r#"{"a":[1e999,true,null,{"b":"\u0026"}]}"#).unwrap()),
    ]
}

fn node_id() -> impl Strategy<Value = NodeId> {
    (
        any::<String>(),
        any::<String>(),
        any::<String>(),
        any::<i64>(),
        any::<Option<i64>>(),
        any::<bool>(),
    )
        .prop_map(|(id, name, instance, rank, lease, contested)| NodeId {
            id: id.into(),
            name: name.into(),
            instance,
            rank,
            lease,
            contested,
            ..NodeId::default()
        })
}

fn attrs() -> impl Strategy<Value = LeaseAttrs> {
    (
        proptest::option::of(1u32..),
        proptest::option::of(1u128 << 64..),
        prop_oneof![Just(String::new()), Just("vxlan".to_owned()), any::<String>()],
        proptest::option::of(json_text()),
        proptest::option::of(json_text()),
        proptest::collection::vec(("x[a-zA-Z&<]{0,6}", json_text()), 0..4),
        proptest::option::of(node_id()),
    )
        .prop_map(|(v4, v6, backend, data, v6_data, unknown, node)| LeaseAttrs {
            public_ip: v4.map(Ipv4Addr::from_bits),
            public_ipv6: v6.map(Ipv6Addr::from_bits),
            backend,
            data,
            v6_data,
            unknown,
            node,
        })
}

/// Inside and around 10.5.0.0/16, close enough to overlap each other.
fn subnets() -> impl Strategy<Value = Subnets> {
    let v4 = (0u8..8, prop_oneof![4 => Just(24u8), 1 => 14u8..31]).prop_map(|(third, len)| {
        ipnet::Ipv4Net::new([10, 5, third, 0].into(), len).unwrap().trunc()
    });
    let v6 = (0u16..8, prop_oneof![4 => Just(64u8), 1 => 46u8..100]).prop_map(|(fourth, len)| {
        ipnet::Ipv6Net::new(Ipv6Addr::new(0xfd00, 5, 0, fourth, 0, 0, 0, 0), len).unwrap().trunc()
    });
    prop_oneof![6 => v4.clone().prop_map(Dual::V4), 1 => v6.clone().prop_map(Dual::V6), 2 => (v4, v6).prop_map(|(a, b)| Dual::Both(a, b))]
}

fn lease() -> impl Strategy<Value = Lease> {
    let public = |host: u8| prop_oneof![5 => Just([192, 168, 56, host]), 1 => (0u8..8).prop_map(move |third| [10, 5, third, host])];
    let hosts = (1u8..20).prop_flat_map(move |host| (Just(host), public(host)));
    (subnets(), hosts, 1i64..60, any::<bool>(), 0u8..6).prop_map(
        |(subnets, (host, public), since, reserved, mac)| Lease {
            subnets,
            attrs: LeaseAttrs {
                public_ip: Some(public.into()),
                public_ipv6: Some(Ipv6Addr::new(0xfd00, 0x56, 0, 0, 0, 0, 0, u16::from(host))),
                backend: "vxlan".into(),
                data: Some(
                    RawJson::parse(&format!(
                        r#"{{"VNI":1,"VtepMAC":"0a:00:00:00:{host:02x}:{mac:02x}"}}"#
                    ))
                    .unwrap(),
                ),
                ..LeaseAttrs::default()
            },
            term: if reserved { Term::Reserved } else { Term::Leased },
            since,
        },
    )
}

fn event() -> impl Strategy<Value = LeaseEvent> {
    prop_oneof![
        6 => lease().prop_map(LeaseEvent::Put),
        2 => subnets().prop_map(LeaseEvent::Delete),
        2 => subnets().prop_map(LeaseEvent::Unreadable),
        1 => (proptest::collection::vec(lease(), 0..6), proptest::collection::btree_set(subnets(), 0..3)).prop_map(|(leases, unreadable)| LeaseEvent::Reset { leases, unreadable }),
        1 => Just(LeaseEvent::Interrupted),
        1 => Just(LeaseEvent::Resumed),
    ]
}

fn terms() -> Terms {
    let own = Lease {
        subnets: Dual::Both("10.5.7.0/24".parse().unwrap(), "fd00:5:0:7::/64".parse().unwrap()),
        attrs: LeaseAttrs {
            public_ip: Some([192, 168, 56, 1].into()),
            backend: "vxlan".into(),
            ..LeaseAttrs::default()
        },
        term: Term::Leased,
        since: 30,
    };
    Terms {
        config: NetworkConfig::parse(r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}"#)
            .unwrap(),
        own: Some(own),
        local: ["192.168.56.1/24", "10.0.2.15/24", "192.168.57.2/31"]
            .map(|net| net.parse().unwrap())
            .into(),
        underlay: vec!["10.5.6.0/24".parse().unwrap()],
        links: None,
        rules: Arc::new(VtepMacs),
        history: Arc::default(),
    }
}

/// Refuses leases whose MAC ends in 05.
struct VtepMacs;

impl PeerRules for VtepMacs {
    fn accepts(&self, lease: &Lease) -> Result<(), types::Problem> {
        if lease.attrs.data.as_ref().is_some_and(|data| data.as_str().contains(":05\"")) {
            Err(types::Problem::in_words("bad MAC"))
        } else {
            Ok(())
        }
    }

    fn identity(&self, attrs: &LeaseAttrs, family: Family) -> Option<String> {
        let data = family.pick(&attrs.data, &attrs.v6_data);
        Object::parse(data.as_ref()?.as_str()).ok()?.read("VtepMAC").ok().flatten()
    }

    fn derived(&self, node: &NodeId, _: Family) -> Option<String> {
        Some(format!("0a:00:00:00:00:{}", node.id))
    }
}

proptest! {

    #[test]
    fn values_survive_the_wire(attrs in attrs()) {
        let mapped = attrs.public_ipv6.is_some_and(|v6| v6.to_ipv4_mapped().is_some());
        prop_assume!(!mapped);
        let text = wire::render_value(&attrs);
        let back = wire::parse_value(text.as_bytes()).unwrap();
        prop_assert_eq!(wire::render_value(&back), text);
        let (mut back, mut attrs) = (back, attrs);
        // Raw JSON may be escaped in another form. Its text on the wire is compared above.
        for attrs in [&mut back, &mut attrs] {
            attrs.data = None;
            attrs.v6_data = None;
            attrs.unknown.iter_mut().for_each(|member| member.1 = RawJson::parse("0").unwrap());
        }
        prop_assert_eq!(back, attrs);
    }

    #[test]
    fn keys_survive_the_wire(subnets in subnets()) {
        prop_assert_eq!(wire::parse_key(&wire::render_key(&subnets)), Some(subnets));
    }

    /// *wire*: arbitrary bytes never cause a panic. The parser also accepts the rendered form of every parsed value.
    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some(subnets) = wire::parse_key(&text) {
            prop_assert_eq!(wire::render_key(&subnets), text.clone());
        }
        if let Ok(attrs) = wire::parse_value(&bytes) {
            prop_assert!(wire::parse_value(wire::render_value(&attrs).as_bytes()).is_ok());
        }
        let _ = NetworkConfig::parse(&text);
    }

    /// *wire*: values with a changed byte or a missing end never cause a panic. The parser also accepts the rendered form of every parsed value.
    #[test]
    fn damaged_values_are_read_or_refused(attrs in attrs(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut bytes = wire::render_value(&attrs).into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(attrs) = wire::parse_value(&bytes) {
            prop_assert!(wire::parse_value(wire::render_value(&attrs).as_bytes()).is_ok());
        }
        bytes.truncate(cut.index(bytes.len()));
        let _ = wire::parse_value(&bytes);
    }

    /// Random configurations, most of them invalid, never cause a panic. The first and the last subnet of an accepted one's pool lie inside the
    /// network.
    #[test]
    fn configurations_are_accepted_or_refused(network in "[0-9]{1,3}\\.[0-9]{1,3}\\.0\\.0/[0-9]{1,2}", len in 0u16..40, min in "(10\\.[0-9]{1,3}\\.[0-9]{1,3}\\.0)?", v6 in "fd[0-9a-f]{0,2}:[0-9a-f]{0,4}::/[0-9]{1,3}", v6len in 0u16..140) {
        let minimum = if min.is_empty() { String::new() } else { format!(r#","SubnetMin":"{min}""#) };
        let text = format!(r#"{{"Network":"{network}","SubnetLen":{len}{minimum},"EnableIPv6":true,"IPv6Network":"{v6}","IPv6SubnetLen":{v6len}}}"#);
        if let Ok(config) = NetworkConfig::parse(&text) {
            for pool in config.pools.v4().into_iter().chain(config.pools.v6()) {
                let first = pool.subnet(0).unwrap();
                prop_assert_eq!(pool.index(&first), Some(0));
                prop_assert!(pool.network.contains(&first));
                let last = pool.subnet(pool.size() - 1).unwrap();
                prop_assert!(pool.network.contains(&last));
            }
        }
    }

    /// *table*: a repeated event does not change the table. A `Reset` has the same result as a new table, except for the keys that it lists as
    /// unreadable.
    #[test]
    fn the_table_folds(events in proptest::collection::vec(event(), 0..20), last in (proptest::collection::vec(lease(), 0..6), proptest::collection::btree_set(subnets(), 0..3))) {
        let mut table = LeaseTable::default();
        for event in &events {
            table.apply(event.clone());
            let before = table.clone();
            let changed = table.apply(event.clone());
            prop_assert!(!changed);
            prop_assert_eq!(&before, &table);
        }
        let reset = LeaseEvent::Reset { leases: last.0.clone(), unreadable: last.1.clone() };
        let before = table.clone();
        table.apply(reset.clone());
        let mut scratch = LeaseTable::default();
        scratch.apply(reset);
        for lease in scratch.iter() {
            prop_assert_eq!(table.get(&lease.subnets), Some(lease));
        }
        for lease in table.iter().filter(|lease| scratch.get(&lease.subnets).is_none()) {
            prop_assert!(last.1.contains(&lease.subnets) && before.get(&lease.subnets) == Some(lease));
        }
    }

    /// *admission*: in any order of the leases, admitted ones overlap neither each other nor this node's, and newer ones do not affect older ones.
    #[test]
    fn admission_is_lawful(leases in proptest::collection::vec(lease(), 0..12), hostile in proptest::collection::vec(lease(), 0..6)) {
        let terms = terms();
        let nothing = LeaseTable::default();
        let (table, _) = admitted(&LeaseTable::of(leases.clone(), BTreeSet::new()), &nothing, &terms);
        let mut reversed = leases.clone();
        reversed.reverse();
        // If a key has two values, the later one wins, so compare only sets with unique keys.
        let unique: BTreeSet<Subnets> = leases.iter().map(|lease| lease.subnets).collect();
        if unique.len() == leases.len() {
            let (other, _) = admitted(&LeaseTable::of(reversed, BTreeSet::new()), &nothing, &terms);
            prop_assert_eq!(&table, &other);
        }
        let all: Vec<&Lease> = table.iter().collect();
        for (at, lease) in all.iter().enumerate() {
            prop_assert!(!lease.subnets.overlaps(&terms.own.as_ref().unwrap().subnets));
            prop_assert!(lease.subnets.nets().all(|net| terms.config.pools.v4().into_iter().chain(terms.config.pools.v6()).any(|pool| pool.network.contains(&net))));
            prop_assert!(all.iter().skip(at + 1).all(|other| !other.subnets.overlaps(&lease.subnets)));
            // No node is inside a subnet, and thus behind a tunnel.
            let public = IpAddr::V4(lease.attrs.public_ip.unwrap());
            prop_assert!(all.iter().flat_map(|other| other.subnets.nets()).chain(terms.own.iter().flat_map(|own| own.subnets.nets())).all(|net| !net.contains(&public)));
        }
        let newer = hostile.into_iter().map(|lease| Lease { since: lease.since + 1_000, ..lease }).filter(|lease| !unique.contains(&lease.subnets));
        let (with, _) = admitted(&LeaseTable::of(leases.iter().cloned().chain(newer), BTreeSet::new()), &nothing, &terms);
        for lease in table.iter() {
            prop_assert_eq!(with.get(&lease.subnets), Some(lease));
        }
    }

    #[test]
    fn an_unusable_value_keeps_the_last_good_one(good in lease()) {
        let terms = terms();
        let (before, _) = admitted(&LeaseTable::of([good.clone()], BTreeSet::new()), &LeaseTable::default(), &terms);
        let mut bad = good.clone();
        bad.attrs.data = Some(RawJson::parse(r#"{"VNI":1,"VtepMAC":"0a:00:00:00:00:05"}"#).unwrap());
        let (after, refused) = admitted(&LeaseTable::of([bad], BTreeSet::new()), &before, &terms);
        for lease in before.iter() {
            prop_assert_eq!(after.get(&lease.subnets), Some(lease));
            prop_assert!(!refused.is_empty());
        }
    }

    /// Whoever had a MAC in force keeps it, whatever others publish, and however old they are.
    #[test]
    fn no_lease_takes_a_mac_in_force(leases in proptest::collection::vec(lease(), 1..12), thief in lease(), third in 8u8..40, families in 0usize..3, victim: prop::sample::Index, older: bool) {
        let terms = terms();
        let alone = |leases: &[Lease], before: &LeaseTable| admitted(&LeaseTable::of(leases.to_vec(), BTreeSet::new()), before, &terms).0;
        let before = alone(&leases, &LeaseTable::default());
        let v4 = ipnet::Ipv4Net::new([10, 5, third, 0].into(), 24).unwrap();
        let v6 = ipnet::Ipv6Net::new(Ipv6Addr::new(0xfd00, 5, 0, third.into(), 0, 0, 0, 0), 64).unwrap();
        let subnets = [Dual::V4(v4), Dual::V6(v6), Dual::Both(v4, v6)][families];
        // Nothing but the MAC speaks against the thief: its subnet and addresses are nobody's.
        if before.is_empty() || before.iter().any(|lease| lease.subnets.overlaps(&subnets)) {
            return Ok(());
        }
        let victim = before.iter().nth(victim.index(before.len())).unwrap().clone();
        let mut thief = Lease { subnets, since: if older { 0 } else { 100 }, ..thief };
        thief.attrs = LeaseAttrs { public_ip: Some([192, 168, 56, 200].into()), public_ipv6: "fd00:56::200".parse().ok(), data: victim.attrs.data.clone(), ..thief.attrs };
        let all: Vec<Lease> = leases.iter().cloned().chain([thief.clone()]).collect();
        let after = alone(&all, &before);
        prop_assert_eq!(after.get(&victim.subnets), Some(&victim));
        prop_assert!(after.get(&thief.subnets).is_none());
    }

    /// An incremental admission has the same result as a full one, whichever leases change or conflict.
    #[test]
    fn a_change_is_admitted_as_the_whole_is(steps in proptest::collection::vec((proptest::collection::vec(event(), 0..4), prop::bool::weighted(0.1)), 1..20)) {
        let terms = Arc::new(terms());
        let (mut raw, mut standing) = (LeaseTable::default(), LeasesInForce::default());
        let (mut whole, mut refused);
        let mut before = LeaseTable::default();
        for (events, any) in steps {
            // A new list may change any key.
            let any = any || events.iter().any(|event| matches!(event, LeaseEvent::Reset { .. }));
            let mut changed = BTreeSet::new();
            for event in events {
                changed.extend(match &event {
                    LeaseEvent::Put(lease) => Some(lease.subnets),
                    LeaseEvent::Delete(subnets) | LeaseEvent::Unreadable(subnets) => Some(*subnets),
                    _ => None,
                });
                raw.apply(event);
            }
            standing.update(&raw, Some(&changed).filter(|_| !any), &terms);
            (whole, refused) = admitted(&raw, &before, &terms);
            prop_assert_eq!(&**standing.admitted(), &whole);
            prop_assert_eq!(standing.refused(), &refused[..]);
            before = whole;
        }
    }

    /// *hold-down*: the published table contains every admitted lease and no overlapping leases, and in the end only admitted ones.
    #[test]
    fn hold_down_only_delays(steps in proptest::collection::vec((proptest::collection::vec(lease(), 0..8), 0u64..4_000, any::<bool>(), prop::bool::weighted(0.1)), 1..20)) {
        let terms = terms();
        let mut hold_down = HoldDown::default();
        let mut now = Duration::ZERO;
        let mut last = Arc::new(LeaseTable::default());
        for (leases, millis, discontinuity, interrupted) in steps {
            now += Duration::from_millis(millis);
            last = Arc::new(admitted(&LeaseTable::of(leases, BTreeSet::new()), &last, &terms).0);
            let (published, next) = hold_down.published(&last, now, discontinuity, interrupted);
            for lease in last.iter() {
                prop_assert_eq!(published.get(&lease.subnets), Some(lease));
            }
            let all: Vec<&Lease> = published.iter().collect();
            for (at, lease) in all.iter().enumerate() {
                prop_assert!(all.iter().skip(at + 1).all(|other| !other.subnets.overlaps(&lease.subnets)), "{:?}", all);
            }
            prop_assert_eq!(next.is_some(), published.len() > last.len());
        }
        let mut published = Arc::default();
        for _ in 0..70 {
            now += Duration::from_secs(1);
            published = hold_down.published(&last, now, false, false).0;
        }
        prop_assert_eq!(published, last);
    }
}

proptest! {
    /// The hold-down removes a lease only after 5 s of uninterrupted watching, however short the interruptions are.
    #[test]
    fn removal_follows_five_seconds_of_watching(steps in proptest::collection::vec((1u64..2_900, prop::bool::weighted(0.2), prop::bool::weighted(0.05)), 1..200)) {
        let net = Dual::V4("10.5.1.0/24".parse().unwrap());
        let lease = Lease { subnets: net, attrs: LeaseAttrs::default(), term: Term::Leased, since: 0 };
        let mut hold_down = HoldDown::default();
        hold_down.published(&Arc::new(LeaseTable::of([lease], BTreeSet::new())), Duration::ZERO, false, false);
        let (mut now, mut watched_since) = (Duration::ZERO, None);
        for (millis, interrupted, discontinuity) in steps {
            now += Duration::from_millis(millis);
            let published = hold_down.published(&Arc::default(), now, discontinuity, interrupted).0;
            watched_since = if interrupted { None } else { watched_since.or(Some(now)) };
            if published.is_empty() {
                prop_assert!(watched_since.is_some_and(|since| now - since >= Duration::from_secs(5)), "removed at {:?}, watched since {:?}", now, watched_since);
                return Ok(());
            }
        }
    }
}

const VXLAN: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// A vxlan lease with an IPv4 subnet.
fn plain(subnet: &str, public: [u8; 4], since: i64) -> Lease {
    Lease {
        subnets: Dual::V4(subnet.parse().unwrap()),
        attrs: LeaseAttrs {
            public_ip: Some(public.into()),
            backend: "vxlan".into(),
            ..LeaseAttrs::default()
        },
        term: Term::Leased,
        since,
    }
}

/// For a network in which the store assigns the subnets.
fn assigned() -> Terms {
    let config = NetworkConfig::parse_assigned(VXLAN).unwrap();
    Terms { config, ..terms() }
}

/// The subnets in force, and the reason for each refusal.
fn judge<const N: usize>(leases: [Lease; N], terms: &Terms) -> (String, Vec<Reason>) {
    let leases = LeaseTable::of(leases, BTreeSet::new());
    let (table, refused) = admitted(&leases, &LeaseTable::default(), terms);
    assert!(table.unreadable().is_empty());
    let kept: Vec<String> = table.iter().map(|lease| lease.subnets.to_string()).collect();
    let reasons = refused.iter().map(|refused| refused.reason()).collect();
    (kept.join(" "), reasons)
}

/// A lease is refused if its public address can belong to no node, or belongs to this one. The network may contain the addresses of nodes, but a
/// leased subnet must not.
#[test]
fn public_addresses_are_those_of_other_hosts() {
    for (address, good) in [
        ([192, 168, 56, 9], true),
        ([224, 0, 0, 1], false),
        ([255, 255, 255, 255], false),
        ([127, 0, 0, 1], false),
        ([10, 5, 10, 1], true),
        ([10, 5, 1, 1], false),
        ([10, 5, 7, 1], false),
        ([10, 0, 2, 15], false),
        ([0, 0, 0, 0], false),
        ([192, 168, 56, 255], false),
        ([192, 168, 57, 3], true),
    ] {
        let (kept, refused) = judge([plain("10.5.1.0/24", address, 1)], &terms());
        assert_eq!((!kept.is_empty(), refused.is_empty()), (good, good), "{address:?}");
    }
}

/// A lease of another backend is refused, unless no node has acquired it. Go flannel's leases for udp and alloc are indistinguishable.
#[test]
fn each_backend_has_its_own_leases() {
    const OTHER: &[Reason] = &[Reason::OtherBackend];
    let unused = &[Reason::Reserved][..];
    let id = Some(NodeId::default());
    for (backend, written, term, node, refused) in [
        ("vxlan", "vxlan", Term::Leased, None, &[][..]),
        ("vxlan", "host-gw", Term::Leased, None, OTHER),
        ("vxlan", "", Term::Leased, None, OTHER),
        ("vxlan", "VXLAN", Term::Leased, None, OTHER),
        ("host-gw", "vxlan", Term::Leased, None, OTHER),
        ("udp", "", Term::Leased, None, &[]),
        ("udp", "vxlan", Term::Leased, None, OTHER),
        ("alloc", "", Term::Leased, None, &[]),
        ("vxlan", "", Term::Reserved, None, unused),
        ("vxlan", "", Term::Reserved, id, OTHER),
    ] {
        let mut lease = plain("10.5.1.0/24", [192, 168, 56, 9], 1);
        (lease.attrs.backend, lease.attrs.node, lease.term) = (written.to_owned(), node, term);
        let config = NetworkConfig::parse(&VXLAN.replace("vxlan", backend)).unwrap();
        let rules = Arc::new(());
        let found = judge([lease], &Terms { config, rules, ..terms() }).1;
        assert_eq!(found, refused, "{backend} {written} {term:?}");
    }
}

/// If one family of a lease has no public address, admission reports it and uses the other family.
#[test]
fn family_without_an_address_is_reported() {
    for (v4, v6, used, half) in [
        (true, true, true, None),
        (true, false, true, Some("fd00:5:0:1::/64")),
        (false, true, true, Some("10.5.1.0/24")),
        (false, false, false, Some("10.5.1.0/24 and fd00:5:0:1::/64")),
    ] {
        let mut lease = host_gw_lease(1, [192, 168, 56, 9], "fd00:56::9");
        lease.attrs.backend = "vxlan".to_owned();
        lease.attrs.public_ip.take_if(|_| !v4);
        lease.attrs.public_ipv6.take_if(|_| !v6);
        let leases = LeaseTable::of([lease], BTreeSet::new());
        let (table, refused) = admitted(&leases, &LeaseTable::default(), &terms());
        assert_eq!((table.len() == 1, refused.len()), (used, usize::from(half.is_some())));
        for (refused, half) in refused.iter().zip(half) {
            assert!(refused.to_string().starts_with(half), "{refused}");
        }
    }
}

/// No node's address may be in a leased subnet. Only if nodes have addresses inside the pod network, the older lease takes precedence.
#[test]
fn node_inside_a_leased_subnet_is_refused() {
    let [one, two, nine] = ["10.5.1.0/24", "10.5.2.0/24", "10.5.9.0/24"];
    let (holds, inside) = (plain(one, [192, 168, 56, 8], 1), plain(two, [10, 5, 1, 9], 2));
    let younger = Lease { since: 3, ..holds.clone() };
    // This host's own network is not inside the pod network.
    let apart = Terms { underlay: Vec::new(), ..terms() };
    let mutual = [plain(two, [10, 5, 1, 9], 1), plain(one, [10, 5, 2, 9], 2)];
    // A subnet that is not in force takes nothing away: one outside the network, or one as wide as the network.
    let hostile = |subnet| plain(subnet, [192, 168, 56, 9], 9);
    let (outside, wide) = (hostile("203.0.113.0/24"), hostile("10.5.0.0/16"));
    for (case, leases, terms, kept, reason) in [
        ("the older holds", [holds, inside.clone()], terms(), one, Reason::InsideSubnet),
        ("the younger holds", [inside.clone(), younger.clone()], apart, one, Reason::InsideSubnet),
        (
            "the younger holds, among nodes inside the network",
            [inside.clone(), younger.clone()],
            terms(),
            two,
            Reason::HoldsNode,
        ),
        ("each holds the other", mutual, terms(), two, Reason::InsideSubnet),
        // Where the store assigns the subnets, the address that a node publishes takes no subnet away from another node, however old the lease is.
        ("assigned", [inside, younger], assigned(), one, Reason::InsideSubnet),
        ("outside", [outside, plain(nine, [203, 0, 113, 8], 3)], assigned(), nine, Reason::Outside),
        ("wide", [wide, plain(nine, [10, 5, 77, 1], 3)], assigned(), nine, Reason::OverlapsOurs),
    ] {
        assert_eq!(judge(leases, &terms), (kept.to_owned(), vec![reason]), "{case}");
    }
}

/// Dual-stack.
fn host_gw_lease(third: u8, v4: [u8; 4], v6: &str) -> Lease {
    let mut lease = plain("10.5.0.0/24", v4, i64::from(third));
    lease.subnets = Dual::Both(
        format!("10.5.{third}.0/24").parse().unwrap(),
        format!("fd00:5:0:{third:x}::/64").parse().unwrap(),
    );
    lease.attrs.public_ipv6 = v6.parse().ok();
    lease.attrs.backend = "host-gw".into();
    lease.attrs.node = Some(node(&format!("n{third}")));
    lease
}

fn node(id: &str) -> NodeId {
    NodeId { id: id.into(), ..NodeId::default() }
}

/// Only peers that the backend cannot reach are refused, and only the unreachable family of a dual-stack lease.
#[test]
fn off_link_lease_is_refused_per_family() {
    const ALL: [&str; 4] = ["1", "2", "3", "4"];
    let config = NetworkConfig::parse(
        r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"host-gw"}}"#,
    );
    let host_gw = Terms { config: config.unwrap(), rules: Arc::new(()), ..terms() };
    for (links, v4, v6, refusals) in [
        // A backend that needs no link.
        (None, &ALL[..], &ALL[..], 0),
        (Some(&["192.168.56.0/24", "fd00:56::/64", "fe80::/64"][..]), &["1", "3"], &["1", "4"], 3),
        // If the links of a family are unknown, no address is refused: the underlay's address may be missing for a moment.
        (Some(&[]), &ALL, &ALL, 0),
        (Some(&["fd00:56::/64"]), &ALL, &["1", "4"], 2),
        // A route without a gateway to all addresses.
        (Some(&["0.0.0.0/0", "::/0"]), &ALL, &ALL, 0),
        (Some(&["192.0.2.0/24", "2001:db8::/64"]), &[], &["4"], 4),
    ] {
        let terms = Terms {
            links: links.map(|links| links.iter().map(|net| net.parse().unwrap()).collect()),
            ..host_gw.clone()
        };
        let leases = [
            host_gw_lease(1, [192, 168, 56, 8], "fd00:56::8"),
            host_gw_lease(2, [10, 99, 0, 5], "fd00:99::5"),
            host_gw_lease(3, [192, 168, 56, 9], "fd00:99::6"),
            host_gw_lease(4, [10, 99, 0, 6], "fe80::6"),
        ];
        let (kept, refused) = judge(leases, &terms);
        for third in ALL {
            let (in_v4, in_v6) = (format!("10.5.{third}.0/24"), format!("fd00:5:0:{third}::/64"));
            assert_eq!(
                (kept.contains(&in_v4), kept.contains(&in_v6)),
                (v4.contains(&third), v6.contains(&third)),
                "{links:?}: {kept}"
            );
        }
        assert_eq!(refused, vec![Reason::OffLink; refusals], "{links:?}");
    }
}

/// The creation times of Nodes have a resolution of one second. Among Nodes created in the same second, the first by name is the oldest.
#[test]
fn nodes_of_one_second_are_ordered_by_name() {
    for (first, kept) in [("10.5.1.0/24", "10.5.1.0/24"), ("10.5.0.0/23", "10.5.0.0/23")] {
        let leases = [("10.5.1.0/24", 8), ("10.5.0.0/23", 9)].map(|(subnet, host)| {
            let mut lease = plain(subnet, [192, 168, 56, host], 1);
            lease.attrs.node = Some(node(if subnet == first { "n1" } else { "n2" }));
            lease.term = Term::Reserved;
            lease
        });
        let wanted = (kept.to_owned(), vec![Reason::OverlapsOlder]);
        assert_eq!(judge(leases, &assigned()), wanted);
    }
}

fn with_mac(third: u8, mac: u8, since: i64) -> Lease {
    let mut lease = plain(&format!("10.5.{third}.0/24"), [192, 168, 56, 10 + third], since);
    let data = format!(r#"{{"VNI":1,"VtepMAC":"0a:00:00:00:00:{mac:02x}"}}"#);
    lease.attrs.data = RawJson::parse(&data).ok();
    lease
}

fn used(table: &LeaseTable) -> Vec<(String, bool)> {
    let mac = |lease: &Lease| VtepMacs.identity(&lease.attrs, Family::V4).unwrap_or_default();
    let line = |lease: &Lease| format!("{} {}", lease.subnets, &mac(lease)[15..]);
    let barred = table.barred().iter().map(|subnets| (subnets.to_string(), false));
    table.iter().map(|lease| (line(lease), true)).chain(barred).collect()
}

/// Of two leases that claim one MAC, the node uses the one whose node derives it, then the one that had it before. Next come the one that had it in
/// the kernel and the older one. No packet goes to the other's subnet.
#[test]
fn mac_belongs_to_its_first_holder() {
    let (old, young) = (with_mac(1, 0x21, 1), with_mac(2, 0x21, 2));
    let judge = |leases: [&Lease; 2], before: &LeaseTable, terms: &Terms| {
        let leases = LeaseTable::of(leases.map(Lease::clone), BTreeSet::new());
        used(&admitted(&leases, before, terms).0)
    };
    let nothing = LeaseTable::default();
    let has =
        |lease: &str, barred: &str| vec![(lease.to_owned(), true), (barred.to_owned(), false)];
    let (first, second) =
        (has("10.5.1.0/24 21", "10.5.2.0/24"), has("10.5.2.0/24 21", "10.5.1.0/24"));
    assert_eq!(judge([&old, &young], &nothing, &terms()), first, "age");
    let kernel = [("10.5.2.0/24".parse().unwrap(), "0a:00:00:00:00:21".to_owned())];
    let history = Arc::new(History { kernel: kernel.into(), ..History::default() });
    let at_start = Terms { history, ..terms() };
    assert_eq!(judge([&old, &young], &nothing, &at_start), second, "the kernel");
    let before = LeaseTable::of([old.clone()], BTreeSet::new());
    assert_eq!(judge([&old, &young], &before, &at_start), first, "in force before");
    let mut derives = young.clone();
    derives.attrs.node = Some(node("21"));
    assert_eq!(judge([&old, &derives], &before, &terms()), second, "derived");
    // The younger lease overlaps a network of this host, such as a container runtime's.
    let local = Terms { local: vec!["10.5.2.1/25".parse().unwrap()], ..terms() };
    assert_eq!(judge([&old, &young], &nothing, &local), first[..1]);
    // A thief whose earlier value is known stays in force with it.
    let before = LeaseTable::of([with_mac(1, 0x11, 1), young.clone()], BTreeSet::new());
    let both = vec![("10.5.1.0/24 11".to_owned(), true), ("10.5.2.0/24 21".to_owned(), true)];
    assert_eq!(judge([&old, &young], &before, &terms()), both);
    // Values that the store no longer has block nobody: two nodes swap their MACs.
    let swapped = [with_mac(1, 0x21, 1), with_mac(2, 0x11, 2)];
    let table = admitted(&LeaseTable::of(swapped, BTreeSet::new()), &before, &terms()).0;
    let now = [("10.5.1.0/24 21".to_owned(), true), ("10.5.2.0/24 11".to_owned(), true)];
    assert_eq!(used(&table), now);
}

/// A node that uses one half of the leases knows whose the MACs were, and a refused lease keeps no MAC from others.
#[test]
fn mac_of_half_a_lease_or_of_a_refused_one_belongs_to_another() {
    let (old, young) = (with_mac(1, 0x21, 1), with_mac(2, 0x21, 2));
    // A node of IPv4 alone uses one half of each lease, and knows whose it was.
    let both = |mut lease: Lease, third: u8| {
        let v6 = format!("fd00:5:0:{third:x}::/64").parse().unwrap();
        lease.subnets = Dual::Both(*lease.subnets.v4().unwrap(), v6);
        lease
    };
    let config = NetworkConfig::parse(VXLAN).unwrap();
    let v4 = Terms { config, own: None, ..terms() };
    let halves = [both(old.clone(), 1), both(young.clone(), 2)];
    let before = admitted(
        &LeaseTable::of([halves[1].clone()], BTreeSet::new()),
        &LeaseTable::default(),
        &v4,
    )
    .0;
    let table = admitted(&LeaseTable::of(halves, BTreeSet::new()), &before, &v4).0;
    assert_eq!(used(&table)[0], ("10.5.2.0/24 21".to_owned(), true));
    // A lease that claims this node's MAC is refused whole, and takes no other MAC with it.
    let own = Terms { own: Some(with_mac(3, 0x31, 3)), ..terms() };
    let mut greedy = both(with_mac(1, 0x31, 1), 1);
    greedy.attrs.public_ipv6 = "fd00:56::11".parse().ok();
    greedy.attrs.v6_data = young.attrs.data.clone();
    let table = admitted(
        &LeaseTable::of([greedy, young.clone()], BTreeSet::new()),
        &LeaseTable::default(),
        &own,
    )
    .0;
    assert_eq!(used(&table)[0], ("10.5.2.0/24 21".to_owned(), true));
}

/// Each lease of a long chain claims its own MAC and the next one's. The decision ends soon, and no MAC has two holders.
#[test]
fn chain_of_claims_is_decided_at_once() {
    let chain = (0..4000u16).map(|number| {
        let [high, low] = number.to_be_bytes();
        let mac = |number: u16| {
            let [high, low] = number.to_be_bytes();
            RawJson::parse(&format!(r#"{{"VNI":1,"VtepMAC":"0a:00:00:01:{high:02x}:{low:02x}"}}"#))
                .ok()
        };
        let mut lease = plain("10.5.9.0/24", [172, 16, high, low], number.into());
        lease.subnets = Dual::V6(format!("fd00:5:0:{:x}::/64", 0x100 + number).parse().unwrap());
        lease.attrs.public_ipv6 = format!("fd00:56::{:x}", 0x100 + number).parse().ok();
        (lease.attrs.data, lease.attrs.v6_data) = (mac(number), mac(number + 1));
        lease
    });
    let chain = LeaseTable::of(chain, BTreeSet::new());
    let (table, _) = admitted(&chain, &LeaseTable::default(), &terms());
    let macs = |lease: &Lease| Family::ALL.map(|family| VtepMacs.identity(&lease.attrs, family));
    let held: Vec<_> = table.iter().flat_map(macs).collect();
    assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), held.len());
    assert!(!held.is_empty());
}

/// This node asks its backend for another key only if an older node had the key first: a cloned disk.
#[test]
fn own_key_is_renewed_for_its_first_holder_alone() {
    let own = with_mac(3, 0x31, 3);
    let older = with_mac(1, 0x31, 1);
    let reasons = |history: History, steps: &[&[&Lease]]| {
        let terms =
            Arc::new(Terms { own: Some(own.clone()), history: Arc::new(history), ..terms() });
        let mut standing = LeasesInForce::default();
        for leases in steps {
            let leases = leases.iter().copied().cloned();
            standing.update(&LeaseTable::of(leases, BTreeSet::new()), None, &terms);
        }
        standing.refused().iter().map(AdmissionError::reason).collect::<Vec<_>>()
    };
    let published = History { own: ["0a:00:00:00:00:31".to_owned()].into(), ..History::default() };
    assert_eq!(reasons(History::default(), &[&[&older]]), [Reason::OurIdentity]);
    assert_eq!(reasons(published, &[&[&older]]), [Reason::SameIdentity]);
    assert_eq!(reasons(History::default(), &[&[], &[&older]]), [Reason::SameIdentity]);
}

/// Keys and values of Go flannel 0.28.9 keep the same bytes after parsing and rendering.
#[test]
fn golden_bytes() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.chunks(2) {
            let [key, value] = pair else {
                panic!("{}: keys and values alternate", path.display())
            };
            let Some(key) = key.strip_prefix("/coreos.com/network/subnets/") else {
                assert!(key.ends_with("/config"));
                NetworkConfig::parse(value).unwrap();
                continue;
            };
            let subnets =
                wire::parse_key(key).unwrap_or_else(|| panic!("{}: {key}", path.display()));
            assert_eq!(wire::render_key(&subnets), key);
            let attrs = wire::parse_value(value.as_bytes()).unwrap();
            assert_eq!(&wire::render_value(&attrs), value, "{}", path.display());
            assert!(attrs.unknown.is_empty() && attrs.node.is_none());
            count += 1;
        }
    }
    assert!(count >= 17, "{count}");
}
