//! Tests the choice of the underlay interface on made-up hosts.

use super::check::{Alarm, find_problem};
use super::error::may_come;
use super::follow::Steady;
use super::*;
use ipnet::IpNet;
use netlink::uapi::*;
use netstate::object::route::RouteKind;
use std::net::IpAddr;
use std::time::Duration;
use types::{Dual, Family, Problem};

/// A Vagrant machine: NAT with the default route on enp0s3, the nodes' network on enp0s8, and a third interface that
/// is down.
fn vagrant() -> HostFacts {
    let interface = |index, name: &str, up, addresses: &[&str]| Interface {
        index,
        name: name.to_owned(),
        up,
        carrier: up,
        loopback: name == "lo",
        mtu: 1500,
        addresses: addresses.iter().map(|net| address(net)).collect(),
        ..Interface::default()
    };
    HostFacts {
        interfaces: vec![
            interface(1, "lo", true, &["127.0.0.1/8", "::1/128"]),
            interface(2, "enp0s3", true, &["10.0.2.15/24", "fe80::2/64", "fd17::2/64"]),
            interface(
                3,
                "enp0s8",
                true,
                &["192.168.56.11/24", "192.168.56.12/24", "fe80::3/64", "fd00:56::11/64"],
            ),
            interface(4, "enp0s9", false, &["172.16.0.1/24"]),
            interface(5, "v4only", true, &["198.51.100.1/24"]),
        ],
        defaults: vec![default(Family::V4, 2, 100), default(Family::V6, 2, 100)],
        routes: vec![
            (
                ip("192.168.56.10"),
                Ok(Route { index: 3, source: Some(ip("192.168.56.11")), ..Route::default() }),
            ),
            (
                ip("fd00:56::10"),
                Ok(Route { index: 3, source: Some(ip("fd00:56::11")), ..Route::default() }),
            ),
            (
                ip("8.8.8.8"),
                Ok(Route { index: 2, source: Some(ip("10.0.2.15")), ..Route::default() }),
            ),
            (
                ip("203.0.113.9"),
                Err(RouteError::Refused { errno: libc::ENETUNREACH, words: String::new() }),
            ),
        ],
        answering: Vec::new(),
        unshared: Vec::new(),
        leased: Leased::default(),
        links: vec![
            (2, net("10.0.2.0/24")),
            (3, net("192.168.56.0/24")),
            (3, net("fd00:56::/64")),
            (5, net("198.51.100.0/24")),
        ],
    }
}

fn default(family: Family, index: u32, metric: u32) -> Route {
    Route { net: net(family.pick("0.0.0.0/0", "::/0")), index, metric, ..Route::default() }
}

