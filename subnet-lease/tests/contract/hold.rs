//! Test cases in which a node holds a lease while its key changes.

use crate::bed::Bed;
use crate::case::cases;
use crate::node::{CONFIG, acquire, claim, eventually, hold, key};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use subnet_lease::Term;
use subnet_lease::manager::{Error, LeaseLostError};

cases! {
    a_connection_made_anew_goes_on: [],
    holder_is_seen_by_its_keepalive: [Keys],
    a_deleted_key_comes_back: [Keys],
    a_taken_key_is_lost: [Keys],
    reservations_stay: [Keys, Expiry],
    a_revoked_lease_comes_back: [Keys, Expiry, Etcd],
}

/// After a reconnection, the streams of the former connection continue on the new one.
async fn a_connection_made_anew_goes_on(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.node("one").await, claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    for last in [202, 203] {
        let _ = manager.renew();
        holding
            .attrs
            .send_modify(|attrs| attrs.public_ip = Some(Ipv4Addr::new(192, 168, 56, last)));
        let address = Ipv4Addr::new(192, 168, 56, last);
        eventually("the new address is stored", || {
            bed.get(&key(&lease)).is_some_and(|value| value.contains(&address.to_string()))
        })
        .await;
        eventually("it is told", || {
            let held = holding.held.borrow();
            held.lease.as_ref().and_then(|lease| lease.attrs.public_ip) == Some(address)
        })
        .await;
    }
    assert!(!holding.task.is_finished());
}

/// A query about a peer's liveness reads only its lease.
async fn holder_is_seen_by_its_keepalive(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.node("one").await, claim("one", 101));
    let begun = Instant::now();
    let lease = acquire(&manager, &one).await.unwrap();
    let heard = bed.node("two").await.last_heard(&lease.subnets).await;
    // Stores count whole seconds.
    let most = begun.elapsed() + Duration::from_secs(2);
    assert!(heard.is_some_and(|heard| heard.ago < most), "{heard:?}");
    let other = types::Subnets::V4("10.250.250.0/24".parse().unwrap());
    assert_eq!(manager.last_heard(&other).await, None);
    assert!(bed.get(&key(&lease)).is_some(), "nothing was written");
}

async fn a_deleted_key_comes_back(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let holding = hold(&manager, &one).await;
    for _ in 0..3 {
        // Delete the key only once the holder watches it, because the holder first proves its key.
        eventually("it is held", || holding.held.borrow().lease.is_some()).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        bed.delete(&key(&lease));
        eventually("the key is back", || bed.get(&key(&lease)).is_some()).await;
    }
    assert!(!holding.task.is_finished());
}

async fn a_taken_key_is_lost(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let mut holding = hold(&manager, &one).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    bed.put(&key(&lease), r#"{"PublicIP":"192.168.56.222","PublicIPv6":null}"#);
    let lost = wait::complete("the lease is lost", &mut holding.task).await.unwrap().unwrap();
    assert!(
        matches!(&lost, LeaseLostError::Taken(text) if text.to_string().contains("192.168.56.222")),
        "{lost}"
    );
    assert!(
        bed.get(&key(&lease)).unwrap().contains("192.168.56.222"),
        "the other's key is left alone"
    );
}

async fn reservations_stay(bed: Bed) {
    bed.configure(CONFIG);
    bed.put("10.5.9.0-24", r#"{"PublicIP":"192.168.56.101","PublicIPv6":null}"#);
    let mut named = claim("one", 101);
    named.host.named = true;
    for _ in 0..2 {
        let manager = bed.manager();
        let lease = acquire(&manager, &named).await.unwrap();
        assert_eq!((key(&lease).as_str(), lease.term), ("10.5.9.0-24", Term::Reserved));
        assert_eq!(bed.lease_of("10.5.9.0-24"), 0);
        assert!(bed.get("10.5.9.0-24").unwrap().contains(r#""lease":"#));
    }
    // The holder is alive, so another node with the address is refused.
    let manager = bed.manager();
    acquire(&manager, &named).await.unwrap();
    let _holding = hold(&manager, &named).await;
    let mut other = claim("two", 101);
    other.host.named = true;
    assert!(matches!(acquire(&bed.manager(), &other).await, Err(Error::Refused(_))));
}

async fn a_revoked_lease_comes_back(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let _holding = hold(&manager, &one).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let revoked = bed.lease_of(&key(&lease));
    bed.etcd().ctl(&["lease", "revoke", &format!("{revoked:x}")]);
    eventually("the key is back under another lease", || {
        bed.get(&key(&lease)).is_some() && bed.lease_of(&key(&lease)) != revoked
    })
    .await;
}
