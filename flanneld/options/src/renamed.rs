//! Former names of flags and variables, which work for one release and cause a warning.

use clap::Arg;

/// A flag with its former name.
struct Renamed {
    former: &'static str,
    present: &'static str,
    /// The variables that stand for the two names.
    variables: (&'static str, &'static str),
}

const RENAMED: &[Renamed] = &[
    Renamed {
        former: "page-ip",
        present: "status-ip",
        variables: ("FLANNELD_PAGE_IP", "FLANNELD_STATUS_IP"),
    },
    Renamed {
        former: "page-port",
        present: "status-port",
        variables: ("FLANNELD_PAGE_PORT", "FLANNELD_STATUS_PORT"),
    },
];

impl Renamed {
    /// Whether the former variable is in force: it is set, and the present one is not.
    fn is_in_use(&self) -> bool {
        let is_set =
            |variable: &str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
        is_set(self.variables.0) && !is_set(self.variables.1)
    }
}

/// Returns the present name of a flag that had this name before.
pub(crate) fn present(former: &str) -> Option<&'static str> {
    RENAMED
        .iter()
        .find(|renamed| renamed.former == former)
        .map(|renamed| renamed.present)
}

/// Returns the former variable of an argument if that is the one in force.
pub(crate) fn former_variable(arg: &Arg) -> Option<&'static str> {
    let flag = arg.get_long()?;
    RENAMED
        .iter()
        .find(|renamed| renamed.present == flag && renamed.is_in_use())
        .map(|renamed| renamed.variables.0)
}

/// Returns the former variables in force, each with its present name.
pub(crate) fn variables_in_use() -> impl Iterator<Item = (&'static str, &'static str)> {
    RENAMED
        .iter()
        .filter(|renamed| renamed.is_in_use())
        .map(|renamed| renamed.variables)
}
