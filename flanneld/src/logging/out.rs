//! Writes log lines to standard error without blocking or ending the daemon. The sink drops and counts lines that it
//! cannot write.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::write;
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Time in milliseconds for which the sink waits for a slow reader before it drops a line. Then it does not wait
/// again until a write succeeds.
const TIMEOUT: u8 = 100;
/// Maximum number of bytes per write. A pipe that poll(2) reports as writable takes 4096 bytes without blocking
/// (PIPE_BUF of pipe(7)).
const PIECE: usize = 4096;

/// Maximum number of lines that one place in the code writes at once. After these, it writes one line a second: an
/// interface or a lease that flaps must not fill the disk.
const BURST: u64 = 200;

static SINK: Sink = Sink::new();

/// Counts since flanneld's start.
pub fn dropped() -> u64 {
    SINK.0.lock().dropped
}

/// The dropped lines since the previous successful call; `None` if there are none, or writes still fail.
pub fn lost() -> Option<u64> {
    SINK.lost()
}

/// The writer of a line beyond the ration writes nothing.
pub(super) struct Stderr;

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(true)
    }

    fn make_writer_for(&'a self, line: &Metadata<'_>) -> Line {
        let is_for_users = *line.level() <= Level::INFO;
        Line(!is_for_users || SINK.admits(line.callsite(), Instant::now()))
    }
}

/// The writer of one line never returns an error, because the subscriber would write the error to standard error.
pub(super) struct Line(bool);

impl io::Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0 {
            SINK.line(io::stderr().as_fd(), line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Sink(Mutex<SinkState>);

struct SinkState {
    dropped: u64,
    /// Dropped lines that flanneld has not reported yet.
    untold: u64,
    stuck: bool,
    /// Whether the output ends with an incomplete line.
    torn: bool,
    /// Lines that each place in the code wrote lately, and when their number was last lowered.
    rations: Vec<(Identifier, u64, Instant)>,
}

impl Sink {
    const fn new() -> Self {
        Self(Mutex::new(SinkState {
            dropped: 0,
            untold: 0,
            stuck: false,
            torn: false,
            rations: Vec::new(),
        }))
    }

    /// Counts a line that the place may not write as dropped.
    fn admits(&self, place: Identifier, now: Instant) -> bool {
        let mut state = self.0.lock();
        let known = state.rations.iter().position(|ration| ration.0 == place);
        let index = known.unwrap_or(state.rations.len());
        if known.is_none() {
            state.rations.push((place, 0, now));
        }
        let Some((_, written, since)) = state.rations.get_mut(index) else {
            return true;
        };
        let passed = now.saturating_duration_since(*since).as_secs();
        *since += Duration::from_secs(passed);
        *written = written.saturating_sub(passed);
        let admits = *written < BURST;
        *written += u64::from(admits);
        state.dropped += u64::from(!admits);
        state.untold += u64::from(!admits);
        admits
    }

    fn line(&self, out: BorrowedFd<'_>, line: &[u8]) {
        let mut state = self.0.lock();
        let patience = if state.stuck { PollTimeout::ZERO } else { PollTimeout::from(TIMEOUT) };
        let mut written = 0;
        let begun = if state.torn { piecewise(out, b"\n", patience, &mut 0) } else { Ok(()) };
        match begun.and_then(|()| piecewise(out, line, patience, &mut written)) {
            Ok(()) => (state.stuck, state.torn) = (false, false),
            Err(_) => {
                state.dropped += 1;
                state.untold += 1;
                state.stuck = true;
                state.torn |= written > 0;
            }
        }
    }

    fn lost(&self) -> Option<u64> {
        let mut state = self.0.lock();
        (!state.stuck && state.untold > 0).then(|| std::mem::take(&mut state.untold))
    }
}

/// Waits at most `patience` before each piece until `out` is writable. Adds the written bytes to `written` even if a
/// write fails.
fn piecewise(
    out: BorrowedFd<'_>,
    line: &[u8],
    patience: PollTimeout,
    written: &mut usize,
) -> nix::Result<()> {
    while let Some(rest) = line.get(*written..).filter(|rest| !rest.is_empty()) {
        let mut polled = [PollFd::new(out, PollFlags::POLLOUT)];
        match poll(&mut polled, patience) {
            Ok(0) => return Err(Errno::EAGAIN),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error),
        }
        match write(out, rest.get(..PIECE).unwrap_or(rest)) {
            Ok(0) => return Err(Errno::EIO),
            Ok(count) => *written += count,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn count(sink: &Sink) -> u64 {
        sink.0.lock().dropped
    }

    #[test]
    fn place_that_writes_too_often_is_rationed_alone() {
        let (sink, begun) = (Sink::new(), Instant::now());
        let here = || tracing::info_span!("one").metadata().map(|span| span.callsite());
        let there = || tracing::info_span!("two").metadata().map(|span| span.callsite());
        let (one, two) = tracing::subscriber::with_default(tracing_subscriber::registry(), || {
            (here().unwrap(), there().unwrap())
        });
        let admitted = |place: &Identifier, seconds, lines| {
            let now = begun + Duration::from_secs(seconds);
            (0..lines).filter(|_| sink.admits(place.clone(), now)).count()
        };
        assert_eq!(admitted(&one, 0, 1000), 200);
        assert_eq!((admitted(&two, 0, 10), admitted(&one, 5, 1000)), (10, 5));
        assert_eq!(admitted(&one, 1000, 1000), 200);
        assert_eq!((count(&sink), sink.lost()), (2595, Some(2595)));
    }

    #[test]
    fn a_reader_that_is_gone_costs_lines_and_nothing_else() {
        let sink = Sink::new();
        let (reader, writer) = nix::unistd::pipe().unwrap();
        sink.line(writer.as_fd(), b"one\n");
        assert_eq!((count(&sink), sink.lost()), (0, None));
        drop(reader);
        sink.line(writer.as_fd(), b"two\n");
        sink.line(writer.as_fd(), b"three\n");
        assert_eq!((count(&sink), sink.lost()), (2, None));
        let file = tempfile::tempfile().unwrap();
        sink.line(file.as_fd(), b"four\n");
        assert_eq!((count(&sink), sink.lost(), sink.lost()), (2, Some(2), None));
    }

    #[test]
    fn a_reader_that_does_not_read_is_not_waited_for() {
        let sink = Sink::new();
        let (reader, writer) = nix::unistd::pipe().unwrap();
        let line = [b'x'; 10_000];
        let begun = Instant::now();
        for _ in 0..200 {
            sink.line(writer.as_fd(), &line);
        }
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "each line was waited for: {:?}",
            begun.elapsed()
        );
        assert!(count(&sink) > 190, "{}", count(&sink));
        // The reader reads again, and the next line begins on its own line.
        let mut reader = std::fs::File::from(reader);
        let mut buffer = vec![0; 1 << 20];
        assert!(reader.read(&mut buffer).unwrap() > 0);
        sink.line(writer.as_fd(), b"again\n");
        assert!(sink.lost().is_some());
        let count = reader.read(&mut buffer).unwrap();
        assert!(
            buffer[..count].ends_with(b"\nagain\n"),
            "{:?}",
            String::from_utf8_lossy(&buffer[..count.min(20)])
        );
    }
}
