//! systemd's file descriptor store, which keeps the TUN device and the sockets open from one daemon to the next (sd_notify(3), `FDSTORE=1`).

use backends::Store;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use sd_notify::NotifyState;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use tracing::debug;

/// Maximum time in milliseconds for which flanneld waits until systemd has processed notifications.
const BARRIER: u16 = 1000;

/// What systemd passed to this process at its start.
#[derive(Debug, Default)]
pub struct Inherited(Mutex<Vec<(String, OwnedFd)>>);

impl Inherited {
    /// Takes ownership of the open files. Call this once, before other code opens files.
    #[allow(unsafe_code)]
    pub fn of_systemd() -> Arc<Self> {
        use std::os::fd::FromRawFd;
        let files = match sd_notify::listen_fds_with_names() {
            // SAFETY: systemd passed exactly these descriptors to this process, and no other code owns them.
            Ok(list) => {
                list.map(|(fd, name)| (name, unsafe { OwnedFd::from_raw_fd(fd) })).collect()
            }
            Err(_) => Vec::new(),
        };
        Arc::new(Self(Mutex::new(files)))
    }

    /// Closes the files that the backend did not take over. If the configuration now names another backend, the
    /// kernel then deletes the previous backend's device.
    pub fn release(&self) {
        let rest = std::mem::take(&mut *self.0.lock());
        if rest.is_empty() {
            return;
        }
        for (name, _) in &rest {
            debug!(name, "closing an unused file that systemd kept");
            self.forget(name);
        }
        drop(rest);
        // While systemd still holds the files open, the kernel's vxlan cannot bind the port.
        barrier();
    }
}

/// Waits until systemd has processed all notifications of this process (sd_notify_barrier(3)).
fn barrier() {
    let Ok((reader, writer)) = nix::unistd::pipe2(OFlag::O_CLOEXEC) else {
        return;
    };
    if sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[writer.as_fd()]).is_ok() {
        drop(writer);
        // systemd closes its copy of the descriptor when it processes the notification.
        let _ = poll(
            &mut [PollFd::new(reader.as_fd(), PollFlags::empty())],
            PollTimeout::from(BARRIER),
        );
    }
}

impl Store for Inherited {
    fn take(&self, name: &str) -> Vec<OwnedFd> {
        let mut files = self.0.lock();
        files.extract_if(.., |(kept, _)| kept == name).map(|(_, file)| file).collect()
    }

    fn keep(&self, name: &str, file: BorrowedFd<'_>) {
        // Without systemd, or if the unit allows no files, a restart recreates the device.
        if let Err(error) =
            sd_notify::notify_with_fds(&[NotifyState::FdStore, NotifyState::FdName(name)], &[file])
        {
            debug!(name, error = %error, "systemd does not keep a file");
        }
    }

    fn forget(&self, name: &str) {
        if let Err(error) =
            sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)])
        {
            debug!(error = %error, "cannot reach systemd");
        }
    }
}
