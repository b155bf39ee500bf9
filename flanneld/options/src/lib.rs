//! Options from the command line and the environment: those of Go flannel, and those that only flannel-rs has.
//!
//! [`read`] converts Go's command-line syntax (`argv`), and lets clap fill the structs of `flags` from the result and
//! from the variables (`environment`). It then converts them to validated [`Settings`] in one pass that finds every
//! mistake (`build`).

#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "`help::mistakes` makes the typed text printable"
)]

mod argv;
mod build;
mod endpoint;
mod environment;
mod flags;
mod go;
mod help;
mod kube;
mod reader;
mod selector;
mod settings;
mod store;
mod value;

pub use endpoint::{Endpoint, Target};
pub use environment::{Environment, apply_variables};
pub use flags::StoreFlags;
pub use selector::{Pattern, Selector};
pub use settings::{
    CniConf, InterfaceSettings, ListenSettings, LogFormat, Logging, NodeSettings, RuleSettings,
    Settings,
};
pub use store::{Etcd, Secret, Store, Tls};

use build::Asked;
use clap::builder::ValueHint;
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use flags::Flags;
use reader::Reader;
use std::ffi::OsString;
use std::io::Write;
use types::Problem;

#[derive(Debug)]
pub enum Invocation {
    Run(Box<Settings>),
    Help(String),
    Version(String),
    Mistakes(Vec<Problem>),
}

/// The output of `--version`.
pub fn version() -> String {
    format!("v{} (flannel-rs)", env!("CARGO_PKG_VERSION"))
}

/// Reads a command line (without the program's name) and the environment variables. `backends` are the names of all backends.
///
/// ```
/// use options::{Invocation, read};
/// use std::ffi::OsString;
///
/// let read = |args: &[&str]| read(args.iter().map(OsString::from), &|_| None, &["vxlan"]);
/// let Invocation::Run(settings) = read(&["--iface=eth1", "--ip-masq"]) else { panic!() };
/// assert!(settings.rules.options.masquerade);
/// assert_eq!(settings.interface.selectors[0].to_string(), "--iface=eth1");
///
/// let Invocation::Mistakes(mistakes) = read(&["--ip-masq=maybe"]) else { panic!() };
/// assert_eq!(mistakes[0].to_string(), r#"--ip-masq: "maybe" is neither true nor false"#);
/// ```
pub fn read(
    args: impl IntoIterator<Item = OsString>,
    environment: &Environment,
    backends: &[&str],
) -> Invocation {
    let command = command();
    let argv = argv::normalise(&command, args);
    match argv.help {
        Some(argv::HelpKind::Common) => return Invocation::Help(help::common(&command)),
        Some(argv::HelpKind::All) => return Invocation::Help(help::help(&command)),
        None => {}
    }
    // clap cannot fail on this input: the command line contains only known flags, and the value parsers accept any text.
    let flags = apply_variables(command, environment)
        .try_get_matches_from(argv.words())
        .and_then(|matches| Flags::from_arg_matches(&matches));
    let flags = match flags {
        Ok(flags) => flags,
        Err(error) => {
            let text = format!("cannot read the command line: {}", error.kind());
            return Invocation::Mistakes(vec![Problem::new("command-line", text)]);
        }
    };
    match flags.read(Reader::of(argv), environment, backends) {
        Ok(Asked::Run(settings)) => Invocation::Run(settings),
        Ok(Asked::Version) => Invocation::Version(version()),
        Err(mistakes) => Invocation::Mistakes(mistakes),
    }
}

/// clap's definition of flanneld's command line.
fn command() -> Command {
    adapt_flags(Flags::command())
}

/// A switch needs no value, and the help never shows values of variables.
pub fn adapt_flags(command: Command) -> Command {
    command.mut_args(|arg| {
        let arg = arg.hide_env_values(true);
        if argv::is_switch(&arg) {
            arg.value_name("true|false")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
        } else {
            arg
        }
    })
}

/// For the manual page.
pub fn manual() -> Command {
    let command = command().after_help(help::EXIT_CODES).long_about(help::ABOUT);
    command.mut_args(|arg| {
        let equals = arg.get_action().takes_values();
        hinted(arg).require_equals(equals)
    })
}

/// For shell completion. Switches take no value here, because a word after a switch would end the flags.
pub fn completion() -> Command {
    Flags::command().mut_args(|arg| {
        let arg = hinted(arg);
        if argv::is_switch(&arg) {
            arg.action(ArgAction::SetTrue).value_parser(clap::value_parser!(bool))
        } else {
            arg
        }
    })
}

/// For shell completion: the argument's value is a file or a directory.
pub fn hinted(arg: Arg) -> Arg {
    let hint = match argv::value_name(&arg) {
        "FILE" => ValueHint::FilePath,
        "DIR" => ValueHint::DirPath,
        _ => return arg,
    };
    arg.value_hint(hint)
}

impl Invocation {
    /// Prints the help, the version or the mistakes if the daemon should not run. The error is the exit code: 0 after
    /// the help or the version, 1 after mistakes.
    #[allow(
        clippy::print_stderr,
        reason = "no log exists yet; `help::mistakes` makes the typed text printable"
    )]
    pub fn settings_or_print(self) -> Result<Box<Settings>, u8> {
        match self {
            Self::Run(settings) => Ok(settings),
            Self::Help(text) => {
                // A closed pipe (`--help | head`) is not an error, here and below.
                let _ = std::io::stdout().write_all(text.as_bytes());
                Err(0)
            }
            Self::Version(text) => {
                let _ = writeln!(std::io::stderr(), "{text}");
                Err(0)
            }
            Self::Mistakes(list) => {
                let _ = write!(std::io::stderr(), "{}", help::mistakes(&command(), &list));
                Err(1)
            }
        }
    }
}

#[cfg(test)]
mod tests;
