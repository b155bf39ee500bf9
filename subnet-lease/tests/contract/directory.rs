//! Cases that apply only to a directory.

use crate::bed::Bed;
use crate::case::cases;
use crate::node::{CONFIG, Follower, acquire, attrs, claim, eventually, hold, key};
use std::net::Ipv4Addr;
use std::sync::Arc;
use subnet_lease::manager::SubnetManager;

cases! {
    unavailable_directory_changes_no_lease: [Files],
    a_link_is_no_lease: [Files],
    temporary_files_of_a_killed_daemon_are_removed: [Files],
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
        eventually("it is told", || {
            manager.counters().why_unavailable().is_some()
        })
        .await;
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
        assert!(
            !root.join("subnets").exists(),
            "written into what stands in its place"
        );
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

async fn a_link_is_no_lease(bed: Bed) {
    let folder = bed.folder().unwrap();
    bed.configure(CONFIG);
    bed.put(
        "10.5.7.0-24",
        r#"{"PublicIP":"192.168.56.107","PublicIPv6":null}"#,
    );
    let manager = bed.manager();
    let (follower, one) = (Follower::of(manager.clone()), claim("one", 101));
    let lease = acquire(&manager, &one).await.unwrap();
    let _holding = hold(&manager, &one).await;
    eventually("the list is in", || follower.len() == 2).await;
    let leases = folder.join("subnets");
    for name in ["10.5.7.0-24".to_owned(), key(&lease)] {
        std::os::unix::fs::symlink("/etc/passwd", leases.join(".link")).unwrap();
        std::fs::rename(leases.join(".link"), leases.join(name)).unwrap();
    }
    eventually("it is told", || {
        manager
            .counters()
            .unreadable_keys()
            .iter()
            .any(|(key, why)| key == "10.5.7.0-24" && why.to_string().contains("symbolic link"))
    })
    .await;
    eventually("our own is put back", || {
        leases
            .join(key(&lease))
            .symlink_metadata()
            .is_ok_and(|meta| meta.is_file())
    })
    .await;
    assert_eq!(follower.len(), 2, "unreadable is never absent");
    std::fs::remove_file(leases.join("10.5.7.0-24")).unwrap();
    bed.put(
        "10.5.7.0-24",
        r#"{"PublicIP":"192.168.56.107","PublicIPv6":null}"#,
    );
    eventually("it can be read again", || {
        manager.counters().unreadable_keys().is_empty()
    })
    .await;
}

/// A daemon removes temporary files of another daemon that was killed during a write.
async fn temporary_files_of_a_killed_daemon_are_removed(bed: Bed) {
    let folder = bed.folder().unwrap();
    bed.configure(CONFIG);
    let manager = bed.manager();
    let lease = acquire(&manager, &claim("one", 101)).await.unwrap();
    let left = folder
        .join("subnets")
        .join(format!(".{}.0123456789abcdef", key(&lease)));
    std::fs::write(&left, "{").unwrap();
    acquire(&manager, &claim("one", 101)).await.unwrap();
    assert!(left.exists(), "cleared once, at the start");
    acquire(&bed.manager(), &claim("one", 101)).await.unwrap();
    assert!(!left.exists());
}
