//! Cases that apply only to the Nodes of Kubernetes: other writers, and podCIDRs that appear, disappear and overlap.

use crate::bed::Bed;
use crate::case::cases;
use crate::cluster::PREFIX;
use crate::node::{
    CONFIG, Follower, acquire, attrs, claim, config, eventually, hold, key, subnets,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::manager::{Held, LeaseLostError, SubnetManager};
use tokio::sync::watch;

cases! {
    an_outage_of_the_api_is_survived: [Nodes],
    a_node_without_pod_cidr_is_waited_for: [Nodes],
    older_of_two_nodes_gets_the_shared_pod_cidr: [Nodes],
    a_node_that_is_gone_is_held_until_another_has_its_subnet: [Nodes],
    foreign_annotations_stay_and_ours_are_restored: [Nodes],
    nodes_that_cannot_be_read_touch_nobody: [Nodes],
    configuration_is_read_again_once_the_lease_has_ended: [Nodes],
    nodes_are_listed_as_the_present_backend_needs_it: [Nodes],
}

fn public_ip(node: &Value) -> Option<&str> {
    node["metadata"]["annotations"][format!("{PREFIX}/public-ip")].as_str()
}

/// The daemon of a peer writes them to its Node.
const PEER: [(&str, &str); 4] = [
    ("kube-subnet-manager", "true"),
    ("backend-type", "vxlan"),
    ("public-ip", "192.168.56.77"),
    ("backend-data", r#"{"VNI":1,"VtepMAC":"0a:00:00:00:00:77"}"#),
];

/// A change of this node or another one during an outage of the API server takes effect afterwards. During the outage, no node treats a lease as
/// deleted.
async fn an_outage_of_the_api_is_survived(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.node("one").await, claim("one", 101));
    acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    let follower = Follower::of(manager.clone());
    bed.cluster().create("peer", &json!(["10.5.77.0/24"]), &PEER);
    let peer = bed.here("10.5.77.0-24");
    eventually("the peer is seen", || follower.has(&peer)).await;
    let resets = follower.resets();
    bed.cluster().reachable(false);
    eventually("the outage is told", || follower.interruptions() > 0).await;
    holding.attrs.send_modify(|attrs| attrs.public_ip = Some([192, 168, 56, 201].into()));
    eventually("it is told that the others do not know", || {
        holding.held.borrow().unpublished.is_some()
    })
    .await;
    bed.cluster().create("late", &json!(["10.5.78.0/24"]), &PEER);
    assert!(follower.has(&peer), "nobody is gone");
    bed.cluster().reachable(true);
    eventually("what changed is published", || {
        public_ip(&bed.cluster().node("one")) == Some("192.168.56.201")
    })
    .await;
    eventually("what came is seen", || {
        follower.has(&bed.here("10.5.78.0-24")) && follower.has(&peer)
    })
    .await;
    // The watch resumes where it stopped. It lists again only if the newest Node, which belongs to another case, is gone, because the server may
    // then be a restored one.
    assert!(follower.resets() <= resets + 1, "{} resets", follower.resets() - resets);
    assert!(!holding.task.is_finished());
}

async fn a_node_without_pod_cidr_is_waited_for(bed: Bed) {
    bed.configure(CONFIG);
    // No Node of another case may have a similar name: the message would name it.
    let (manager, one) = (bed.cluster().manager("alone").await, claim("alone", 101));
    let manager: Arc<dyn SubnetManager> = Arc::new(manager);
    let (state, held) = watch::channel(Held::default());
    let config = config(&manager).await;
    let waiting =
        tokio::spawn(async move { manager.acquire(&one, &config, &attrs(&one), &state).await });
    let has_trouble = |part: &'static str| {
        let held = held.clone();
        move || held.borrow().trouble.as_ref().is_some_and(|why| why.to_string().contains(part))
    };
    eventually("there is no Node", has_trouble("does not exist: waiting for its kubelet")).await;
    bed.cluster().create("alone", &json!([]), &[]);
    eventually("there is no podCIDR", has_trouble("pod cidr not assigned")).await;
    assert_eq!(public_ip(&bed.cluster().node("alone")), None, "nothing is published before");
    bed.cluster().patch("alone", &json!({ "spec": { "podCIDR": bed.here("10.5.9.0/24"), "podCIDRs": [bed.here("10.5.9.0/24")] } }));
    let lease = wait::complete("the node has a lease", waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(lease.subnets, subnets(&bed.here("10.5.9.0-24")));
}

async fn older_of_two_nodes_gets_the_shared_pod_cidr(bed: Bed) {
    bed.configure(CONFIG);
    // Within one second, the first Node by name is older. With these names, the order is the same in any case.
    bed.cluster().create("a", &json!(["10.5.1.0/24"]), &PEER);
    bed.cluster().create("b", &json!(["10.5.0.0/23"]), &[]);
    bed.cluster().create("c", &json!(["10.5.0.0/24"]), &[]);
    let managers = [bed.cluster().manager("b").await, bed.cluster().manager("c").await];
    let [second, third] = managers.map(|manager| Arc::new(manager) as Arc<dyn SubnetManager>);
    // It overlaps only the second Node, which has no subnet.
    acquire(&third, &claim("c", 103)).await.unwrap();
    let (state, held) = watch::channel(Held::default());
    let config = config(&second).await;
    let waiting = tokio::spawn(async move {
        second.acquire(&claim("b", 102), &config, &attrs(&claim("b", 102)), &state).await
    });
    eventually("the younger is told whose it is", || {
        held.borrow().trouble.as_ref().is_some_and(|why| why.to_string().contains("older Node a."))
    })
    .await;
    let follower = Follower::of(third);
    eventually("the older is a peer", || follower.has(&bed.here("10.5.1.0-24"))).await;
    for name in ["a", "c"] {
        bed.cluster().delete_node(name);
    }
    wait::complete("the node has a lease", waiting).await.unwrap().unwrap().unwrap();
}

async fn a_node_that_is_gone_is_held_until_another_has_its_subnet(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.node("one").await, claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let mut holding = hold(&manager, &one).await;
    bed.cluster().delete_node("one");
    eventually("it is told", || {
        holding
            .held
            .borrow()
            .trouble
            .as_ref()
            .is_some_and(|why| why.to_string().contains("was deleted"))
    })
    .await;
    // The Node is registered again with the same podCIDR.
    let cidr = lease.subnets.to_string();
    bed.cluster().create("one", &json!([cidr]), &[]);
    eventually("it says again what it has to", || {
        public_ip(&bed.cluster().node("one")) == Some("192.168.56.101")
    })
    .await;
    bed.cluster().delete_node("one");
    bed.cluster().create("heir", &json!([cidr]), &PEER);
    let lost = wait::complete("the lease is lost", &mut holding.task).await.unwrap().unwrap();
    assert!(
        matches!(&lost, LeaseLostError::Moved(why) if why.to_string().contains("heir")),
        "{lost}"
    );
}

/// Two clients write different annotations of one Node, which keeps those of both.
async fn foreign_annotations_stay_and_ours_are_restored(bed: Bed) {
    const PATCHES: usize = 300;
    bed.configure(CONFIG);
    let (manager, one) = (bed.node("one").await, claim("one", 101));
    bed.cluster().annotate("one", "example.org/first", Some("1"));
    acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    let address = |number: usize| [192, 168, 57, u8::try_from(number % 250).unwrap() + 1].into();
    for number in 0..PATCHES {
        holding.attrs.send_modify(|attrs| attrs.public_ip = Some(address(number)));
        let patched = bed.cluster().patch("one", &json!({ "metadata": { "annotations": { "example.org/counter": number.to_string() } } }));
        let annotations = &patched["metadata"]["annotations"];
        assert_eq!(
            (
                annotations["example.org/counter"].as_str(),
                annotations["example.org/first"].as_str()
            ),
            (Some(&*number.to_string()), Some("1"))
        );
    }
    let last = address(PATCHES - 1).to_string();
    eventually("the last address is there", || {
        public_ip(&bed.cluster().node("one")) == Some(&last)
    })
    .await;
    // Another writer changes our annotation, which is restored at once.
    bed.cluster().annotate("one", &format!("{PREFIX}/public-ip"), Some("192.0.2.1"));
    eventually("ours is back", || public_ip(&bed.cluster().node("one")) == Some(&last)).await;
    let node = bed.cluster().node("one");
    let annotations = &node["metadata"]["annotations"];
    assert_eq!(
        (&annotations["example.org/counter"], &annotations["example.org/first"]),
        (&json!((PATCHES - 1).to_string()), &json!("1"))
    );
}

async fn nodes_that_cannot_be_read_touch_nobody(bed: Bed) {
    bed.configure(CONFIG);
    let manager = bed.node("one").await;
    config(&manager).await;
    let follower = Follower::of(manager.clone());
    bed.cluster().create("peer", &json!(["10.5.77.0/24"]), &PEER);
    eventually("the peer is seen", || follower.has(&bed.here("10.5.77.0-24"))).await;
    bed.cluster().annotate("peer", &format!("{PREFIX}/public-ip"), Some("hostname"));
    for (number, (name, value)) in
        [("public-ip", "fd00::1"), ("backend-data", "{"), ("public-ipv6", "\u{1b}[2J")]
            .into_iter()
            .enumerate()
    {
        let cidr = format!("10.5.{}.0/24", 80 + number);
        bed.cluster().create(
            &format!("odd{number}"),
            &json!([cidr]),
            &[("kube-subnet-manager", "true"), (name, value)],
        );
    }
    bed.cluster().create("outside", &json!(["10.0.0.0/8"]), &PEER);
    bed.cluster().create("good", &json!(["10.5.78.0/24"]), &PEER);
    eventually("the watch goes on", || follower.has(&bed.here("10.5.78.0-24"))).await;
    assert!(follower.has(&bed.here("10.5.77.0-24")), "an unreadable value is no removal");
    assert_eq!(follower.len(), 2);
    let unreadable = || {
        manager
            .counters()
            .unreadable_keys()
            .iter()
            .filter(|(name, _)| name.ends_with("touch-nobody"))
            .count()
    };
    eventually("each is told", || unreadable() == 5).await;
    bed.cluster().annotate("peer", &format!("{PREFIX}/public-ip"), Some("192.168.56.77"));
    eventually("it is good again", || unreadable() == 4).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(follower.len(), 2);
}

/// Its Network contains none of the first podCIDRs of a case.
const ELSEWHERE: &str = r#"{"Network":"10.5.128.0/17","Backend":{"Type":"vxlan"}}"#;

async fn configuration_is_read_again_once_the_lease_has_ended(bed: Bed) {
    bed.configure(r#"{"Network":"10.5.0.0/17","Backend":{"Type":"vxlan"}}"#);
    let (manager, one) = (bed.node("one").await, claim("one", 101));
    let before = acquire(&manager, &one).await.unwrap().subnets;
    let mut holding = hold(&manager, &one).await;
    // The cluster's range changes, and the Node is registered again.
    bed.configure(ELSEWHERE);
    bed.cluster().create("peer", &json!(["10.5.177.0/24"]), &PEER);
    bed.cluster().delete_node("one");
    bed.cluster().create("one", &json!(["10.5.199.0/24"]), &[]);
    let lost = wait::complete("the lease is lost", &mut holding.task).await.unwrap().unwrap();
    let moved =
        format!("this node's podCIDR changed from {before} to {}", bed.here("10.5.199.0/24"));
    assert!(matches!(&lost, LeaseLostError::Moved(why) if why.to_string() == moved), "{lost}");
    assert_eq!(key(&acquire(&manager, &one).await.unwrap()), bed.here("10.5.199.0-24"));
    let follower = Follower::of(manager.clone());
    eventually("the peer of the new range is seen", || follower.has(&bed.here("10.5.177.0-24")))
        .await;
}

async fn nodes_are_listed_as_the_present_backend_needs_it(bed: Bed) {
    const ALLOC: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"alloc"}}"#;
    let (manager, one) = (bed.node("one").await, claim("one", 101));
    bed.cluster().create("peer", &json!(["10.5.77.0/24"]), &PEER);
    for (text, peers) in [(ALLOC, 0), (CONFIG, 1), (ALLOC, 0), (CONFIG, 1)] {
        bed.configure(text);
        acquire(&manager, &one).await.unwrap();
        let follower = Follower::of(manager.clone());
        eventually("the list is complete", || follower.resets() > 0).await;
        assert_eq!(follower.len(), peers, "{text}");
    }
}
