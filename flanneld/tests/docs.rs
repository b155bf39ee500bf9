//! The documentation matches this version: every flag, every network configuration, every page.

#![allow(clippy::unwrap_used, clippy::panic)]

use options::Invocation;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use subnet_lease::NetworkConfig;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

fn page(name: &str) -> String {
    std::fs::read_to_string(docs().join(name))
        .unwrap_or_else(|error| panic!("docs/{name}: {error}"))
}

/// The words that begin with two dashes.
fn flags(text: &str) -> BTreeSet<String> {
    let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let words = text.split(ends).filter_map(|word| word.strip_prefix("--"));
    words
        .map(|word| word.trim_end_matches('-'))
        .filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()))
        .map(str::to_owned)
        .collect()
}

#[test]
fn options_page_lists_exactly_the_flags() {
    let help = match options::read(["--help".into()], &[]) {
        Invocation::Help(text) => text,
        other => panic!("{other:?}"),
    };
    let heads = help
        .lines()
        .filter_map(|line| line.strip_prefix("  --")?.split(['=', ' ']).next());
    let known: BTreeSet<String> = heads.map(str::to_owned).collect();
    let all = flags(&help);
    let listed = flags(&page("options.md"));
    // `--flag` stands for any.
    assert!(!known.contains("flag"));
    let missing: Vec<_> = known.difference(&listed).collect();
    let invented: Vec<_> = listed.difference(&all).collect();
    assert!(known.len() >= 48, "{known:?}");
    assert!(missing.is_empty(), "docs/options.md lacks {missing:?}");
    assert!(
        invented.is_empty(),
        "docs/options.md names flags that are not there: {invented:?}"
    );
    assert!(
        page("migrating.md").contains(&format!("for all {} flags.", known.len())),
        "docs/migrating.md counts other than {}",
        known.len()
    );
}

#[test]
fn network_configurations_on_pages_are_valid() {
    let text = page("configuration.md");
    let blocks: Vec<&str> = text
        .split("```json,net-conf\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(blocks.len() >= 5, "{}", blocks.len());
    for block in blocks {
        NetworkConfig::parse(block)
            .unwrap_or_else(|error| panic!("docs/configuration.md: {error}: {block}"));
    }
}

#[test]
fn summary_lists_every_page_without_dead_links() {
    let links = |text: &str| -> Vec<String> {
        let targets = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        targets
            .map(|target| target.split('#').next().unwrap_or_default().to_owned())
            .filter(|t| !t.is_empty() && !t.contains("://"))
            .collect()
    };
    let listed: BTreeSet<String> = links(&page("SUMMARY.md")).into_iter().collect();
    let mut pages = BTreeSet::new();
    for folder in ["", "decisions/"] {
        for entry in std::fs::read_dir(docs().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") && name != "SUMMARY.md" {
                pages.insert(format!("{folder}{name}"));
            }
        }
    }
    assert_eq!(listed, pages);
    let files = pages
        .iter()
        .map(|name| docs().join(name))
        .chain([docs().join("../README.md"), docs().join("../CHANGELOG.md")]);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for link in links(&text) {
            assert!(
                file.parent().unwrap().join(&link).exists(),
                "{}: {link}",
                file.display()
            );
        }
    }
}