fn address(net: &str) -> Address {
    Address { net: net.parse().unwrap(), flags: IFA_F_PERMANENT, ..Address::default() }
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

const V4: Families = Dual::V4(());
const V6: Families = Dual::V6(());
const BOTH: Families = Dual::Both((), ());

fn request(families: Families, text: &str) -> Request {
    Request {
        families,
        selectors: selectors(text),
        public: None,
        store: StoreAt::Here,
        known: None,
    }
}

/// Each is a kind and a value, separated by semicolons.
fn selectors(text: &str) -> Vec<Selector> {
    let selector = |text: &str| {
        let (kind, value) = text.split_once(' ').unwrap_or((text, ""));
        match kind {
            "name" => Selector::Name(value.to_owned()),
            "regex" => Selector::Regex(Pattern::new(value).unwrap()),
            "address" => Selector::Address(ip(value)),
            "cidr" => Selector::Cidr(net(value)),
            "reach" => Selector::CanReach(ip(value)),
            "auto" => Selector::Auto,
            _ => Selector::DefaultRoute("--iface".to_owned()),
        }
    };
    let texts = text.split("; ").filter(|text| !text.is_empty());
    texts.map(selector).collect()
}

fn there(addresses: &[&str]) -> StoreAt {
    StoreAt::There(addresses.iter().map(|text| ip(text)).collect())
}

/// A store whose name does not resolve.
fn nowhere() -> StoreAt {
    StoreAt::Unknown(Problem::in_words("etcd: the name server does not respond"))
}

/// The name and the addresses of the interface that flanneld chooses.
fn chosen(request: &Request, facts: &HostFacts) -> String {
    match select(request, facts) {
        Ok(chosen) => format!("{} {}", chosen.underlay.name, chosen.underlay.addresses),
        Err(error) => panic!("{request:?}: {error}"),
    }
}

fn refused(request: &Request, facts: &HostFacts) -> Problem {
    match select(request, facts) {
        Ok(chosen) => panic!("{request:?}: {chosen:?}"),
        Err(error) => error,
    }
}

/// Checks the choice on the host of [`vagrant`].
fn check_choices(rows: Vec<(Families, &'static str, &str)>) {
    let facts = vagrant();
    for (families, selectors, want) in rows {
        assert_eq!(
            chosen(&request(families, selectors), &facts),
            want,
            "{families:?} {selectors:?}"
        );
    }
}

#[test]
fn first_matching_name_or_the_default_route_is_chosen() {
    check_choices(vec![
        (V4, "", "enp0s3 10.0.2.15"),
        (V6, "", "enp0s3 fd17::2"),
        (BOTH, "", "enp0s3 10.0.2.15 and fd17::2"),
        (V4, "default", "enp0s3 10.0.2.15"),
        (V4, "name enp0s8", "enp0s8 192.168.56.11"),
        (BOTH, "name enp0s8", "enp0s8 192.168.56.11 and fd00:56::11"),
        // The first match wins; selectors that fail are skipped.
        (V4, "name nosuch; name enp0s9; name enp0s8", "enp0s8 192.168.56.11"),
        (V4, "name nosuch; default", "enp0s3 10.0.2.15"),
        (BOTH, "name v4only; regex ^enp0s8$", "enp0s8 192.168.56.11 and fd00:56::11"),
    ]);
}

#[test]
fn address_selector_fixes_the_address_of_its_family_only() {
    check_choices(vec![
        (V4, "address 192.168.56.12", "enp0s8 192.168.56.12"),
        (BOTH, "address 192.168.56.12", "enp0s8 192.168.56.12 and fd00:56::11"),
        (BOTH, "address fd00:56::11", "enp0s8 192.168.56.11 and fd00:56::11"),
        (V4, "address fd00:56::11", "enp0s8 192.168.56.11"),
        (V6, "address fe80::3", "enp0s8 fe80::3"),
    ]);
}

#[test]
fn pattern_tries_addresses_of_all_interfaces_before_names() {
    check_choices(vec![
        (V4, "regex \\.12$", "enp0s8 192.168.56.12"),
        (V4, "regex enp0s", "enp0s3 10.0.2.15"),
        (V4, "regex s8", "enp0s8 192.168.56.11"),
        (V6, "regex ^fd00", "enp0s8 fd00:56::11"),
        (BOTH, "regex ^fd00|^192", "enp0s8 192.168.56.11 and fd00:56::11"),
        (V4, "regex .", "enp0s3 10.0.2.15"),
        (V4, "regex ^v4", "v4only 198.51.100.1"),
    ]);
}

#[test]
fn network_selector_chooses_the_address_inside() {
    check_choices(vec![
        (V4, "cidr 192.168.56.0/24", "enp0s8 192.168.56.11"),
        (V4, "cidr 192.168.56.12/32", "enp0s8 192.168.56.12"),
        (BOTH, "cidr fd00:56::/64", "enp0s8 192.168.56.11 and fd00:56::11"),
        (BOTH, "cidr 0.0.0.0/0", "enp0s3 10.0.2.15 and fd17::2"),
    ]);
}

#[test]
fn reachable_address_chooses_the_interface_of_its_route() {
    check_choices(vec![
        (V4, "reach 192.168.56.10", "enp0s8 192.168.56.11"),
        (V4, "reach fd00:56::10", "enp0s8 192.168.56.11"),
        (BOTH, "reach fd00:56::10", "enp0s8 192.168.56.11 and fd00:56::11"),
        (V4, "reach 192.168.56.12", "enp0s8 192.168.56.12"),
    ]);
}

#[test]
fn selector_without_a_match_is_refused_with_the_reason() {
    let facts = vagrant();
    for (families, selectors, part) in [
        (V4, "name nosuch", "error looking up interface nosuch"),
        (
            V4,
            "address 10.9.9.9",
            "error looking up interface 10.9.9.9: no interface with given IP found",
        ),
        (
            V6,
            "address fd99::1",
            "error looking up v6 interface fd99::1: no interface with given IPv6 found",
        ),
        (
            V4,
            "regex ^11",
            "could not match pattern ^11 to any of the available network interfaces (enp0s3:[10.0.2.15",
        ),
        (V4, "regex ^lo$", "could not match pattern"),
        (BOTH, "regex ^198", "could not match pattern"),
        (BOTH, "name v4only", "failed to find IPv6 address for interface v4only"),
        (V4, "name enp0s9", "is down; bring it up with `ip link set enp0s9 up`"),
        (V4, "name lo", "failed to find IPv4 address for interface lo"),
        (V4, "cidr 10.99.0.0/16", "inside 10.99.0.0/16"),
        (
            V4,
            "reach 203.0.113.9",
            "the lookup of the route to 203.0.113.9 failed: Network is unreachable",
        ),
    ] {
        let error = refused(&request(families, selectors), &facts);
        assert!(error.to_string().contains(part), "{selectors:?}: {error}");
        assert!(error.to_string().starts_with("Failed to find interface to use that matches the interfaces and/or regexes provided"), "{error}");
        assert!(may_come(&error), "{error}");
    }
}

#[test]
fn unusable_default_routes_are_skipped() {
    let mut facts = vagrant();
    // These routes have better metrics, but reject packets, lead to lo, to an interface that is down, or nowhere.
    let refusing = Route { kind: RouteKind::Unreachable, ..default(Family::V4, 3, 0) };
    facts.defaults = vec![
        refusing,
        default(Family::V4, 1, 1),
        default(Family::V4, 4, 2),
        default(Family::V4, 0, 3),
        default(Family::V4, 3, 50),
    ];
    assert_eq!(chosen(&request(V4, ""), &facts), "enp0s8 192.168.56.11");
    facts.defaults.pop();
    let error = refused(&request(V4, ""), &facts);
    assert!(
        may_come(&error)
            && error.to_string().starts_with("Failed to find any valid interface to use: "),
        "{error}"
    );
    for part in [
        "unable to find default route",
        "rejects packets",
        "leads to lo",
        "enp0s9 is down",
        "could not determine interface",
        "--iface",
    ] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    facts.defaults.clear();
    assert!(
        refused(&request(V6, ""), &facts)
            .to_string()
            .contains("failed to get default v6 interface")
    );
}

#[test]
fn default_routes_of_both_families_share_an_interface() {
    let mut facts = vagrant();
    facts.defaults = vec![default(Family::V4, 2, 0), default(Family::V6, 3, 0)];
    let error = refused(&request(BOTH, ""), &facts);
    assert!(error.to_string().contains("v6 default route interface enp0s8 must be the same with v4 default route interface enp0s3"), "{error}");
    assert!(!may_come(&error));
    facts.defaults.push(default(Family::V6, 2, 9));
    assert_eq!(chosen(&request(BOTH, ""), &facts), "enp0s3 10.0.2.15 and fd17::2");
    facts.defaults = vec![default(Family::V4, 2, 0)];
    assert!(
        may_come(&refused(&request(BOTH, ""), &facts)),
        "the IPv6 one may come by an advertisement"
    );
}

#[test]
fn addresses_are_preferred_by_their_state() {
    let mut facts = vagrant();
    let plain = address;
    let with = |flags: u32, net| Address { flags, ..address(net) };
    let stage =
        |addresses: Vec<Address>, facts: &mut HostFacts| facts.interfaces[2].addresses = addresses;
    let v6 = request(V6, "name enp0s8");
    stage(
        vec![
            plain("fe80::1/64"),
            with(IFA_F_PERMANENT | IFA_F_DADFAILED, "fd00::1/64"),
            with(IFA_F_PERMANENT | IFA_F_TENTATIVE, "fd00::2/64"),
            with(IFA_F_PERMANENT | IFA_F_DEPRECATED, "fd00::3/64"),
            with(IFA_F_TEMPORARY, "fd00::4/64"),
            with(0, "fd00::5/64"),
            with(IFA_F_PERMANENT | IFA_F_TEMPORARY, "fd00::6/64"),
            plain("ff02::1/128"),
            plain("fd00::7/64"),
        ],
        &mut facts,
    );
    for want in ["fd00::7", "fd00::6", "fd00::5", "fd00::4", "fe80::1"] {
        assert_eq!(chosen(&v6, &facts), format!("enp0s8 {want}"));
        facts.interfaces[2].addresses.retain(|address| address.ip() != ip(want));
    }
    let error = refused(&v6, &facts);
    for part in [
        "fd00::1: another host has this address (dadfailed)",
        "fd00::2: still tentative",
        "fd00::3: deprecated",
    ] {
        assert!(may_come(&error) && error.to_string().contains(part), "{error}");
    }
    // A deprecated address can still be named.
    assert_eq!(chosen(&request(V6, "address fd00::3"), &facts), "enp0s8 fd00::3");
    stage(vec![plain("169.254.1.1/16"), plain("0.0.0.0/0"), plain("10.1.1.1/24")], &mut facts);
    assert_eq!(chosen(&request(V4, "name enp0s8"), &facts), "enp0s8 10.1.1.1");
    facts.interfaces[2].mtu = 0;
    assert!(!may_come(&refused(&request(V4, "name enp0s8"), &facts)));
}

fn public(families: Families, v4: Option<&str>, v6: Option<&str>, selectors: &str) -> Request {
    Request {
        public: Dual::from_options(
            v4.map(|text| text.parse().unwrap()),
            v6.map(|text| text.parse().unwrap()),
        ),
        ..request(families, selectors)
    }
}

/// Requirements, the expected interface with its addresses, the expected public addresses, whether flags name the
/// interface, and the number of warnings.
type PublicCase = (Request, &'static str, &'static str, bool, usize);

fn check_public_addresses(rows: Vec<PublicCase>) {
    let facts = vagrant();
    for (request, want, published, named, warnings) in rows {
        let chosen = select(&request, &facts).unwrap();
        assert_eq!(
            format!("{} {}", chosen.underlay.name, chosen.underlay.addresses),
            want,
            "{request:?}"
        );
        assert_eq!(chosen.underlay.public.to_string(), published, "{request:?}");
        assert_eq!((chosen.named, chosen.warnings.len()), (named, warnings), "{request:?}");
    }
}

#[test]
fn public_address_of_this_host_chooses_its_interface() {
    check_public_addresses(vec![
        (
            public(V4, Some("192.168.56.12"), None, ""),
            "enp0s8 192.168.56.12",
            "192.168.56.12",
            true,
            0,
        ),
        (public(V6, None, Some("fd00:56::11"), ""), "enp0s8 fd00:56::11", "fd00:56::11", true, 0),
        (
            public(BOTH, Some("192.168.56.12"), Some("fd00:56::11"), ""),
            "enp0s8 192.168.56.12 and fd00:56::11",
            "192.168.56.12 and fd00:56::11",
            true,
            0,
        ),
        (
            public(BOTH, Some("203.0.113.7"), Some("fd00:56::11"), ""),
            "enp0s8 192.168.56.11 and fd00:56::11",
            "203.0.113.7 and fd00:56::11",
            true,
            0,
        ),
        // An address that is not local: the choice is the default route's interface, with a warning.
        (public(V4, Some("203.0.113.7"), None, ""), "enp0s3 10.0.2.15", "203.0.113.7", true, 1),
    ]);
}

#[test]
fn public_address_is_only_published_with_a_named_interface() {
    check_public_addresses(vec![
        // An address of the other family is neither used nor fatal.
        (public(V6, Some("203.0.113.7"), None, ""), "enp0s3 fd17::2", "fd17::2", false, 0),
        (public(V4, None, Some("2001:db8::7"), ""), "enp0s3 10.0.2.15", "10.0.2.15", false, 0),
        // If an interface is named, the address is only published.
        (
            public(V4, Some("203.0.113.7"), None, "name enp0s8"),
            "enp0s8 192.168.56.11",
            "203.0.113.7",
            true,
            0,
        ),
        (
            public(V4, Some("10.0.2.15"), None, "name enp0s8"),
            "enp0s8 192.168.56.11",
            "10.0.2.15",
            true,
            0,
        ),
        (
            public(BOTH, None, Some("2001:db8::7"), "address 192.168.56.11"),
            "enp0s8 192.168.56.11 and fd00:56::11",
            "192.168.56.11 and 2001:db8::7",
            true,
            0,
        ),
    ]);
}

#[test]
fn public_address_of_another_interface_is_refused() {
    let facts = vagrant();
    let error = refused(&public(BOTH, Some("10.0.2.15"), Some("fd00:56::11"), ""), &facts);
    assert!(
        !may_come(&error)
            && error
                .to_string()
                .contains("v6 interface enp0s8 must be the same with v4 interface enp0s3"),
        "{error}"
    );
    let error = refused(&public(BOTH, None, Some("fd17::2"), "address 192.168.56.11"), &facts);
    assert!(
        error.to_string().contains("v6 interface enp0s3 must be the same with v4 interface enp0s8"),
        "{error}"
    );
    let error = refused(&public(V4, Some("172.16.0.1"), None, ""), &facts);
    assert!(may_come(&error) && error.to_string().contains("enp0s9 is down"), "{error}");
}

#[test]
fn local_addresses_include_those_of_other_interfaces() {
    let facts = vagrant();
    let local = select(&request(V4, "name enp0s8"), &facts).unwrap().underlay.local;
    assert!(
        local.contains(&"10.0.2.15/24".parse().unwrap())
            && local.contains(&"127.0.0.1/8".parse().unwrap())
    );
}

#[test]
fn auto_chooses_the_interface_that_reaches_the_store() {
    let facts = vagrant();
    let at = |store| Request { store, ..request(V4, "auto") };
    for (store, want) in [
        (there(&["192.168.56.10"]), "enp0s8 192.168.56.11"),
        (there(&["fd00:56::10"]), "enp0s8 192.168.56.11"),
        (there(&["203.0.113.9", "192.168.56.10"]), "enp0s8 192.168.56.11"),
        // The store runs on this host, at one of its addresses or on loopback.
        (there(&["192.168.56.12"]), "enp0s8 192.168.56.12"),
        (there(&["127.0.0.1"]), "enp0s3 10.0.2.15"),
        (StoreAt::Here, "enp0s3 10.0.2.15"),
    ] {
        assert_eq!(chosen(&at(store), &facts), want);
    }
    for lost in [there(&["203.0.113.9"]), nowhere()] {
        assert!(may_come(&refused(&at(lost), &facts)));
    }
}

#[test]
fn choice_holds_its_reason() {
    let facts = vagrant();
    for (selector, why) in [
        ("", "default route"),
        ("name enp0s8", "--iface=enp0s8"),
        ("regex ^192", "--iface-regex=^192 (its address"),
        ("regex s8$", "--iface-regex=s8$ (its name"),
        ("cidr 192.168.0.0/16", "--iface-cidr=192.168.0.0/16 (its address"),
        ("reach 8.8.8.8", "--iface-can-reach=8.8.8.8"),
    ] {
        let found = select(&request(V4, selector), &facts).unwrap().why;
        assert!(found.contains(why), "{found}");
    }
}

#[test]
fn trap_hint_names_the_interface_that_reaches_the_store() {
    let facts = vagrant();
    let store = there(&["192.168.56.10"]);
    let hint = |request: &Request| trap_hint(request, &select(request, &facts).unwrap(), &facts);
    let trapped = Request { store, ..request(V4, "") };
    let text = hint(&trapped).unwrap();
    for part in [
        "enp0s3 (10.0.2.15)",
        "192.168.56.10",
        "enp0s8 (192.168.56.11",
        "--iface=enp0s8",
        "--iface=auto",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let empty = Request { selectors: selectors("default"), ..trapped.clone() };
    assert!(hint(&empty).is_some());
    for (selector, store) in [
        ("name enp0s3", trapped.store.clone()),
        ("auto", trapped.store.clone()),
        ("", StoreAt::Here),
        ("", there(&["8.8.8.8"])),
        ("", there(&["10.0.2.15"])),
        ("", there(&["203.0.113.9"])),
        ("", nowhere()),
    ] {
        let quiet = Request { store, ..request(V4, selector) };
        assert_eq!(hint(&quiet), None, "{quiet:?}");
    }
}

#[test]
fn store_is_reached_via_the_underlay_only_when_routes_say_so() {
    let facts = vagrant();
    let store = there(&["192.168.56.10"]);
    for (selector, store, is_via) in [
        ("", store.clone(), false),
        ("name enp0s8", store, true),
        ("", StoreAt::Here, true),
        ("", nowhere(), false),
    ] {
        let request = Request { store, ..request(V4, selector) };
        let chosen = select(&request, &facts).unwrap();
        assert_eq!(store_via_underlay(&request, &chosen, &facts), is_via, "{selector}");
    }
}

#[test]
fn interface_list_marks_the_one_that_reaches_the_store() {
    let facts = vagrant();
    let store = there(&["192.168.56.10"]);
    let list = interfaces_text(&store, &facts);
    assert_eq!(list.lines().count(), 4, "{list}");
    assert!(
        list.lines().any(|line| line.contains("enp0s8")
            && line.contains("reaches the store at 192.168.56.10: --iface=enp0s8")),
        "{list}"
    );
    assert!(list.contains("enp0s9") && list.contains("(down)"));
}

fn set_addresses(facts: &mut HostFacts, nets: &[&str]) {
    facts.interfaces[2].addresses = nets.iter().map(|net| address(net)).collect();
}

/// [`vagrant`] with other addresses on enp0s8.
fn readdressed() -> HostFacts {
    let mut facts = vagrant();
    set_addresses(&mut facts, &["10.7.7.7/24", "192.168.56.99/24", "fd00:56::99/64"]);
    facts
}

fn chosen_by(selector: &str) -> Chosen {
    select(&request(BOTH, selector), &vagrant()).unwrap()
}

#[test]
fn interface_is_followed_when_it_is_renamed_or_recreated() {
    let facts = vagrant();
    let best = chosen_by("name enp0s8");
    let last = &best.underlay;
    assert_eq!(followed(&best, last, &facts), *last);

    let mut now = facts.clone();
    now.interfaces[2].name = "lan0".to_owned();
    now.interfaces[2].mtu = 9000;
    let renamed = followed(&best, last, &now);
    assert_eq!((renamed.index, renamed.name.as_str(), renamed.mtu), (3, "lan0", 9000));

    // A recreated interface is found by its name. While it is gone, all values are kept.
    now = facts.clone();
    now.interfaces[2].index = 77;
    assert_eq!(followed(&best, last, &now).index, 77);
    now.interfaces.remove(2);
    let gone = followed(&best, last, &now);
    assert_eq!((gone.index, gone.addresses, gone.mtu), (3, last.addresses, 1500));
}

#[test]
fn address_is_followed_when_another_replaces_it() {
    let facts = vagrant();
    let best = chosen_by("name enp0s8");
    let last = &best.underlay;
    // An additional address changes nothing. One that replaces the old one is followed, separately for each family.
    let mut now = facts.clone();
    set_addresses(&mut now, &["192.168.56.99/24", "192.168.56.11/24", "fd00:56::11/64"]);
    assert_eq!(followed(&best, last, &now).addresses, last.addresses);
    set_addresses(&mut now, &["192.168.56.99/24", "fd00:56::11/64"]);
    let moved = followed(&best, last, &now);
    assert_eq!(
        (moved.addresses.to_string(), moved.public),
        ("192.168.56.99 and fd00:56::11".to_owned(), moved.addresses)
    );
    set_addresses(&mut now, &[]);
    assert_eq!(followed(&best, last, &now).addresses, last.addresses);
    // A link that was down for a moment has lost its IPv6 address. The link-local one that appears first is no substitute.
    set_addresses(&mut now, &["192.168.56.11/24", "fe80::11/64"]);
    assert_eq!(followed(&best, last, &now).addresses, last.addresses);
}

#[test]
fn virtual_address_is_no_substitute_and_the_own_address_returns() {
    let best = chosen_by("name enp0s8");
    let mut last = best.underlay.clone();
    let mut now = vagrant();
    now.leased.own = vec![net("10.5.1.0/24")];
    for (on_it, want) in [
        ("192.168.56.200/32", "192.168.56.11"),
        ("192.168.56.200/32 192.168.56.12/24", "192.168.56.12"),
        // The own address is back, in whatever order.
        ("192.168.56.200/32 192.168.56.12/24 192.168.56.11/24", "192.168.56.11"),
        // An address of a pod.
        ("10.5.1.3/16", "192.168.56.11"),
    ] {
        set_addresses(&mut now, &on_it.split(' ').collect::<Vec<_>>());
        last = followed(&best, &last, &now);
        assert_eq!(last.addresses.v4().unwrap().to_string(), want, "{on_it}");
    }
    // At a start, the kernel's order says nothing: the own address may have been absent for a moment.
    set_addresses(&mut now, &["192.168.56.200/32", "192.168.56.11/24"]);
    let name = request(V4, "name enp0s8");
    assert_eq!(chosen(&name, &now), "enp0s8 192.168.56.11");
    // In some clouds, the only address is that of a single host.
    set_addresses(&mut now, &["192.168.56.200/32"]);
    let only = select(&name, &now).unwrap();
    set_addresses(&mut now, &["192.168.56.200/32", "192.168.56.11/24"]);
    let back = followed(&only, &only.underlay, &now);
    assert_eq!(back.addresses.to_string(), "192.168.56.11");
    set_addresses(&mut now, &["192.168.56.201/32"]);
    let moved = followed(&only, &only.underlay, &now);
    assert_eq!(moved.addresses.to_string(), "192.168.56.201");
}

#[test]
fn other_addresses_are_followed_once_they_last_for_seconds() {
    let own = chosen_by("name enp0s8").underlay;
    let other = followed(&chosen_by("name enp0s8"), &own, &readdressed());
    let (begin, mut steady, mut last) =
        (tokio::time::Instant::now(), Steady::default(), own.clone());
    // At the second 4, the own address is back, and at once gone again.
    let (seen, kept) = ("oo.ooo..", ".....oo.");
    for (second, (seen, kept)) in
        [0, 4, 4, 6, 10, 11, 12, 17].into_iter().zip(seen.chars().zip(kept.chars()))
    {
        let of = |mark| if mark == 'o' { &other } else { &own };
        let now = begin + Duration::from_secs(second);
        last = steady.look(&last, of(seen).clone(), now).0;
        assert_eq!(last.addresses, of(kept).addresses, "{second} s");
    }
}

/// The uplink was created after the pods' devices. Two veths have addresses in this node's and in another node's
/// subnet.
fn remade() -> HostFacts {
    let mut facts = vagrant();
    facts.interfaces.truncate(1);
    for (index, text) in (2..).zip([
        "cni0 bridge 10.244.1.1/24",
        "veth1 veth 10.244.9.9/24",
        "flannel.1 vxlan 10.244.1.0/32",
        "ptp1 veth 10.244.1.1/32",
        "own veth 10.244.1.9/24",
        "theirs veth 10.244.2.9/24",
        "uplink - 10.0.0.11/24",
    ]) {
        let words: Vec<&str> = text.split(' ').collect();
        facts.interfaces.push(Interface {
            index,
            name: words[0].to_owned(),
            kind: words[1].replace('-', ""),
            up: true,
            mtu: 1500,
            master: (words[0] == "veth1").then_some(2),
            addresses: vec![address(words[2])],
            ..Interface::default()
        });
    }
    facts.routes[0].1 = Ok(Route { index: 2, source: None, ..Route::default() });
    facts.defaults = [2, 4, 8].map(|index| default(Family::V4, index, index)).to_vec();
    facts.leased.own = vec![net("10.244.1.0/24")];
    facts.leased.all = vec![net("10.244.2.0/24")];
    facts
}

#[test]
fn no_way_of_choosing_takes_an_interface_of_pods() {
    let facts = remade();
    let published = |address| KnownAddresses {
        published: vec![ip(address)],
        internal: vec![ip(address)],
        ..KnownAddresses::default()
    };
    let known = |address| Request { known: Some(published(address)), ..request(V4, "") };
    for wish in [
        request(V4, "cidr 10.0.0.0/8"),
        request(V4, "regex ^10\\."),
        request(V4, ""),
        request(V4, "name cni0; address 10.244.1.1; reach 192.168.56.10; default"),
        known("10.244.1.1"),
        known("10.244.1.9"),
    ] {
        assert_eq!(chosen(&wish, &facts), "uplink 10.0.0.11", "{wish:?}");
    }
    let pods = "belongs to flannel's pods";
    let inside = "is inside 10.244.1.0/24";
    let store = there(&["10.244.1.1"]);
    for (wish, why) in [
        (request(V4, "name cni0"), pods),
        (request(V4, "name veth1"), pods),
        (request(V4, "name flannel.1"), pods),
        (request(V4, "name ptp1"), pods),
        (request(V4, "reach 192.168.56.10"), pods),
        (request(V4, "address 10.244.1.9"), inside),
        (request(V4, "name own"), "failed to find IPv4 address"),
        (Request { store, ..request(V4, "auto") }, pods),
        (public(V4, Some("10.244.1.1"), None, ""), pods),
        (public(V4, Some("10.244.1.77"), None, ""), inside),
    ] {
        let error = refused(&wish, &facts);
        assert!(may_come(&error) && error.to_string().contains(why), "{error}");
    }
}

#[test]
fn address_in_a_leased_subnet_is_a_last_resort() {
    let mut facts = remade();
    let cidr = request(V4, "cidr 10.0.0.0/8");
    // A bridge with a network card joins hosts.
    facts.interfaces[1].addresses.push(address("10.9.9.9/8"));
    facts.interfaces[7].master = Some(2);
    assert_eq!(chosen(&cidr, &facts), "cni0 10.9.9.9");
    // Somebody else's lease is no reason to be without an underlay, and an address that worked stays.
    facts = remade();
    facts.interfaces.pop();
    let found = select(&cidr, &facts).unwrap();
    assert_eq!((&*found.underlay.name, found.warnings.len()), ("theirs", 1));
    facts.leased.published = vec![ip("10.244.1.9")];
    assert_eq!(chosen(&request(V4, "name own"), &facts), "own 10.244.1.9");
}

#[test]
fn selector_decides_which_address_is_followed() {
    let now = readdressed();
    for (selector, want) in [
        ("name enp0s8", "10.7.7.7 and fd00:56::99"),
        ("regex ^192|^fd00", "192.168.56.99 and fd00:56::99"),
        ("cidr 192.168.56.0/24", "192.168.56.99 and fd00:56::99"),
        ("address 192.168.56.11", "192.168.56.11 and fd00:56::99"),
    ] {
        let chosen = chosen_by(selector);
        assert_eq!(
            followed(&chosen, &chosen.underlay, &now).addresses.to_string(),
            want,
            "{selector}"
        );
    }
}

#[test]
fn public_address_of_a_flag_stays_when_the_interface_is_readdressed() {
    let facts = vagrant();
    let named = select(
        &Request {
            public: Some(Dual::V4("192.168.56.11".parse().unwrap())),
            ..request(BOTH, "name enp0s8")
        },
        &facts,
    )
    .unwrap();
    assert_eq!(
        followed(&named, &named.underlay, &readdressed()).public.to_string(),
        "192.168.56.11 and fd00:56::99"
    );
}

#[test]
fn links_follow_routes_and_stay_while_the_address_is_absent() {
    let facts = vagrant();
    let best = select(&request(BOTH, "name enp0s8"), &facts).unwrap();
    let last = &best.underlay;
    let links = |change: &dyn Fn(&mut HostFacts)| {
        let mut now = facts.clone();
        change(&mut now);
        followed(&best, last, &now).links
    };
    let (v4, v6, more) = (net("192.168.56.0/24"), net("fd00:56::/64"), net("10.99.0.0/16"));
    assert_eq!(last.links, [v4, v6], "of its own interface only");
    assert_eq!(links(&|now| now.links.push((3, more))), [v4, v6, more]);
    // The address is present, and the network of the interface is another one.
    assert_eq!(links(&|now| now.links = vec![(3, more), (3, v6)]), [more, v6]);
    // The kernel removes the routes with the last address, and while the interface is down.
    let flushed = |now: &mut HostFacts| now.links = vec![(2, net("10.0.2.0/24"))];
    let lost = |now: &mut HostFacts| {
        now.interfaces[2].addresses.retain(|address| address.ip().is_ipv6());
    };
    assert_eq!(links(&|now| (flushed(now), lost(now)).0), [v4]);
    assert_eq!(links(&|now| (flushed(now), now.interfaces[2].up = false).0), [v4, v6]);
    assert_eq!(links(&|now| (flushed(now), drop(now.interfaces.remove(2))).0), [v4, v6]);
}

#[test]
fn underlay_trouble_names_the_fault_and_the_remedy() {
    let chosen = select(&request(BOTH, "name enp0s8"), &vagrant()).unwrap();
    let text = |change: &dyn Fn(&mut HostFacts), elsewhere: &[IpAddr]| {
        let mut facts = vagrant();
        change(&mut facts);
        let now = followed(&chosen, &chosen.underlay, &facts);
        find_problem(&now, &facts, elsewhere).map(|problem| problem.text).unwrap_or_default()
    };
    let own =
        |facts: &mut HostFacts, change: &dyn Fn(&mut Interface)| change(&mut facts.interfaces[2]);
    assert_eq!(text(&|_| {}, &[]), "");
    assert!(text(&|facts| drop(facts.interfaces.remove(2)), &[]).contains("enp0s8 is gone"));
    assert!(
        text(&|facts| own(facts, &|one| one.up = false), &[])
            .contains("enp0s8 is down; bring it up with `ip link set enp0s8 up`")
    );
    assert!(
        text(&|facts| own(facts, &|one| one.carrier = false), &[])
            .contains("enp0s8 has no carrier")
    );
    // Another address of the family takes over; the loss of the last one is reported.
    assert_eq!(
        text(
            &|facts| own(facts, &|one| one
                .addresses
                .retain(|address| address.ip() != ip("192.168.56.11"))),
            &[]
        ),
        ""
    );
    let bare = text(
        &|facts| {
            own(facts, &|one| {
                one.addresses.retain(|address| address.ip().is_ipv6());
            });
        },
        &[],
    );
    assert!(bare.contains("enp0s8 has lost its address 192.168.56.11; restore it"), "{bare}");
    let failed = text(&|facts| own(facts, &|one| one.addresses[3].flags |= IFA_F_DADFAILED), &[]);
    assert!(
        failed.contains("cannot use its address fd00:56::11: another host has this address"),
        "{failed}"
    );
    // An address that moved to another interface is reported, unless it had been there from the start.
    let moves = |facts: &mut HostFacts| {
        let taken = facts.interfaces[2].addresses.split_off(3);
        facts.interfaces[4].addresses.extend(taken);
    };
    let moved = text(&moves, &[]);
    assert!(moved.contains("fd00:56::11 has moved from enp0s8 to v4only"), "{moved}");
    assert_eq!(text(&moves, &[ip("fd00:56::11")]), "");
    // A new name is not a problem.
    assert_eq!(text(&|facts| own(facts, &|one| one.name = "wan0".to_owned()), &[]), "");
}

#[test]
fn trouble_is_reported_after_a_second_and_its_end_at_once() {
    let start = tokio::time::Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let mut alarm = Alarm::default();
    let down = || Some("down".to_owned());
    assert_eq!(alarm.look(None, at(0)), (None, None));
    assert_eq!(alarm.look(down(), at(0)), (None, Some(at(1_000))));
    assert_eq!(alarm.look(None, at(500)), (None, None));
    assert_eq!(alarm.look(down(), at(600)), (None, Some(at(1_600))));
    assert_eq!(alarm.look(down(), at(1_600)), (Some(down()), None));
    assert_eq!(alarm.look(down(), at(1_700)), (None, None));
    assert_eq!(
        alarm.look(Some("gone".to_owned()), at(1_800)),
        (Some(Some("gone".to_owned())), None)
    );
    assert_eq!(alarm.look(None, at(1_900)), (Some(None), None));
    assert_eq!(alarm.look(None, at(2_000)), (None, None));
}

#[test]
fn mtu_of_an_address_on_loopback_is_that_of_the_routes_to_other_nodes() {
    let mut facts = vagrant();
    (facts.interfaces[0].mtu, facts.interfaces[2].mtu) = (65536, 1400);
    facts.interfaces[0].addresses.push(address("10.1.1.1/32"));
    let by_flag = public(V4, Some("10.1.1.1"), None, "");
    let named = ["name lo", "address 10.1.1.1", "cidr 10.1.0.0/16"];
    for wish in named.map(|text| request(V4, text)).iter().chain([&by_flag]) {
        let chosen = select(wish, &facts).unwrap();
        let now = followed(&chosen, &chosen.underlay, &facts);
        assert_eq!((&*now.name, now.mtu), ("lo", 1400), "{wish:?}");
    }
    // A virtual address on loopback is taken only if no link has one.
    let wish = request(V4, "cidr 10.0.0.0/8");
    assert_eq!(chosen(&wish, &facts), "enp0s3 10.0.2.15");
    (facts.routes, facts.defaults) = (Vec::new(), Vec::new());
    assert_eq!(select(&by_flag, &facts).unwrap().underlay.mtu, 1500);
}

#[test]
fn assigned_subnet_clashes_with_the_hosts_network_but_not_with_pods_or_a_wide_network() {
    // The pods' network, the subnet, the kind and the address of an interface, and what of its network the subnet overlaps.
    for text in [
        "192.168.0.0/16 192.168.1.0/24 - 192.168.1.50/24 192.168.1.0/24",
        "192.168.0.0/16 192.168.1.0/24 - 192.168.0.9/22 192.168.0.0/22",
        "192.168.0.0/16 192.168.1.0/24 veth 192.168.1.1/24 192.168.1.0/24",
        "192.168.0.0/16 192.168.2.0/24 - 192.168.1.50/24",
        "10.244.0.0/16 10.244.1.0/24 - 10.9.9.9/8",
        "10.244.0.0/16 10.244.1.0/24 - 10.244.1.9/8 10.244.1.9/32",
        "10.244.0.0/16 10.244.1.0/24 bridge 10.244.1.1/24",
        "10.244.0.0/16 10.244.1.0/24 veth 10.244.1.1/32",
    ] {
        let words: Vec<&str> = text.split(' ').collect();
        let (mut facts, own) = (vagrant(), net(words[1]));
        facts.interfaces[4].kind = words[2].replace('-', "");
        facts.interfaces[4].addresses = vec![address(words[3])];
        facts.leased.own = vec![own];
        let request = request(V4, "name enp0s3");
        assert_eq!(chosen(&request, &facts), "enp0s3 10.0.2.15", "served before");
        facts.leased.assigned = Some((own.into(), net(words[0]).into()));
        match (select(&request, &facts), words.get(4)) {
            (Ok(_), None) => {}
            (Err(error), Some(net)) if error.has("podcidr-of-host") => {
                assert!(error.text.contains(&format!("overlaps {net} on v4only")), "{error}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}
