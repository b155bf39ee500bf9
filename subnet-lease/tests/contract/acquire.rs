//! Test cases in which a node acquires a lease: a new lease, or the previous lease.

use crate::bed::Bed;
use crate::case::cases;
use crate::node::{
    CONFIG, DUAL, Follower, acquire, attrs, claim, config, eventually, key, subnets,
};
use std::net::Ipv4Addr;
use subnet_lease::Term;
use subnet_lease::manager::{Claim, Error, Held};
use tokio::sync::watch;
use types::Dual;

cases! {
    configuration_is_waited_for: [],
    a_new_node_gets_a_lease_that_go_can_read: [Keys],
    a_restart_keeps_the_lease: [],
    subnet_of_subnet_env_is_preferred: [Choice],
    one_of_several_own_leases_is_kept: [Keys, Etcd],
    no_lease_holds_a_node: [Keys, Choice],
    a_full_pool_is_waited_for: [Keys, Choice],
    a_go_lease_is_adopted_when_the_underlay_was_named: [Keys],
    unknown_fields_survive: [Keys],
    an_unreadable_key_of_ours_is_ours: [Keys, Choice],
    dual_stack_grows_and_shrinks: [Choice],
    v6_only_nodes_get_separate_subnets: [Keys, Choice],
    many_at_once: [Choice],
    restarts_go_on_with_the_same_lease: [Keys, Expiry, Etcd],
}

async fn configuration_is_waited_for(bed: Bed) {
    let manager = bed.node("one").await;
    let Err(Error::Unavailable(text)) = manager.network_config().await else {
        panic!("there is no configuration")
    };
    assert!(
        text.to_string().contains("config")
            && ["Network", "ConfigMap"].iter().any(|part| text.to_string().contains(part)),
        "{text}"
    );
    for bad in ["{", r#"{"Network":"10.5.0.0/33"}"#, "", "null"] {
        bed.configure(if bad.is_empty() { " " } else { bad });
        assert!(matches!(manager.network_config().await, Err(Error::Unavailable(_))), "{bad}");
    }
    bed.configure(CONFIG);
    assert_eq!(config(&manager).await.backend, "vxlan");
}

async fn a_new_node_gets_a_lease_that_go_can_read(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let follower = Follower::of(bed.manager());
    let lease = acquire(&manager, &one).await.unwrap();
    let value = bed.get(&key(&lease)).unwrap();
    let go = r#"{"PublicIP":"192.168.56.101","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:65"},"NodeID":{"id":"id-one","name":"one","#;
    assert!(value.starts_with(go), "{value}");
    assert_eq!(bed.lease_of(&key(&lease)) != 0, lease.term == Term::Leased);
    eventually("the watch tells", || follower.has(&key(&lease))).await;
}

async fn a_restart_keeps_the_lease(bed: Bed) {
    bed.configure(CONFIG);
    let first = acquire(&bed.node("one").await, &claim("one", 101)).await.unwrap();
    let manager = bed.node("one").await;
    let stored =
        manager.stored(&claim("one", 101), &config(&manager).await).await.unwrap().unwrap();
    assert_eq!(stored.data, first.attrs.data);
    let again = acquire(&manager, &claim("one", 101)).await.unwrap();
    assert_eq!((again.subnets, bed.keys().len()), (first.subnets, 1));
}

async fn subnet_of_subnet_env_is_preferred(bed: Bed) {
    bed.configure(CONFIG);
    let mut one = claim("one", 101);
    one.host.previous = Some(subnets("10.5.77.0-24"));
    assert_eq!(key(&acquire(&bed.manager(), &one).await.unwrap()), "10.5.77.0-24");
    let mut two = claim("two", 102);
    two.host.previous = Some(subnets("10.9.77.0-24"));
    assert!(key(&acquire(&bed.manager(), &two).await.unwrap()).starts_with("10.5."));
}

