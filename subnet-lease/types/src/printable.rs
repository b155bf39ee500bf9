//! Makes text from untrusted sources safe to print.
//!
//! Anyone with write access to the store chooses names, types, MACs and keys. A terminal executes control sequences in untrusted text. An escape such
//! as `\u{1b}` replaces each character that a terminal would not show as a separate glyph. These are control characters (C0, DEL, C1), format and
//! bidirectional characters, line and paragraph separators, private and unassigned code points, and combining marks. All functions leave their own
//! output unchanged, so text may pass through several.

use std::borrow::Cow;
use std::fmt::Write;

use serde_json::Value;

/// Maximum number of displayed characters of an untrusted value.
pub const VALUE: usize = 256;
/// Maximum number of displayed characters of a line.
pub const LINE: usize = 8192;
/// Truncated text reserves this many characters for the note about the truncation.
const CUT: usize = 40;
/// Resets all colours.
const PLAIN: &str = "\u{1b}[0m";

/// What a function keeps in addition to printable characters, and the maximum length of the text.
#[derive(Clone, Copy)]
struct Allowed {
    newlines: bool,
    styles: bool,
    limit: usize,
}

/// True if a terminal shows the character as a glyph, without any other effect.
#[must_use]
pub fn is_printable(c: char) -> bool {
    // Uses the standard library's table for its version of Unicode. It excludes the classes C and Z except for the space, and combining marks.
    matches!(c, ' '..='~') || c.escape_debug().len() == 1
}

/// Makes an untrusted value (a name, a key, a type) safe: one line of at most [`VALUE`] characters.
///
/// ```
/// use types::printable;
///
/// assert_eq!(printable::value("node-1"), "node-1");
/// // This sequence would clear the terminal.
/// assert_eq!(printable::value("node-1\u{1b}[2J"), r"node-1\u{1b}[2J");
/// ```
#[must_use]
pub fn value(text: &str) -> Cow<'_, str> {
    cleaned(text, Allowed { newlines: false, styles: false, limit: VALUE })
}

/// Makes a whole line safe, with at most [`LINE`] characters.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    cleaned(text, Allowed { newlines: false, styles: false, limit: LINE })
}

/// Keeps the colours. The caller must have passed the untrusted parts of the line through [`value`].
#[must_use]
pub fn styled_line(text: &str) -> Cow<'_, str> {
    cleaned(text, Allowed { newlines: false, styles: true, limit: LINE })
}

/// For multi-line text that this program wrote. Works like [`line()`], but keeps newlines and does not truncate.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    cleaned(text, Allowed { newlines: true, styles: false, limit: usize::MAX })
}

/// Like [`lines`], but keeps colours.
#[must_use]
pub fn styled_lines(text: &str) -> Cow<'_, str> {
    cleaned(text, Allowed { newlines: true, styles: true, limit: usize::MAX })
}

/// Escapes the unprintable characters in the strings of a JSON text, whose values stay the same. Outside of strings, JSON contains none.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| c == '\n' || is_printable(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if c == '\n' || is_printable(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    Cow::Owned(out)
}

