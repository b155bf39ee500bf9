//! Former names of variables that the environment uses.

use clap::Arg;
use types::renamed::{FLAGS, RenamedFlag};

/// Returns whether the former variable applies: the former variable is set, and the current variable is not set.
fn is_in_use(flag: &RenamedFlag) -> bool {
    let is_set = |variable: &str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    is_set(flag.former_variable) && !is_set(flag.present_variable)
}

/// Returns the former variable of an argument if the variable applies.
pub(crate) fn former_variable(arg: &Arg) -> Option<&'static str> {
    let name = arg.get_long()?;
    FLAGS
        .iter()
        .find(|flag| flag.present == name && is_in_use(flag))
        .map(|flag| flag.former_variable)
}

/// Returns the former variables that apply, each with its current name.
pub(crate) fn variables_in_use() -> impl Iterator<Item = (&'static str, &'static str)> {
    FLAGS
        .iter()
        .filter(|flag| is_in_use(flag))
        .map(|flag| (flag.former_variable, flag.present_variable))
}
