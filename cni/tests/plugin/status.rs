//! What the daemon writes, the plugin understands: STATUS and ADD against the daemon's own writer.

use crate::bed::Bed;
use run_dir::status_file::{Status, Writer};
use std::fs;

fn status(reason: Option<&str>) -> Status {
    Status { reasons: reason.map(|reason| ("lease".to_owned(), reason.to_owned())).into_iter().collect(), ..Status::default() }
}

#[test]
fn status_is_the_daemons_own_word() {
    let bed = Bed::new(&["bridge"]);
    bed.call("STATUS").ok();
    let mut writer = Writer::new(&bed.path("subnet.env"));
    writer.put(&status(None)).unwrap();
    bed.call("STATUS").ok();
    writer.put(&status(Some("10.244.7.0/24 is another node's"))).unwrap();
    let answer = bed.call("STATUS");
    assert_eq!((answer.code(), answer.error()["msg"].as_str().unwrap()), (50, "flanneld is not ready: lease: 10.244.7.0/24 is another node's"));
    // Pods start as long as the subnet is known.
    bed.call("ADD").ok();
    writer.put(&status(None)).unwrap();
    drop(writer);
    let answer = bed.call("STATUS");
    assert!(answer.code() == 50 && answer.stdout.contains("flanneld is not running"), "{answer:?}");
    fs::write(bed.path("subnet.env"), "FLANNEL_MTU").unwrap();
    assert_eq!(bed.call("STATUS").code(), 50);
}

#[test]
fn an_add_without_subnet_env_says_what_the_daemon_waits_for() {
    let bed = Bed::new(&["bridge"]);
    fs::remove_file(bed.path("subnet.env")).unwrap();
    let mut writer = Writer::new(&bed.path("subnet.env"));
    writer.put(&status(Some("the API server does not answer"))).unwrap();
    let error = bed.call("ADD").error();
    assert_eq!((error["code"].as_u64(), error["details"].as_str()), (Some(11), Some("flanneld is not ready: lease: the API server does not answer")));
    assert!(bed.calls().is_empty() && bed.data().is_empty());
    // The file may come while it waits.
    let waiting = bed.start_for("ADD", "c0ffee", "eth0", &bed.conf(&serde_json::json!({})));
    std::thread::sleep(std::time::Duration::from_millis(200));
    fs::write(bed.path("half"), crate::bed::SUBNET_ENV).unwrap();
    fs::rename(bed.path("half"), bed.path("subnet.env")).unwrap();
    assert!(waiting.wait_with_output().unwrap().status.success());
}

#[test]
fn a_status_is_whole_while_it_changes() {
    let bed = Bed::new(&[]);
    let mut writer = Writer::new(&bed.path("subnet.env"));
    writer.put(&status(None)).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0u32.. {
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                writer.put(&status((number % 2 == 0).then_some("changing"))).unwrap();
            }
        });
        for _ in 0..200 {
            let answer = bed.call("STATUS");
            assert!(answer.exit == 0 || answer.stdout.contains("lease: changing"), "{answer:?}");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
