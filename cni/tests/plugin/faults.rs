//! Failures of the delegate: the error that the plugin reports, and the files that remain.

use crate::bed::Bed;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const REFUSED: &str = r#"{"code":100,"msg":"no address left","details":"pool"}"#;
/// The files in the data directory after an unfinished ADD for `eth0` of the container `c0ffee`.
const UNFINISHED: [&str; 2] = ["+c0ffee", "c0ffee"];

#[test]
fn failed_add_leaves_nothing() {
    for (when, error, code, held) in [
        ("ADD", REFUSED, 100, 0),
        ("late-ADD", REFUSED, 100, 0),
        ("late-ADD", "panic: nil", 999, 0),
        ("late-ADD", "", 999, 0),
    ] {
        let bed = Bed::new(&["bridge"]);
        bed.fail(when, error);
        let answer = bed.call("ADD");
        let msg = answer.error()["msg"].as_str().unwrap().to_owned();
        assert!(
            answer.code() == code && msg.starts_with("failed to delegate add: "),
            "{when}: {answer:?}"
        );
        assert_eq!((bed.held().len(), bed.data().len()), (held, 0), "{when}");
        assert_eq!(bed.calls(), ["ADD bridge", "DEL bridge"], "{when}");
        bed.heal(when);
        bed.call("ADD").ok();
    }
}

#[test]
fn missing_or_broken_delegate_is_an_error() {
    let bed = Bed::new(&["bridge"]);
    let conf = bed.conf(&json!({"delegate": {"type": "absent"}}));
    let answer = bed.call_for("ADD", "c0ffee", "eth0", &conf);
    assert!(answer.code() == 999 && answer.stdout.contains("reference plugins"), "{answer:?}");
    for name in ["", "../bin/bridge", "/bin/true", ".."] {
        let answer =
            bed.call_for("ADD", "c0ffee", "eth0", &bed.conf(&json!({"delegate": {"type": name}})));
        assert!(
            answer.code() == 999 && answer.stdout.contains("invalid plugin name"),
            "{name}: {answer:?}"
        );
    }
    fs::write(bed.path("bin/bridge"), "#!/bin/sh\nexit 0\n").unwrap();
    let answer = bed.call("ADD");
    assert!(answer.code() == 6 && answer.stdout.contains("without a result"), "{answer:?}");
    fs::write(bed.path("bin/bridge"), "#!/bin/sh\nkill -9 $$\n").unwrap();
    let answer = bed.call("ADD");
    assert!(answer.code() == 999 && answer.stdout.contains("signal: 9"), "{answer:?}");
    // DEL fails as ADD did, so the delegate may have left something, and the files stay.
    assert_eq!(bed.data().into_keys().collect::<Vec<_>>(), UNFINISHED);
    fs::set_permissions(bed.path("bin/bridge"), fs::Permissions::from_mode(0o644)).unwrap();
    bed.gc(&["c0ffee"]);
    assert_eq!(bed.call_for("ADD", "cafe", "eth0", &bed.conf(&json!({}))).code(), 5);
    assert_eq!(
        bed.data().into_keys().collect::<Vec<_>>(),
        UNFINISHED,
        "what was never started left nothing"
    );
}

#[test]
fn interface_belongs_to_one_network() {
    let bed = Bed::new(&["bridge"]);
    bed.call("ADD").ok();
    let answer = bed.call_for("ADD", "c0ffee", "eth0", &bed.conf(&json!({"name": "other"})));
    assert!(
        answer.code() == 999 && answer.stdout.contains("belongs to network \\\"cbr0\\\""),
        "{answer:?}"
    );
    assert_eq!((bed.calls().len(), bed.data().len()), (1, 1));
}

