//! The syntax of Go's `flag` package: dashes, values, integers and truth.

use super::flags::{self, Flag, Kind};
use std::ffi::OsString;

/// What a command line says, flag by flag.
#[derive(Debug, Default)]
pub(super) struct Argv {
    /// Flags and their values, in order.
    pub(super) given: Vec<(&'static Flag, String)>,
    /// Whether help was asked for.
    pub(super) help: bool,
    /// The first argument that is not a flag; it and all that follow are ignored.
    pub(super) ignored: Option<String>,
    /// What is wrong.
    pub(super) mistakes: Vec<String>,
}

/// Reads a command line (without the program's name) as Go does, but goes on after a mistake to find them all.
pub(super) fn argv(args: impl IntoIterator<Item = OsString>) -> Argv {
    let mut read = Argv::default();
    let mut args = args.into_iter().map(|arg| arg.to_string_lossy().into_owned());
    while let Some(arg) = args.next() {
        let name = match arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) {
            None => {
                read.ignored = Some(arg);
                break;
            }
            Some("") if arg == "--" => {
                read.ignored = args.next();
                break;
            }
            Some("") => {
                read.ignored = Some(arg);
                break;
            }
            Some(name) => name,
        };
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (name, None),
        };
        if name.is_empty() || name.starts_with('-') {
            // Not the value, which may be a secret.
            let flag = arg.split_once('=').map_or(arg.as_str(), |(flag, _)| flag);
            read.mistakes.push(format!("bad flag syntax: {}; a flag looks like --name=value", shown(flag)));
            continue;
        }
        if matches!(name, "h" | "help") {
            read.help = true;
            continue;
        }
        let Some(flag) = flags::find(name) else {
            let hint = flags::nearest(name).map_or_else(|| "see --help for all".to_owned(), |near| format!("did you mean --{near}?"));
            read.mistakes.push(format!("flag provided but not defined: --{}; {hint}", shown(name)));
            continue;
        };
        let value = match (value, flag.kind) {
            (Some(value), _) => value,
            (None, Kind::Switch) => "true".to_owned(),
            (None, _) => match args.next() {
                Some(value) => value,
                None => {
                    read.mistakes.push(format!("flag needs an argument: --{name} {}", flag.value));
                    continue;
                }
            },
        };
        read.given.push((flag, value));
    }
    read
}

/// The name of a flag, without what follows that of the password where the `=` was forgotten.
fn shown(name: &str) -> String {
    const SECRET: &str = "etcd-password";
    match name.find(SECRET) {
        Some(at) if name.len() > at + SECRET.len() => format!("{}…", name.get(..at + SECRET.len()).unwrap_or(SECRET)),
        _ => name.to_owned(),
    }
}

/// A truth value as Go's `strconv.ParseBool` reads it.
pub(super) fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// An integer as Go's `strconv.ParseInt(text, 0, 64)` reads it: `10`, `0x10`, `0o17`, `017`, `0b11`, `1_000`, with a sign.
pub(super) fn integer(text: &str) -> Option<i64> {
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
    // An underscore stands between digits, or between the base's prefix and a digit.
    let digits = if prefixed { digits.strip_prefix('_').unwrap_or(digits) } else { digits };
    if digits.is_empty() || digits.starts_with('_') || digits.ends_with('_') || digits.contains("__") || digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = i128::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// A decimal integer, as klog reads its levels.
pub(super) fn decimal(text: &str) -> Option<i32> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Argv {
        argv(args.iter().map(OsString::from))
    }

    fn pairs(args: &[&str]) -> Vec<(&'static str, String)> {
        read(args).given.into_iter().map(|(flag, value)| (flag.name, value)).collect()
    }

    #[test]
    fn dashes_values_and_the_end_of_flags() {
        let want = vec![("iface", "eth0".to_owned())];
        for args in [
            &["-iface", "eth0"][..],
            &["--iface", "eth0"],
            &["-iface=eth0"],
            &["--iface=eth0"],
            &["--iface=eth0", "rest", "--nosuch"],
            &["--iface=eth0", "--", "--nosuch"],
            &["--iface=eth0", "-", "--nosuch"],
        ] {
            assert_eq!(pairs(args), want, "{args:?}");
            assert!(read(args).mistakes.is_empty(), "{args:?}");
        }
        assert_eq!(pairs(&["--iface", "--ip-masq"]), vec![("iface", "--ip-masq".to_owned())]);
        assert_eq!(pairs(&["--iface="]), vec![("iface", String::new())]);
        assert_eq!(pairs(&["-ip-masq", "-v=-3"]), vec![("ip-masq", "true".to_owned()), ("v", "-3".to_owned())]);
        assert_eq!(pairs(&["--etcd-password=a=b"]), vec![("etcd-password", "a=b".to_owned())]);
        let switch = read(&["--ip-masq", "false", "--v=1"]);
        assert_eq!((switch.given.len(), switch.ignored.as_deref()), (1, Some("false")));
        assert!(read(&["-h"]).help && read(&["--help"]).help);
    }

    #[test]
    fn all_mistakes_are_found() {
        let mistakes = read(&["--ifcae=eth0", "---x", "--=1", "--iface"]).mistakes;
        assert_eq!(mistakes.len(), 4, "{mistakes:?}");
        assert!(mistakes[0].contains("did you mean --iface?"), "{}", mistakes[0]);
    }

    #[test]
    fn integers_of_go() {
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
    fn truth_of_go() {
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
