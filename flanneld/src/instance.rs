//! One daemon a network: an abstract socket named after it, and a lock beside subnet.env; what each takes of the host; and who runs here.

use crate::regular;
use backends::Takes;
use ipnet::IpNet;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, getsockopt};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use subnet_lease::Subnets;

/// What begins the names of the abstract sockets.
const SOCKETS: &str = "flannel-rs/";

/// What begins the names of the sockets for what a daemon takes of the host.
const TAKEN: &str = "flannel-rs.taken/";
/// What begins the names of the sockets for the places of guards.
const GUARDS: &str = "flannel-rs.guard/";

/// The right to run, held until it is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct Instance {
    _socket: UnixListener,
    _lock: Flock<File>,
}

/// What this daemon has taken of the host, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct Taken {
    _sockets: Vec<UnixListener>,
}

/// The place for this daemon's guard of its encapsulation port, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct GuardPlace {
    /// Its number.
    pub number: u16,
    _socket: UnixListener,
}

/// Why this process may not run.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Another one serves the same network in this network namespace.
    #[error(
        "another flanneld serves {network} here already ({holder}): two of them would undo each other's work; stop it first (systemctl status flanneld, ps -p PID)"
    )]
    Network {
        /// Network and backend type.
        network: String,
        /// Which process, in words.
        holder: String,
    },
    /// Another one writes the same subnet.env.
    #[error("another flanneld writes {} already ({holder}): stop it, or give this one its own --subnet-file", file.display())]
    SubnetFile {
        /// The subnet.env.
        file: PathBuf,
        /// Which process, in words.
        holder: String,
    },
    /// Another one has what cannot be shared.
    #[error("another flanneld on this host has {what} already ({holder}): {remedy}, or stop the other one")]
    Taken {
        /// What both want.
        what: String,
        /// Which process, for which network, in words.
        holder: String,
        /// What to change.
        remedy: &'static str,
    },
    /// The lock or the socket cannot be made.
    #[error("making sure that only one flanneld runs: {what}: {why}; check the permissions there, or name another --subnet-file")]
    Host {
        /// What was attempted, on what.
        what: String,
        /// What the system said.
        why: io::Error,
    },
}

/// Claims a network for this process, scoped to its network namespace as the state in the kernel is, and the subnet.env.
///
/// # Errors
/// Names the process that holds it, where that can be seen.
pub fn claim(network: &str, backend: &str, subnet_file: &Path) -> Result<Instance, InstanceError> {
    let socket = bind(network, backend)?;
    let lock = lock(subnet_file)?;
    Ok(Instance { _socket: socket, _lock: lock })
}

fn bind(network: &str, backend: &str) -> Result<UnixListener, InstanceError> {
    let label = format!("{network} ({})", if backend.is_empty() { "no backend" } else { backend });
    let name = format!("{SOCKETS}{network}/{backend}");
    let host = |why| InstanceError::Host { what: format!("binding the abstract socket of {label}"), why };
    let address = SocketAddr::from_abstract_name(&name).map_err(host)?;
    match UnixListener::bind_addr(&address) {
        Ok(socket) => Ok(socket),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(InstanceError::Network { network: label, holder: listener(name.as_bytes()) }),
        Err(error) => Err(host(error)),
    }
}

