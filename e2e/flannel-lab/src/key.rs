//! Reads a single key from the terminal, without waiting for the end of the line. Afterwards the terminal has its settings again, even if an error or
//! a signal ends the wait.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use nix::unistd::read;
use parking_lot::Mutex;

/// The terminal with echo disabled, and its previous settings.
static CHANGED: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

/// Ignores earlier keys. The result is the first byte of the key, or 0 if the terminal is closed.
pub(crate) fn wait_for_key(terminal: impl AsFd) -> Result<u8> {
    let before = tcgetattr(&terminal).context("reading the terminal's settings")?;
    let mut keys = before.clone();
    keys.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
    for (index, value) in [(SpecialCharacterIndices::VMIN, 1), (SpecialCharacterIndices::VTIME, 0)]
    {
        if let Some(character) = keys.control_chars.get_mut(index as usize) {
            *character = value;
        }
    }
    let held = terminal.as_fd().try_clone_to_owned().context("keeping the terminal open")?;
    *CHANGED.lock() = Some((held, before));
    // TCSAFLUSH discards the input from before the wait.
    tcsetattr(&terminal, SetArg::TCSAFLUSH, &keys).context("changing the terminal's settings")?;
    let mut key = [0];
    let outcome = loop {
        match read(&terminal, &mut key) {
            Err(Errno::EINTR) => {}
            other => break other,
        }
    };
    restore_terminal_settings();
    outcome.context("reading a key").map(|_| u8::from_be_bytes(key))
}

/// Restores the settings that [`wait_for_key`] changed. Any thread that ends the program may call it.
pub(crate) fn restore_terminal_settings() {
    if let Some((terminal, before)) = CHANGED.lock().take() {
        // Some keys send several bytes, of which only one was read: TCSAFLUSH discards the rest. A closed terminal has nothing to restore.
        let _ = tcsetattr(&terminal, SetArg::TCSAFLUSH, &before);
    }
}

#[cfg(test)]
mod tests {

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::pty::openpty;
    use nix::unistd::write;

    use super::*;

    #[test]
    fn key_press_ends_the_wait_and_restores_the_terminal() {
        let pty = openpty(None, None).unwrap();
        let settings = || tcgetattr(&pty.slave).unwrap();
        let before = settings();
        let shows_no_keys =
            || !settings().local_flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO);
        for interrupted in [false, true] {
            write(&pty.master, b"typed too early\n").unwrap();
            // The kernel delivers the input a little later.
            let mut line = [PollFd::new(pty.slave.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut line, PollTimeout::from(20_000_u16)), Ok(1));
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| wait_for_key(&pty.slave).unwrap());
                lab::until("the terminal shows no keys", shows_no_keys).unwrap();
                if interrupted {
                    restore_terminal_settings();
                    assert_eq!(settings(), before);
                    // The program would end now. In this test its thread still reads, now a line.
                    write(&pty.master, b"k\n").unwrap();
                } else {
                    // An arrow key sends three bytes.
                    write(&pty.master, b"\x1b[A").unwrap();
                }
                assert_eq!(waiting.join().unwrap(), if interrupted { b'k' } else { b'\x1b' });
            });
            assert_eq!(settings(), before);
        }
    }
}
