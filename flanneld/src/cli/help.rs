//! What `--help` prints.

use super::flags::{self, GROUPS, Kind, Part};
use subnet_lease::printable;

/// Column at which the descriptions begin.
const COLUMN: usize = 30;
/// Where descriptions are wrapped.
const WIDTH: usize = 80;

/// The whole help.
pub(super) fn help() -> String {
    let mut out = String::from(
        "flanneld: gives this node a subnet of the cluster's network and carries packets\n\
         between the nodes' subnets.\n\n\
         Usage: flanneld [--flag=value …]\n\n\
         Every flag can be set by an environment variable too: FLANNELD_ and the flag's\n\
         name in capitals, `_` for `-` (FLANNELD_ETCD_ENDPOINTS). The command line wins;\n\
         an empty variable counts as unset. One dash or two, `--flag value` or\n\
         `--flag=value`; a switch takes its value with `=` only (--ip-masq=false).\n",
    );
    for group in GROUPS {
        out.push_str(&format!("\n{}\n", group.title));
        for flag in group.flags {
            let value = if flag.kind == Kind::Switch { String::new() } else { format!("={}", flag.value) };
            let mut text = flag.help.to_owned();
            let off = flag.kind == Kind::Switch && flag.default == "false";
            if !flag.default.is_empty() && !off {
                text.push_str(&format!(" [default: {}]", flag.default));
            }
            match flag.part {
                Part::Built => {}
                Part::NotYet => text.push_str(" (not built yet)"),
                Part::Inert if !text.starts_with("accepted") => text.push_str(" (no effect in this version)"),
                Part::Inert => {}
            }
            out.push_str(&entry(&format!("  --{}{value}", flag.name), &text));
        }
    }
    out.push_str(&entry("  --help", "print this and exit"));
    out.push_str(
        "\nExit codes: 0 stopped by a signal; 1 a mistake in flags, configuration or on\n\
         this host; 5 the lease is lost for good (start again: a new one is acquired).\n\n\
         Start with: flanneld --etcd-endpoints=http://10.0.0.1:2379 --iface=auto\n",
    );
    out
}

/// One flag's lines: its name, and its description wrapped beside it.
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

/// What stands before a list of mistakes.
pub(super) fn mistakes(list: &[String]) -> String {
    let mut out = String::from("flanneld cannot start:\n");
    for mistake in list {
        // What was typed stands in it as it was typed.
        out.push_str(&format!("  {}\n", printable::line(mistake)));
    }
    out.push_str(&format!("See flanneld --help for all {} flags.\n", flags::all().count() + 1));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_has_its_line_and_no_line_is_too_long() {
        let text = help();
        for flag in flags::all() {
            assert!(text.contains(&format!("  --{}", flag.name)), "{}", flag.name);
            assert!(!flag.help.is_empty());
        }
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
