//! The rules as iptables writes them, and what has to be restored so that they are there: text in, text out.

use super::rules::{Match, Rule, Ruleset, Verdict};
use std::fmt::Write;

/// One chain of ours and the jump that leads to it.
struct Place<'a> {
    table: &'static str,
    builtin: &'static str,
    chain: &'static str,
    comment: &'static str,
    rules: Option<&'a [Rule]>,
    first: bool,
}

fn places(rules: &Ruleset) -> [Place<'_>; 2] {
    [
        Place {
            table: "nat",
            builtin: "POSTROUTING",
            chain: "FLANNEL-POSTRTG",
            comment: "flanneld masq",
            rules: rules.masquerade.as_deref(),
            first: false,
        },
        Place {
            table: "filter",
            builtin: "FORWARD",
            chain: "FLANNEL-FWD",
            comment: "flanneld forward",
            rules: rules.forward.as_deref(),
            first: rules.forward_insert,
        },
    ]
}

/// What `iptables-restore --noflush` must be given so that the kernel, which `iptables-save` described as `saved`, has these rules;
/// none where it has them. Both chains are replaced whole, in one commit a table.
pub fn payload(rules: &Ruleset, saved: &str) -> Option<String> {
    let mut out = String::new();
    for place in places(rules) {
        let present = Present::of(&place, saved);
        let wanted: Vec<String> = place.rules.unwrap_or_default().iter().map(|rule| render(&place, rule)).collect();
        let jump = jump(&place);
        let mut lines = String::new();
        match place.rules {
            Some(_) => {
                if present.rules.as_ref() != Some(&wanted) {
                    let _ = writeln!(lines, ":{} - [0:0]", place.chain);
                    wanted.iter().for_each(|rule| lines.push_str(&format!("{rule}\n")));
                }
                let misplaced = place.first && present.foreign_first == Some(true);
                let right = present.jumps == 1 && !misplaced;
                for old in &present.old {
                    let _ = writeln!(lines, "{}", old.replacen("-A ", "-D ", 1));
                }
                if !right {
                    (0..present.jumps).for_each(|_| lines.push_str(&format!("{}\n", jump.replacen("-A ", "-D ", 1))));
                    let insert = if place.first { jump.replacen("-A ", "-I ", 1) } else { jump };
                    let _ = writeln!(lines, "{insert}");
                }
            }
            None => {
                for old in &present.old {
                    let _ = writeln!(lines, "{}", old.replacen("-A ", "-D ", 1));
                }
                (0..present.jumps).for_each(|_| lines.push_str(&format!("{}\n", jump.replacen("-A ", "-D ", 1))));
                if present.rules.is_some() {
                    let _ = write!(lines, "-F {0}\n-X {0}\n", place.chain);
                }
            }
        }
        if !lines.is_empty() {
            let _ = write!(out, "*{}\n{lines}COMMIT\n", place.table);
        }
    }
    (!out.is_empty()).then_some(out)
}

/// What `saved` has of ours, in words.
pub fn remains(saved: &str) -> Vec<String> {
    let mut out = Vec::new();
    for place in places(&Ruleset::nothing(false)) {
        let present = Present::of(&place, saved);
        let (table, chain, builtin) = (place.table, place.chain, place.builtin);
        if let Some(rules) = &present.rules {
            out.push(format!("table {table}: chain {chain} with {} rules", rules.len()));
        }
        if present.jumps > 0 {
            out.push(format!("table {table}: the jump from {builtin} to {chain}"));
        }
        out.extend(present.old.iter().map(|rule| format!("table {table}: {rule}")));
    }
    out
}

fn jump(place: &Place<'_>) -> String {
    format!("-A {} -m comment --comment \"{}\" -j {}", place.builtin, place.comment, place.chain)
}

/// A rule as `iptables -S` and `iptables-save` print it.
fn render(place: &Place<'_>, rule: &Rule) -> String {
    let mut out = format!("-A {}", place.chain);
    let not = |is: bool| if is { "" } else { " !" };
    for condition in &rule.matches {
        let _ = match condition {
            Match::Source(is, net) => write!(out, "{} -s {net}", not(*is)),
            Match::Destination(is, net) => write!(out, "{} -d {net}", not(*is)),
            Match::Mark(bits) => write!(out, " -m mark --mark {bits:#x}/{bits:#x}"),
        };
    }
    let _ = write!(out, " -m comment --comment \"{}\" -j ", place.comment);
    out.push_str(match rule.verdict {
        Verdict::Return => "RETURN",
        Verdict::Accept => "ACCEPT",
        Verdict::Masquerade(true) => "MASQUERADE --random-fully",
        Verdict::Masquerade(false) => "MASQUERADE",
    });
    out
}

/// What is there of ours in one place.
#[derive(Debug, Default, PartialEq, Eq)]
struct Present {
    /// The rules of our chain; none where there is no chain.
    rules: Option<Vec<String>>,
    /// Jumps to it.
    jumps: usize,
    /// Whether something stands before the first jump.
    foreign_first: Option<bool>,
    /// Rules straight in the built-in chain that carry our comment: Go flannel's from v0.17 to v0.19.
    old: Vec<String>,
}

impl Present {
    fn of(place: &Place<'_>, saved: &str) -> Self {
        let mut present = Self::default();
        let mut table = "";
        let (ours, builtin) = (format!("-A {} ", place.chain), format!("-A {} ", place.builtin));
        let jump = jump(place);
        let comment = format!("--comment \"{}\"", place.comment);
        let mut before = false;
        for line in saved.lines().map(str::trim_end) {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            }
            if table != place.table {
                continue;
            }
            if line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) == Some(place.chain) {
                present.rules.get_or_insert_default();
            } else if line.starts_with(&ours) {
                present.rules.get_or_insert_default().push(line.to_owned());
            } else if line == jump {
                present.jumps += 1;
                present.foreign_first.get_or_insert(before);
            } else if line.starts_with(&builtin) {
                before = true;
                if line.contains(&comment) {
                    present.old.push(line.to_owned());
                }
            }
        }
        present
    }
}
