//! Keeps the last log lines for the status page.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};

use jiff::Timestamp;
use node_api::view::{Level, LogEvent};
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use types::printable;

const KEPT: usize = 40;
/// Characters of a log message, and of its fields together.
const LENGTH: usize = 300;

static LINES: Mutex<VecDeque<LogEvent>> = Mutex::new(VecDeque::new());

/// Of level INFO and above, the newest first.
pub fn recent() -> Vec<LogEvent> {
    let lines = LINES.lock();
    lines.iter().rev().cloned().collect()
}

pub(super) struct Recent;

impl<S: Subscriber> Layer<S> for Recent {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warn,
            tracing::Level::INFO => Level::Info,
            _ => return,
        };
        let mut texts = Texts::default();
        event.record(&mut texts);
        keep(
            &mut LINES.lock(),
            LogEvent {
                at: Timestamp::now(),
                level,
                text: short(&texts.message),
                fields: short(&texts.fields),
                count: 1,
            },
        );
    }
}

/// One printable line. Cuts one longer than [`LENGTH`] characters and appends `…`.
fn short(text: &str) -> String {
    let line = printable::line(text);
    match line.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.into_owned(),
    }
}

/// If the previous line has the same text and fields, raises its count instead.
fn keep(lines: &mut VecDeque<LogEvent>, new: LogEvent) {
    match lines.back_mut() {
        Some(last) if last.text == new.text && last.fields == new.fields => {
            last.at = new.at;
            last.count += 1;
        }
        _ => lines.push_back(new),
    }
    while lines.len() > KEPT {
        lines.pop_front();
    }
}

/// The message of a log event, and its other fields.
#[derive(Default)]
struct Texts {
    message: String,
    fields: String,
}

impl Texts {
    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        if field.name() == "message" {
            let _ = write!(self.message, "{value}");
        } else {
            let gap = if self.fields.is_empty() { "" } else { " " };
            let _ = write!(self.fields, "{gap}{}={value}", field.name());
        }
    }
}

impl Visit for Texts {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn last_lines_are_kept_with_their_fields() {
        let subscriber = tracing_subscriber::registry().with(Recent);
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..2 * KEPT {
                tracing::info!(number, peer = "a\u{1b}[31mb", "a line of this test");
            }
            tracing::debug!("not a line of this test");
            for _ in 0..3 {
                tracing::warn!(error = %"x".repeat(LENGTH * 2), "repeats");
            }
        });
        let lines = recent();
        assert_eq!(lines.len(), KEPT);
        let last = &lines[0];
        assert_eq!((last.text.as_str(), last.level, last.count), ("repeats", Level::Warn, 3));
        assert!(last.fields.chars().count() <= LENGTH + 1, "{}", last.fields);
        assert_eq!(lines[1].text, "a line of this test");
        assert!(lines[1].fields.starts_with("number=79 peer=a\\u{1b}[31mb"), "{:?}", lines[1]);
        assert!(lines.iter().all(|line| line.level != Level::Error));
    }
}
