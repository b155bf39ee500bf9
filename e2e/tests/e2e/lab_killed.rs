//! Checks that `flannelctl lab --remove` removes all objects of a killed `flannelctl lab`, and no objects of another lab.
//!
//! Each test has its own `/run` and `/tmp`, so that `--remove` cannot reach other labs of this machine.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use lab::{binaries, stdout, texts, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A mount namespace with an empty `/run` and `/tmp`.
struct Room {
    holder: Child,
}

impl Room {
    fn open() -> Room {
        let script = "mount -t tmpfs run /run && mount -t tmpfs tmp /tmp && mkdir /run/netns && echo ready && exec sleep 3600";
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        Room { holder }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args([
                &format!("--mount=/proc/{}/ns/mnt", self.holder.id()),
                "--",
                program,
            ])
            .stdin(Stdio::null());
        command
    }

    fn flannelctl(&self, args: &[&str]) -> Command {
        let mut command = self.command(&binaries::own("flannelctl").unwrap().to_string_lossy());
        command.arg("lab").args(args);
        command
    }

    fn start(&self, args: &[&str]) -> Demo {
        Demo {
            child: self
                .flannelctl(args)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        }
    }

    fn remove(&self) -> Output {
        self.flannelctl(&["--remove"]).output().unwrap()
    }

    fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.id()))
    }

    /// Lists the names of a lab's namespaces and folders.
    fn names(&self, demo: u32) -> Vec<String> {
        let folders = [self.path("/run/netns"), self.path("/tmp/flannel-lab")];
        let all = folders
            .iter()
            .filter_map(|folder| fs::read_dir(folder).ok())
            .flatten()
            .flatten();
        all.filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with(&format!("fl-{demo}-")))
            .collect()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = self.remove();
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

struct Demo {
    child: Child,
}

impl Demo {
    fn kill(&mut self) -> u32 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child.id()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command lines of the processes that a lab started. Each command line contains the lab's folder.
fn processes(demo: u32) -> Vec<String> {
    let mark = format!("/flannel-lab/fl-{demo}-");
    let lines = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| line.contains(&mark))
        .map(|line| line.replace('\0', " "))
        .collect()
}

/// Returns the command lines of a lab's daemons, sorted.
fn daemons(demo: u32) -> Vec<String> {
    let mut lines = processes(demo);
    lines.retain(|line| {
        let program = line.split(' ').next();
        program.is_some_and(|program| program.ends_with("/flanneld"))
    });
    lines.sort_unstable();
    // A child has the command line of its parent until it runs its own program.
    lines.dedup();
    lines
}

fn require_gone(room: &Room, demo: u32, when: &str) {
    let removed = room.remove();
    let output_text = texts(&removed);
    assert!(removed.status.success(), "{when}: {output_text}");
    assert_eq!(
        (room.names(demo), processes(demo)),
        (vec![], vec![]),
        "{when}: {output_text}"
    );
    assert!(
        output_text.contains("removed 1 lab"),
        "{when}: {output_text}"
    );
}

#[test]
fn remains_of_a_killed_flannel_lab_are_removed() {
    let room = Room::open();
    let has = |demo: &Demo, end: &str| {
        room.names(demo.child.id())
            .iter()
            .any(|name| name.ends_with(end))
    };
    type Moment<'a> = (&'a str, &'a dyn Fn(&Demo) -> bool);
    let moments: [Moment<'_>; 4] = [
        ("in its first namespace", &|demo| {
            !room.names(demo.child.id()).is_empty()
        }),
        ("while it builds hosts", &|demo| has(demo, "-h2")),
        ("when its daemons run", &|demo| {
            processes(demo.child.id()).len() >= 2
        }),
        ("when there are pods", &|demo| has(demo, "-h3-pod")),
    ];
    for (when, reached) in moments {
        let mut demo = room.start(&["--backend", "host-gw"]);
        until(when, || reached(&demo)).unwrap();
        let pid = demo.kill();
        assert!(!room.names(pid).is_empty(), "{when}: it had left something");
        require_gone(&room, pid, when);
    }
    assert!(stdout(&room.remove()).contains("removed 0 lab"));
}

#[test]
fn processes_without_their_namespaces_are_found() {
    let room = Room::open();
    let mut demo = room.start(&["--store", "etcd", "--backend", "host-gw"]);
    until("daemons and etcd run", || {
        processes(demo.child.id()).len() >= 4
    })
    .unwrap();
    let pid = demo.kill();
    for name in room
        .names(pid)
        .iter()
        .filter(|name| room.path("/run/netns").join(name).exists())
    {
        let deleted = room
            .command("ip")
            .args(["netns", "del", name])
            .output()
            .unwrap();
        assert!(deleted.status.success(), "{deleted:?}");
    }
    assert!(
        processes(pid).len() >= 4,
        "they live on without the names of their namespaces"
    );
    require_gone(&room, pid, "namespaces deleted by hand");
}

#[test]
fn live_lab_stays_and_kept_lab_is_removed() {
    let room = Room::open();
    let mut live = room.start(&["--backend", "host-gw", "--seconds", "3600"]);
    until("a demonstration runs", || {
        room.names(live.child.id())
            .iter()
            .any(|name| name.ends_with("-h3-pod"))
    })
    .unwrap();
    let (names, running) = (room.names(live.child.id()), daemons(live.child.id()));
    assert_eq!(running.len(), 3, "{running:?}");

    let mut kept = room
        .flannelctl(&["--backend", "alloc", "--hosts", "1", "--keep"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(kept.wait().unwrap().success());
    assert!(
        !room.names(kept.id()).is_empty() && !processes(kept.id()).is_empty(),
        "it is kept"
    );

    // The folder's owner is an earlier process with the same pid, which has ended. So this lab has no owner.
    let reused = format!("fl-{}-0dead", live.child.id());
    assert!(
        room.command("ip")
            .args(["netns", "add", &format!("{reused}-h1")])
            .status()
            .unwrap()
            .success()
    );
    let folder = room.path("/tmp/flannel-lab").join(&reused);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("owner"), "1 of another boot").unwrap();

    let removed = room.remove();
    let output_text = texts(&removed);
    assert!(output_text.contains("removed 2 lab"), "{output_text}");
    assert_eq!(
        (room.names(kept.id()), processes(kept.id())),
        (vec![], vec![])
    );
    assert!(
        !folder.exists()
            && !room
                .path("/run/netns")
                .join(format!("{reused}-h1"))
                .exists(),
        "{output_text}"
    );
    // Names may have been added meanwhile, for programs that the live lab runs for a moment.
    let left = room.names(live.child.id());
    assert!(
        names.iter().all(|name| left.contains(name)),
        "the live one stays: {names:?}, then {left:?}"
    );
    assert_eq!(daemons(live.child.id()), running, "the live one stays");
    assert!(live.child.try_wait().unwrap().is_none());

    // On SIGINT, as Ctrl-C sends it, the lab removes itself.
    kill(
        Pid::from_raw(live.child.id().try_into().unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    until("it has ended", || live.child.try_wait().unwrap().is_some()).unwrap();
    assert_eq!(
        (room.names(live.child.id()), processes(live.child.id())),
        (vec![], vec![])
    );
    assert!(Path::new("/run/netns").exists());
}