/// Takes what the network needs for itself alone: the rules about it, device names, VNIs, the UDP port.
///
/// # Errors
/// Names the process that has one of them, and its network.
pub fn take(networks: &Subnets, takes: &Takes) -> Result<Taken, InstanceError> {
    const CHANGE: &str = "set another VNI in the Backend of one network configuration";
    const PORT: &str = "set another Port in the Backend of one network configuration";
    let mut sockets = Vec::new();
    let mut bind = |what: String, name: String, remedy| {
        let host = |why| InstanceError::Host { what: format!("binding the abstract socket of {what}"), why };
        let name = format!("{TAKEN}{name}");
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).map_err(host)?) {
            Ok(socket) => sockets.push(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(InstanceError::Taken { what, holder: owner(name.as_bytes()), remedy });
            }
            Err(error) => return Err(host(error)),
        }
        Ok(())
    };
    for network in networks.nets() {
        bind(format!("the rules about {network}"), format!("network/{network}"), "give one of them another Network")?;
    }
    for tunnel in &takes.tunnels {
        bind(tunnel.clone(), format!("tunnel/{tunnel}"), CHANGE)?;
    }
    for device in &takes.devices {
        let remedy = if device.contains('.') { CHANGE } else { "choose another Backend for one of them" };
        bind(format!("the device {device}"), format!("device/{device}"), remedy)?;
    }
    if let Some((port, shared)) = takes.port {
        let what = format!("UDP port {port}");
        let alone = format!("port/{port}/alone");
        let other = |names: &[String]| names.iter().find(|name| name.starts_with(&format!("{TAKEN}port/{port}/"))).cloned();
        let taken = |name: String| InstanceError::Taken { what: what.clone(), holder: owner(name.as_bytes()), remedy: PORT };
        // First taken, then looked: of two that come at once, at most one goes on.
        if shared {
            bind(what.clone(), format!("port/{port}/{networks}"), PORT)?;
            let alone = format!("{TAKEN}{alone}");
            if named(TAKEN).contains(&alone) {
                return Err(taken(alone));
            }
        } else {
            bind(what.clone(), alone.clone(), PORT)?;
            let mut names = named(TAKEN);
            names.retain(|name| *name != format!("{TAKEN}{alone}"));
            if let Some(name) = other(&names) {
                return Err(taken(name));
            }
        }
    }
    Ok(Taken { _sockets: sockets })
}

/// Takes the first place for a guard that no other daemon has.
///
/// # Errors
/// The socket cannot be made.
pub fn take_guard_place() -> Result<GuardPlace, InstanceError> {
    let host = |why| InstanceError::Host { what: "binding the abstract socket of the port's guard".to_owned(), why };
    for number in 0..u16::MAX {
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("{GUARDS}{number}")).map_err(host)?) {
            Ok(_socket) => return Ok(GuardPlace { number, _socket }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(host(error)),
        }
    }
    Err(host(io::Error::from(io::ErrorKind::AddrInUse)))
}

/// The places of the guards of all our daemons in this network namespace.
pub fn guard_places() -> BTreeSet<u16> {
    named(GUARDS).iter().filter_map(|name| name.strip_prefix(GUARDS)?.parse().ok()).collect()
}

/// The networks that our daemons in this network namespace serve: a set for each.
pub fn served() -> Vec<BTreeSet<IpNet>> {
    sockets().iter().map(|name| networks_of(name)).collect()
}

/// What daemons of this network namespace have that serve none of some networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The networks that they serve.
    pub networks: BTreeSet<IpNet>,
    /// Their devices.
    pub devices: BTreeSet<String>,
    /// The places of their guards.
    pub guards: BTreeSet<u16>,
    /// Who they are, in words.
    pub who: BTreeSet<String>,
}

/// Looks for the daemons that serve none of these networks.
pub fn beside(networks: &BTreeSet<IpNet>) -> Beside {
    let mut sockets = sockets();
    sockets.retain(|name| networks_of(name).is_disjoint(networks));
    // One whose pid cannot be read may be theirs: it stays.
    let pid = |name: &String| peer(name.as_bytes()).map(|peer| peer.pid());
    let pids: BTreeSet<i32> = sockets.iter().filter_map(pid).collect();
    let theirs = |start: &str| named(start).into_iter().filter(|name| pid(name).is_none_or(|pid| pids.contains(&pid))).collect::<Vec<_>>();
    let devices = format!("{TAKEN}device/");
    Beside {
        networks: sockets.iter().flat_map(|name| networks_of(name)).collect(),
        devices: theirs(&devices).iter().filter_map(|name| Some(name.strip_prefix(&devices)?.to_owned())).collect(),
        guards: theirs(GUARDS).iter().filter_map(|name| name.strip_prefix(GUARDS)?.parse().ok()).collect(),
        who: sockets.iter().map(|name| listener(name.as_bytes())).collect(),
    }
}

