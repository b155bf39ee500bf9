//! What ends the waiting and the work of all threads of an engine.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Once woken it stays awake.
pub struct Wake {
    event: nix::sys::eventfd::EventFd,
    called: AtomicBool,
}

impl Wake {
    /// Asleep.
    ///
    /// # Errors
    /// When the process has no file left.
    pub fn new() -> nix::Result<Self> {
        use nix::sys::eventfd::{EfdFlags, EventFd};
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { event, called: AtomicBool::new(false) })
    }

    /// Wakes all that wait.
    pub fn now(&self) {
        self.called.store(true, Ordering::Relaxed);
        let _ = self.event.write(1);
    }

    /// Waits so many milliseconds, or until it is called.
    pub fn rest(&self, milliseconds: u16) {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut polled = [PollFd::new(self.event.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut polled, PollTimeout::from(milliseconds));
    }

    /// Whether it was called: for threads that never wait, because there is always work.
    #[inline]
    pub fn called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
