//! Test cases with two indistinguishable nodes, in which the manager refuses the second node.

use crate::bed::Bed;
use crate::case::cases;
use crate::node::{CONFIG, acquire, claim, config, eventually, hold, key};
use subnet_lease::manager::Error;

cases! {
    one_address_two_nodes_is_refused: [Choice],
    a_clone_is_refused: [Choice],
    address_without_a_host_is_taken_over: [Choice],
}

async fn one_address_two_nodes_is_refused(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 15));
    acquire(&manager, &one).await.unwrap();
    let _holding = hold(&manager, &one).await;
    let other = bed.manager();
    let Err(Error::Refused(text)) = acquire(&other, &claim("two", 15)).await else {
        panic!("must be refused")
    };
    for part in ["192.168.56.15", "one", "id-one", "two", "--iface=enp0s8", "10.0.2.15"] {
        assert!(text.to_string().contains(part), "{part}: {text}");
    }
    assert!(matches!(
        other.stored(&claim("two", 15), &config(&other).await).await,
        Err(Error::Refused(_))
    ));
    assert_eq!(bed.keys().len(), 1);
}

async fn a_clone_is_refused(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    acquire(&manager, &one).await.unwrap();
    let _holding = hold(&manager, &one).await;
    let Err(Error::Refused(text)) = acquire(&bed.manager(), &claim("one", 102)).await else {
        panic!("must be refused")
    };
    assert!(
        text.to_string().contains("machine-id")
            && text.to_string().contains("--node-id")
            && text.to_string().contains("192.168.56.101"),
        "{text}"
    );
}

/// A lease whose holder certainly is not at its address, because others answer on the link and nobody there, is taken over at once. Whoever
/// takes it back is alive at another address, and keeps it.
async fn address_without_a_host_is_taken_over(bed: Bed) {
    bed.configure(CONFIG);
    let (manager, one) = (bed.manager(), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let mut reborn = claim("reborn", 101);
    assert!(acquire(&bed.manager(), &reborn).await.is_err(), "it may be alive");
    reborn.host.alone_at_address = true;
    let second = bed.manager();
    assert_eq!(acquire(&second, &reborn).await.unwrap().subnets, lease.subnets);
    // The first holder runs after all.
    let _holding = hold(&manager, &one).await;
    eventually("the first holder has it back", || {
        bed.get(&key(&lease)).is_some_and(|value| value.contains("id-one"))
    })
    .await;
    let third = acquire(&bed.manager(), &reborn).await.unwrap();
    assert_ne!(third.subnets, lease.subnets);
}
