//! Test cases in which a node watches the leases of all nodes.

use crate::bed::Bed;
use crate::case::cases;
use crate::node::{CONFIG, Follower, acquire, claim, config, eventually, hold, key};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::LeaseEvent;
use subnet_lease::manager::{Claim, HostEvidence, SubnetManager};

cases! {
    the_watch_sees_leases_come_change_and_go: [],
    hostile_keys_change_nothing: [Keys],
    keys_that_are_no_text_are_counted: [Keys],
    the_watch_survives_compaction_and_restarts: [Keys, OwnEtcd],
    the_watch_notices_a_restored_store: [Keys, OwnEtcd],
    the_watch_notices_a_restored_store_that_is_ahead: [Keys, OwnEtcd],
    pages_shrink_to_fit_large_values: [Keys, Etcd],
}

async fn the_watch_sees_leases_come_change_and_go(bed: Bed) {
    bed.configure(CONFIG);
    let observer = bed.node("observer").await;
    config(&observer).await;
    let follower = Follower::of(observer);
    let (manager, one) = (bed.node("one").await, claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    eventually("it comes", || follower.public_ip(&key(&lease)) == Some([192, 168, 56, 101].into()))
        .await;
    let moved = claim("one", 102);
    let again = acquire(
        &manager,
        &Claim {
            host: HostEvidence { previous: Some(lease.subnets), ..moved.host.clone() },
            ..moved
        },
    )
    .await
    .unwrap();
    assert_eq!(again.subnets, lease.subnets);
    eventually("it changes", || {
        follower.public_ip(&key(&lease)) == Some([192, 168, 56, 102].into())
    })
    .await;
    bed.delete(&key(&lease));
    eventually("it goes", || !follower.has(&key(&lease))).await;
    assert_eq!(follower.resets(), 1, "a list at the start, then changes alone");
}

async fn hostile_keys_change_nothing(bed: Bed) {
    bed.configure(CONFIG);
    let lease = acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    let follower = Follower::of(bed.manager());
    eventually("the list is in", || follower.len() == 1).await;
    let good = bed.get(&key(&lease)).unwrap();
    for bad in ["{", "null null", "[]", r#"{"PublicIP":7}"#, r#"{"PublicIP":null}"#, "\u{0}"] {
        bed.put(&key(&lease), bad);
    }
    for (at, name) in ["nonsense", "10.5.3.0", "10.5.3.1-24", "10.5.3.0-24.bak", "10.5.3.0-024"]
        .iter()
        .enumerate()
    {
        bed.put(name, if at % 2 == 0 { "{" } else { &good });
    }
    if let Some(folder) = bed.folder() {
        // Opening a pipe for reading blocks until there is a writer.
        let pipe = folder.join("subnets/10.5.201.0-24");
        assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
    }
    bed.put("10.5.200.0-24", r#"{"PublicIP":"192.168.56.200","PublicIPv6":null}"#);
    eventually("the watch goes on", || follower.has("10.5.200.0-24")).await;
    assert!(follower.has(&key(&lease)), "an unreadable value is no removal");
    assert_eq!(follower.len(), 2);
    // A manager that starts now knows that the key exists, but not its value.
    let newcomer = bed.manager();
    let Some(LeaseEvent::Reset { leases, unreadable }) = newcomer.watch().next().await else {
        panic!("begins with a list")
    };
    // The pipe is also an existing key.
    assert_eq!((leases.len(), unreadable.len()), (1, if bed.folder().is_some() { 2 } else { 1 }));
}

/// A key with bytes that are not UTF-8 is not a lease. Until it is gone, the watch and the first list of a new manager report it as unreadable.
async fn keys_that_are_no_text_are_counted(bed: Bed) {
    bed.configure(CONFIG);
    let value = r#"{"PublicIP":"192.168.56.200","PublicIPv6":null}"#;
    bed.put("10.5.200.0-24", value);
    let manager = bed.manager();
    let follower = Follower::of(manager.clone());
    eventually("the list is in", || follower.len() == 1).await;
    let known = |manager: &Arc<dyn SubnetManager>| {
        manager.counters().unreadable_keys().into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    let odd = b"10.5.3.0-24\xff";
    bed.put_bytes(odd, true);
    eventually("the watch tells of it", || known(&manager) == ["10.5.3.0-24\\xff"]).await;
    // A manager that starts now finds the key in the list. It does no harm that this is the newest key.
    let late = bed.manager();
    let later = Follower::of(late.clone());
    eventually("the list tells of it", || known(&late) == ["10.5.3.0-24\\xff"]).await;
    bed.put_bytes(odd, false);
    eventually("it is gone", || known(&manager).is_empty() && known(&late).is_empty()).await;
    bed.put("10.5.201.0-24", value);
    eventually("the watches go on", || follower.len() == 2 && later.len() == 2).await;
    assert_eq!((follower.resets(), later.resets()), (1, 1));
}

async fn the_watch_survives_compaction_and_restarts(mut bed: Bed) {
    bed.configure(CONFIG);
    bed.put("10.5.1.0-24", r#"{"PublicIP":"192.168.56.1","PublicIPv6":null}"#);
    let follower = Follower::of(bed.manager());
    eventually("the list is in", || follower.len() == 1).await;
    // After a mere restart, the watch resumes without a new list.
    bed.own_etcd().kill();
    bed.own_etcd().start();
    bed.put("10.5.2.0-24", r#"{"PublicIP":"192.168.56.2","PublicIPv6":null}"#);
    eventually("it goes on", || follower.len() == 2).await;
    assert_eq!(follower.resets(), 1);
    // Compaction during the interruption.
    let frozen = bed.own_etcd();
    frozen.kill();
    frozen.start();
    let json: serde_json::Value =
        serde_json::from_str(&frozen.ctl(&["get", "x", "-w", "json"])).unwrap();
    let revision = json["header"]["revision"].as_i64().unwrap();
    frozen.ctl(&["compact", &revision.to_string()]);
    bed.put("10.5.3.0-24", r#"{"PublicIP":"192.168.56.3","PublicIPv6":null}"#);
    bed.delete("10.5.1.0-24");
    eventually("it is correct", || {
        follower.has("10.5.3.0-24") && !follower.has("10.5.1.0-24") && follower.len() == 2
    })
    .await;
}

async fn the_watch_notices_a_restored_store(mut bed: Bed) {
    bed.configure(CONFIG);
    bed.put("10.5.1.0-24", r#"{"PublicIP":"192.168.56.1","PublicIPv6":null}"#);
    let snapshot = bed.etcd().snapshot();
    bed.put("10.5.2.0-24", r#"{"PublicIP":"192.168.56.2","PublicIPv6":null}"#);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    let follower = Follower::of(bed.manager());
    eventually("the list is in", || follower.len() == 3).await;
    bed.own_etcd().restore(&snapshot);
    // As many writes as were lost, so that only their content distinguishes the histories.
    for last in [7, 8] {
        bed.put(
            &format!("10.5.{last}.0-24"),
            &format!(r#"{{"PublicIP":"192.168.56.{last}","PublicIPv6":null}}"#),
        );
    }
    eventually("our own key is put back", || bed.get(&key(&lease)).is_some()).await;
    eventually("the world is the restored one", || {
        follower.has("10.5.7.0-24")
            && follower.has("10.5.1.0-24")
            && !follower.has("10.5.2.0-24")
            && follower.has(&key(&lease))
    })
    .await;
    assert!(!holding.task.is_finished());
}

/// After a restore of the store, the newest key gets a higher revision before the watch reconnects. So its current value does not prove that the
/// store kept its history.
async fn the_watch_notices_a_restored_store_that_is_ahead(mut bed: Bed) {
    let value = |last: u8| format!(r#"{{"PublicIP":"192.168.56.{last}","PublicIPv6":null}}"#);
    bed.configure(CONFIG);
    bed.put("10.5.1.0-24", &value(1));
    let snapshot = bed.etcd().snapshot();
    for last in [2, 3] {
        bed.put(&format!("10.5.{last}.0-24"), &value(last));
    }
    let follower = Follower::of(bed.manager());
    eventually("the list is in", || follower.len() == 3).await;
    // During this outage, the backoff of the watch becomes longer than the writes take.
    bed.own_etcd().kill();
    tokio::time::sleep(Duration::from_secs(3)).await;
    bed.own_etcd().restore(&snapshot);
    for last in [7, 8, 3] {
        bed.put(&format!("10.5.{last}.0-24"), &value(last));
    }
    eventually("the world is the restored one", || {
        follower.has("10.5.7.0-24") && follower.has("10.5.3.0-24") && !follower.has("10.5.2.0-24")
    })
    .await;
}

async fn pages_shrink_to_fit_large_values(bed: Bed) {
    bed.configure(CONFIG);
    let big = "x".repeat(1_000_000);
    for last in 1..=12 {
        bed.put(&format!("10.5.{last}.0-24"), &big);
    }
    bed.put("10.5.100.0-24", r#"{"PublicIP":"192.168.56.100","PublicIPv6":null}"#);
    let follower = Follower::of(bed.manager());
    eventually("the one readable lease is seen", || follower.len() == 1).await;
    let manager = bed.manager();
    let listing = manager.list().await.unwrap();
    let requests = manager.counters().calls();
    let requests = requests.iter().find(|(kind, _)| *kind == "range");
    assert!(
        requests.is_some_and(|(_, count)| *count >= 10),
        "several values do not come in one reply: {requests:?}"
    );
    let values = listing.entries.iter().map(|entry| entry.value.len());
    assert_eq!(values.max(), Some((64 << 10) + 1), "no more than shows that it is too long");
    let lease = acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    eventually("the watch goes on", || follower.has(&key(&lease))).await;
}
