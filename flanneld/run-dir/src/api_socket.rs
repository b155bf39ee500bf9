//! Unix socket of the status API, next to subnet.env. `flannelctl` requests documents from the daemon over it.
//!
//! The socket has mode 0600 from its creation, and a rename replaces a stale one. The address of a Unix socket
//! contains a path of at most 107 bytes. To allow longer paths, this module opens the socket's folder and uses a path
//! below `/proc/self/fd`.

use crate::replace::{folder, replace};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use thiserror::Error;
use types::Coded;

/// Connections that the daemon has not accepted yet.
const BACKLOG: i32 = 128;

/// The path of the socket that belongs to a subnet.env.
pub fn path(subnet_file: &Path) -> PathBuf {
    let mut path = subnet_file.as_os_str().to_owned();
    path.push(".sock");
    path.into()
}

/// Why the daemon cannot create the socket. The path is the socket's.
#[derive(Debug, Error, Coded)]
pub enum SocketError {
    #[error("another flanneld listens on {}", .0.display())]
    #[code("api-socket-held")]
    Held(PathBuf),
    #[error("cannot listen on {}: the file is not a socket; delete the file", .0.display())]
    #[code("api-socket-foreign")]
    Foreign(PathBuf),
    #[error(
        "cannot listen on {}: {why}; check the directory's permissions and free space, because flannelctl needs the socket",
        .path.display()
    )]
    #[code("api-socket")]
    System {
        path: PathBuf,
        #[source]
        why: io::Error,
    },
}

#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// Device and inode of the socket that this daemon created.
    ours: Option<(u64, u64)>,
}

impl Socket {
    /// [`Socket::put`] creates it.
    pub fn new(subnet_file: &Path) -> Self {
        Self { path: path(subnet_file), ours: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The listener is non-blocking. `None` if this daemon's socket is still at its path.
    pub fn put(&mut self) -> Result<Option<UnixListener>, SocketError> {
        if self.is_in_place() {
            return Ok(None);
        }
        match std::fs::symlink_metadata(&self.path) {
            Ok(file) if !file.file_type().is_socket() => {
                return Err(SocketError::Foreign(self.path.clone()));
            }
            Ok(_) if is_answered(&self.path) => return Err(SocketError::Held(self.path.clone())),
            _ => {}
        }
        let listener = replace(&self.path, listener)
            .map_err(|why| SocketError::System { path: self.path.clone(), why })?;
        self.ours = identity(&self.path);
        Ok(Some(listener))
    }

    /// Leaves a socket with which another daemon has replaced it.
    pub fn remove(&self) {
        if self.is_in_place() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn is_in_place(&self) -> bool {
        self.ours.is_some() && identity(&self.path) == self.ours
    }
}

/// Creates a socket at a free path.
fn listener(path: &Path) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // The mode is set before the name exists, so that no other user can ever open the socket.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    let (_opened, address) = address(path)?;
    bind(socket.as_raw_fd(), &address)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(UnixListener::from(socket))
}

/// The stream is blocking.
///
/// The error is `NotFound` or `ConnectionRefused` if no daemon runs, and `PermissionDenied` for a user other than
/// root.
pub fn connect_to(path: &Path) -> io::Result<UnixStream> {
    let socket = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let (_opened, address) = address(path)?;
    connect(socket.as_raw_fd(), &address)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// True if a process listens on the socket.
fn is_answered(path: &Path) -> bool {
    match connect_to(path) {
        Ok(_) => true,
        // A full backlog means that a process holds the listener.
        Err(error) => error.raw_os_error() == Some(Errno::EAGAIN as i32),
    }
}

/// A short address of a socket, for a path of any length. It is valid while the returned descriptor of the folder is
/// open.
fn address(path: &Path) -> io::Result<(OwnedFd, UnixAddr)> {
    let opened =
        open(folder(path), OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let address =
        UnixAddr::new(&Path::new("/proc/self/fd").join(opened.as_raw_fd().to_string()).join(name))?;
    Ok((opened, address))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path)
        .ok()
        .filter(|file| file.file_type().is_socket())
        .map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn stale_socket_is_replaced_and_a_live_one_stays() {
        let root = tempfile::tempdir().unwrap();
        let env = root.path().join("run/subnet.env");
        let path = path(&env);
        let mut first = Socket::new(&env);
        let listener = first.put().unwrap().unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(first.put().unwrap().is_none(), "the socket is in place");
        connect_to(&path).unwrap();
        let mut second = Socket::new(&env);
        assert!(matches!(second.put(), Err(SocketError::Held(_))));
        // A deleted socket is created again.
        std::fs::remove_file(&path).unwrap();
        let again = first.put().unwrap().unwrap();
        drop((listener, again));
        assert_eq!(connect_to(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listener = second.put().unwrap().unwrap();
        connect_to(&path).unwrap();
        first.remove();
        assert_eq!(
            names(&root.path().join("run")),
            ["subnet.env.sock"],
            "the other daemon's socket stays, and no temporary socket remains"
        );
        second.remove();
        assert!(names(&root.path().join("run")).is_empty());
        drop(listener);
    }

    #[test]
    fn socket_with_a_full_backlog_has_an_owner() {
        let root = tempfile::tempdir().unwrap();
        let env = root.path().join("subnet.env");
        let mut first = Socket::new(&env);
        let _listener = first.put().unwrap().unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = connect_to(&path(&env)) {
            waiting.push(stream);
            assert!(waiting.len() < 100_000);
        }
        assert!(matches!(Socket::new(&env).put(), Err(SocketError::Held(_))));
    }

    #[test]
    fn other_files_stay_and_long_paths_work() {
        let root = tempfile::tempdir().unwrap();
        let env = root.path().join("subnet.env");
        std::fs::write(path(&env), "mine").unwrap();
        assert!(matches!(Socket::new(&env).put(), Err(SocketError::Foreign(_))));
        assert_eq!(std::fs::read_to_string(path(&env)).unwrap(), "mine");
        let deep = root.path().join("x".repeat(100)).join("y".repeat(100)).join("b.env");
        let _listener = Socket::new(&deep).put().unwrap().unwrap();
        connect_to(&path(&deep)).unwrap();
        assert!(path(&deep).ends_with("b.env.sock"));
    }
}
