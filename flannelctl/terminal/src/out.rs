//! All output: makes foreign text printable, and ends without a panic when the reader closes the pipe.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use types::printable;

/// The error that ended writing to standard output.
static FAILED: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// Prints lines of our own on standard output.
pub fn print(text: impl Display) {
    write_text(&format!("{}\n", printable::lines(&text.to_string())));
}

/// Prints lines on standard output that may have colours of [`Screen::styled`](crate::screen::Screen::styled).
pub fn print_styled(text: impl Display) {
    write_text(&format!("{}\n", printable::styled_lines(&text.to_string())));
}

/// Prints a question or the start of a line, with colours; the cursor stays after it.
pub fn begin(text: impl Display) {
    write_text(&printable::styled_line(&text.to_string()));
}

/// Erases what [`begin`] printed on a terminal.
pub fn back() {
    write_text("\r\x1b[K");
}

/// Clears a terminal's screen.
pub fn clear() {
    write_text("\x1b[H\x1b[2J");
}

/// Whether writing to standard output has failed, as after `| head`.
pub fn is_closed() -> bool {
    FAILED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_some()
}

/// Prints a JSON document for programs, unshortened.
pub fn document(text: &str) {
    write_text(&format!("{}\n", printable::json(text)));
}

/// Prints a generated script byte by byte: it contains no foreign text.
pub fn generated(script: &[u8]) {
    write(script);
}

/// Prints lines on standard error.
pub fn note(text: impl Display) {
    // A closed standard error cannot be reported.
    let _ = writeln!(stderr(), "{}", printable::lines(&text.to_string()));
}

/// Prints an error on standard error, in one line: a newline in it would be foreign text.
pub fn complain(text: impl Display) {
    let _ = writeln!(
        stderr(),
        "{}: {}",
        program(),
        printable::line(&text.to_string())
    );
}

/// The name of this program, before its errors.
fn program() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default();
    printable::line(&name.to_string_lossy()).into_owned()
}

/// Prints an error with several lines, such as a log, on standard error.
pub fn complain_at_length(text: impl Display) {
    note(format!("{}: {text:#}", program()));
}

/// Fails if not everything could be printed, unless the reader closed the pipe (`| head`).
pub fn end() -> Result<()> {
    match FAILED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            bail!("cannot write to standard output: {error}")
        }
        _ => Ok(()),
    }
}

fn write_text(text: &str) {
    write(text.as_bytes());
}

fn write(bytes: &[u8]) {
    let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    if failed.is_none() {
        let mut out = stdout();
        *failed = out.write_all(bytes).and_then(|()| out.flush()).err();
    }
}
