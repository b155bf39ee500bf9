//! One key on the terminal, not a line; the terminal is as before afterwards, however the wait ends.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use nix::unistd::read;

/// The terminal that shows no keys now, and what it was set to.
static CHANGED: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

/// Waits for a key that is pressed from now on; its first byte, or 0 when the terminal is gone.
pub(crate) fn wait(terminal: impl AsFd) -> Result<u8> {
    let before = tcgetattr(&terminal).context("reading the terminal's settings")?;
    let mut keys = before.clone();
    keys.local_flags
        .remove(LocalFlags::ICANON | LocalFlags::ECHO);
    for (index, value) in [
        (SpecialCharacterIndices::VMIN, 1),
        (SpecialCharacterIndices::VTIME, 0),
    ] {
        if let Some(character) = keys.control_chars.get_mut(index as usize) {
            *character = value;
        }
    }
    let held = terminal
        .as_fd()
        .try_clone_to_owned()
        .context("keeping the terminal open")?;
    *CHANGED.lock().unwrap_or_else(PoisonError::into_inner) = Some((held, before));
    // Input from before the question is discarded.
    tcsetattr(&terminal, SetArg::TCSAFLUSH, &keys).context("changing the terminal's settings")?;
    let mut key = [0];
    let outcome = loop {
        match read(&terminal, &mut key) {
            Err(Errno::EINTR) => {}
            other => break other,
        }
    };
    restore();
    outcome
        .context("reading a key")
        .map(|_| u8::from_be_bytes(key))
}

/// Undoes what [`wait`] has changed, from whichever thread ends the program.
pub(crate) fn restore() {
    if let Some((terminal, before)) = CHANGED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
    {
        // Some keys are several bytes, of which one was read. A terminal that is gone needs nothing.
        let _ = tcsetattr(&terminal, SetArg::TCSAFLUSH, &before);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::pty::openpty;
    use nix::unistd::write;

    use super::*;

    #[test]
    fn key_press_ends_the_wait_and_restores_the_terminal() {
        let pty = openpty(None, None).unwrap();
        let settings = || tcgetattr(&pty.slave).unwrap();
        let before = settings();
        let shows_no_keys = || {
            !settings()
                .local_flags
                .intersects(LocalFlags::ICANON | LocalFlags::ECHO)
        };
        for interrupted in [false, true] {
            write(&pty.master, b"typed too early\n").unwrap();
            // The kernel hands it over a little later.
            let mut line = [PollFd::new(pty.slave.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut line, PollTimeout::from(20_000_u16)), Ok(1));
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| wait(&pty.slave).unwrap());
                lab::eventually(
                    Duration::from_secs(20),
                    "the terminal shows no keys",
                    shows_no_keys,
                )
                .unwrap();
                if interrupted {
                    restore();
                    assert_eq!(settings(), before);
                    // The program ends then; here its thread still reads, and lines again.
                    write(&pty.master, b"k\n").unwrap();
                } else {
                    // An arrow: three bytes.
                    write(&pty.master, b"\x1b[A").unwrap();
                }
                assert_eq!(
                    waiting.join().unwrap(),
                    if interrupted { b'k' } else { b'\x1b' }
                );
            });
            assert_eq!(settings(), before);
        }
    }
}