/// Who holds the lock beside a subnet.env, in words.
pub fn holder(subnet_file: &Path) -> Option<String> {
    let mut file = regular::open(&lock_path(subnet_file), OpenOptions::new().read(true)).ok()?;
    let mut text = String::new();
    // Who it is only serves the message.
    let _ = file.read_to_string(&mut text);
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Err((_, Errno::EWOULDBLOCK)) => {
            Some(text.trim().parse().map_or_else(|_| format!("a process that holds {}", lock_path(subnet_file).display()), process))
        }
        _ => None,
    }
}

/// The networks in the name of a daemon's socket.
fn networks_of(name: &str) -> BTreeSet<IpNet> {
    let text = name.strip_prefix(SOCKETS).and_then(|rest| rest.rsplit_once('/')).map_or("", |(networks, _)| networks);
    text.split(" and ").filter_map(|net| net.parse().ok()).collect()
}

/// Who has a socket, and which network it serves, in words.
fn owner(name: &[u8]) -> String {
    let Some(pid) = peer(name).map(|peer| peer.pid()).filter(|pid| *pid > 0) else { return listener(name) };
    let same = |socket: &&String| peer(socket.as_bytes()).is_some_and(|peer| peer.pid() == pid);
    match sockets().iter().find(same).and_then(|socket| socket.strip_prefix(SOCKETS)?.rsplit_once('/')) {
        Some((network, _)) => format!("{}, network {network}", process(pid)),
        None => process(pid),
    }
}

/// Whether a flanneld of another make runs here: a process of that name without a socket of ours.
pub fn others_make() -> bool {
    let ours = inodes();
    let has = |pid: &i32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        targets.filter_map(|target| target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()).any(|inode| ours.contains(&inode))
    };
    named_so().iter().any(|pid| !has(pid))
}

/// The inodes of our daemons' sockets in this network namespace.
fn inodes() -> BTreeSet<u64> {
    let table = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    table.lines().filter_map(|line| line.split_once(&format!(" @{SOCKETS}"))?.0.split_whitespace().next_back()?.parse().ok()).collect()
}

/// Who listens on a socket, in words.
fn listener(name: &[u8]) -> String {
    match peer(name).map(|peer| peer.pid()) {
        Some(pid) if pid > 0 => process(pid),
        Some(_) => "a process in another pid namespace".to_owned(),
        None => "its pid cannot be read".to_owned(),
    }
}

/// The listener's credentials. Nobody accepts there: once enough have asked, a blocking call would wait for ever.
fn peer(name: &[u8]) -> Option<UnixCredentials> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name).ok()?).ok()?;
    getsockopt(&socket, PeerCredentials).ok()
}

/// A process in words: pid and command.
fn process(pid: i32) -> String {
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("pid {pid}, {}", name.trim()),
        Err(_) => format!("pid {pid}"),
    }
}

/// The daemons that run in this network namespace, in words: ours by their sockets and by the lock, Go flannel's by their name.
pub fn running(subnet_file: &Path) -> Vec<String> {
    let mut found: Vec<String> = sockets().iter().map(|name| listener(name.as_bytes())).collect();
    found.extend(holder(subnet_file));
    found.extend(named_so().into_iter().map(process));
    found.sort();
    found.dedup();
    found
}

/// The names of our daemons' sockets in this network namespace.
fn sockets() -> Vec<String> {
    named(SOCKETS)
}

/// The names of the abstract sockets in this network namespace that begin so.
fn named(start: &str) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    // A name may have blanks in it: two networks are joined by " and ".
    let names = table.lines().filter_map(|line| line.split_once(&format!(" @{start}")).map(|(_, rest)| format!("{start}{rest}")));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

/// Other processes of this network namespace whose program is called flanneld.
fn named_so() -> Vec<i32> {
    let here = std::fs::read_link("/proc/thread-self/ns/net").ok();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is = |pid: &i32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        comm.trim() == "flanneld" && here.is_some() && std::fs::read_link(format!("/proc/{pid}/ns/net")).ok() == here
    };
    pids.filter(is).filter(|pid| u32::try_from(*pid) != Ok(std::process::id())).collect()
}