#[test]
fn damaged_file_is_undone_with_the_current_configuration() {
    for text in ["", "{", "[]", "{}", r#"{"type":7}"#, "\0\0\0\0"] {
        let bed = Bed::new(&["bridge"]);
        bed.call("ADD").ok();
        let given = bed.data()["c0ffee"].clone();
        fs::write(bed.path("data/c0ffee"), text).unwrap();
        bed.call("DEL").ok();
        assert_eq!(
            (bed.held().len(), bed.data().len(), bed.received("DEL")),
            (0, 0, Some(given)),
            "{text}"
        );
        // DEL does not wait for subnet.env, because the daemon may never get a lease. Delegates find an attachment by network and container.
        bed.call("ADD").ok();
        fs::write(bed.path("data/c0ffee"), text).unwrap();
        fs::rename(bed.path("subnet.env"), bed.path("away")).unwrap();
        bed.call("DEL").ok();
        assert_eq!((bed.held().len(), bed.data().len()), (0, 0), "{text}");
    }
}

/// A `type` that is no other plugin here does not block DEL and GC for ever. Flannel's own name would make it
/// call itself again and again.
#[test]
fn file_of_a_wrong_type_is_damaged_for_del_and_gc() {
    for kind in [json!(7), json!("brigde"), json!("../bridge"), json!(""), json!("flannel")] {
        let text = json!({"name": "cbr0", "type": kind}).to_string();
        for verb in ["DEL", "GC", "ADD"] {
            let bed = Bed::new(&["bridge"]);
            bed.call("ADD").ok();
            let given = bed.data()["c0ffee"].clone();
            fs::write(bed.path("data/c0ffee"), &text).unwrap();
            match verb {
                "DEL" => bed.call("DEL").ok(),
                "GC" => bed.gc(&[]).ok(),
                _ => {
                    fs::write(bed.path("data/+c0ffee"), "").unwrap();
                    bed.call("ADD").ok()
                }
            };
            let left = usize::from(verb == "ADD");
            assert_eq!(
                (bed.held().len(), bed.data().len(), bed.received("DEL")),
                (left, left, Some(given)),
                "{text} {verb}"
            );
        }
    }
    // The plugin that alone can undo is away: the file stays, for another network's GC too.
    let bed = Bed::new(&["bridge"]);
    bed.call("ADD").ok();
    fs::remove_file(bed.path("bin/bridge")).unwrap();
    assert_eq!((bed.call("DEL").code(), bed.gc(&[]).code()), (999, 999));
    assert_eq!(bed.data().len(), 1);
}

#[test]
fn go_flannels_file_is_used_by_del_and_gc() {
    let saved = r#"{"cniVersion":"1.1.0","name":"cbr0","type":"bridge"}"#;
    for (interface, left) in [("eth0", 0), ("net1", 1)] {
        let bed = Bed::new(&["bridge"]);
        fs::create_dir(bed.path("data")).unwrap();
        fs::write(bed.path("data/c0ffee"), saved).unwrap();
        fs::write(bed.path("stub/held").join(format!("c0ffee,{interface}")), "").unwrap();
        bed.call_for("DEL", "c0ffee", interface, &bed.conf(&json!({}))).ok();
        assert_eq!(
            (bed.received("DEL").as_deref(), bed.held().len(), bed.data().len()),
            (Some(saved), 0, left),
            "{interface}"
        );
        bed.gc(&[]).ok();
        assert_eq!(bed.data().len(), 0, "{interface}");
    }
}

