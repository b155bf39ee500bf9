//! Many concurrent calls of the plugin, and kills during a call.

use crate::bed::Bed;
use serde_json::json;
use std::time::Duration;

/// Concurrent calls: more than the pods that start at once on a node after a reboot.
const PODS: usize = 500;
/// The default; `FLANNEL_TEST_CNI_KILLS` sets another number.
const KILLS: u64 = 60;

#[test]
fn five_hundred_calls_run_at_once() {
    let bed = Bed::new(&["bridge"]);
    let conf = bed.conf(&json!({}));
    let each = |verb: &str| {
        let calls: Vec<_> = (0..PODS)
            .map(|number| bed.start_for(verb, &format!("c{number}"), "eth0", &conf))
            .collect();
        for call in calls {
            let output = call.wait_with_output().unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{verb}: {output:?}");
        }
    };
    each("ADD");
    assert_eq!((bed.held().len(), bed.data().len()), (PODS, PODS));
    each("DEL");
    assert_eq!((bed.held().len(), bed.data().len()), (0, 0));
}

#[test]
fn delegate_ends_with_the_plugin() {
    let bed = Bed::new(&["bridge"]);
    std::fs::write(
        bed.path("bin/bridge"),
        "#!/bin/sh\ncd \"$STUB\"\necho $$ > half\nmv half pid\nexec sleep 600\n",
    )
    .unwrap();
    let mut killed = bed.start_for("ADD", "c0ffee", "eth0", &bed.conf(&json!({})));
    let pid = bed.path("stub/pid");
    wait(|| pid.exists());
    killed.kill().unwrap();
    killed.wait().unwrap();
    let process = format!("/proc/{}/stat", std::fs::read_to_string(pid).unwrap().trim());
    // A zombie also counts as dead.
    wait(|| std::fs::read_to_string(&process).map_or(true, |stat| stat.contains(") Z ")));
}

#[test]
fn killed_add_can_be_repeated() {
    let bed = Bed::new(&["bridge"]);
    std::fs::write(bed.path("stub/slow"), "20").unwrap();
    let mut killed = bed.start_for("ADD", "c0ffee", "eth0", &bed.conf(&json!({})));
    wait(|| !bed.held().is_empty());
    killed.kill().unwrap();
    killed.wait().unwrap();
    std::fs::remove_file(bed.path("stub/slow")).unwrap();
    bed.call("ADD").ok();
    assert_eq!(
        (bed.calls(), bed.held().len()),
        (["ADD bridge", "DEL bridge", "ADD bridge"].map(str::to_owned).to_vec(), 1)
    );
}

/// Panics after 60 s.
fn wait(happened: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(60), "it did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn leftovers_of_a_kill_are_cleaned_by_the_next_call() {
    let kills =
        std::env::var("FLANNEL_TEST_CNI_KILLS").map_or(KILLS, |count| count.parse().unwrap());
    let bed = Bed::new(&["bridge"]);
    std::fs::write(bed.path("stub/slow"), "0.003").unwrap();
    let conf = bed.conf(&json!({}));
    for number in 0..kills {
        // Spread the kills over the whole call, in pseudo-random order.
        let delay = Duration::from_micros(number * 7919 % 12_000);
        let verb = if number % 4 == 3 { "DEL" } else { "ADD" };
        if verb == "DEL" {
            bed.call("ADD").ok();
        }
        let mut killed = bed.start_for(verb, "c0ffee", "eth0", &conf);
        std::thread::sleep(delay);
        killed.kill().unwrap();
        killed.wait().unwrap();
        // The kernel also kills the delegate, but perhaps a little later.
        let lasting = || {
            !std::fs::read_dir("/proc").unwrap().flatten().all(|process| {
                let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
                let needle = bed.path("stub");
                !environment
                    .windows(needle.as_os_str().len())
                    .any(|window| window == needle.as_os_str().as_encoded_bytes())
            })
        };
        while lasting() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (held, data) = (bed.held(), bed.data());
        assert!(
            held.is_empty() || data.contains_key("c0ffee"),
            "{verb} {delay:?}: nobody knows of {held:?}: {data:?}"
        );
        match number % 3 {
            0 => drop(bed.call("DEL").ok()),
            1 => {
                bed.gc(&[]).ok();
            }
            // Either the DEL was finished, or the interface still exists. DEL succeeds in both cases.
            _ if verb == "DEL" => drop(bed.call("DEL").ok()),
            _ => {
                let answer = bed.call("ADD");
                // If the kill came after ADD had finished, this is a second ADD of an interface in use, which fails.
                assert!(
                    answer.exit == 0 || data["c0ffee"].len() > 2 && held.len() == 1,
                    "{delay:?}: {answer:?}"
                );
                assert_eq!((bed.held().len(), bed.data().len()), (1, 1), "{delay:?}");
                bed.call("DEL").ok();
            }
        }
        bed.gc(&[]).ok();
        assert_eq!((bed.held().len(), bed.data().len()), (0, 0), "{verb} {delay:?}");
    }
}
