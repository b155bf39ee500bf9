//! Removing labs: one's own, those of dead processes, and those that were kept.

use std::path::Path;

use anyhow::Result;

use crate::names::{KEPT, LabName, NETNS, entries, existing};
use crate::netns::Netns;

/// Removes a lab's processes, namespaces and folder.
pub(crate) fn remove(lab: &LabName) -> Result<()> {
    let mut outcome = Ok(());
    let names = || entries(Path::new(NETNS)).into_iter().filter(|name| LabName::parse(name).as_ref() == Some(lab));
    // All processes first: a daemon whose peers vanish would only fill its log.
    for name in names() {
        Netns::named(name).kill_all();
    }
    for name in names() {
        outcome = Netns::named(name).delete().and(outcome);
    }
    match std::fs::remove_dir_all(lab.folder()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => outcome.and(Err(error.into())),
        _ => outcome,
    }
}

/// Removes all labs of this process: what a handler of SIGINT calls before it exits.
///
/// # Errors
/// When a namespace or a folder resists.
pub fn remove_of_process() -> Result<()> {
    remove_where(|lab| lab.pid == std::process::id() && !is_kept(lab)).map(drop)
}

/// Removes what dead processes left behind; tells how many labs that were.
///
/// # Errors
/// When a namespace or a folder resists.
pub fn remove_stale() -> Result<usize> {
    remove_where(|lab| !is_alive(lab.pid) && !is_kept(lab))
}

/// Removes the labs that were kept on purpose; tells how many that were.
///
/// # Errors
/// When a namespace or a folder resists.
pub fn remove_kept() -> Result<usize> {
    remove_where(|lab| !is_alive(lab.pid) && is_kept(lab))
}

fn remove_where(chosen: impl Fn(&LabName) -> bool) -> Result<usize> {
    let mut outcome = Ok(());
    let mut count = 0;
    for lab in existing().iter().filter(|lab| chosen(lab)) {
        outcome = remove(lab).and(outcome);
        count += 1;
    }
    outcome.map(|()| count)
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn is_kept(lab: &LabName) -> bool {
    lab.folder().join(KEPT).exists()
}