/// Order of preference among several keys with a node's id: the key in subnet.env, one with the node's address, the leased one, the oldest. A copy of
/// the node's id moves nobody, although a copy without a time to live never expires.
async fn one_of_several_own_leases_is_kept(bed: Bed) {
    bed.configure(CONFIG);
    let one = claim("one", 101);
    let reserve = |key: &str, address: &str| {
        bed.put(
            key,
            &format!(r#"{{"PublicIP":"{address}","PublicIPv6":null,"BackendType":"vxlan","NodeID":{{"id":"id-one","name":"one","instance":"one-0"}}}}"#),
        );
    };
    let kept = async |claim: &Claim| key(&acquire(&bed.manager(), claim).await.unwrap());
    let leased = kept(&one).await;
    assert_ne!(bed.lease_of(&leased), 0);
    // A younger key with a former address, and one with the present address.
    reserve("10.5.30.0-24", "192.168.56.150");
    reserve("10.5.31.0-24", "192.168.56.101");
    assert_eq!(kept(&one).await, leased);
    bed.delete(&leased);
    bed.delete("10.5.31.0-24");
    assert_eq!(kept(&one).await, "10.5.30.0-24");
    bed.delete("10.5.30.0-24");
    reserve("10.5.20.0-24", "192.168.56.150");
    reserve("10.5.9.0-24", "192.168.56.101");
    assert_eq!(kept(&one).await, "10.5.9.0-24");
    let mut restarted = claim("one", 101);
    restarted.host.previous = Some(subnets("10.5.20.0-24"));
    assert_eq!(kept(&restarted).await, "10.5.20.0-24");
    // All keys now publish the node's address.
    reserve("10.5.8.0-24", "192.168.56.101");
    assert_eq!(kept(&one).await, "10.5.20.0-24");
}

/// If the network contains the nodes' addresses, a new lease contains none of them and does not overlap the nodes' network. A node also rejects a
/// preferred subnet that contains another node's address.
async fn no_lease_holds_a_node(bed: Bed) {
    bed.configure(
        r#"{"Network":"192.168.0.0/16","SubnetMin":"192.168.55.0","SubnetMax":"192.168.58.0"}"#,
    );
    let value = |public: &str| format!(r#"{{"PublicIP":"{public}","PublicIPv6":null}}"#);
    bed.put("192.168.99.0-24", &value("192.168.55.9"));
    let manager = bed.manager();
    let mut first = claim("n1", 1);
    first.host.underlay = vec!["192.168.57.0/24".parse().unwrap()];
    first.host.previous = Some(Dual::V4("192.168.55.0/24".parse().unwrap()));
    // 56 contains this node, 55 another one, and 57 is the underlay's network.
    assert_eq!(key(&acquire(&manager, &first).await.unwrap()), "192.168.58.0-24");
}

async fn a_full_pool_is_waited_for(bed: Bed) {
    bed.configure(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.2.0"}"#);
    acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    let second = acquire(&bed.manager(), &claim("two", 102)).await.unwrap();
    let manager = bed.manager();
    let config = config(&manager).await;
    let (state, held) = watch::channel(Held::default());
    let waiting = tokio::spawn(async move {
        let three = claim("three", 103);
        manager.acquire(&three, &config, &attrs(&three), &state).await
    });
    eventually("the reason is told", || {
        held.borrow()
            .trouble
            .as_ref()
            .is_some_and(|text| text.to_string().contains("out of subnets"))
    })
    .await;
    bed.delete(&key(&second));
    let third = wait::complete("the node has a lease", waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(third.subnets, second.subnets);
}

async fn a_go_lease_is_adopted_when_the_underlay_was_named(bed: Bed) {
    bed.configure(CONFIG);
    bed.put(
        "10.5.9.0-24",
        r#"{"PublicIP":"192.168.56.101","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:ff"}}"#,
    );
    let Err(Error::Refused(text)) = acquire(&bed.manager(), &claim("one", 101)).await else {
        panic!("nothing says that it is ours")
    };
    assert!(text.to_string().contains("Go flannel"), "{text}");
    let mut named = claim("one", 101);
    named.host.named = true;
    let manager = bed.manager();
    let stored = manager.stored(&named, &config(&manager).await).await.unwrap().unwrap();
    assert!(stored.data.unwrap().as_str().contains("aa:bb:cc:dd:ee:ff"));
    assert_eq!(key(&acquire(&manager, &named).await.unwrap()), "10.5.9.0-24");
}

async fn unknown_fields_survive(bed: Bed) {
    bed.configure(CONFIG);
    bed.put(
        "10.5.9.0-24",
        r#"{"PublicIP":"192.168.56.101","PublicIPv6":null,"Future":{"a":[1e999]},"Rack":"7 & 8"}"#,
    );
    let mut named = claim("one", 101);
    named.host.named = true;
    let lease = acquire(&bed.manager(), &named).await.unwrap();
    let value = bed.get(&key(&lease)).unwrap();
    assert!(value.contains(r#""Future":{"a":[1e999]},"Rack":"7 \u0026 8","NodeID""#), "{value}");
}

async fn an_unreadable_key_of_ours_is_ours(bed: Bed) {
    bed.configure(CONFIG);
    bed.put("10.5.9.0-24", "{broken");
    let mut one = claim("one", 101);
    one.host.previous = Some(subnets("10.5.9.0-24"));
    assert_eq!(key(&acquire(&bed.manager(), &one).await.unwrap()), "10.5.9.0-24");
}

async fn dual_stack_grows_and_shrinks(bed: Bed) {
    bed.configure(CONFIG);
    let first = acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    bed.configure(DUAL);
    let mut dual = claim("one", 101);
    dual.public = Dual::Both(Ipv4Addr::new(192, 168, 56, 101), "fd00:56::101".parse().unwrap());
    let grown = acquire(&bed.manager(), &dual).await.unwrap();
    assert_eq!((grown.subnets.v4(), grown.subnets.v6().is_some()), (first.subnets.v4(), true));
    assert_eq!(bed.keys(), [key(&grown)]);
    bed.configure(CONFIG);
    let shrunk = acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    assert_eq!(shrunk.subnets, first.subnets);
    assert_eq!(bed.keys(), [key(&first)]);
}

async fn v6_only_nodes_get_separate_subnets(bed: Bed) {
    bed.configure(r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48"}"#);
    let node = |name: &str, last: u16| Claim {
        public: Dual::V6(std::net::Ipv6Addr::new(0xfd00, 0x56, 0, 0, 0, 0, 0, last)),
        ..claim(name, 0)
    };
    let one = acquire(&bed.manager(), &node("one", 1)).await.unwrap();
    let two = acquire(&bed.manager(), &node("two", 2)).await.unwrap();
    assert_ne!(one.subnets, two.subnets);
    assert!(key(&one).starts_with("0.0.0.0-0&fd00:5:"), "{}", key(&one));
    assert!(
        bed.get(&key(&one))
            .unwrap()
            .starts_with(r#"{"PublicIP":"0.0.0.0","PublicIPv6":"fd00:56::1","#)
    );
    assert_eq!(acquire(&bed.manager(), &node("one", 1)).await.unwrap().subnets, one.subnets);
}

async fn many_at_once(bed: Bed) {
    bed.configure(r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.24.0"}"#);
    let tasks: Vec<_> = (1..=24u8)
        .map(|last| {
            let manager = bed.manager();
            tokio::spawn(async move {
                acquire(&manager, &claim(&format!("n{last}"), last)).await.unwrap().subnets
            })
        })
        .collect();
    let mut seen = Vec::new();
    for task in tasks {
        seen.push(task.await.unwrap());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 24);
    assert_eq!(bed.keys().len(), 24);
}

async fn restarts_go_on_with_the_same_lease(bed: Bed) {
    bed.configure(CONFIG);
    let lease = acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    let hangs_on = bed.lease_of(&key(&lease));
    for _ in 0..5 {
        acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
        assert_eq!(bed.lease_of(&key(&lease)), hangs_on);
    }
    // A lease granted manually with a short time to live would expire between two renewals.
    let text = bed.etcd().ctl(&["lease", "grant", "300"]);
    let short = text.split_whitespace().nth(1).unwrap().to_owned();
    let path = bed.path(&format!("subnets/{}", key(&lease)));
    let value = bed.get(&key(&lease)).unwrap();
    bed.etcd().ctl(&["put", &format!("--lease={short}"), &path, &value]);
    acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    assert_ne!(format!("{:x}", bed.lease_of(&key(&lease))), short);
    assert_ne!(bed.lease_of(&key(&lease)), hangs_on);
}
