//! Ensures that only one daemon serves a network, by a lock next to subnet.env and an abstract socket with the network's name.

mod error;
pub mod lent;
mod names;
mod peer;
pub mod running;
mod sockets;
pub mod taken;

use error::report_host;
use names::HoldError;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use sockets::{Holder, SOCKETS, listener};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use types::Problem;
use types::file::{self, IrregularFileError, Links};

/// No other user may read the lock file, because read access is enough to lock a file.
const LOCK_MODE: u32 = 0o600;

/// The exclusive right of a process to serve a network and to write a subnet.env. It ends when the process drops the
/// [`Instance`], or when the process ends for any reason.
#[derive(Debug)]
pub struct Instance {
    _socket: UnixListener,
    _lock: Flock<File>,
}

/// The claim on the network applies to one network namespace, as the kernel state of the network does.
///
/// Fails if another process holds the claim, or if this process cannot create the socket or the lock. The error names
/// the other process if its pid is known.
pub fn claim(network: &str, backend: &str, subnet_file: &Path) -> Result<Instance, Problem> {
    let socket = bind(network, backend)?;
    let lock = lock(subnet_file)?;
    Ok(Instance { _socket: socket, _lock: lock })
}

/// `backend` is empty without a backend.
fn bind(network: &str, backend: &str) -> Result<UnixListener, Problem> {
    let name = format!("{SOCKETS}{network}/{backend}");
    let backend = if backend.is_empty() { "no backend" } else { backend };
    names::hold(&name, "would have kept this daemon from starting").map_err(|denied| match denied {
        HoldError::Held(holder) => {
            let text = format!(
                "another flanneld already serves {network} ({backend}) on this host ({}): two daemons would undo each other's work; stop the other daemon first (systemctl status flanneld, ps -p PID; on Kubernetes, kubectl get daemonsets --all-namespaces -l app=flannel)",
                listener(&holder)
            );
            Problem::new("network-served", text)
        }
        HoldError::Host(why) => {
            report_host(format!("binding the abstract socket of {network} ({backend})"), &why)
        }
    })
}

/// The path of the lock that belongs to a subnet.env.
pub fn lock_path(subnet_file: &Path) -> PathBuf {
    let folder = subnet_file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let name = subnet_file
        .file_name()
        .map_or_else(|| "subnet.env".to_owned(), |name| name.to_string_lossy().into_owned());
    folder.join(format!(".{name}.lock"))
}

