//! Reads the daemon's status file next to subnet.env. While flanneld runs, it holds a lock on it. Locks work
//! across the PID namespaces of containers, so an unlocked file means that flanneld has ended. Go flannel's
//! daemon writes no status file.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The longest status file, in bytes.
const LIMIT: u64 = 64 * 1024;
/// Attempts if flanneld replaces the file during each of them.
const MAX_ATTEMPTS: usize = 100;

/// The state of flanneld according to its status file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// There is no status file.
    Unknown,
    /// It runs and is ready.
    Ready,
    /// It is not ready or not running, for this reason.
    NotReady(String),
}

/// The status file that belongs to this subnet.env.
pub fn path(subnet_file: &Path) -> PathBuf {
    let mut path = subnet_file.as_os_str().to_owned();
    path.push(".status");
    path.into()
}

/// The daemon that writes this subnet.env.
pub fn of(subnet_file: &Path) -> Daemon {
    let path = path(subnet_file);
    match read(&path) {
        Ok(Some((text, alive))) => judge(&path, &text, alive),
        Ok(None) => Daemon::Unknown,
        Err(error) => Daemon::NotReady(unreadable(&path, &error)),
    }
}

/// Why a new pod on this node would have no working network. `None` if it would work, or if there is no
/// status file.
///
/// While STATUS fails, the container runtime reports its node as not ready, and Kubernetes evicts the pods
/// minutes later. An unreachable store or a restarting daemon is no reason to fail, because pods need only
/// the network in the kernel.
pub fn obstacle(subnet_file: &Path) -> Option<String> {
    let path = path(subnet_file);
    let exists = |device: &str| nix::net::if_::if_nametoindex(device).is_ok();
    match read(&path) {
        Ok(Some((text, alive))) => obstacle_in(&path, &text, alive, exists),
        Ok(None) => None,
        Err(error) => Some(unreadable(&path, &error)),
    }
}

fn obstacle_in(
    path: &Path,
    text: &[u8],
    alive: bool,
    exists: impl Fn(&str) -> bool,
) -> Option<String> {
    let status: Value = serde_json::from_slice(text).unwrap_or_default();
    let Some(pods) = status.get("pods") else {
        return Some(format!("{} has no \"pods\"", path.display()));
    };
    let known = reasons(pods);
    if !known.is_empty() {
        return Some(format!("new pods would not work: {known}"));
    }
    let devices =
        pods.get("devices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let gone = devices.iter().filter_map(Value::as_str).find(|device| !exists(device))?;
    Some(match alive {
        true => format!("new pods would not work: the device {gone} does not exist"),
        false => format!(
            "new pods would not work: the device {gone} does not exist, and flanneld is not running"
        ),
    })
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

/// Why subnet.env is likely missing.
pub fn why_no_file(subnet_file: &Path) -> String {
    match of(subnet_file) {
        Daemon::Unknown => format!(
            "flanneld has not written {}; check that the flannel pod runs on this node",
            subnet_file.display()
        ),
        Daemon::Ready => format!(
            "flanneld is ready; check that its --subnet-file names {}",
            subnet_file.display()
        ),
        Daemon::NotReady(why) => why,
    }
}

/// The text, and whether flanneld runs; `None` without a status file.
fn read(path: &Path) -> io::Result<Option<(Vec<u8>, bool)>> {
    for _ in 0..MAX_ATTEMPTS {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let inode = file.metadata()?.ino();
        let mut text = Vec::new();
        (&file).take(LIMIT).read_to_end(&mut text)?;
        if is_locked(file)? {
            return Ok(Some((text, true)));
        }
        // The writer replaces the file before it releases the lock on the old one.
        if std::fs::symlink_metadata(path).is_ok_and(|now| now.ino() == inode) {
            return Ok(Some((text, false)));
        }
    }
    Err(io::Error::other("flanneld replaced the file during every attempt to read it"))
}

fn is_locked(file: File) -> io::Result<bool> {
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(_) => Ok(false),
        Err((_, Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, errno)) => Err(errno.into()),
    }
}

fn judge(path: &Path, text: &[u8], alive: bool) -> Daemon {
    let status: Value = serde_json::from_slice(text).unwrap_or_default();
    if !alive {
        let pid = status
            .get("pid")
            .and_then(Value::as_u64)
            .map(|pid| format!(" (pid {pid})"))
            .unwrap_or_default();
        return Daemon::NotReady(format!(
            "flanneld is not running: the writer of {}{pid} has ended",
            path.display()
        ));
    }
    match status.get("ready").and_then(Value::as_bool) {
        Some(true) => Daemon::Ready,
        Some(false) => Daemon::NotReady(format!("flanneld is not ready: {}", reasons(&status))),
        None => Daemon::NotReady(format!("{} has no \"ready\"", path.display())),
    }
}

fn reasons(status: &Value) -> String {
    let text = |reason: &Value, name: &str| {
        reason.get(name).and_then(Value::as_str).unwrap_or("?").to_owned()
    };
    let list =
        status.get("reasons").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter()
        .map(|reason| format!("{}: {}", text(reason, "condition"), text(reason, "reason")))
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_file_without_a_living_writer_is_not_ready() {
        let folder = tempfile::tempdir().unwrap();
        let env = folder.path().join("subnet.env");
        assert_eq!(of(&env), Daemon::Unknown);
        assert!(why_no_file(&env).contains("check that the flannel pod runs"));
        let file = path(&env);
        std::fs::write(&file, r#"{"ready":true,"pid":77}"#).unwrap();
        let Daemon::NotReady(why) = of(&env) else { panic!("ready without a writer") };
        assert!(why.contains("not running") && why.contains("pid 77"), "{why}");

        let lock =
            Flock::lock(File::open(&file).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
        assert_eq!(of(&env), Daemon::Ready);
        std::fs::write(&file, r#"{"ready":false,"reasons":[{"condition":"lease","reason":"no lease"},{"condition":"store"}]}"#).unwrap();
        assert_eq!(
            of(&env),
            Daemon::NotReady("flanneld is not ready: lease: no lease; store: ?".to_owned())
        );
        std::fs::write(&file, "{").unwrap();
        assert!(matches!(of(&env), Daemon::NotReady(why) if why.contains("no \"ready\"")));
        assert!(obstacle(&env).unwrap().contains("no \"pods\""));
        drop(lock);
        assert!(matches!(of(&env), Daemon::NotReady(why) if why.contains("not running")));

        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &file).unwrap();
        assert!(matches!(of(&env), Daemon::NotReady(why) if why.contains("cannot read")));
    }
}
