//! `docs/doctor-commands.md` contains every command for the prepared faults. With `FLANNEL_WRITE_DOCS=1`, the test rewrites it.

use super::cases::everywhere;
use super::report;
use crate::table::checks;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor-commands.md");
/// The last line of `docs/doctor-commands.md` that is written by hand.
const MARK: &str = "## The commands\n";

/// Each command has the machine on which to run it.
fn commands() -> BTreeMap<String, BTreeSet<(String, Vec<String>)>> {
    let mut all: BTreeMap<String, BTreeSet<(String, Vec<String>)>> = BTreeMap::new();
    for (check, facts) in everywhere() {
        let found = report(&facts).findings.into_iter();
        for finding in found.filter(|finding| finding.check == check) {
            // In flannel's pod, which has neither the programs nor the permissions, the same commands run on the node.
            let on = finding.remedy.on.replace(", not flannel's pod", "");
            let on = if on == "the node itself" { "this node".to_owned() } else { on };
            all.entry(check.to_owned()).or_default().insert((on, finding.remedy.commands));
        }
    }
    all
}

fn generated() -> String {
    let all = commands();
    let mut out = String::new();
    for check in checks() {
        let _ = write!(out, "\n### {}\n", check.id);
        let blocks = all.get(check.id).into_iter().flatten();
        let blocks: Vec<_> = blocks.filter(|(_, lines)| !lines.is_empty()).collect();
        if blocks.is_empty() {
            let _ = writeln!(out, "\nNone: what is wrong is in the text.");
        }
        for (on, lines) in blocks {
            let _ = write!(out, "\nOn {on}:\n\n```sh\n{}\n```\n", lines.join("\n"));
        }
    }
    out
}

#[test]
fn page_of_commands_has_those_of_every_check() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (by_hand, present) = page.split_once(MARK).unwrap();
    let wanted = generated();
    if std::env::var_os("FLANNEL_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, format!("{by_hand}{MARK}{wanted}")).unwrap();
    } else {
        assert!(
            present == wanted,
            "docs/doctor-commands.md is old: FLANNEL_WRITE_DOCS=1 cargo test -p doctor page_of_commands"
        );
    }
    // The manually written table has one line for each check, in the same order.
    let listed: Vec<&str> =
        by_hand.lines().filter_map(|line| line.strip_prefix("| [`")?.split('`').next()).collect();
    let known: Vec<&str> = checks().map(|check| check.id).collect();
    assert_eq!(listed, known);
}
