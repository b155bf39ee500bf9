//! Environment variables: their values, and the flags that they set.

use clap::Command;
use std::ffi::{OsStr, OsString};

/// Like [`std::env::var_os`] in a program.
pub type Environment<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// `None` if the variable is unset or empty.
pub(crate) fn var(environment: &Environment, name: &str) -> Option<OsString> {
    environment(name).filter(|value| !value.is_empty())
}

/// Makes the variables the defaults of their flags, in the form `NAME=value`. The result is for parsing only: its help lacks the variables' names.
pub fn apply_variables(command: Command, environment: &Environment) -> Command {
    command.mut_args(|arg| {
        let Some(name) = arg.get_env().map(OsStr::to_string_lossy) else {
            return arg;
        };
        let value = var(environment, &name);
        let entry = value.map(|value| format!("{name}={}", value.to_string_lossy()));
        // With `env`, clap would read the variable from this process.
        let arg = arg.env(None::<&str>);
        match entry {
            Some(entry) => arg.default_value(entry).hide_default_value(true),
            None => arg,
        }
    })
}
