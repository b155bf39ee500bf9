//! The plugin with full and read-only data directories, with symbolic links in the data directory, and with
//! hostile input.

use crate::bed::Bed;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

/// A script that mounts a small file system as the data directory and then runs the plugin. It must run in
/// its own mount namespace.
fn mounted(bed: &Bed, options: &str, then: &str) -> [String; 3] {
    let data = bed.path("data");
    fs::create_dir_all(&data).unwrap();
    let script = format!(
        "mount -t tmpfs -o {options} tmpfs {0} && {{ {then}; }} && exec \"$@\"",
        data.display()
    )
    .replace("DATA", data.to_str().unwrap());
    [script, "sh".to_owned(), String::new()]
}

#[test]
fn full_or_read_only_directory_refuses_add_early() {
    for (options, then) in [
        ("size=4k,nr_inodes=2", "echo > DATA/full"),
        ("size=4k", "head -c 4096 /dev/zero > DATA/full"),
        ("size=1m", "mount -o remount,ro DATA"),
    ] {
        let bed = Bed::new(&["bridge"]);
        let [script, ..] = mounted(&bed, options, then);
        let through = ["unshare", "--mount", "sh", "-ec", &script, "sh"];
        let answer = bed.call_through(&through, "ADD");
        assert_eq!(answer.code(), 5, "{options}: {answer:?}");
        assert!(
            answer.stdout.contains("data") && answer.stdout.contains("free space"),
            "{options}: {answer:?}"
        );
        assert!(bed.calls().is_empty(), "{options}: {:?}", bed.calls());
        // DEL succeeds, because there is nothing to delete.
        assert_eq!(bed.call_through(&through, "DEL").code(), 0, "{options}");
    }
    // DEL undoes the delegate's work, but fails because the file stays. The next DEL tries again.
    let bed = Bed::new(&["bridge"]);
    let [script, ..] = mounted(
        &bed,
        "size=1m",
        "echo '{\"name\":\"cbr0\",\"type\":\"bridge\"}' > DATA/c0ffee; mount -o remount,ro DATA",
    );
    let answer = bed.call_through(&["unshare", "--mount", "sh", "-ec", &script, "sh"], "DEL");
    assert_eq!((answer.code(), bed.calls()), (5, vec!["DEL bridge".to_owned()]), "{answer:?}");
}

#[test]
fn traps_are_not_followed() {
    let bed = Bed::new(&["bridge"]);
    let secret = bed.path("secret");
    fs::write(&secret, "mine").unwrap();
    fs::create_dir(bed.path("data")).unwrap();
    for name in ["c0ffee", ".c0ffee"] {
        symlink(&secret, bed.path("data").join(name)).unwrap();
    }
    for verb in ["ADD", "DEL", "CHECK"] {
        let answer = bed.call(verb);
        assert!(
            answer.code() == 5 && answer.stdout.contains("symbolic link"),
            "{verb}: {answer:?}"
        );
    }
    assert!(bed.calls().is_empty() && fs::read_to_string(&secret).unwrap() == "mine");
    fs::remove_file(bed.path("data/c0ffee")).unwrap();
    bed.call("ADD").ok();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "mine");
    let mode = |path: &str| fs::metadata(bed.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("data/c0ffee"), 0o600);
    fs::remove_dir_all(bed.path("data")).unwrap();
    bed.call("ADD").code();
    assert_eq!(mode("data"), 0o700);
    // The data directory is a file.
    let conf = bed.conf(&json!({"dataDir": secret}));
    assert_eq!(bed.call_for("ADD", "cafe", "eth0", &conf).code(), 5);
}

