//! The daemons that run in this network namespace, and the resources they hold.

use super::lock_path;
use super::names::{self, Name};
use super::peer::peer;
use super::sockets::{Holder, SOCKETS, TAKEN, listener, slot_names, slot_of, sockets};
use crate::process;
use ipnet::IpNet;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use types::file::{self, Links};

/// The networks that flannel-rs daemons in this network namespace serve, one set per daemon.
pub fn served() -> Vec<BTreeSet<IpNet>> {
    sockets().iter().map(|name| networks_of(name.base())).collect()
}

/// Resources of the daemons in this network namespace that serve none of the given networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherInstances {
    pub networks: BTreeSet<IpNet>,
    pub devices: BTreeSet<String>,
    /// Of these daemons' traffic rules.
    pub slots: BTreeSet<u16>,
    /// Descriptions of the daemons, for messages.
    pub who: BTreeSet<String>,
}

/// Of the daemons that serve none of these networks.
pub fn others(networks: &BTreeSet<IpNet>) -> OtherInstances {
    let mut sockets = sockets();
    sockets.retain(|name| networks_of(name.base()).is_disjoint(networks));
    // A resource whose owner's pid cannot be read may belong to one of these daemons, so it is kept.
    let pid = |name: &Name| peer(name.raw.as_bytes()).map(|peer| peer.pid());
    let pids: BTreeSet<i32> = sockets.iter().filter_map(pid).collect();
    let theirs = |names: Vec<Name>| {
        names
            .into_iter()
            .filter(|name| pid(name).is_none_or(|pid| pids.contains(&pid)))
            .collect::<Vec<_>>()
    };
    let start = format!("{TAKEN}device/");
    let devices = theirs(names::named(&start, "would have prevented the removal of a device"));
    OtherInstances {
        networks: sockets.iter().flat_map(|name| networks_of(name.base())).collect(),
        devices: devices
            .iter()
            .filter_map(|name| Some(name.base().strip_prefix(&start)?.to_owned()))
            .collect(),
        slots: theirs(slot_names()).iter().filter_map(slot_of).collect(),
        who: sockets.iter().map(|name| listener(name).to_string()).collect(),
    }
}

/// Describes the process that holds the lock next to a subnet.env.
pub fn holder(subnet_file: &Path) -> Option<String> {
    let mut file =
        file::open(&lock_path(subnet_file), OpenOptions::new().read(true), Links::Refused).ok()?;
    let mut text = String::new();
    // The holder is only needed for the message.
    let _ = file.read_to_string(&mut text);
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Err((_, Errno::EWOULDBLOCK)) => Some(text.trim().parse().map_or_else(
            |_| format!("a process that holds {}", lock_path(subnet_file).display()),
            |pid| Holder::of(pid).to_string(),
        )),
        _ => None,
    }
}

/// From the name of a daemon's socket.
fn networks_of(name: &str) -> BTreeSet<IpNet> {
    let text = name
        .strip_prefix(SOCKETS)
        .and_then(|rest| rest.rsplit_once('/'))
        .map_or("", |(networks, _)| networks);
    text.split(" and ").filter_map(|net| net.parse().ok()).collect()
}

/// Finds flannel-rs daemons by socket and lock, and Go flannel's daemons by process name.
pub fn running(subnet_file: &Path) -> Vec<String> {
    let mut found: Vec<String> = sockets().iter().map(|name| listener(name).to_string()).collect();
    found.extend(holder(subnet_file));
    found.extend(named_flanneld().into_iter().map(|pid| Holder::of(pid).to_string()));
    found.sort();
    found.dedup();
    found
}

/// True if another implementation of flanneld runs in this network namespace: a process called flanneld without a
/// socket of flannel-rs.
pub fn foreign_flanneld() -> bool {
    // A daemon of this version that is starting has no socket yet.
    let program = |process: &str| {
        std::fs::metadata(format!("/proc/{process}/exe")).map(|file| (file.dev(), file.ino())).ok()
    };
    let own = program("self");
    let mut others = named_flanneld();
    others.retain(|pid| own.is_none() || program(&pid.to_string()) != own);
    // The rest looks at each socket of a daemon, or connects to it.
    if others.is_empty() {
        return false;
    }
    let daemons = sockets();
    let ours: BTreeSet<u64> = daemons.iter().map(|name| u64::from(name.inode)).collect();
    others.retain(|pid| !process::sockets(*pid).any(|(inode, _)| ours.contains(&inode)));
    // The files of a daemon with keys in its memory are hidden from programs without CAP_SYS_PTRACE.
    let is_listening = |pid: &i32| {
        daemons.iter().any(|name| peer(name.raw.as_bytes()).is_some_and(|peer| peer.pid() == *pid))
    };
    others.iter().any(|pid| !is_listening(pid))
}

/// The other processes in this network namespace whose name is flanneld and whose user is root or this user.
fn named_flanneld() -> Vec<i32> {
    // The inode of this file identifies the network namespace. The links in `ns` of a process with keys in its memory need CAP_SYS_PTRACE.
    let namespace = |process: &str| {
        std::fs::metadata(format!("/proc/{process}/net/unix")).map(|file| file.ino())
    };
    let here = namespace("thread-self").ok();
    let is = |pid: &i32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        // A process that cannot be inspected is assumed to be in this namespace, because the caller is about to remove its rules.
        let there = || namespace(&pid.to_string());
        // Any user can give a program this name.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let user = status.lines().find_map(|line| {
            line.strip_prefix("Uid:")?.split_whitespace().next()?.parse::<u32>().ok()
        });
        comm.trim() == "flanneld"
            && user.is_some_and(|uid| uid == 0 || uid == nix::unistd::geteuid().as_raw())
            && here.is_some()
            && there().map_or_else(
                |error| error.kind() == std::io::ErrorKind::PermissionDenied,
                |there| Some(there) == here,
            )
    };
    process::pids().filter(is).filter(|pid| u32::try_from(*pid) != Ok(std::process::id())).collect()
}
