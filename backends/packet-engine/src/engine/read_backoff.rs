//! Waits for data, and pauses after errors, so that a lasting error does not keep a CPU busy.

use super::wake::Wake;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

/// Between two attempts, in milliseconds.
const LONGEST: u16 = 1000;

/// The backoff of one thread.
#[derive(Default)]
pub(super) struct ReadBackoff {
    /// Failed reads since the last successful one.
    failures: u32,
    /// Whether the last poll(2) returned without POLLIN for the file, for example because of a lasting error.
    spurious: bool,
}

impl ReadBackoff {
    /// Resets the backoff after a successful read.
    #[inline]
    pub(super) fn reset_after_success(&mut self) {
        self.failures = 0;
        self.spurious = false;
    }

    /// Waits for data or an error, after a read without data. The wake signal ends the wait.
    pub(super) fn wait_for_data_or_wake(&mut self, file: &impl AsFd, wake: &Wake) {
        if self.spurious {
            // poll(2) would return at once again, so pause.
            self.pause_after_failure(wake);
        }
        let mut polled = [
            PollFd::new(file.as_fd(), PollFlags::POLLIN),
            PollFd::new(wake.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) => {
                let [file, _] = polled;
                self.spurious =
                    !file.revents().is_some_and(|events| events.contains(PollFlags::POLLIN));
            }
            Err(Errno::EINTR) => {}
            Err(_) => self.pause_after_failure(wake),
        }
    }

    /// Pauses after a failed read: not after the first, and longer after each further one. The wake signal
    /// ends a pause.
    pub(super) fn pause_after_failure(&mut self, wake: &Wake) {
        let pause = pause_millis(self.failures);
        self.failures = self.failures.saturating_add(1);
        if pause > 0 {
            wake.sleep(pause);
        }
    }
}

/// In milliseconds, after this many earlier failures.
fn pause_millis(failures: u32) -> u16 {
    match failures {
        // An ICMP error about an earlier send, or a single bad packet. The next call may succeed.
        0 => 0,
        1..=10 => (1 << (failures - 1)).min(LONGEST),
        _ => LONGEST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;
    use std::time::{Duration, Instant};

    #[test]
    fn pauses_grow_up_to_a_second() {
        let pauses: Vec<u16> = (0..14).map(pause_millis).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000, 1000]);
        assert_eq!(pause_millis(u32::MAX), LONGEST);
    }

    #[test]
    fn a_lasting_error_causes_pauses_until_a_success() {
        let wake = Wake::new().unwrap();
        let mut backoff = ReadBackoff::default();
        let begin = Instant::now();
        (0..7).for_each(|_| backoff.pause_after_failure(&wake));
        assert!(begin.elapsed() >= Duration::from_millis(1 + 2 + 4 + 8 + 16 + 32));
        backoff.reset_after_success();
        assert_eq!(backoff.failures, 0);
        // The wake signal also ends the longest pause.
        backoff.failures = 1_000_000;
        wake.signal_threads_to_end();
        backoff.pause_after_failure(&wake);
        backoff.wait_for_data_or_wake(&EventFd::new().unwrap(), &wake);
    }
}