fn lock(subnet_file: &Path) -> Result<Flock<File>, Problem> {
    let path = lock_path(subnet_file);
    let folder = path.parent().unwrap_or(Path::new("."));
    let host = |why: io::Error| report_host(format!("locking {}", path.display()), &why);
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(host)?;
    let mut options = OpenOptions::new();
    let file = file::open(
        &path,
        options.read(true).write(true).create(true).truncate(false).mode(LOCK_MODE),
        Links::Refused,
    )
    .map_err(host)?;
    // Writing the pid would overwrite a file that also has another name.
    if file.metadata().map_err(host)?.nlink() > 1 {
        return Err(host(IrregularFileError::HardLinks.into()));
    }
    // Earlier versions made the file readable for all users, and a user who can read it can lock it.
    if file.metadata().map_err(host)?.mode() & 0o777 != LOCK_MODE {
        file.set_permissions(std::fs::Permissions::from_mode(LOCK_MODE)).map_err(host)?;
    }
    let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut text = String::new();
            // The holder is only needed for the message.
            let _ = file.read_to_string(&mut text);
            let holder = text.trim().parse().map_or(Holder::Unknown, Holder::of);
            let text = format!(
                "another flanneld already writes {} ({holder}); stop the other daemon, or give this daemon its own --subnet-file",
                subnet_file.display()
            );
            return Err(Problem::new("subnet-file-held", text));
        }
        Err((_, errno)) => return Err(host(errno.into())),
    };
    let written = lock
        .set_len(0)
        .and_then(|()| lock.rewind())
        .and_then(|()| writeln!(lock, "{}", std::process::id()));
    if let Err(error) = written {
        // The lock works without the pid in it.
        tracing::debug!(path = %path.display(), error = %error, "cannot write the pid into the lock file");
    }
    Ok(lock)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::running::running;
    use super::sockets::sockets;
    use super::*;
    use nix::unistd::{Uid, geteuid, setfsuid};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;

    /// Binds abstract sockets with these names as user `nobody`. Only root can call this.
    pub(crate) fn held_by_nobody(names: &[&str]) -> Vec<UnixListener> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let hold = move || {
            setfsuid(Uid::from_raw(65534));
            names
                .iter()
                .map(|name| {
                    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
                })
                .collect()
        };
        // setfsuid(2) affects only the calling thread.
        std::thread::spawn(hold).join().unwrap()
    }

    #[test]
    fn network_name_of_another_user_stops_no_daemon() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let network = format!("10.96.0.0/16 of test {}", std::process::id());
        let _squat = held_by_nobody(&[&format!("{SOCKETS}{network}/vxlan")]);
        let first = claim(&network, "vxlan", &folder.path().join("subnet.env")).unwrap();
        assert_eq!(
            sockets()
                .iter()
                .filter(|name| name.base() == format!("{SOCKETS}{network}/vxlan"))
                .count(),
            1,
            "{:?}",
            sockets()
        );
        let error = claim(&network, "vxlan", &folder.path().join("other.env")).unwrap_err();
        assert!(
            error.code == "network-served"
                && error.to_string().contains(&format!("pid {}", std::process::id())),
            "{error}"
        );
        drop(first);
        claim(&network, "vxlan", &folder.path().join("other.env")).unwrap();
    }

    #[test]
    fn lock_file_that_others_can_read_is_closed_to_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("subnet.env");
        std::fs::write(lock_path(&file), "1").unwrap();
        std::fs::set_permissions(lock_path(&file), std::fs::Permissions::from_mode(0o644)).unwrap();
        let _held =
            claim(&format!("10.95.0.0/16 of test {}", std::process::id()), "vxlan", &file).unwrap();
        assert_eq!(std::fs::metadata(lock_path(&file)).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn lock_is_a_file_of_its_own() {
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
        nix::unistd::mkfifo(&lock_path(&file), nix::sys::stat::Mode::from_bits_truncate(0o600))
            .unwrap();
        refused("regular file");
        claim(&network, "vxlan", &file).unwrap();
    }

    #[test]
    fn second_daemon_is_refused_with_the_first_ones_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/subnet.env");
        let network = format!("10.99.0.0/16 of test {}", std::process::id());
        let first = claim(&network, "vxlan", &file).unwrap();
        let error = claim(&network, "vxlan", &folder.path().join("other.env")).unwrap_err();
        let pid = format!("pid {}", std::process::id());
        assert!(error.code == "network-served" && error.text.contains(&pid), "{error}");
        assert!(running(&file).iter().any(|words| words.starts_with(&pid)), "{:?}", running(&file));
        assert!(
            sockets().iter().any(|name| name.base().ends_with(&format!("{network}/vxlan"))),
            "{:?}",
            sockets()
        );
        // Every further attempt fails at once, and none of them blocks.
        for _ in 0..300 {
            claim(&network, "vxlan", &folder.path().join("other.env")).unwrap_err();
        }
        // Another network with the same subnet.env.
        let error = claim(&format!("{network} b"), "vxlan", &file).unwrap_err();
        assert!(error.code == "subnet-file-held" && error.text.contains(&pid), "{error}");
        // A daemon with another backend type may serve the same network (issue #765 of Go flannel: several networks on one host).
        let other = claim(&network, "host-gw", &folder.path().join("third.env")).unwrap();
        drop(first);
        drop(other);
        assert!(!sockets().iter().any(|name| name.raw.contains(&network)), "{:?}", sockets());
        claim(&network, "vxlan", &file).unwrap();
    }
}
