//! STATUS and ADD with status files that the daemon's own code writes.

use crate::bed::Bed;
use run_dir::status_file::{Pods, Reason, Status, Writer};
use std::fs;
use types::Problem;

fn because(condition: &str, text: &str) -> Reason {
    Reason::new(condition, Problem::in_words(text))
}

fn status(reason: Option<&str>) -> Status {
    Status {
        reasons: reason.map(|reason| because("lease", reason)).into_iter().collect(),
        ..Status::default()
    }
}

#[test]
fn status_fails_for_what_a_pod_needs_only() {
    let bed = Bed::new(&["bridge"]);
    bed.call("STATUS").ok();
    let pods = |reasons: &[(&str, &str)], devices: &[&str]| Pods {
        reasons: reasons.iter().map(|(condition, text)| because(condition, text)).collect(),
        devices: devices.iter().map(|device| (*device).to_owned()).collect(),
    };
    let away = Some("the API server does not answer");
    let cases = [
        (None, pods(&[], &[]), ""),
        (away, pods(&[], &["lo"]), ""),
        (
            away,
            pods(&[("rules", "no iptables")], &["lo"]),
            "new pods would not work: rules: no iptables",
        ),
        (
            None,
            pods(&[], &["lo", "flannel.none"]),
            "new pods would not work: the device flannel.none does not exist",
        ),
        (away, pods(&[], &["lo"]), ""),
    ];
    let mut writer = Writer::new(&bed.path("subnet.env"));
    let expect = |wanted: &str| {
        let answer = bed.call("STATUS");
        let found = if answer.code() == 0 {
            String::new()
        } else {
            answer.error()["msg"].as_str().unwrap_or_default().to_owned()
        };
        assert!(
            found == wanted && (answer.code() == 50) != wanted.is_empty(),
            "{wanted}: {answer:?}"
        );
    };
    for (reason, pods, wanted) in cases {
        writer.put(&Status { pods, ..status(reason) }).unwrap();
        expect(wanted);
        // Pods can start as long as the subnet is known.
        bed.call("ADD").ok();
        bed.call("DEL").ok();
    }
    // The network keeps working after the daemon has ended.
    drop(writer);
    expect("");
    let mut next = Writer::new(&bed.path("subnet.env"));
    next.put(&Status { pods: pods(&[], &["flannel.none"]), ..status(None) }).unwrap();
    drop(next);
    expect(
        "new pods would not work: the device flannel.none does not exist, and flanneld is not running",
    );
    fs::write(bed.path("subnet.env"), "FLANNEL_MTU").unwrap();
    assert_eq!(bed.call("STATUS").code(), 50);
}

#[test]
fn add_without_subnet_env_reports_the_daemons_reason() {
    let bed = Bed::new(&["bridge"]);
    fs::remove_file(bed.path("subnet.env")).unwrap();
    let mut writer = Writer::new(&bed.path("subnet.env"));
    writer.put(&status(Some("the API server does not answer"))).unwrap();
    let error = bed.call("ADD").error();
    assert_eq!(
        (error["code"].as_u64(), error["details"].as_str()),
        (Some(11), Some("flanneld is not ready: lease: the API server does not answer"))
    );
    assert!(bed.calls().is_empty() && bed.data().is_empty());
    // The file may appear while ADD waits.
    let waiting = bed.start_for("ADD", "c0ffee", "eth0", &bed.conf(&serde_json::json!({})));
    std::thread::sleep(std::time::Duration::from_millis(200));
    fs::write(bed.path("half"), crate::bed::SUBNET_ENV).unwrap();
    fs::rename(bed.path("half"), bed.path("subnet.env")).unwrap();
    assert!(waiting.wait_with_output().unwrap().status.success());
}

#[test]
fn status_is_whole_while_it_changes() {
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
                let reasons =
                    (number % 2 == 0).then(|| because("rules", "changing")).into_iter().collect();
                writer
                    .put(&Status { pods: Pods { reasons, devices: Vec::new() }, ..status(None) })
                    .unwrap();
            }
        });
        for _ in 0..200 {
            let answer = bed.call("STATUS");
            assert!(answer.exit == 0 || answer.stdout.contains("rules: changing"), "{answer:?}");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
