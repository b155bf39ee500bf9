//! Converts Go's command-line syntax for clap: one or two dashes, `-iface eth1`, switches without a value, and arguments after the last flag.

use std::any::TypeId;
use std::ffi::OsString;

use clap::{Arg, Command};
use types::Problem;

use crate::value::Value;

/// Name of the flag whose value flanneld must never print.
const SECRET: &str = "etcd-password";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelpKind {
    /// The flags that most clusters need.
    Common,
    All,
}

/// The flags for clap, and details that clap cannot report.
#[derive(Debug, Default)]
pub(crate) struct Argv {
    /// Known flags with their values, in the order of the command line.
    pub(crate) given: Vec<(String, String)>,
    /// The flags that the last help flag lists; `None` without a help flag.
    pub(crate) help: Option<HelpKind>,
    /// The first argument that is not a flag. flanneld ignores this and all later arguments.
    pub(crate) ignored: Option<String>,
    pub(crate) mistakes: Vec<Problem>,
}

impl Argv {
    /// The arguments for clap, beginning with the program's name.
    pub(crate) fn words(&self) -> Vec<String> {
        let flags = self.given.iter().map(|(name, value)| format!("--{name}={value}"));
        std::iter::once("flanneld".to_owned()).chain(flags).collect()
    }

    /// True even for an empty value.
    pub(crate) fn gives_a_secret(&self) -> bool {
        self.given.iter().any(|(name, _)| name == SECRET)
    }
}

/// A switch is true without a value and accepts one only with `=`.
pub(crate) fn is_switch(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<Value<bool>>()
}

/// Reads a command line (without the program's name) as Go does, but continues after a mistake to find all mistakes.
pub(crate) fn normalise(command: &Command, args: impl IntoIterator<Item = OsString>) -> Argv {
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
            // The value is left out, because it may be a secret.
            let flag = arg.split_once('=').map_or(arg.as_str(), |(flag, _)| flag);
            read.mistakes.push(Problem::new(
                "flag-syntax",
                format!("bad flag syntax: {}; a flag looks like --name=value", shown(flag)),
            ));
            continue;
        }
        let help = match name {
            "h" | "help" => Some(HelpKind::Common),
            "help-all" => Some(HelpKind::All),
            _ => None,
        };
        if help.is_some() {
            read.help = help;
            continue;
        }
        let Some(flag) = command.get_arguments().find(|arg| arg.get_long() == Some(name)) else {
            let hint = nearest(command, name).map_or_else(
                || "see --help-all".to_owned(),
                |near| format!("did you mean --{near}?"),
            );
            read.mistakes.push(Problem::new(
                "flag-unknown",
                format!("flag provided but not defined: --{}; {hint}", shown(name)),
            ));
            continue;
        };
        let value = match value {
            Some(value) => value,
            None if is_switch(flag) => "true".to_owned(),
            None => match args.next() {
                Some(value) => value,
                None => {
                    read.mistakes.push(Problem::new(
                        "flag-without-value",
                        format!("flag needs an argument: --{name} {}", value_name(flag)),
                    ));
                    continue;
                }
            },
        };
        read.given.push((name.to_owned(), value));
    }
    read
}

/// The placeholder for a flag's value in the help.
pub(crate) fn value_name(arg: &Arg) -> &str {
    arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str())
}

/// The most similar known flag; `None` if all differ by more than two edits.
fn nearest<'a>(command: &'a Command, name: &str) -> Option<&'a str> {
    let known = command.get_arguments().filter_map(Arg::get_long);
    known
        .map(|known| (strsim::levenshtein(name, known), known))
        .filter(|(distance, _)| *distance <= 2)
        .min()
        .map(|(_, known)| known)
}

/// Omits any text after the name of the password flag, because it is the password if the `=` is missing.
fn shown(name: &str) -> String {
    match name.find(SECRET) {
        Some(at) if name.len() > at + SECRET.len() => {
            format!("{}…", name.get(..at + SECRET.len()).unwrap_or(SECRET))
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Argv {
        normalise(&crate::command(), args.iter().map(OsString::from))
    }

    fn pairs(args: &[&str]) -> Vec<(String, String)> {
        read(args).given
    }

    fn pair(name: &str, value: &str) -> Vec<(String, String)> {
        vec![(name.to_owned(), value.to_owned())]
    }

    #[test]
    fn flags_are_read_in_all_of_gos_spellings() {
        let want = pair("iface", "eth0");
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
        assert_eq!(pairs(&["--iface", "--ip-masq"]), pair("iface", "--ip-masq"));
        assert_eq!(pairs(&["--iface="]), pair("iface", ""));
        assert_eq!(
            pairs(&["-ip-masq", "-v=-3"]),
            [pair("ip-masq", "true"), pair("v", "-3")].concat()
        );
        assert_eq!(pairs(&["--etcd-password=a=b"]), pair("etcd-password", "a=b"));
        let switch = read(&["--ip-masq", "false", "--v=1"]);
        assert_eq!((switch.given.len(), switch.ignored.as_deref()), (1, Some("false")));
        assert_eq!(read(&["-h"]).help, Some(HelpKind::Common));
        assert_eq!(read(&["--help"]).help, Some(HelpKind::Common));
        assert_eq!(read(&["--help-all"]).help, Some(HelpKind::All));
    }

    #[test]
    fn all_mistakes_of_a_command_line_are_found() {
        let mistakes = read(&["--ifcae=eth0", "---x", "--=1", "--iface"]).mistakes;
        assert_eq!(mistakes.len(), 4, "{mistakes:?}");
        assert!(mistakes[0].to_string().contains("did you mean --iface?"), "{}", mistakes[0]);
    }
}
