//! Escapes terminal control characters in all log lines, because they contain names and keys that other nodes wrote
//! into the store.

use std::borrow::Cow;
use std::fmt;
use tracing::field::Field;
use tracing::{Event, Subscriber};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use types::printable;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Text { colours: bool },
    Json,
}

/// A format whose events are single printable lines of at most [`printable::LINE`] characters.
#[derive(Debug)]
pub(super) struct Visible<F> {
    inner: F,
    kind: Kind,
}

impl<F> Visible<F> {
    pub(super) fn text(inner: F, colours: bool) -> Self {
        Self { inner, kind: Kind::Text { colours } }
    }

    pub(super) fn json(inner: F) -> Self {
        Self { inner, kind: Kind::Json }
    }
}

impl<S, N, F> FormatEvent<S, N> for Visible<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        let line = line.strip_suffix('\n').unwrap_or(&line);
        match self.kind {
            // Values contain no colour sequences of their own: all of them have passed through `field`.
            Kind::Text { colours: true } => writer.write_str(&printable::styled_line(line)),
            Kind::Text { colours: false } => writer.write_str(&printable::line(line)),
            Kind::Json => writer.write_str(&printable::json(&bounded(line))),
        }?;
        writer.write_char('\n')
    }
}

/// Formats the message and `name=value` fields of a log line. Escapes colour sequences in values, and quotes a value
/// that a reader could parse as several fields.
pub(super) fn fields() -> impl for<'a> FormatFields<'a> + 'static {
    debug_fn(field).delimited(" ")
}

fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = format!("{value:?}");
    let value = printable::line(&value);
    match field.name() {
        "message" => write!(writer, "{value}"),
        name if writer.has_ansi_escapes() => {
            let value = quoted(&value);
            write!(writer, "\u{1b}[3m{name}\u{1b}[0m\u{1b}[2m=\u{1b}[0m{value}")
        }
        name => write!(writer, "{name}={}", quoted(&value)),
    }
}

/// A single word without quotation marks stays. Quotes all other values, as logfmt does, so that a reader cannot
/// parse a value as further fields.
fn quoted(value: &str) -> Cow<'_, str> {
    let is_word = |text: &str| !text.is_empty() && !text.contains([' ', '"', '=', '\\']);
    // `Debug` has already quoted a `str`.
    let text = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match text {
        Some(text) if is_word(text) => Cow::Borrowed(text),
        Some(_) => Cow::Borrowed(value),
        None if is_word(value) => Cow::Borrowed(value),
        None => Cow::Owned(format!("\"{}\"", value.replace('"', "\\\""))),
    }
}

/// Shortens the long strings in a JSON line that is longer than [`printable::LINE`].
fn bounded(line: &str) -> String {
    let document =
        if line.len() > printable::LINE { serde_json::from_str(line).ok() } else { None };
    let Some(mut document) = document else {
        return line.to_owned();
    };
    printable::bound(&mut document);
    document.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Page {
        type Writer = Page;

        fn make_writer(&'a self) -> Page {
            self.clone()
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("why: {0}")]
    struct Foreign(String);

    /// Logs `text` as a message, as fields of each kind, and inside an error.
    fn log(text: &str) {
        let error = Foreign(text.to_owned());
        tracing::info!("{text}");
        tracing::warn!(plain = text, shown = %text, debug = ?text, "a peer");
        tracing::error!(error = &error as &dyn std::error::Error, "key {text}: {error}");
    }

    fn written(text: &str, kind: Kind) -> String {
        let page = Page::default();
        let builder = tracing_subscriber::fmt().with_writer(page.clone());
        match kind {
            Kind::Json => {
                tracing::subscriber::with_default(
                    builder.json().flatten_event(true).map_event_format(Visible::json).finish(),
                    || log(text),
                );
            }
            Kind::Text { colours } => {
                let builder = builder
                    .with_ansi(colours)
                    .fmt_fields(fields())
                    .map_event_format(|format| Visible::text(format.with_ansi(colours), colours));
                tracing::subscriber::with_default(builder.finish(), || log(text));
            }
        }
        let bytes = page.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn uncoloured(text: &str) -> String {
        regex::Regex::new("\u{1b}\\[[0-9;]*m").unwrap().replace_all(text, "").into_owned()
    }

    fn text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            any::<String>(),
            "[\\p{C}\\p{Z}\n\r]{0,6}",
            "\u{1b}\\[[0-9;]{0,4}[mJH]",
            "[ -~]{0,8}"
        ];
        prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn three_events_are_three_visible_lines(text in text()) {
            for kind in [Kind::Text { colours: false }, Kind::Text { colours: true }, Kind::Json] {
                let written = written(&text, kind);
                let shown = if matches!(kind, Kind::Text { colours: true }) { uncoloured(&written) } else { written.clone() };
                prop_assert!(shown.chars().all(|c| c == '\n' || printable::is_printable(c)), "{:?}: {:?}", kind, written);
                prop_assert_eq!(written.lines().count(), 3, "{:?}", written);
                if matches!(kind, Kind::Json) {
                    for line in written.lines() {
                        let _: serde_json::Value = serde_json::from_str(line).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn foreign_colours_are_removed_and_ours_stay() {
        let coloured = written("\u{1b}[8mred", Kind::Text { colours: true });
        assert!(
            coloured.contains("\u{1b}[32m INFO") && !coloured.contains("\u{1b}[8m"),
            "{coloured:?}"
        );
        let plain = written("\u{1b}[8mred", Kind::Text { colours: false });
        assert_eq!(
            uncoloured(&coloured).lines().map(after_time).collect::<Vec<_>>(),
            plain.lines().map(after_time).collect::<Vec<_>>()
        );
    }

    #[test]
    fn values_of_several_words_are_quoted() {
        for (value, want) in [
            ("node-2", "node-2"),
            ("\"node-2\"", "node-2"),
            ("10.244.2.0/24", "10.244.2.0/24"),
            ("\"two words\"", "\"two words\""),
            ("permission denied", "\"permission denied\""),
            ("x code=fake", "\"x code=fake\""),
            ("code=fake", "\"code=fake\""),
            ("cannot read \"Network\"", r#""cannot read \"Network\"""#),
            ("", "\"\""),
            ("\"\"", "\"\""),
        ] {
            assert_eq!(quoted(value), want);
        }
    }

    fn after_time(line: &str) -> &str {
        line.split_once(' ').unwrap().1
    }

    #[test]
    fn a_line_is_bounded() {
        let long = "x".repeat(300_000);
        for kind in [Kind::Text { colours: false }, Kind::Json] {
            for line in written(&long, kind).lines() {
                assert!(line.len() < 6 * printable::LINE, "{kind:?}: {}", line.len());
            }
        }
    }
}
