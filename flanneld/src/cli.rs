//! Options from the command line and the environment: Go flannel's, and a few of our own.

mod build;
mod endpoint;
mod flags;
mod go_flag;
mod help;
mod settings;

pub use endpoint::{Endpoint, Target};
pub use settings::{Etcd, LogFormat, Logging, Secret, Settings, Store, Tls};

use std::ffi::OsString;
use std::io::Write;

/// What a start of the program asks for.
#[derive(Debug)]
pub enum Invocation {
    /// Run the daemon.
    Run(Box<Settings>),
    /// Print the help and end.
    Help(String),
    /// Print the version and end.
    Version(String),
    /// Nothing can be run: every mistake, one text each.
    Mistakes(Vec<String>),
}

/// The version as `--version` prints it.
pub fn version() -> String {
    format!("v{} (flannel-rs)", env!("CARGO_PKG_VERSION"))
}

/// What this process was asked to do.
pub fn invocation() -> Invocation {
    read(std::env::args_os().skip(1), |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

/// What a command line (without the program's name) and an environment ask for.
pub fn read(args: impl IntoIterator<Item = OsString>, variable: impl Fn(&str) -> Option<String>) -> Invocation {
    let argv = go_flag::argv(args);
    if argv.help {
        return Invocation::Help(help::help());
    }
    let given = build::Given::new(argv, variable);
    // Go looks at --version before it looks at the environment, but after it has read all flags.
    if given.version && given.argv_mistakes.is_empty() {
        return Invocation::Version(version());
    }
    match build::settings(&given) {
        Ok(settings) => Invocation::Run(Box::new(settings)),
        Err(mistakes) => Invocation::Mistakes(mistakes),
    }
}

/// Where the leases are, by the daemon's flags and variables for that alone: for programs that ask the same store. With warnings.
///
/// # Errors
/// Every mistake found.
pub fn store(args: impl IntoIterator<Item = OsString>, variable: impl Fn(&str) -> Option<String>) -> Result<(Store, Vec<String>), Vec<String>> {
    build::store_alone(&build::Given::new(go_flag::argv(args), variable))
}

impl Invocation {
    /// The settings to run with; otherwise prints what is to be printed and returns the exit code.
    ///
    /// # Errors
    /// The exit code of a start that runs nothing.
    #[allow(clippy::print_stderr, reason = "there is no log yet; what was typed is made printable by `help::mistakes`")]
    pub fn settings_or_print(self) -> Result<Box<Settings>, u8> {
        match self {
            Self::Run(settings) => Ok(settings),
            Self::Help(text) => {
                // A closed pipe (`--help | head`) is not worth an error, here and below.
                let _ = std::io::stdout().write_all(text.as_bytes());
                Err(0)
            }
            Self::Version(text) => {
                let _ = writeln!(std::io::stderr(), "{text}");
                Err(0)
            }
            Self::Mistakes(list) => {
                let _ = write!(std::io::stderr(), "{}", help::mistakes(&list));
                Err(1)
            }
        }
    }
}

#[cfg(test)]
mod tests;