/// Truncates every string to at most [`LINE`] characters.
pub fn bound(document: &mut Value) {
    match document {
        Value::String(text) => {
            if let Some((place, _)) = text.char_indices().nth(LINE) {
                let note = cut_note(text.len());
                let end = text.char_indices().nth(LINE - CUT).map_or(place, |(end, _)| end);
                text.truncate(end);
                text.push_str(&note);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(bound),
        Value::Object(map) => map.values_mut().for_each(bound),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn cut_note(bytes: usize) -> String {
    format!("… ({bytes} bytes)")
}

fn cleaned(text: &str, allowed: Allowed) -> Cow<'_, str> {
    let passes = |c: char| is_printable(c) || allowed.newlines && c == '\n';
    if text.len() <= allowed.limit && text.chars().all(passes) {
        return Cow::Borrowed(text);
    }
    let (mut out, mut shown, mut cut, mut styles) =
        (String::with_capacity(text.len().min(allowed.limit) + CUT), 0, None, false);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let style = if allowed.styles { style_at(rest) } else { None };
        let length = style.unwrap_or(c.len_utf8());
        let (piece, after) = rest.split_at(length);
        let before = out.len();
        match style {
            Some(_) => out.push_str(piece),
            None if passes(c) => out.push(c),
            None => out.extend(c.escape_debug()),
        }
        if style.is_none() {
            shown += out[before..].chars().count();
        }
        styles |= style.is_some();
        // Position of the note, in case the text gets too long.
        if shown <= allowed.limit.saturating_sub(CUT) {
            cut = Some(out.len());
        }
        if shown > allowed.limit {
            out.truncate(cut.unwrap_or(0));
            if styles {
                out.push_str(PLAIN);
            }
            out.push_str(&cut_note(text.len()));
            break;
        }
        rest = after;
    }
    Cow::Owned(out)
}

/// Length in bytes of an escape sequence that sets colour or weight (SGR), if the text begins with one.
fn style_at(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("\u{1b}[")?;
    let length =
        inner.bytes().take(16).take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
    (inner.as_bytes().get(length) == Some(&b'm')).then_some(2 + length + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hidden_characters_become_visible() {
        for (text, want) in [
            ("node-1.example", "node-1.example"),
            ("ü 節点 \u{5e9}\u{5dc} ✓", "ü 節点 \u{5e9}\u{5dc} ✓"),
            ("quote \" ' and \\", "quote \" ' and \\"),
            ("\u{1b}[2J", r"\u{1b}[2J"),
            ("\u{9b}31m\u{7f}\u{85}", r"\u{9b}31m\u{7f}\u{85}"),
            ("a\nb\r\tc\0", r"a\nb\r\tc\0"),
            (
                "\u{202e}\u{2066}\u{200b}\u{61c}\u{ad}\u{feff}\u{e0041}",
                r"\u{202e}\u{2066}\u{200b}\u{61c}\u{ad}\u{feff}\u{e0041}",
            ),
            (
                "\u{2028}\u{2029}\u{a0}\u{e000}\u{378}e\u{301}",
                r"\u{2028}\u{2029}\u{a0}\u{e000}\u{378}e\u{301}",
            ),
        ] {
            assert_eq!(value(text), want, "{text:?}");
        }
        assert_eq!(lines("a\n\u{1b}b"), "a\n\\u{1b}b");
        assert_eq!(
            styled_lines("\u{1b}[31;1mred\u{1b}[0m \u{1b}[2J\u{1b}"),
            "\u{1b}[31;1mred\u{1b}[0m \\u{1b}[2J\\u{1b}"
        );
        assert_eq!(
            json("{\"a\":\"\u{9b}\u{202e}\u{e0041}\"}"),
            r#"{"a":"\u009b\u202e\udb40\udc41"}"#
        );
    }

    #[test]
    fn long_value_is_cut() {
        let long = value(&"n".repeat(70_000)).into_owned();
        assert!(long.chars().count() <= VALUE && long.ends_with("n… (70000 bytes)"), "{long}");
        let escapes = value(&"\u{1b}".repeat(100)).into_owned();
        assert!(
            escapes.chars().count() <= VALUE && escapes.ends_with(r"\u{1b}… (100 bytes)"),
            "{escapes}"
        );
        let colours = styled_line(&format!("\u{1b}[31m{}", "n".repeat(9000))).into_owned();
        assert!(colours.ends_with("n\u{1b}[0m… (9005 bytes)"), "{colours}");
        assert_eq!(value(&"n".repeat(VALUE)), "n".repeat(VALUE));
        let mut document = serde_json::json!({ "a": ["x".repeat(LINE), "y".repeat(LINE + 1)] });
        bound(&mut document);
        assert_eq!(document["a"][0].as_str().unwrap().len(), LINE);
        assert!(document["a"][1].as_str().unwrap().ends_with("y… (8193 bytes)"));
    }

    fn text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            any::<String>(),
            "[\\p{C}\\p{Z}]{0,80}",
            "\u{1b}\\[[0-9;]{0,20}[mJ]",
            "[ -~]{0,300}"
        ];
        prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn nothing_hidden_is_left(text in text()) {
            for safe in [value(&text), line(&text)] {
                prop_assert!(safe.chars().all(is_printable), "{:?}", safe);
            }
            prop_assert!(value(&text).chars().count() <= VALUE);
            prop_assert!(lines(&text).chars().all(|c| c == '\n' || is_printable(c)));
        }

        #[test]
        fn safe_text_stays_unchanged(text in text()) {
            let safe = value(&text).into_owned();
            prop_assert_eq!(&value(&safe), &safe);
            prop_assert_eq!(&line(&safe), &safe);
            prop_assert_eq!(&styled_lines(&safe), &safe);
            prop_assert_eq!(&json(&safe), &safe);
        }

        #[test]
        fn programs_read_what_was_written(text in text()) {
            let document = serde_json::json!({ "key": text, "list": [text] });
            for written in [document.to_string(), serde_json::to_string_pretty(&document).unwrap()] {
                let safe = json(&written);
                prop_assert!(safe.chars().all(|c| c == '\n' || is_printable(c)));
                prop_assert_eq!(&serde_json::from_str::<Value>(&safe).unwrap(), &document);
            }
        }
    }
}
