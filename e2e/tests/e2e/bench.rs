//! Tests that `make bench` measures Go flannel if `GO_FLANNELD` contains its path, and reports errors in one line.

use std::process::{Command, Output};

use lab::{Lab, binaries, texts, write_script};

/// Flags of Go flannel v0.28 that take a value.
const GO_FLAGS: &str = "etcd-endpoints etcd-prefix etcd-keyfile etcd-certfile etcd-cafile etcd-username etcd-password iface iface-regex iface-can-reach \
    subnet-file public-ip public-ipv6 subnet-lease-renew-margin healthz-ip healthz-port iptables-resync net-config-path v vmodule";

fn bench(args: &[&str], go: &str) -> Output {
    let flanneld = binaries::own("flanneld").unwrap();
    Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(args)
        .env("GO_FLANNELD", go)
        .env(binaries::BIN_DIR, flanneld.parent().unwrap())
        .env("RUST_BACKTRACE", "1")
        .output()
        .unwrap()
}

/// Writes a script that accepts only Go flannel's flags and then runs our flanneld. Returns its path.
fn stand_in(lab: &Lab) -> String {
    let script = lab.folder("").unwrap().join("go-flanneld");
    let flags = GO_FLAGS
        .split_whitespace()
        .map(|flag| format!("--{flag}=*"))
        .collect::<Vec<_>>()
        .join("|");
    let text = format!(
        "#!/bin/sh\nfor arg; do case $arg in {flags}) ;; *) echo \"flag provided but not defined: $arg\" >&2; exit 2;; esac; done\n\
         case \"$*\" in *--etcd-endpoints=*) ;; *) echo 'no etcd was named' >&2; exit 1;; esac\n\
         echo \"$@\" >> {}.calls\nexec {} \"$@\"\n",
        script.display(),
        binaries::own("flanneld").unwrap().display()
    );
    write_script(&script, &text).unwrap();
    script.to_string_lossy().into_owned()
}

#[test]
fn go_flannel_is_measured_when_its_path_is_given() {
    let lab = Lab::new("bench-go").unwrap();
    let go = stand_in(&lab);
    let args = [
        "--datapath",
        "--streams",
        "--rounds=1",
        "--cable=veth",
        "--only=udp (Go flannel)",
        "--only=udp (plain)",
    ];
    let output = bench(&args, &go);
    let text = texts(&output);
    assert!(output.status.success(), "{text}");
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("| udp"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    assert_eq!(
        rows.iter().map(|row| row[1]).collect::<Vec<_>>(),
        ["udp (plain)", "udp (Go flannel)"],
        "{text}"
    );
    // The rate of one stream and its ratio to Go's must be numbers, not the placeholder for a missing one.
    for row in rows {
        let rate: f64 = row[2].split(' ').next().unwrap().parse().unwrap();
        let part: f64 = row[5].parse().unwrap();
        assert!(rate > 0.0 && part > 0.0, "{text}");
    }
    let calls = std::fs::read_to_string(format!("{go}.calls")).unwrap();
    assert_eq!(calls.lines().count(), 2, "both hosts ran it: {calls}");
}

#[test]
fn usage_error_has_no_backtrace() {
    for (args, go, part) in [
        (vec!["--nonsense"], "", "unknown argument --nonsense"),
        (vec!["--rounds=x"], "", "--rounds"),
        (vec!["--rounds=0"], "", "--rounds"),
        (vec!["--peers=many"], "", "--peers"),
        (vec!["--datapath", "--only=nobody"], "", "nobody"),
        (vec!["--cable=glass"], "", "--cable"),
        (vec!["--datapath"], "/no/such/flanneld", "GO_FLANNELD"),
    ] {
        let output = bench(&args, go);
        let text = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(
            text.starts_with("bench: ") && text.contains(part),
            "{args:?}: {text}"
        );
        for trace in ["backtrace", "panicked", "at /", "Error:", "Caused by"] {
            assert!(!text.contains(trace), "{args:?}: {trace}: {text}");
        }
    }
    let help = bench(&["--help"], "");
    assert!(
        help.status.success() && texts(&help).contains("--only=NAME"),
        "{}",
        texts(&help)
    );
    assert!(
        texts(&help).lines().all(|line| line.chars().count() <= 80),
        "{}",
        texts(&help)
    );
}

#[test]
fn failure_during_measurement_has_no_backtrace() {
    // Without flanneld nothing can be measured.
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["--datapath", "--only=host-gw", "--rounds=1"])
        .env(binaries::BIN_DIR, "/nowhere")
        .env("RUST_BACKTRACE", "1")
        .output()
        .unwrap();
    let text = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("bench: host-gw: cannot find flanneld")
            && !text.contains("backtrace")
            && !text.contains("panicked"),
        "{text}"
    );
}
