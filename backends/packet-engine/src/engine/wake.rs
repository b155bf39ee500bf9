//! Signal that ends all threads of an engine, even while they wait.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// It stays set after the first wake.
pub(super) struct Wake {
    event: nix::sys::eventfd::EventFd,
    called: AtomicBool,
}

impl Wake {
    /// Fails if the process has no file descriptors left.
    pub(super) fn new() -> nix::Result<Self> {
        use nix::sys::eventfd::{EfdFlags, EventFd};
        let event =
            EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { event, called: AtomicBool::new(false) })
    }

    /// Ends all current and future waits.
    pub(super) fn signal_threads_to_end(&self) {
        self.called.store(true, Ordering::Relaxed);
        let _ = self.event.write(1);
    }

    /// Waits for this number of milliseconds, or until the signal.
    pub(super) fn sleep(&self, milliseconds: u16) {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut polled = [PollFd::new(self.event.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut polled, PollTimeout::from(milliseconds));
    }

    /// For threads that never wait because they always have work.
    #[inline]
    pub(super) fn is_end_signaled(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