/// The lock that belongs to a subnet.env.
pub fn lock_path(subnet_file: &Path) -> PathBuf {
    let folder = subnet_file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = subnet_file.file_name().map_or_else(|| "subnet.env".to_owned(), |name| name.to_string_lossy().into_owned());
    folder.join(format!(".{name}.lock"))
}

fn lock(subnet_file: &Path) -> Result<Flock<File>, InstanceError> {
    let path = lock_path(subnet_file);
    let folder = path.parent().unwrap_or(Path::new("."));
    let host = |why: io::Error| InstanceError::Host { what: format!("locking {}", path.display()), why };
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(host)?;
    let mut options = OpenOptions::new();
    let file = regular::open(&path, options.read(true).write(true).create(true).truncate(false).mode(0o644)).map_err(host)?;
    // The pid would be written over what another name calls its own.
    if file.metadata().map_err(host)?.nlink() > 1 {
        return Err(host(io::Error::new(io::ErrorKind::InvalidInput, "it has other names (hard links): delete this one")));
    }
    let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut text = String::new();
            // Who it is only serves the message.
            let _ = file.read_to_string(&mut text);
            let holder = text.trim().parse().map_or_else(|_| "its pid cannot be read".to_owned(), process);
            return Err(InstanceError::SubnetFile { file: subnet_file.to_owned(), holder });
        }
        Err((_, errno)) => return Err(host(errno.into())),
    };
    let written = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()));
    if let Err(error) = written {
        // The lock holds without its holder's pid.
        tracing::debug!("writing the pid to {}: {error}", path.display());
    }
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (file, secret) = (folder.path().join("subnet.env"), folder.path().join("secret"));
        std::fs::write(&secret, "mine").unwrap();
        let network = format!("10.98.0.0/16 of test {}", std::process::id());
        std::os::unix::fs::symlink(&secret, lock_path(&file)).unwrap();
        let refused = |why: &str| {
            let error = claim(&network, "vxlan", &file).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(".subnet.env.lock"), "{error}");
            assert_eq!(std::fs::read_to_string(&secret).unwrap(), "mine");
            running(&file);
            std::fs::remove_file(lock_path(&file)).unwrap();
        };
        refused("symbolic link");
        std::fs::hard_link(&secret, lock_path(&file)).unwrap();
        refused("hard links");
        nix::unistd::mkfifo(&lock_path(&file), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        refused("regular file");
        claim(&network, "vxlan", &file).unwrap();
    }

    #[test]
    fn the_second_is_told_who_the_first_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/subnet.env");
        let network = format!("10.99.0.0/16 of test {}", std::process::id());
        let first = claim(&network, "vxlan", &file).unwrap();
        let error = claim(&network, "vxlan", &folder.path().join("other.env")).unwrap_err();
        let pid = format!("pid {}", std::process::id());
        assert!(matches!(error, InstanceError::Network { .. }), "{error}");
        assert!(error.to_string().contains(&pid), "{error}");
        assert!(running(&file).iter().any(|words| words.starts_with(&pid)), "{:?}", running(&file));
        assert!(sockets().iter().any(|name| name.ends_with(&format!("{network}/vxlan"))), "{:?}", sockets());
        // However many ask, each is told something and none waits.
        for _ in 0..300 {
            claim(&network, "vxlan", &folder.path().join("other.env")).unwrap_err();
        }
        // Another network with the same file.
        let error = claim(&format!("{network} b"), "vxlan", &file).unwrap_err();
        assert!(matches!(error, InstanceError::SubnetFile { .. }), "{error}");
        assert!(error.to_string().contains(&pid), "{error}");
        // Another backend type is another daemon (issue #765 of Go flannel: several networks on one host).
        let other = claim(&network, "host-gw", &folder.path().join("third.env")).unwrap();
        drop(first);
        drop(other);
        assert!(!sockets().iter().any(|name| name.contains(&network)), "{:?}", sockets());
        claim(&network, "vxlan", &file).unwrap();
    }
}
