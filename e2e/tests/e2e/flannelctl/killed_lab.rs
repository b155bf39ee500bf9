//! `flannelctl lab --remove` removes all objects of a killed `flannelctl lab`.

use std::fs;
use std::process::{Command, Stdio};

use lab::{binaries, stdout_and_stderr, stdout_text, until};

fn flannelctl_lab(args: &[&str]) -> Command {
    let mut command = Command::new(binaries::flannel_binary("flannelctl").unwrap());
    command.arg("lab").args(args).stdin(Stdio::null());
    command
}

/// Namespaces and folders of a lab.
fn lab_namespaces_and_folders(lab: u32) -> Vec<String> {
    let folders = ["/run/netns", "/tmp/flannel-lab"]
        .into_iter()
        .filter_map(|folder| fs::read_dir(folder).ok());
    let names =
        folders.flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&format!("fl-{lab}-"))).collect()
}

/// Command lines of the processes that a lab started. Each contains the lab's folder.
fn lab_process_command_lines(lab: u32) -> Vec<String> {
    let mark = format!("/flannel-lab/fl-{lab}-");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&mark)).collect()
}

#[test]
fn remains_of_a_killed_flannel_lab_are_removed() {
    let has = |lab: u32, end: &str| {
        lab_namespaces_and_folders(lab).iter().any(|name| name.ends_with(end))
    };
    type Moment<'a> = (&'a str, &'a dyn Fn(u32) -> bool);
    let moments: [Moment<'_>; 4] = [
        ("in its first namespace", &|lab| !lab_namespaces_and_folders(lab).is_empty()),
        ("while it builds hosts", &|lab| has(lab, "-h2")),
        ("when its daemons run", &|lab| lab_process_command_lines(lab).len() >= 2),
        ("when there are pods", &|lab| has(lab, "-h3-pod")),
    ];
    for (when, reached) in moments {
        let command = &mut flannelctl_lab(&["--backend", "host-gw"]);
        let mut demo = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let lab = demo.id();
        until(when, || reached(lab)).unwrap();
        demo.kill().unwrap();
        demo.wait().unwrap();
        assert!(!lab_namespaces_and_folders(lab).is_empty(), "{when}: it had left something");
        if when == "when there are pods" {
            // Processes are found without the names of their namespaces, too.
            for name in lab_namespaces_and_folders(lab) {
                Command::new("ip").args(["netns", "del", &name]).status().unwrap();
            }
        }
        let removed = flannelctl_lab(&["--remove"]).output().unwrap();
        let text = stdout_and_stderr(&removed);
        assert!(removed.status.success() && text.contains("removed 1 lab"), "{when}: {text}");
        assert_eq!(
            (lab_namespaces_and_folders(lab), lab_process_command_lines(lab)),
            (vec![], vec![]),
            "{when}: {text}"
        );
    }
    // A lab whose process lives stays.
    let command = &mut flannelctl_lab(&["--backend", "host-gw", "--seconds", "3600"]);
    let mut live = command.stdout(Stdio::null()).spawn().unwrap();
    until("a demonstration runs", || has(live.id(), "-h3-pod")).unwrap();
    let removed = flannelctl_lab(&["--remove"]).output().unwrap();
    assert!(
        stdout_text(&removed).contains("removed 0 lab") && has(live.id(), "-h1"),
        "{}",
        stdout_and_stderr(&removed)
    );
    live.kill().unwrap();
    live.wait().unwrap();
    flannelctl_lab(&["--remove"]).output().unwrap();
}
