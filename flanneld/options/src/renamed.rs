//! Environment variables that are set under their former names.

use clap::Arg;
use types::renamed::{FLAGS, RenamedFlag};

/// Returns whether flanneld uses a flag's former variable: the former variable is set, and the current variable is not set.
fn is_in_use(flag: &RenamedFlag) -> bool {
    let is_set = |variable: &str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    is_set(flag.former_variable) && !is_set(flag.present_variable)
}

/// Returns the former environment variable of a flag if flanneld uses this variable.
pub(crate) fn former_variable(arg: &Arg) -> Option<&'static str> {
    let name = arg.get_long()?;
    FLAGS
        .iter()
        .find(|flag| flag.present == name && is_in_use(flag))
        .map(|flag| flag.former_variable)
}

/// Returns the former environment variables that flanneld uses, each with the variable's current name.
pub(crate) fn variables_in_use() -> impl Iterator<Item = (&'static str, &'static str)> {
    FLAGS
        .iter()
        .filter(|flag| is_in_use(flag))
        .map(|flag| (flag.former_variable, flag.present_variable))
}
