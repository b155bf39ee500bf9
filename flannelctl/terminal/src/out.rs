//! All output. Makes untrusted text printable, and does not panic when the reader closes the pipe.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::Path;

use anyhow::{Result, bail};
use parking_lot::Mutex;
use types::printable;

/// First error of a write to standard output; later writes print nothing.
static FAILED: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// Lines on standard output.
pub fn print(text: impl Display) {
    write_text(&format!("{}\n", printable::lines(&text.to_string())));
}

/// Lines that may contain colours of [`Screen::styled`](crate::screen::Screen::styled).
pub fn print_styled(text: impl Display) {
    write_text(&format!("{}\n", printable::styled_lines(&text.to_string())));
}

/// A question or the start of a line, which may contain colours. The cursor stays after the text.
pub fn begin(text: impl Display) {
    write_text(&printable::styled_line(&text.to_string()));
}

/// Erases on a terminal what [`begin`] printed.
pub fn back() {
    write_text("\r\x1b[K");
}

pub fn clear() {
    write_text("\x1b[H\x1b[2J");
}

/// A write to standard output has failed, as after `| head`.
pub fn is_closed() -> bool {
    FAILED.lock().is_some()
}

/// For programs, without truncation.
pub fn document(text: &str) {
    write_text(&format!("{}\n", printable::json(text)));
}

/// Unchanged: a generated script contains no untrusted text.
pub fn generated(script: &[u8]) {
    write(script);
}

/// Lines on standard error.
pub fn note(text: impl Display) {
    // There is no way to report that standard error is closed.
    let _ = writeln!(stderr(), "{}", printable::lines(&text.to_string()));
}

/// One line on standard error, because a newline in the error may come from untrusted text.
pub fn complain(text: impl Display) {
    let _ = writeln!(stderr(), "{}: {}", program(), printable::line(&text.to_string()));
}

/// For error messages.
fn program() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default();
    printable::line(&name.to_string_lossy()).into_owned()
}

/// An error with several lines, such as a log.
pub fn complain_at_length(text: impl Display) {
    note(format!("{}: {text:#}", program()));
}

/// Fails if output is lost, unless the reader closed the pipe (`| head`).
pub fn end() -> Result<()> {
    match FAILED.lock().take() {
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
    let mut failed = FAILED.lock();
    if failed.is_none() {
        let mut out = stdout();
        *failed = out.write_all(bytes).and_then(|()| out.flush()).err();
    }
}