#[test]
fn hostile_names_reach_no_file() {
    let bed = Bed::new(&["bridge"]);
    let long = "a".repeat(4096);
    let before = |bed: &Bed| (bed.data().len(), bed.calls().len(), bed.held().len());
    for id in [
        "../secret",
        "a/b",
        "..",
        ".",
        "/etc/passwd",
        "-rf",
        "a b",
        "a\nb",
        "a:net1",
        "ä",
        ".c0ffee",
    ] {
        for verb in ["ADD", "DEL", "CHECK"] {
            assert_eq!(
                bed.call_for(verb, id, "eth0", &bed.conf(&json!({}))).code(),
                4,
                "{verb} {id:?}"
            );
        }
    }
    for interface in ["..", ".", "a/b", "../x", "a:b", "a b", "1234567890123456", long.as_str()] {
        for verb in ["ADD", "DEL", "CHECK"] {
            assert_eq!(
                bed.call_for(verb, "c0ffee", interface, &bed.conf(&json!({}))).code(),
                4,
                "{verb} {interface:?}"
            );
        }
    }
    for name in ["../x", "a/b", "", ".x", "a b"] {
        assert_eq!(
            bed.call_for("ADD", "c0ffee", "eth0", &bed.conf(&json!({"name": name}))).code(),
            7,
            "{name:?}"
        );
    }
    // The ID is too long for any file system.
    assert_eq!(bed.call_for("ADD", &long, "eth0", &bed.conf(&json!({}))).code(), 5);
    bed.call_for("DEL", &long, "eth0", &bed.conf(&json!({}))).ok();
    assert_eq!(before(&bed), (0, 0, 0));
    assert!(!bed.path("secret").exists());
}

#[test]
fn every_input_gets_a_json_answer() {
    let bed = Bed::new(&["bridge"]);
    let deep = format!("{{\"name\":\"x\",\"delegate\":{}", "{\"a\":".repeat(10_000));
    let huge = format!("{{\"name\":\"cbr0\",\"junk\":\"{}\"}}", "x".repeat(200_000));
    let odd = [
        ("", 6),
        ("{", 6),
        ("null", 6),
        ("[]", 6),
        ("7", 6),
        ("\0", 6),
        ("{}", 7),
        (deep.as_str(), 6),
        (r#"{"name":"cbr0","cniVersion":"9.9.9"}"#, 1),
        (r#"{"name":"cbr0","cniVersion":7}"#, 6),
        (r#"{"name":{"a":1}}"#, 6),
        (r#"{"name":"cbr0","ipam":7}"#, 999),
        (r#"{"name":"cbr0","delegate":[]}"#, 999),
        (r#"{"name":"cbr0","runtimeConfig":"x"}"#, 999),
        (r#"{"name":"cbr0","ipam":{"routes":{}}}"#, 999),
        (r#"{"name":"cbr0","ipam":{"routes":[{"dst":"x"}]}}"#, 999),
    ];
    for (conf, code) in odd {
        let conf = conf.replacen(
            "\"cbr0\"",
            &format!(
                "\"cbr0\",\"subnetFile\":{:?},\"dataDir\":{:?}",
                bed.path("subnet.env"),
                bed.path("data")
            ),
            1,
        );
        let answer = bed.call_for("ADD", "c0ffee", "eth0", &conf);
        assert_eq!((answer.code(), answer.stderr.as_str()), (code, ""), "{conf:.80}: {answer:?}");
    }
    assert!(bed.calls().is_empty() && bed.data().is_empty());
    let huge = huge.replacen(
        "\"cbr0\"",
        &format!(
            "\"cbr0\",\"subnetFile\":{:?},\"dataDir\":{:?}",
            bed.path("subnet.env"),
            bed.path("data")
        ),
        1,
    );
    bed.call_for("ADD", "c0ffee", "eth0", &huge).ok();
}

#[test]
fn program_being_written_is_retried() {
    let bed = Bed::new(&["bridge"]);
    // The kernel refuses to execute a file that is open for writing (ETXTBSY).
    let program = bed.path("bin/busy");
    fs::copy("/bin/true", &program).unwrap();
    let writer = fs::File::options().append(true).open(&program).unwrap();
    let waiting =
        bed.start_for("ADD", "c0ffee", "eth0", &bed.conf(&json!({"delegate": {"type": "busy"}})));
    std::thread::sleep(std::time::Duration::from_millis(250));
    drop(writer);
    let output = waiting.wait_with_output().unwrap();
    // The program was executed and printed nothing.
    assert!(String::from_utf8_lossy(&output.stdout).contains("without a result"), "{output:?}");
}
