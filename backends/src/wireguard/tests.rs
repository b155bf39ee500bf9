//! Properties of wireguard's plan, its announcement, and the leases that it accepts.

use super::*;
use crate::tests::fixture::{self, facts, table, underlay};
use netstate::diff::diff;
use netstate::report::survey::Origin;
use netstate::{Op, Secret};
use proptest::prelude::*;
use reconcile::desired::Desired;
use subnet_lease::{NetworkConfig, NodeId};
use types::{Addresses, Dual};

const DUAL: &str = r#""EnableIPv6":true,"Network":"10.244.0.0/16","IPv6Network":"fd10:244::/48""#;

fn backend(families: &str, keys: &str) -> Wireguard {
    let config =
        NetworkConfig::parse(&format!(r#"{{{families},"Backend":{{"Type":"wireguard"{keys}}}}}"#));
    Wireguard::new(&Setup::of(config.unwrap())).unwrap()
}

fn key(n: u8) -> PublicKey {
    Secret::new([n; 32]).public()
}

/// Backend data with the public key of node `n` and these further keys.
fn data(n: u8, more: &str) -> String {
    format!(r#"{{"PublicKey":"{}"{more}}}"#, key(n))
}

/// As Go flannel writes it. In all modes, it writes the port of the IPv6 device into the IPv6 data.
fn lease(n: u8, given: Option<String>) -> Lease {
    let data = move |port: u16| {
        let text = given.clone().unwrap_or_else(|| data(n, &format!(r#","Port":{port}"#)));
        RawJson::parse(&text).ok()
    };
    let attrs = LeaseAttrs {
        backend: KIND.to_owned(),
        data: data(51820),
        v6_data: data(51821),
        ..LeaseAttrs::default()
    };
    fixture::lease(n, n, attrs)
}

fn plan(families: &str, keys: &str) -> WireguardPlan {
    let backend = backend(families, keys);
    let networks = backend.setup.config.networks;
    let own = lease(1, None).subnets;
    let own = Dual::from_options(
        own.v4().copied().filter(|_| networks.v4().is_some()),
        own.v6().copied().filter(|_| networks.v6().is_some()),
    );
    let secrets = Arc::new(Secrets::new(&Secret::new([1; 32]), Some(Secret::new([77; 32]))));
    WireguardPlan {
        scope: backend.setup.scope(own.unwrap(), Config::devices()),
        config: backend.config,
        secrets,
        files: backend.files,
        key_requests: KeyRequests::default(),
    }
}

fn state(plan: &WireguardPlan, leases: Vec<Lease>) -> KernelState {
    Desired::whole(plan, &table(leases), &facts([])).state
}

/// One line per object, without secrets.
fn lines(state: &KernelState) -> Vec<String> {
    let words = netstate::report::text::Words::default();
    state
        .0
        .iter()
        .map(|(key, value)| netstate::kinds::describe_object(key, value, Origin::Set, &words))
        .collect()
}

#[test]
fn a_device_for_each_family() {
    let found = lines(&state(&plan(DUAL, ""), vec![lease(1, None), lease(2, None)]));
    let (own, peer) = (key(1), key(2));
    assert_eq!(
        found,
        [
            format!("flannel-wg mtu 1420 up wireguard port 51820 public key {own}"),
            format!("flannel-wg-v6 mtu 1420 up wireguard port 51821 public key {own}"),
            "10.244.1.0/32 dev flannel-wg".to_owned(),
            "fd10:244:0:1::/128 dev flannel-wg-v6".to_owned(),
            format!("flannel-wg peer {peer} preshared-key (hidden) endpoint 192.168.56.2:51820"),
            format!("flannel-wg-v6 peer {peer} preshared-key (hidden) endpoint [fd00:56::2]:51821"),
            format!("flannel-wg peer {peer} allowed-ips 10.244.2.0/24"),
            format!("flannel-wg-v6 peer {peer} allowed-ips fd10:244:0:2::/64"),
            "10.244.0.0/16 dev flannel-wg proto 241 scope link".to_owned(),
            "blackhole 10.244.0.0/16 proto 241 metric 4294967295".to_owned(),
            "fd10:244::/48 dev flannel-wg-v6 proto 241 metric 1024".to_owned(),
            "blackhole fd10:244::/48 proto 241 metric 4294967295".to_owned(),
        ]
    );
}

#[test]
fn attribute_that_left_the_configuration_returns_to_its_default() {
    let with = |keys: &str, preshared: Option<u8>| {
        let preshared = preshared.map(|byte| Secret::new([byte; 32]));
        let plan = WireguardPlan {
            secrets: Arc::new(Secrets::new(&Secret::new([1; 32]), preshared)),
            ..plan(DUAL, keys)
        };
        state(&plan, vec![lease(2, None)])
    };
    let default = with("", None);
    for (keys, preshared, of_peers, count) in [
        (r#","ListenPort":4500"#, None, false, 1),
        (r#","ListenPortV6":4501"#, None, false, 1),
        (r#","MTU":1400"#, None, false, 2),
        (r#","PersistentKeepaliveInterval":25"#, None, true, 2),
        ("", Some(77), true, 2),
    ] {
        let other = with(keys, preshared);
        for (have, want) in [(&other, &default), (&default, &other)] {
            // All changes are made in place, without loss of packets.
            let ops = diff(want, have);
            let fits = |op: &Op| matches!(op, Op::Replace(key, _) if matches!(key, Key::WireguardPeer(..)) == of_peers);
            assert!(ops.iter().all(fits) && ops.len() == count, "{keys}: {ops:?}");
        }
    }
}

#[test]
fn modes_other_than_separate_have_one_device() {
    const V4: &str = r#""Network":"10.244.0.0/16""#;
    const V6: &str = r#""EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10:244::/48""#;
    // Go flannel publishes a port for IPv6 that has no listener.
    for (families, mode, device, endpoint, subnets) in [
        (DUAL, "auto", "flannel-wg", "192.168.56.2:51820", 2),
        (DUAL, "ipv4", "flannel-wg", "192.168.56.2:51820", 2),
        (DUAL, "ipv6", "flannel-wg", "[fd00:56::2]:51820", 2),
        (V4, "auto", "flannel-wg", "192.168.56.2:51820", 1),
        (V6, "separate", "flannel-wg-v6", "[fd00:56::2]:51821", 1),
    ] {
        let keys = format!(r#","Mode":"{mode}","PersistentKeepaliveInterval":25"#);
        let plan = plan(families, &keys);
        let found = lines(&state(&plan, vec![lease(2, None)]));
        let peer = format!(
            "{device} peer {} preshared-key (hidden) endpoint {endpoint} persistent-keepalive 25",
            key(2)
        );
        let devices = found.iter().filter(|line| line.contains(" wireguard port "));
        let allowed = found.iter().filter(|line| line.contains("allowed-ips"));
        assert!(
            found.contains(&peer) && (devices.count(), allowed.count()) == (1, subnets),
            "{mode}: {found:#?}"
        );
        if subnets == 2 {
            let announced = plan.announced(&facts([]));
            for published in [announced.data, announced.v6_data] {
                assert_eq!(published.unwrap().as_str(), data(1, r#","Port":51820"#), "{mode}");
            }
        }
    }
}

/// For any leases, no two peers have the same allowed IP, and only the holder of a subnet receives
/// its packets.
#[test]
fn hostile_leases_take_nothing_from_others() {
    let plan = plan(DUAL, "");
    let rules = Rules { config: plan.config.clone(), networks: plan.scope.networks };
    let accepts = |lease: &Lease| rules.accepts(lease);
    let zero = PublicKey([0; 32]);
    for (data, why) in [
        ("7", "not a JSON object"),
        ("null", "no backend data"),
        ("{}", "no PublicKey"),
        (r#"{"PublicKey":7}"#, "not a string"),
        (r#"{"PublicKey":"AAAA"}"#, "32 bytes"),
        (&format!(r#"{{"PublicKey":"{zero}"}}"#), "of small order"),
        (&data(2, r#","Port":70000"#), "Port"),
        (&data(2, r#","Port":-1"#), "Port"),
    ] {
        let error = accepts(&lease(2, Some(data.to_owned()))).unwrap_err();
        assert!(error.to_string().contains(why), "{data}: {error}");
    }
    // Without a port, the port is that of our own device. One family can be used alone.
    let (mut v4, mut vxlan) = (lease(2, None), lease(2, None));
    v4.attrs.v6_data = None;
    vxlan.attrs = LeaseAttrs { backend: "vxlan".into(), ..LeaseAttrs::default() };
    for usable in [lease(2, Some(data(2, ""))), v4, vxlan] {
        assert!(accepts(&usable).is_ok(), "{usable:?}");
    }
    // A later lease with the key of another node gets none of its packets, not even in another spelling. Nor does one with our own key.
    let alone = state(&plan, vec![lease(2, None)]);
    for copied in [data(2, "").replace('=', "=\\r\\n"), data(1, "")] {
        let both = vec![lease(2, None), lease(3, Some(copied))];
        assert_eq!(state(&plan, both), alone);
    }
}

#[test]
fn nodes_behind_one_address_are_peers() {
    let plan = plan(DUAL, "");
    // Behind NAT, no interface here has our published address.
    let facts = Facts {
        underlay: Underlay {
            addresses: Addresses::V4([10, 0, 0, 1].into()),
            public: Addresses::V4([203, 0, 113, 9].into()),
            ..underlay()
        },
        ..facts([])
    };
    // An address of an interface here leads to no other node.
    for (address, is_peer) in [([203, 0, 113, 9], true), ([10, 0, 0, 1], false)] {
        let mut behind = lease(2, None);
        behind.attrs.public_ip = Some(address.into());
        let found = lines(&Desired::whole(&plan, &table([behind]), &facts).state);
        let has_endpoint = found.iter().any(|line| line.contains(":51820"));
        assert_eq!(has_endpoint, is_peer, "{found:#?}");
    }
}

#[test]
fn key_identifies_the_owner_of_a_lease() {
    let mut other = lease(2, None);
    other.attrs.node = Some(NodeId::default());
    let both = |attrs: &LeaseAttrs| Family::ALL.map(|family| identity(attrs, family));
    let own = Some(key(2).to_string());
    assert_eq!(both(&other.attrs), [own.clone(), own.clone()]);
    other.attrs.data = None;
    assert_eq!(both(&other.attrs), [None, own], "of whichever family");
}

proptest! {

    /// Even if leases claim the same keys.
    #[test]
    fn a_change_equals_the_whole_computation(
        tables in proptest::collection::vec(proptest::collection::btree_map(2u8..10, (2u8..8, 0i64..4), 0..8), 2..6),
        one_device in any::<bool>(),
    ) {
        let plan = plan(DUAL, if one_device { r#","Mode":"auto""# } else { "" });
        let tables = tables.iter().map(|owners| {
            table(owners.iter().map(|(n, (owner, since))| Lease {
                since: *since,
                ..lease(*n, Some(data(*owner, r#","Port":51820"#)))
            }))
        });
        fixture::assert_changes_equal_the_whole(&plan, tables, &facts([]));
    }
}

/// With a single device, the IPv4 and the IPv6 subnet of a lease need the same WireGuard peer. The
/// plan updates only the objects of changed nodes all the same.
#[test]
fn joining_node_changes_nothing_for_other_peers() {
    for keys in ["", r#","Mode":"auto""#] {
        let plan = plan(DUAL, keys);
        let facts = facts([]);
        let before = table((2..6).map(|n| lease(n, None)));
        let after = table((3..8).map(|n| lease(n, None)));
        let known = Desired::whole(&plan, &before, &facts);
        assert!(known.change(&plan, &before, &after, &facts).is_some(), "{keys}");
    }
}

#[cfg(not(feature = "wireguard-userspace"))]
#[tokio::test]
async fn build_without_userspace_says_so() {
    let mut backend = backend(DUAL, r#","Implementation":"userspace""#);
    let error = backend.announce(&underlay(), None).unwrap_err();
    assert_eq!(error.code, "wireguard-userspace-missing");
}
