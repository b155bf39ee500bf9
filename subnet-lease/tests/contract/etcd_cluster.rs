//! Test cases with several etcd endpoints, and with several etcd clusters behind them.

use crate::bed::{Bed, PREFIX};
use crate::case::cases;
use crate::etcd_server::EtcdServer;
use crate::node::{CONFIG, Follower, acquire, claim, eventually, hold, key};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::etcd::EtcdManager;
use subnet_lease::manager::SubnetManager;

cases! {
    a_dead_endpoint_is_passed_over: [Etcd],
    a_foreign_cluster_is_no_refuge: [OwnEtcd],
    a_cluster_set_up_anew_is_accepted: [OwnEtcd],
}

async fn a_dead_endpoint_is_passed_over(bed: Bed) {
    bed.configure(CONFIG);
    let mut options = bed.options();
    options.endpoints.insert(0, "http://127.0.0.1:1".to_owned());
    let manager: Arc<dyn SubnetManager> = Arc::new(EtcdManager::new(options));
    acquire(&manager, &claim("one", 101)).await.unwrap();
}

/// If the endpoints belong to two etcd clusters, nodes use only the one that contains their leases. While it is down, no node uses the other cluster
/// or writes to it.
async fn a_foreign_cluster_is_no_refuge(mut bed: Bed) {
    bed.configure(CONFIG);
    let mut foreign = EtcdServer::new(bed.etcd().version);
    foreign.start();
    foreign.ctl(&["put", &format!("{PREFIX}/config"), CONFIG]);
    let revision = |server: &EtcdServer| server.ctl(&["get", "nothing", "-w", "json"]);
    let untouched = revision(&foreign);
    let mut options = bed.options();
    options.endpoints.push(foreign.endpoint());
    let mut nodes = Vec::new();
    for last in [101, 102] {
        let (manager, node): (Arc<dyn SubnetManager>, _) =
            (Arc::new(EtcdManager::new(options.clone())), claim(&format!("n{last}"), last));
        let lease = acquire(&manager, &node).await.unwrap();
        let holding = hold(&manager, &node).await;
        let follower = Follower::of(manager.clone());
        nodes.push((manager, lease, holding, follower));
    }
    eventually("both are seen by both", || nodes.iter().all(|(.., follower)| follower.len() == 2))
        .await;
    bed.own_etcd().kill();
    for (_, _, holding, _) in &nodes {
        let mut changed = holding.attrs.borrow().clone();
        changed.public_ip = Some(Ipv4Addr::new(192, 168, 56, 201));
        holding.attrs.send_replace(changed);
        eventually("why it is not used is told", || {
            holding.held.borrow().trouble.as_ref().is_some_and(|why| {
                why.to_string().contains("another etcd cluster")
                    && why.to_string().contains("--etcd-endpoints")
            })
        })
        .await;
    }
    // Far longer than the first attempts took. This covers the later attempts, which were the ones that counted as votes.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(nodes.iter().all(|(_, _, holding, follower)| follower.len() == 2
        && follower.resets() == 1
        && !holding.task.is_finished()));
    assert_eq!(revision(&foreign), untouched, "something was written into the foreign cluster");
    assert_eq!(foreign.ctl(&["lease", "list"]).trim(), "found 0 leases");
    bed.own_etcd().start();
    for (_, lease, ..) in &nodes {
        eventually("the right one is used again", || {
            bed.get(&key(lease)).is_some_and(|value| value.contains("192.168.56.201"))
        })
        .await;
    }
    assert_eq!(revision(&foreign), untouched);
}

/// Nodes accept a new etcd cluster if an operator replaces etcd behind every endpoint. Then they write their leases to it.
async fn a_cluster_set_up_anew_is_accepted(mut bed: Bed) {
    bed.configure(CONFIG);
    let mut options = bed.options();
    options.endpoints.push(format!("http://localhost:{}", bed.etcd().port));
    let (manager, one): (Arc<dyn SubnetManager>, _) =
        (Arc::new(EtcdManager::new(options)), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let _holding = hold(&manager, &one).await;
    let port = bed.etcd().port;
    let mut anew = EtcdServer::new(bed.etcd().version);
    bed.own_etcd().kill();
    anew.port = port;
    anew.start();
    anew.ctl(&["put", &format!("{PREFIX}/config"), CONFIG]);
    eventually("our key is there", || {
        anew.ctl(&["get", "--prefix", "--keys-only", &format!("{PREFIX}/subnets/")])
            .contains(&key(&lease))
    })
    .await;
}