#[test]
fn gc_collects_only_orphans_of_its_network() {
    let bed = Bed::new(&["bridge"]);
    let other = bed.conf(&json!({"name": "other"}));
    for id in ["a1", "b2", "c3"] {
        bed.call_for("ADD", id, "eth0", &bed.conf(&json!({}))).ok();
    }
    bed.call_for("ADD", "a1", "net1", &bed.conf(&json!({}))).ok();
    bed.call_for("ADD", "d4", "eth0", &other).ok();
    for junk in [".a1", ".gone", "+lost", "+lost:net1", "-foreign"] {
        fs::write(bed.path("data").join(junk), "{").unwrap();
    }
    bed.gc(&["a1"]).ok();
    assert_eq!(bed.data().keys().collect::<Vec<_>>(), ["-foreign", ".a1", "a1", "d4"]);
    assert_eq!(bed.held(), ["a1,eth0", "d4,eth0"]);
    let received: serde_json::Value = serde_json::from_str(&bed.received("GC").unwrap()).unwrap();
    assert_eq!(
        received["cni.dev/valid-attachments"],
        json!([{"containerID": "a1", "ifname": "eth0"}])
    );
    // Without the list (`cnitool gc`), GC removes nothing and asks no delegate. A file stays if the delegate fails.
    let calls = bed.calls();
    bed.call_for("GC", "", "", &bed.conf(&json!({}))).ok();
    assert_eq!((bed.calls(), bed.data().len()), (calls, 4));
    for list in [json!(7), json!([{"containerID": "a1"}])] {
        let conf = bed.conf(&json!({"cni.dev/valid-attachments": list}));
        assert_eq!(bed.call_for("GC", "", "", &conf).code(), 7, "{list}");
    }
    bed.fail("DEL", REFUSED);
    assert_eq!(bed.gc(&[]).code(), 100);
    assert!(bed.data().contains_key("a1"));
    bed.heal("DEL");
    // GC succeeds with a delegate that is too old to support GC.
    for error in [
        r#"{"code":4,"msg":"unknown CNI_COMMAND: GC"}"#,
        r#"{"code":1,"msg":"incompatible CNI versions"}"#,
    ] {
        bed.fail("GC", error);
        bed.gc(&[]).ok();
    }
    bed.fail("GC", REFUSED);
    assert_eq!(bed.gc(&[]).code(), 100);
    assert_eq!(bed.held(), ["d4,eth0"]);
}

#[test]
fn check_asks_the_delegate() {
    let bed = Bed::new(&["bridge"]);
    bed.call("ADD").ok();
    let result = json!({"cniVersion": "1.1.0", "ips": []});
    let conf = bed.conf(&json!({"prevResult": result}));
    bed.call_for("CHECK", "c0ffee", "eth0", &conf).ok();
    let received: serde_json::Value =
        serde_json::from_str(&bed.received("CHECK").unwrap()).unwrap();
    assert_eq!((&received["prevResult"], &received["type"]), (&result, &json!("bridge")));
    bed.fail("CHECK", REFUSED);
    let answer = bed.call_for("CHECK", "c0ffee", "eth0", &conf);
    assert!(
        answer.code() == 100 && answer.stdout.contains("failed to delegate check"),
        "{answer:?}"
    );
    bed.fail("CHECK", r#"{"code":999,"msg":"Expected Route {Dst:{IP:10.244.0.0 Mask:ffff0000} GW:<nil>} not found in routing table"}"#);
    bed.call_for("CHECK", "c0ffee", "eth0", &conf).ok();
}

#[test]
fn own_namespace_is_refused_before_anything_is_done() {
    let bed = Bed::new(&["bridge"]);
    for (verb, given, code) in
        [("ADD", "0", 8), ("DEL", "0", 8), ("ADD", "1", 0), ("DEL", "true", 0)]
    {
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c0ffee"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/proc/self/ns/net"),
            ("CNI_NETNS_OVERRIDE", given),
        ];
        let output = bed.start(&[], &variables, &bed.conf(&json!({}))).wait_with_output().unwrap();
        assert_eq!(output.status.success(), code == 0, "{verb} {given}");
        if code != 0 {
            assert!(String::from_utf8_lossy(&output.stdout).contains("\"code\":8"), "{output:?}");
            assert!(bed.calls().is_empty());
        }
    }
}

#[test]
fn call_without_a_command_prints_the_version() {
    let bed = Bed::new(&[]);
    let output = bed.start(&[], &[], "").wait_with_output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains(" version "));
    assert_eq!(bed.call_for("MOVE", "c0ffee", "eth0", "{}").code(), 4);
}
