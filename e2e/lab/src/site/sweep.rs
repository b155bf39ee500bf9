//! Removal of labs: labs of this process, labs of dead processes, and kept labs.
//!
//! A lab consists of its namespaces (`fl-<pid>-<id>-<host>`), its folder, and its processes. These are in one of its namespaces, or have a subfolder
//! of its folder mounted as `/run`: then their namespace may have no name. Cables end only in the lab's namespaces and disappear with them. Mounts
//! disappear with the processes that made them.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::net::netns::{NETNS, Netns, is_zombie_or_gone};
use crate::site::cgroups;
use crate::site::name::{
    KEPT, LabName, OWNER, create_folder_of_labs, existing_labs, folder_entries,
};

/// For killed processes to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts to remove a lab: a program of its owner may add a namespace during the removal.
const ROUNDS: usize = 3;

pub(crate) fn remove_lab(lab: &LabName) -> Result<()> {
    let mut outcome = Ok(());
    let names = || {
        folder_entries(Path::new(NETNS))
            .into_iter()
            .filter(|name| LabName::from_start_of(name).as_ref() == Some(lab))
            .collect::<Vec<_>>()
    };
    let mark = format!("/flannel-lab/{}/", lab.prefix());
    let containers = cgroups::containers_of_lab(&lab.folder());
    for _ in 0..ROUNDS {
        outcome = Ok(());
        // Kill all processes first: a daemon would fill its log when its peers vanish.
        kill_until_none_found(|| {
            let mut found = processes_with_mount(&mark);
            found.extend(names().into_iter().flat_map(|name| Netns::handle_for_name(name).pids()));
            found
        })?;
        cgroups::remove_container_cgroups(&containers);
        for name in names() {
            outcome = Netns::handle_for_name(name).kill_processes_and_delete().and(outcome);
        }
        match std::fs::remove_dir_all(lab.folder()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                outcome = outcome.and(Err(error.into()));
            }
            _ => {}
        }
        if names().is_empty() && !lab.folder().exists() {
            return Ok(());
        }
    }
    outcome
}

/// Except kept labs. A handler of SIGINT calls it before it ends the process.
pub fn remove_own_unkept_labs() -> Result<()> {
    remove_where(|lab| lab.pid == std::process::id() && is_alive(lab) && !is_kept(lab)).map(drop)
}

/// Except kept labs. The result is the number of removed labs.
pub fn remove_stale_unkept_labs() -> Result<usize> {
    remove_where(|lab| !is_alive(lab) && !is_kept(lab))
}

/// Those of ended processes, including kept labs. The result is their number.
pub fn remove_labs_of_ended_processes() -> Result<usize> {
    remove_where(|lab| !is_alive(lab))
}

/// Every process that has a subfolder of `folder` mounted. For a host's folder, these are all its processes, in any namespace.
pub(crate) fn kill_processes_with_mount_below(folder: &Path) -> Result<()> {
    let below = format!("{}/", folder.display());
    // mountinfo has paths relative to their file system, which may be mounted at /tmp or above.
    let mark = below.strip_prefix("/tmp").unwrap_or(&below).to_owned();
    kill_until_none_found(|| processes_with_mount(&mark))
}

fn remove_where(chosen: impl Fn(&LabName) -> bool) -> Result<usize> {
    create_folder_of_labs()?;
    let mut outcome = Ok(());
    let mut count = 0;
    for lab in existing_labs().iter().filter(|lab| chosen(lab)) {
        outcome = remove_lab(lab).and(outcome);
        count += 1;
    }
    outcome.map(|()| count)
}

/// Identifies this process in the file [`OWNER`]. A PID is not enough, because the kernel reuses PIDs, in this boot and in the next one.
pub(crate) fn current_process_identity() -> String {
    process_identity(std::process::id()).unwrap_or_default()
}

/// Start time and boot ID. `None` if the process has ended, even if its parent has not waited for it yet.
fn process_identity(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // proc_pid_stat(5): the third field is the state, the twenty-second the start time in ticks since boot.
    let (state, start) = (fields.first()?, fields.get(19)?);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    (!matches!(*state, "Z" | "X")).then(|| format!("{start} {}", boot.trim()))
}

/// The process that created the lab still runs.
fn is_alive(lab: &LabName) -> bool {
    let noted = std::fs::read_to_string(lab.folder().join(OWNER)).unwrap_or_default();
    // A lab without the file is being created, or its process was killed during the creation. In that case only the PID identifies the process.
    process_identity(lab.pid).is_some_and(|now| noted.is_empty() || noted.trim() == now)
}

fn is_kept(lab: &LabName) -> bool {
    lab.folder().join(KEPT).exists()
}

/// Processes with a mounted folder whose path contains `mark`. Every process of a host has a subfolder of the lab's folder mounted.
fn processes_with_mount(mark: &str) -> Vec<i32> {
    let own = std::fs::read_link("/proc/self/ns/mnt").ok();
    let pids =
        folder_entries(Path::new("/proc")).into_iter().filter_map(|name| name.parse::<i32>().ok());
    let others = pids.filter(|pid| {
        std::fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|space| Some(space) != own)
    });
    others
        .filter(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))
                .is_ok_and(|mounts| is_mounted(&mounts, mark))
        })
        .collect()
}

/// The fourth field of a line in `mountinfo` is the mounted folder (proc_pid_mountinfo(5)).
fn is_mounted(mountinfo: &str, mark: &str) -> bool {
    mountinfo.lines().filter_map(|line| line.split(' ').nth(3)).any(|root| root.contains(mark))
}

/// Repeats until `find` finds no process.
fn kill_until_none_found(find: impl Fn() -> Vec<i32>) -> Result<()> {
    let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    let end = Instant::now() + EXIT_TIMEOUT;
    loop {
        let pids: BTreeSet<i32> =
            find().into_iter().filter(|pid| *pid != own && !is_zombie_or_gone(*pid)).collect();
        if pids.is_empty() {
            return Ok(());
        }
        if Instant::now() >= end {
            bail!(
                "processes {pids:?} do not end; find out what they wait for (/proc/PID/stack), and run the command again"
            );
        }
        for pid in pids {
            // The process may have ended meanwhile.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_none_after_the_process_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let first = process_identity(pid).unwrap();
        assert_eq!(process_identity(pid), Some(first));
        child.kill().unwrap();
        // The process is dead but was not waited for: /proc still lists it.
        wait::until("it is dead", || process_identity(pid).is_none()).unwrap();
        child.wait().unwrap();
        assert_eq!(process_identity(pid), None);
    }

    #[test]
    fn process_of_a_lab_is_found_by_its_mounts() {
        let mountinfo = "22 1 8:1 / / rw - ext4 /dev/sda rw\n90 22 8:1 /tmp/flannel-lab/fl-12-0abc/h1/run /run rw - ext4 /dev/sda rw\n";
        assert!(is_mounted(mountinfo, "/flannel-lab/fl-12-0abc/"));
        assert!(
            !is_mounted(mountinfo, "/flannel-lab/fl-12-0ab/")
                && !is_mounted(mountinfo, "/flannel-lab/fl-1-0abc/")
        );
        assert!(!is_mounted(
            "1 1 8:1 / /tmp/flannel-lab/fl-12-0abc/x rw - ext4 /dev/sda rw\n",
            "/flannel-lab/fl-12-0abc/"
        ));
    }
}
