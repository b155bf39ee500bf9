//! The program under each of its command names, as manifests run it.

#![allow(clippy::unwrap_used)]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

fn called(name: &str, folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flannel-install"))
        .arg0(name)
        .args(words)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// The program's name, the arguments, whether it succeeds, and the files that it leaves.
const CASES: &[(&str, &[&str], bool, &[&str])] = &[
    ("/opt/bin/install-conf", &["a", "d/b"], true, &["a", "d/b"]),
    ("cp", &["-f", "a", "d/b"], true, &["a", "d/b"]),
    ("cp", &["-p", "-v", "a", "d/b"], true, &["a", "d/b"]),
    ("cp", &["-fpv", "--", "a", "b"], true, &["a", "b"]),
    ("cp", &["-fr", "a", "b"], false, &["a"]),
    ("cp", &["a", "d"], true, &["a", "d/a"]),
    ("cp", &["a", "b"], true, &["a", "b"]),
    ("flannel-install", &["cp", "-f", "a", "b"], true, &["a", "b"]),
    ("/bin/rm", &["-f", "a", "none"], true, &[]),
    ("rm", &["-f"], false, &["a"]),
    ("rm", &["d"], false, &["a"]),
    ("cp", &["-r", "a", "b"], false, &["a"]),
    ("cp", &["a"], false, &["a"]),
    ("install-conf", &["a"], false, &["a"]),
    ("install-conf", &["a", "b", "c"], false, &["a"]),
    ("install-conf", &["none", "b"], false, &["a"]),
    ("flannel-install", &[], false, &["a"]),
    ("sh", &["-c", "true"], false, &["a"]),
];

#[test]
fn each_name_does_its_work() {
    for (name, words, works, files) in CASES {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("a"), "content").unwrap();
        std::fs::create_dir(root.path().join("d")).unwrap();
        let output = called(name, root.path(), words);
        assert_eq!(output.status.code(), Some(i32::from(!works)), "{name} {words:?}: {output:?}");
        assert_eq!(output.stderr.is_empty(), *works, "{name} {words:?}: {output:?}");
        let mut found = Vec::new();
        for folder in ["", "d/"] {
            for entry in std::fs::read_dir(root.path().join(folder)).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_file() {
                    assert_eq!(std::fs::read_to_string(entry.path()).unwrap(), "content");
                    found.push(format!("{folder}{}", entry.file_name().into_string().unwrap()));
                }
            }
        }
        found.sort();
        assert_eq!(found, *files, "{name} {words:?}");
    }
}
