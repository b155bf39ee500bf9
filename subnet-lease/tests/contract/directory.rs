//! Cases that apply only to a directory.

use crate::bed::Bed;
use crate::case::cases;
use crate::node::{CONFIG, Follower, acquire, attrs, claim, eventually, hold, key};
use std::net::Ipv4Addr;
use std::sync::Arc;
use subnet_lease::manager::SubnetManager;

cases! {
    unavailable_directory_changes_no_lease: [Files],
}

async fn unavailable_directory_changes_no_lease(bed: Bed) {
    let folder = bed.folder().unwrap();
    let (root, aside) = (folder.join("leases"), folder.join("aside"));
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("config"), CONFIG).unwrap();
    let manager: Arc<dyn SubnetManager> =
        Arc::new(subnet_lease::dir::DirManager::new(root.clone()));
    let one = claim("one", 101);
    let lease = acquire(&manager, &one).await.unwrap();
    let own = root.join("subnets").join(key(&lease));
    let holding = hold(&manager, &one).await;
    let follower = Follower::of(manager.clone());
    eventually("the list is in", || follower.len() == 1).await;
    for round in 0..2 {
        std::fs::rename(&root, &aside).unwrap();
        if round == 1 {
            // A directory as restored from a backup.
            std::fs::create_dir(&root).unwrap();
            std::fs::write(root.join("config"), CONFIG).unwrap();
        }
        eventually("it is told", || manager.counters().why_unavailable().is_some()).await;
        if round == 0 {
            // This change is written once the directory is back.
            let mut changed = attrs(&one);
            changed.public_ip = Some(Ipv4Addr::new(192, 168, 56, 201));
            holding.attrs.send_replace(changed);
            eventually("the holder knows", || {
                holding
                    .held
                    .borrow()
                    .trouble
                    .as_ref()
                    .is_some_and(|why| why.to_string().contains("directory of leases"))
            })
            .await;
        }
        assert_eq!(follower.len(), 1, "what is not seen is not gone");
        assert!(!root.join("subnets").exists(), "written into what stands in its place");
        if round == 1 {
            std::fs::remove_dir_all(&root).unwrap();
        }
        std::fs::rename(&aside, &root).unwrap();
        eventually("it goes on", || {
            manager.counters().why_unavailable().is_none()
                && std::fs::read_to_string(&own).is_ok_and(|text| text.contains("192.168.56.201"))
        })
        .await;
    }
    assert!(!holding.task.is_finished());
    assert_eq!((follower.len(), follower.resets()), (1, 1));
}
