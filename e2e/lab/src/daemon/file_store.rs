//! A replacement for systemd's file descriptor store for daemons in the lab (sd_notify(3), `FDSTORE=1`).

#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use parking_lot::Mutex;

type Files = Vec<(String, Arc<OwnedFd>)>;

/// Holds open files that daemons send to its socket. Drops a file when a daemon removes it or it becomes unusable.
#[derive(Debug)]
pub struct FileStore {
    socket: PathBuf,
    handle: FileStoreHandle,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FileStore {
    /// Daemons receive the socket's path in the environment variable `NOTIFY_SOCKET`.
    pub fn start(socket: &Path) -> Result<FileStore> {
        let listener =
            UnixDatagram::bind(socket).with_context(|| format!("binding {}", socket.display()))?;
        listener.set_read_timeout(Some(Duration::from_millis(20)))?;
        let (handle, end) = (FileStoreHandle::default(), Arc::new(AtomicBool::new(false)));
        let (ours, ends) = (handle.clone(), Arc::clone(&end));
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                if let Some((text, sent)) = receive_text_and_files(&listener) {
                    update_stored_files(&mut ours.0.lock(), &text, sent);
                }
            }
        });
        Ok(FileStore { socket: socket.to_owned(), handle, end, thread: Some(thread) })
    }

    /// The value of a daemon's `NOTIFY_SOCKET`.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Names and descriptors, for the next daemon. A device or a port exists as long as its file is open.
    pub fn files(&self) -> Vec<(String, Arc<OwnedFd>)> {
        self.handle.files()
    }

    pub(crate) fn handle(&self) -> FileStoreHandle {
        self.handle.clone()
    }
}

/// Without the thread that fills the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileStoreHandle(Arc<Mutex<Files>>);

impl FileStoreHandle {
    pub(crate) fn files(&self) -> Files {
        let mut files = self.0.lock();
        files.retain(|(_, file)| is_usable(file));
        files.clone()
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// systemd keeps a file with neither a hang-up nor an error.
fn is_usable(file: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(file.as_fd(), PollFlags::empty())];
    poll(&mut polled, PollTimeout::ZERO) == Ok(0)
}

fn receive_text_and_files(listener: &UnixDatagram) -> Option<(String, Vec<OwnedFd>)> {
    let mut buffer = [0; 4096];
    let mut space = nix::cmsg_space!([RawFd; 16]);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let message = recvmsg::<()>(
        listener.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )
    .ok()?;
    let mut files = Vec::new();
    for control in message.cmsgs().ok()? {
        if let ControlMessageOwned::ScmRights(sent) = control {
            // SAFETY: the kernel has just created these descriptors for this process.
            files.extend(sent.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let length = message.bytes;
    Some((String::from_utf8_lossy(buffer.get(..length)?).into_owned(), files))
}

fn update_stored_files(files: &mut Files, text: &str, sent: Vec<OwnedFd>) {
    let has = |line: &str| text.lines().any(|have| have == line);
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored");
    if has("FDSTOREREMOVE=1") {
        files.retain(|(kept, _)| kept != name);
    }
    if has("FDSTORE=1") {
        // systemd inserts each file before the earlier ones, and therefore returns the last file first.
        sent.into_iter().for_each(|file| files.insert(0, (name.to_owned(), Arc::new(file))));
    }
}
