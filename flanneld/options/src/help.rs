//! The output of `--help`: clap's flags by group, in the dense form `--flag=VALUE` that fits 80 columns.

use crate::argv::{is_switch, value_name};
use clap::{Arg, Command};
use types::{Problem, printable};

/// Column at which descriptions begin.
const COLUMN: usize = 30;
/// Column at which the help wraps descriptions.
const WIDTH: usize = 80;

pub(crate) const ABOUT: &str = "\
flanneld gives this node a subnet of the cluster's network and carries packets
between the nodes' subnets.

Every flag can also be set by an environment variable: FLANNELD_ and the flag's
name in capitals, `_` for `-` (FLANNELD_ETCD_ENDPOINTS). The command line takes
precedence; an empty variable is unset. One dash or two, `--flag value` or
`--flag=value`; a switch takes its value only with `=` (--ip-masq=false).
";

pub(crate) const EXIT_CODES: &str = "\
Exit codes: 0 stopped by a signal; 1 a mistake in flags, configuration or on
this host; 5 the lease is lost permanently (a restart acquires a new lease).

Start with: flanneld --etcd-endpoints=http://10.0.0.1:2379 --iface=auto
";

/// The flags that `--help` lists, because most clusters need them.
const COMMON: &[&str] = &[
    "etcd-endpoints",
    "subnet-dir",
    "kube-subnet-mgr",
    "iface",
    "iface-cidr",
    "public-ip",
    "ip-masq",
    "set-sysctls",
    "healthz-port",
    "v",
    "version",
    "help",
    "help-all",
];

/// Usage, and the common flags on one screen.
pub(crate) fn common(command: &Command) -> String {
    let about = ABOUT.split_once("\n\n").map_or(ABOUT, |(about, _)| about);
    let mut out = format!("{about}\n\nUsage: flanneld [--flag=value …]\n\nCommon flags\n");
    for arg in command.get_arguments() {
        if arg.get_long().is_some_and(|name| COMMON.contains(&name)) {
            out.push_str(&entry(&head(arg), &description(arg)));
        }
    }
    out.push_str(&format!(
        "\nflanneld --help-all lists all {} flags; man flanneld has examples.\n",
        command.get_arguments().count()
    ));
    out
}

/// The output of `--help-all`: usage, flags by group, and exit codes.
pub(crate) fn help(command: &Command) -> String {
    let (about, syntax) = ABOUT.split_once("\n\n").unwrap_or((ABOUT, ""));
    let mut out = format!("{about}\n\nUsage: flanneld [--flag=value …]\n\n{syntax}");
    let mut groups: Vec<(&str, Vec<&Arg>)> = Vec::new();
    for arg in command.get_arguments() {
        let title = arg.get_help_heading().unwrap_or_default();
        match groups.iter_mut().find(|(known, _)| *known == title) {
            Some((_, args)) => args.push(arg),
            None => groups.push((title, vec![arg])),
        }
    }
    for (title, args) in groups {
        out.push_str(&format!("\n{title}\n"));
        for arg in args {
            out.push_str(&entry(&head(arg), &description(arg)));
        }
    }
    out.push('\n');
    out.push_str(EXIT_CODES);
    out
}

/// The name of a flag with the placeholder for its value.
fn head(arg: &Arg) -> String {
    let name = arg.get_long().unwrap_or_default();
    if is_switch(arg) || !arg.get_action().takes_values() {
        format!("  --{name}")
    } else {
        format!("  --{name}={}", value_name(arg))
    }
}

/// With the default value.
fn description(arg: &Arg) -> String {
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    for default in arg.get_default_values() {
        text.push_str(&format!(" [default: {}]", default.to_string_lossy()));
    }
    text
}

/// The name, and the description in the second column.
fn entry(head: &str, text: &str) -> String {
    let mut out = head.to_owned();
    let mut used = head.chars().count();
    if used >= COLUMN {
        out.push('\n');
        used = 0;
    }
    out.push_str(&" ".repeat(COLUMN - used));
    let mut used = COLUMN;
    for (index, word) in text.split(' ').enumerate() {
        let wide = word.chars().count();
        if index > 0 && used + 1 + wide > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(COLUMN));
            used = COLUMN;
        } else if index > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += wide;
    }
    out.push('\n');
    out
}

/// Lists the mistakes for stderr.
pub(crate) fn mistakes(command: &Command, list: &[Problem]) -> String {
    let mut out = String::from("flanneld cannot start:\n");
    for mistake in list {
        // The text of a mistake quotes the value without escapes.
        out.push_str(&format!("  {}\n", printable::line(&mistake.to_string())));
    }
    out.push_str(&format!(
        "See flanneld --help-all for all {} flags.\n",
        command.get_arguments().count()
    ));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_has_every_flag_within_80_columns() {
        let command = crate::command();
        let text = help(&command);
        assert!(command.get_arguments().count() > 40);
        for arg in command.get_arguments() {
            assert!(text.contains(&format!("\n{}", head(arg))), "{}", arg.get_id());
            assert!(
                arg.get_help().is_some() && arg.get_help_heading().is_some(),
                "{}",
                arg.get_id()
            );
        }
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn common_flags_fit_on_one_screen() {
        let text = common(&crate::command());
        for name in COMMON {
            assert!(text.contains(&format!("\n  --{name}")), "{name}: {text}");
        }
        assert!(text.lines().count() <= 32, "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
