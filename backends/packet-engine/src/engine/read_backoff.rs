//! How a thread waits: for something to read, and after errors, of which a lasting one must not keep a processor busy.

use super::wake::Wake;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

/// The longest pause between two tries, in milliseconds.
const LONGEST: u16 = 1000;

/// One thread's backoff.
#[derive(Default)]
pub struct ReadBackoff {
    /// Failures since the last success.
    failures: u32,
    /// Whether the file was reported as ready without anything to read.
    odd: bool,
}

impl ReadBackoff {
    /// Something was read.
    #[inline]
    pub fn worked(&mut self) {
        self.failures = 0;
        self.odd = false;
    }

    /// Nothing waits: waits until something can be read, or an error be fetched; false at the wake.
    pub fn idle(&mut self, file: &impl AsFd, wake: &Wake) -> bool {
        if self.odd {
            // It was ready, and there was nothing.
            self.failed(wake);
        }
        let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLIN), PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) => {
                let [file, _] = polled;
                self.odd = !file.revents().is_some_and(|events| events.contains(PollFlags::POLLIN));
            }
            Err(Errno::EINTR) => {}
            Err(_) => self.failed(wake),
        }
        !wake.called()
    }

    /// Reading failed: pauses, unless it is the first time, the longer the more often. The wake ends a pause.
    pub fn failed(&mut self, wake: &Wake) {
        let pause = pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        if pause > 0 {
            wake.rest(pause);
        }
    }
}

/// Milliseconds to wait after so many failures before this one.
fn pause(failures: u32) -> u16 {
    match failures {
        // What ICMP tells of a send, or one odd packet: the next call is another.
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
        let pauses: Vec<u16> = (0..14).map(pause).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000, 1000]);
        assert_eq!(pause(u32::MAX), LONGEST);
    }

    #[test]
    fn an_error_that_lasts_is_waited_for_and_a_success_ends_that() {
        let wake = Wake::new().unwrap();
        let mut backoff = ReadBackoff::default();
        let begin = Instant::now();
        (0..7).for_each(|_| backoff.failed(&wake));
        assert!(begin.elapsed() >= Duration::from_millis(1 + 2 + 4 + 8 + 16 + 32));
        backoff.worked();
        assert_eq!(backoff.failures, 0);
        // The wake ends the longest pause.
        backoff.failures = 1_000_000;
        wake.now();
        backoff.failed(&wake);
        assert!(!backoff.idle(&EventFd::new().unwrap(), &wake));
    }

    #[test]
    fn a_file_that_is_ready_without_anything_to_read_is_waited_for() {
        let wake = Wake::new().unwrap();
        // A pipe whose other end is closed: POLLHUP and no POLLIN.
        let (read, write) = nix::unistd::pipe().unwrap();
        drop(write);
        let mut backoff = ReadBackoff::default();
        let begin = Instant::now();
        assert!((0..8).all(|_| backoff.idle(&read, &wake)));
        assert!(begin.elapsed() >= Duration::from_millis(1 + 2 + 4 + 8 + 16 + 32), "{:?}", begin.elapsed());
    }
}
