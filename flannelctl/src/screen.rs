//! What is printed: steps with their times, tables, colours on a terminal and plain text elsewhere.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The first failure of standard output.
static FAILED: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// Writes to standard output; what fails is remembered, and the work goes on: a lab is removed, whoever looks.
pub fn out(text: &str) {
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        FAILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// Whether everything was written that somebody wanted to read.
///
/// # Errors
/// What failed, other than that the reader had enough.
pub fn written() -> Result<()> {
    match FAILED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("writing to standard output"),
        _ => Ok(()),
    }
}

/// A way to set text off from the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Succeeded.
    Good,
    /// Failed.
    Bad,
    /// A heading, or what to look at.
    Strong,
    /// Of lesser weight.
    Faint,
}

/// Standard output, with or without colours.
#[derive(Debug, Clone, Copy)]
pub struct Screen {
    terminal: bool,
    colours: bool,
}

impl Screen {
    /// Colours on a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    pub fn open() -> Screen {
        let terminal = std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        // https://no-color.org: present and not empty.
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Screen { terminal, colours: terminal && !plain }
    }

    /// The text in a style.
    pub fn styled(self, style: Style, text: impl Display) -> String {
        let code = match style {
            Style::Good => "32",
            Style::Bad => "31;1",
            Style::Strong => "1",
            Style::Faint => "2",
        };
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    /// A line.
    pub fn say(self, text: impl Display) {
        println!("{text}");
    }

    /// A heading after an empty line.
    pub fn heading(self, text: impl Display) {
        println!("\n{}", self.styled(Style::Strong, text));
    }

    /// Text under a heading.
    pub fn block(self, text: &str) {
        for line in text.lines() {
            println!("  {line}");
        }
    }

    /// Does something, and shows what it is while it lasts, then how long it took and what came of it.
    pub fn step<T>(self, what: &str, work: impl FnOnce() -> Result<(T, String)>) -> Result<T> {
        let start = Instant::now();
        self.timed_step(what, || work().map(|(value, result)| (value, result, start.elapsed())))
    }

    /// The same for work that began before and knows how long it took.
    pub fn timed_step<T>(self, what: &str, work: impl FnOnce() -> Result<(T, String, Duration)>) -> Result<T> {
        if self.terminal {
            print!("  {} {:>8}  {what} …", self.styled(Style::Faint, "·"), "");
        }
        let outcome = work();
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        match outcome {
            Ok((value, result, took)) => {
                let line = if result.is_empty() { what.to_owned() } else { format!("{what}: {result}") };
                let time = self.styled(Style::Faint, format!("{:>6.2} s", took.as_secs_f64()));
                println!("{clear}  {} {time}  {line}", self.styled(Style::Good, "✓"));
                Ok(value)
            }
            Err(error) => {
                println!("{clear}  {} {:>8}  {what}", self.styled(Style::Bad, "✗"), "");
                Err(error)
            }
        }
    }

    /// Commands, and what each is for.
    pub fn commands(self, commands: &[(String, &str)]) {
        let width = commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
        for (command, purpose) in commands {
            println!("  {}  {}", self.styled(Style::Strong, format!("{command:width$}")), self.styled(Style::Faint, purpose));
        }
    }

    /// A table: its first row and its first column are headings.
    pub fn table(self, rows: &[Vec<(String, Style)>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|(text, _)| text.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in rows {
            let cells = row.iter().zip(&widths).map(|((text, style), width)| self.styled(*style, format!("{text:>width$}")));
            println!("  {}", cells.collect::<Vec<_>>().join("   "));
        }
    }
}
