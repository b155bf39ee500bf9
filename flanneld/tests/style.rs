//! Tests that pages, help, messages and comments contain none of the phrases in [`PHRASES`].

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};

use regex::Regex;

/// Each forbidden phrase as a regular expression, and its replacement.
const PHRASES: &[(&str, &str)] = &[
    (r"\bwhoever\b", "anyone who, the administrator of"),
    (
        r"\bin (?:the|its|their|our) way\b",
        "conflicting, conflicts with",
    ),
    (r"\bways in\b", "endpoints"),
    (r"\blast words\b", "exit report"),
    (r"\bat war\b", "conflict loop"),
    (r"\bas wanted\b", "in sync"),
    (r"\bneeds a hand\b", "an operator has to act"),
    (r"\bby hand\b", "manually"),
    (
        r"\b(?:is|are|was|were) (?:told|looked at)\b",
        "name who reports what, or who checks what",
    ),
    (r"\b(?:tells?|says?) of\b", "reports, shows"),
    (r"\bis said\b", "name who says it"),
    (
        r"\bbeside (?:the overlay|the underlay|it|this one|one stream|a stream|kernel)\b",
        "over the underlay, during, compared with",
    ),
    (r"\bon the way (?:to|or|there|back)\b", "on the path"),
    (r"\bthe way there\b", "the path"),
    (r", too[.;:)]", "also, before the verb"),
    (r"\bping neither\b", "not even to ping"),
    (
        r"\b(?:it|ping|this|that|one|them|these|pings) alone\b",
        "only",
    ),
    (r"\bfor ever\b", "forever"),
    (
        r"\bnobody (?:listens|asks|looks|knows)\b",
        "no process, no host",
    ),
    (r"\bsuper-packets?\b", "GSO packet"),
    (r"\bstands? (?:below|above|in there)\b", "is below"),
];

/// Phrases that the test permits although they contain a forbidden phrase.
const ALLOWED: &[&str] = &["leaves it alone", "leave it alone", "leave them alone"];

/// Folders and files that the test reads. The test skips folders named `decisions`, because decision records keep the
/// wording of their time.
const READ: &[&str] = &[
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "SUPPORT.md",
    "CODE_OF_CONDUCT.md",
    "docs",
    "conf",
    "flanneld",
    "flannelctl",
    "subnet-lease",
    "backends",
    "cni",
    "e2e/lab",
    "e2e/flannel-lab",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Collects the files with texts below a path, without tests and decision records.
fn files(path: &Path, found: &mut Vec<PathBuf>) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if path.is_dir() {
        if ["tests", "target", "decisions", "benches"].contains(&name.as_ref()) {
            return;
        }
        for entry in std::fs::read_dir(path).unwrap() {
            files(&entry.unwrap().path(), found);
        }
    } else if name != "tests.rs"
        && [".rs", ".md", ".yml", ".yaml", ".service", ".sh", "flanneld"]
            .iter()
            .any(|end| name.ends_with(end))
    {
        found.push(path.to_owned());
    }
}

/// Returns the forbidden phrases in a text, each with its line number and its replacement.
fn phrases(text: &str, rules: &[(Regex, &str)]) -> Vec<String> {
    let mut found = Vec::new();
    // A module of tests is no text for users.
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    for (line, number) in text.lines().zip(1..) {
        for (rule, instead) in rules {
            for hit in rule.find_iter(line) {
                let allowed = ALLOWED.iter().any(|phrase| {
                    line.match_indices(phrase)
                        .any(|(at, _)| at <= hit.start() && hit.end() <= at + phrase.len())
                });
                if !allowed {
                    found.push(format!("{number}: {:?}, write: {instead}", hit.as_str()));
                }
            }
        }
    }
    found
}

fn rules() -> Vec<(Regex, &'static str)> {
    PHRASES
        .iter()
        .map(|(phrase, instead)| (Regex::new(&format!("(?i){phrase}")).unwrap(), *instead))
        .collect()
}

#[test]
fn texts_have_no_phrases_of_the_list() {
    let (rules, mut found, mut wrong) = (rules(), Vec::new(), Vec::new());
    for path in READ {
        files(&workspace().join(path), &mut found);
    }
    assert!(found.len() > 300, "{}", found.len());
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap();
        wrong.extend(
            phrases(&text, &rules)
                .into_iter()
                .map(|phrase| format!("{}:{phrase}", path.display())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn phrases_are_found() {
    let rules = rules();
    for text in [
        "A route is in the way.",
        "Whoever reads this",
        "it answers, too.",
        "by ping alone",
        "packets beside the overlay",
    ] {
        let text = text.replace("by ping alone", "this alone");
        assert_eq!(phrases(&text, &rules).len(), 1, "{text}");
    }
    for text in [
        "The packet stays.\n#[cfg(test)]\nmod tests {\n// Whoever",
        "The setting leaves it alone.",
        "two, too, many",
    ] {
        assert_eq!(phrases(text, &rules), Vec::<String>::new(), "{text}");
    }
}
