//! The option `-o`: text for people or JSON for programs.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use terminal::out;
use terminal::screen::Screen;

/// The pause between two rounds of `--watch`.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Prints a document as JSON.
///
/// # Errors
/// The document cannot be written as JSON.
pub(crate) fn print(document: &impl Serialize) -> Result<()> {
    out::document(&serde_json::to_string_pretty(document)?);
    Ok(())
}

/// Prints a document once, or with `--watch` until standard output is closed. Returns the last one.
///
/// A daemon that restarts does not answer for a while: then the reason is printed in the document's place, once it has been read before.
///
/// # Errors
/// The document cannot be read the first time, or not be written as JSON.
pub(crate) fn watched<D: Serialize>(
    watch: bool,
    form: Form,
    read: impl Fn() -> Result<D>,
    text: impl Fn(&D, Screen) -> String,
) -> Result<D> {
    let screen = Screen::open();
    let mut last: Option<D> = None;
    loop {
        let document = match read() {
            Ok(document) => document,
            Err(error) => {
                let Some(before) = last.filter(|_| watch) else {
                    return Err(error);
                };
                if out::is_closed() {
                    return Ok(before);
                }
                last = Some(before);
                out::note(format!("flannelctl: {error:#}; looking again"));
                std::thread::sleep(POLL_INTERVAL);
                continue;
            }
        };
        match form {
            Form::Json => print(&document)?,
            Form::Text => {
                if watch && screen.is_terminal() {
                    out::clear();
                }
                screen.print(text(&document, screen));
            }
        }
        if !watch || out::is_closed() {
            return Ok(document);
        }
        last = Some(document);
        std::thread::sleep(POLL_INTERVAL);
    }
}
