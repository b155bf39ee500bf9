//! Parses values as Go's `flag` and klog do.

/// Parses a boolean as Go's `strconv.ParseBool` does.
pub(crate) fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses an integer as Go's `strconv.ParseInt(text, 0, 64)` does: `10`, `0x10`, `0o17`, `017`, `0b11`, `1_000`, each with an optional sign.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let (negative, body) = match text.strip_prefix('-') {
        Some(body) => (true, body),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = body.to_ascii_lowercase();
    let (radix, digits, prefixed) = if let Some(digits) = lower.strip_prefix("0x") {
        (16, digits, true)
    } else if let Some(digits) = lower.strip_prefix("0b") {
        (2, digits, true)
    } else if let Some(digits) = lower.strip_prefix("0o") {
        (8, digits, true)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, lower.strip_prefix('0').unwrap_or_default(), true)
    } else {
        (10, lower.as_str(), false)
    };
    // An underscore is allowed between digits, and between the prefix of the base and a digit.
    let digits = if prefixed { digits.strip_prefix('_').unwrap_or(digits) } else { digits };
    if digits.is_empty()
        || digits.starts_with('_')
        || digits.ends_with('_')
        || digits.contains("__")
        || digits.starts_with(['+', '-'])
    {
        return None;
    }
    let magnitude = i128::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// Parses a decimal integer, as klog does for log levels.
pub(crate) fn decimal(text: &str) -> Option<i32> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_in_go() {
        for (text, want) in [
            ("10", Some(10)),
            ("010", Some(8)),
            ("0x10", Some(16)),
            ("0X1f", Some(31)),
            ("0b11", Some(3)),
            ("0o17", Some(15)),
            ("1_000", Some(1000)),
            ("0x_1", Some(1)),
            ("0_7", Some(7)),
            ("0", Some(0)),
            ("-5", Some(-5)),
            ("+5", Some(5)),
            ("", None),
            ("abc", None),
            ("09", None),
            ("1__0", None),
            ("_1", None),
            ("1_", None),
            ("0x", None),
            ("--1", None),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(i64::MIN)),
            (" 1", None),
            ("1.0", None),
        ] {
            assert_eq!(integer(text), want, "{text}");
        }
    }

    #[test]
    fn truth_values_are_read_as_in_go() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(truth(text), Some(true));
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(truth(text), Some(false));
        }
        for text in ["", "yes", "tRUE", "maybe", "on"] {
            assert_eq!(truth(text), None);
        }
    }
}
