//! The only way out: what is printed is printable, whoever wrote it, and a reader that left is no crash.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use subnet_lease::printable;

/// Why standard output takes no more, once it does not.
static FAILED: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// Lines of our own making on standard output.
pub fn say(text: impl Display) {
    write_text(&format!("{}\n", printable::lines(&text.to_string())));
}

/// The same with our colours in them.
pub fn say_styled(text: impl Display) {
    write_text(&format!("{}\n", printable::styled_lines(&text.to_string())));
}

/// A question, or the begin of a line, after which the cursor stays; with our colours.
pub fn begin(text: impl Display) {
    write_text(&printable::styled_line(&text.to_string()));
}

/// Takes back what [`begin`] printed on a terminal.
pub fn back() {
    write_text("\r\x1b[K");
}

/// A JSON document for programs, with all of its content.
pub fn document(text: &str) {
    write_text(&format!("{}\n", printable::json(text)));
}

/// A generated script for programs, byte by byte: nobody but us wrote in it.
pub fn generated(script: &[u8]) {
    write(script);
}

/// A line on standard error, beside the output.
pub fn note(text: impl Display) {
    // Who does not listen there cannot be told.
    let _ = writeln!(stderr(), "{}", printable::lines(&text.to_string()));
}

/// What went wrong, on standard error, in one line: a newline in it is somebody else's.
pub fn complain(text: impl Display) {
    let _ = writeln!(stderr(), "flannelctl: {}", printable::line(&text.to_string()));
}

/// The same where logs follow, which have lines.
pub fn complain_at_length(text: impl Display) {
    note(format!("flannelctl: {text:#}"));
}

/// Fails when not everything could be printed, unless nobody wanted to read on (`| head`).
pub fn end() -> Result<()> {
    match FAILED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => bail!("standard output cannot be written: {error}"),
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
