//! The output of flannel-lab and flannelctl: steps with durations, tables, colours on a terminal, and plain
//! text elsewhere.

use std::fmt::Display;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Result;
use types::printable;

use crate::out;

/// The narrowest wrapped text, in columns.
const MIN_ROOM: usize = 20;

/// True without a locale. The first of `LC_ALL`, `LC_CTYPE` and `LANG` that is not empty applies (locale(7)).
fn is_unicode(variable: impl Fn(&str) -> Option<String>) -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(variable)
        .find(|value| !value.is_empty())
        .is_none_or(|value| {
            let value = value.to_ascii_lowercase();
            value.contains("utf-8") || value.contains("utf8")
        })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Good,
    Bad,
    /// A heading, or emphasis.
    Strong,
    /// Less important text.
    Faint,
}

/// Standard output, with or without colours.
#[derive(Debug, Clone, Copy)]
pub struct Screen {
    terminal: bool,
    colours: bool,
    /// Whether the locale uses UTF-8.
    unicode: bool,
    /// In columns; `None` if the output is not a terminal.
    width: Option<usize>,
}

impl Screen {
    /// Has colours on a terminal unless `NO_COLOR` is set or `TERM` is `dumb`.
    pub fn open() -> Screen {
        let terminal = std::io::stdout().is_terminal()
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        // https://no-color.org: the variable applies if it is present and not empty.
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Screen {
            terminal,
            colours: terminal && !plain,
            unicode: is_unicode(|name| std::env::var(name).ok()),
            width: terminal_size::terminal_size()
                .map(|(width, _)| usize::from(width.0))
                .filter(|_| terminal),
        }
    }

    /// No terminal and no colours.
    pub fn plain() -> Screen {
        Screen { terminal: false, colours: false, unicode: false, width: None }
    }

    /// For tests of texts: plain, and `width` columns wide.
    pub fn of_width(width: usize) -> Screen {
        Screen { width: Some(width), ..Screen::plain() }
    }

    /// In columns; `None` if the output is not a terminal.
    pub fn width(self) -> Option<usize> {
        self.width
    }

    /// Splits a text between words into lines that fit into the terminal after an indent. A word longer than
    /// a line gets its own.
    ///
    /// A single line if the output is not a terminal.
    pub fn wrap(self, text: &str, indent: usize) -> Vec<String> {
        let Some(width) = self.width else {
            return vec![text.to_owned()];
        };
        let room = width.saturating_sub(indent).max(MIN_ROOM);
        let mut lines = vec![String::new()];
        for word in text.split(' ') {
            let line = lines.last_mut().filter(|line| {
                line.is_empty() || line.chars().count() + 1 + word.chars().count() <= room
            });
            match line {
                Some(line) if line.is_empty() => line.push_str(word),
                Some(line) => {
                    line.push(' ');
                    line.push_str(word);
                }
                None => lines.push(word.to_owned()),
            }
        }
        lines
    }

    /// Symbols may replace words: the output is a terminal, and the locale has them.
    pub fn has_signs(self) -> bool {
        self.terminal && self.unicode
    }

    pub fn is_terminal(self) -> bool {
        self.terminal
    }

    /// Escapes control characters in the text.
    pub fn styled(self, style: Style, text: impl Display) -> String {
        let code = match style {
            Style::Good => "32",
            Style::Bad => "31;1",
            Style::Strong => "1",
            Style::Faint => "2",
        };
        let text = text.to_string();
        let text = printable::line(&text);
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into_owned() }
    }

    /// Lines may have styled parts.
    pub fn print(self, text: impl Display) {
        if self.colours {
            out::print_styled(text);
        } else {
            out::print(text);
        }
    }

    /// Follows an empty line.
    pub fn heading(self, text: impl Display) {
        self.print(format!("\n{}", self.styled(Style::Strong, text)));
    }

    /// Text under a heading.
    pub fn block(self, text: &str) {
        for line in text.lines() {
            self.print(format!("  {}", line.replace('\t', "  ")));
        }
    }

    /// Shows the name of the step while it runs, and then its duration and result.
    pub fn step<T>(self, what: &str, work: impl FnOnce() -> Result<(T, String)>) -> Result<T> {
        let start = Instant::now();
        self.timed_step(what, || work().map(|(value, result)| (value, result, start.elapsed())))
    }

    /// Like [`Screen::step`]. `work` may have started earlier, and measures its own duration.
    pub fn timed_step<T>(
        self,
        what: &str,
        work: impl FnOnce() -> Result<(T, String, Duration)>,
    ) -> Result<T> {
        if self.terminal {
            out::begin(format!("  {} {:>8}  {what} …", self.styled(Style::Faint, "·"), ""));
        }
        let outcome = work();
        if self.terminal {
            out::back();
        }
        match outcome {
            Ok((value, result, took)) => {
                let line =
                    if result.is_empty() { what.to_owned() } else { format!("{what}: {result}") };
                let time = self.styled(Style::Faint, format!("{:>6.2} s", took.as_secs_f64()));
                self.print(format!("  {} {time}  {line}", self.styled(Style::Good, "✓")));
                Ok(value)
            }
            Err(error) => {
                self.print(format!("  {} {:>8}  {what}", self.styled(Style::Bad, "✗"), ""));
                Err(error)
            }
        }
    }

    /// Commands and their purposes.
    pub fn commands(self, commands: &[(String, &str)]) {
        let width = commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
        for (command, purpose) in commands {
            self.print(format!(
                "  {}  {}",
                self.styled(Style::Strong, format!("{command:width$}")),
                self.styled(Style::Faint, purpose)
            ));
        }
    }

    /// The first row and the first column are headings.
    pub fn table(self, rows: &[Vec<(String, Style)>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|(text, _)| text.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in rows {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|((text, style), width)| self.styled(*style, format!("{text:>width$}")));
            self.print(format!("  {}", cells.collect::<Vec<_>>().join("   ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locale_decides_on_signs() {
        let of = |lang: &str, all: &str| {
            is_unicode(|name| match name {
                "LANG" => Some(lang.to_owned()),
                "LC_ALL" => Some(all.to_owned()),
                _ => None,
            })
        };
        assert!(of("", "") && of("en_GB.UTF-8", "") && of("C", "C.utf8"));
        assert!(!of("C", "") && !of("en_GB.UTF-8", "POSIX") && !of("de_DE", ""));
    }

    #[test]
    fn text_is_wrapped_between_words() {
        let text = "the kernel drops packets of another VNI";
        assert_eq!(Screen::plain().wrap(text, 11), [text]);
        assert_eq!(
            Screen::of_width(35).wrap(text, 11),
            ["the kernel drops packets", "of another VNI"]
        );
        let long = "0123456789012345678901234567890";
        assert_eq!(Screen::of_width(10).wrap(&format!("a {long} b"), 11), ["a", long, "b"]);
    }
}
