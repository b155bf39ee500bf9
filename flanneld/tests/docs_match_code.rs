//! Tests that the documentation and the code have the same flags, variables, keys, metrics, conditions and checks, and that links lead somewhere.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use doctor::table::checks;
use flanneld::health::condition::Condition;
use options::Invocation;
use regex::Regex;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use subnet_lease::NetworkConfig;

type Names = BTreeSet<String>;

/// Flags of other programs in the documentation.
const FOREIGN_FLAGS: &[&str] = &[
    // A placeholder for any flag.
    "name",
    // Of e2e/run.py.
    "resume",
    "write",
    // Of kubectl.
    "from-file",
    "allow-direct-routing",
    "field-selector",
    "ignore-not-found",
    "reset-then-reuse-values",
    "reset-values",
    "values",
    "all-namespaces",
    "cascade",
    "check",
    "collect",
    "comment",
    "containerd",
    "endpoints",
    "keys-only",
    "pipe",
    "quiet",
    "random-fully",
    "selector",
    "keep",
    "lib",
    "mark",
    "noflush",
    "now",
    "permanent",
    "previous",
    "prefix",
    "print-value-only",
    "reload",
    "take-ownership",
    "test",
    "trusted-ca-file",
    "wait",
    "allocate-node-cidrs",
    "cluster-cidr",
    "namespace",
    "pod-network-cidr",
    "service-cidr",
    "set",
    "install",
    "patch",
    "tail",
    "flannel-backend",
    "disable-network-policy",
    "node-ip",
    "apiserver-advertise-address",
    // Of k3s and helm.
    "flannel-cni-conf",
    "flannel-conf",
    "flannel-external-ip",
    "flannel-iface",
    "flannel-ipv6-masq",
    "node-external-ip",
    "set-file",
    "vpn-auth",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(workspace().join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The path in the workspace and the text of each page.
fn pages() -> Vec<(String, String)> {
    let mut paths = vec![
        "README.md".to_owned(),
        "CHANGELOG.md".to_owned(),
        "CONTRIBUTING.md".to_owned(),
        "SECURITY.md".to_owned(),
        "SUPPORT.md".to_owned(),
        "CODE_OF_CONDUCT.md".to_owned(),
    ];
    for folder in ["docs", "docs/decisions"] {
        for entry in std::fs::read_dir(workspace().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                paths.push(format!("{folder}/{name}"));
            }
        }
    }
    assert!(paths.len() > 20, "{paths:?}");
    paths.into_iter().map(|path| (path.clone(), read(&path))).collect()
}

/// Omits the list in `docs/doctor-commands.md`, which another test generates.
fn pages_by_hand() -> Vec<(String, String)> {
    let by_hand = |(path, text): (String, String)| {
        let text = match text.split_once("\n## The commands\n") {
            Some((text, _)) if path == "docs/doctor-commands.md" => text.to_owned(),
            _ => text,
        };
        (path, text)
    };
    pages().into_iter().map(by_hand).collect()
}

/// Below a folder, without tests.
fn sources(folder: &str) -> Vec<String> {
    let mut folders = vec![workspace().join(folder)];
    let mut texts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                if !["tests", "target", "proptest-regressions"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if name.ends_with(".rs") && name != "tests.rs" {
                texts.push(without_tests(&std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    texts
}

/// What precedes the test module.
fn without_tests(source: &str) -> String {
    source.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned()
}

/// All texts that the first group of the pattern matches.
fn words(text: &str, pattern: &str) -> Names {
    Regex::new(pattern).unwrap().captures_iter(text).map(|found| found[1].to_owned()).collect()
}

/// Words that begin with two dashes.
fn flags(text: &str) -> Names {
    words(text, r"(?:^|[^-\w])--([a-z](?:[a-z0-9_-]*[a-z0-9])?)")
}

/// The flags that clap structs in a source file declare.
fn declared_flags(source: &str) -> Names {
    let field = r"#\[arg\(([^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*|//[^\n]*\n\s*)*(?:pub(?:\([a-z]+\))? )?(?:r#)?([a-z_0-9]+):";
    let named = Regex::new(r#"\blong\s*=\s*"([^"]+)""#).unwrap();
    let declared = Regex::new(field).unwrap();
    let of = |found: regex::Captures<'_>| match named.captures(&found[1]) {
        Some(name) => Some(name[1].to_owned()),
        None => {
            Regex::new(r"\blong\b").unwrap().is_match(&found[1]).then(|| found[2].replace('_', "-"))
        }
    };
    declared.captures_iter(source).filter_map(of).collect()
}

/// The code spans in the first column of each table whose first line begins with `heading`.
fn first_cells(page: &str, heading: &str) -> Names {
    let mut cells = Names::new();
    let mut inside = false;
    for line in page.lines() {
        let begins = line.starts_with(heading);
        inside = begins || (inside && line.starts_with('|'));
        if inside && !begins {
            let cell = line.trim_start_matches('|').split('|').next().unwrap();
            cells.extend(cell.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    cells
}

#[track_caller]
fn same(what: &str, documented: &Names, code: &Names) {
    let missing: Vec<_> = code.difference(documented).collect();
    let invented: Vec<_> = documented.difference(code).collect();
    assert!(missing.is_empty(), "{what} that no page explains: {missing:?}");
    assert!(invented.is_empty(), "{what} that do not exist: {invented:?}");
}

#[test]
fn options_page_lists_exactly_the_flags() {
    let help = match options::read(["--help-all".into()], &|_| None, &[]) {
        Invocation::Help(text) => text,
        other => panic!("{other:?}"),
    };
    let known = words(&help, r"(?m)^  --([^= \n]+)");
    let listed = flags(&read("docs/options.md"));
    // `--flag` is a placeholder for any flag.
    assert!(!known.contains("flag"));
    let missing: Vec<_> = known.difference(&listed).collect();
    let all = flags(&help);
    let invented: Vec<_> = listed.difference(&all).collect();
    assert!(known.len() >= 48, "{known:?}");
    assert!(missing.is_empty(), "docs/options.md lacks {missing:?}");
    assert!(invented.is_empty(), "docs/options.md names flags that are not there: {invented:?}");
}

#[test]
fn flags_on_every_page_exist() {
    // `docs/options.md` is compared with the daemon itself.
    let mut known = flags(&read("docs/options.md"));
    let mut own = Names::new();
    let programs = ["flannelctl/src", "flannelctl/terminal/src"];
    for source in programs.into_iter().flat_map(sources) {
        own.extend(declared_flags(&source));
    }
    assert!(own.contains("dry-run") && own.contains("long"), "{own:?}");
    known.extend(own.iter().cloned());
    for source in sources("e2e/src") {
        known.extend(flags(&source));
    }
    known.extend(FOREIGN_FLAGS.iter().map(|flag| (*flag).to_owned()));
    let mut shown = Names::new();
    for (path, text) in pages_by_hand() {
        let invented: Vec<_> = flags(&text).difference(&known).cloned().collect();
        assert!(invented.is_empty(), "{path} names flags that do not exist: {invented:?}");
        shown.extend(flags(&text));
    }
    let missing: Vec<_> = own.difference(&shown).collect();
    assert!(missing.is_empty(), "no page explains these flags of flannelctl: {missing:?}");
}

#[test]
fn variables_on_every_page_exist() {
    let flags = flags(&read("docs/options.md"));
    let mut known: Names = flags
        .iter()
        .map(|flag| format!("FLANNELD_{}", flag.to_uppercase().replace('-', "_")))
        .collect();
    let mut asked = Names::new();
    for folder in [
        "flanneld",
        "flannelctl/src",
        "flannelctl/terminal/src",
        "backends",
        "subnet-lease/src",
        "cni/src",
        "e2e",
    ] {
        for source in sources(folder) {
            known.extend(words(&source, r#"\b(FLANNELD?_[A-Z_]*[A-Z])\b"#));
            if !folder.starts_with("e2e") {
                asked.extend(words(
                    &source,
                    r#"\b(?:var|var_os|name_in)\((?:environment, )?"([A-Z_]+)"\)"#,
                ));
            }
        }
    }
    known.extend(words(&read("Makefile"), r"\b(FLANNELD?_[A-Z_]*[A-Z])\b"));
    // Tests read it.
    known.insert("FLANNEL_WRITE_DOCS".to_owned());
    for (path, text) in pages() {
        let invented: Vec<_> =
            words(&text, r"\b(FLANNELD?_[A-Z_]*[A-Z])\b").difference(&known).cloned().collect();
        assert!(invented.is_empty(), "{path} names variables that do not exist: {invented:?}");
    }
    // Variables of the system, which the programs read.
    let plain = ["PATH", "TERM", "HOME", "XDG_CACHE_HOME"].map(str::to_owned).into();
    let all: String = pages().into_iter().map(|(_, text)| text).collect();
    let missing: Vec<_> =
        asked.difference(&plain).filter(|name| !all.contains(name.as_str())).collect();
    assert!(asked.contains("RUST_LOG"), "{asked:?}");
    assert!(missing.is_empty(), "no page explains these variables: {missing:?}");
}

#[test]
fn network_configurations_on_pages_are_valid() {
    let text = read("docs/configuration.md");
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
fn documented_metrics_match_the_code() {
    let mut code = Names::new();
    for (file, program, prefix) in [
        ("flanneld/src/health/metrics.rs", "flannel_", ""),
        ("flanneld/src/health/datapath.rs", "flannel_", "datapath_"),
        ("flanneld/src/health/probes.rs", "flannel_", ""),
        ("flanneld/src/health/devices.rs", "flannel_", ""),
        ("flanneld/src/health/process.rs", "process_", ""),
    ] {
        // The code registers a metric as a name followed by its help text.
        let names = words(&without_tests(&read(file)), r#""([a-z][a-z_]*)",\s*"[A-Z0-9]\S* "#);
        code.extend(
            names
                .iter()
                .map(|name| format!("{program}{prefix}{}", name.trim_start_matches(prefix))),
        );
    }
    assert!(code.len() >= 25, "{code:?}");
    // The exposition format adds a suffix for the kind of metric.
    let plain = |names: &Names| -> Names {
        names
            .iter()
            .map(|name| name.trim_end_matches("_total").trim_end_matches("_info").to_owned())
            .collect()
    };
    let code = plain(&code);
    for (path, text) in pages() {
        let shown = plain(&words(&text, r"\b((?:flannel|process)_[a-z][a-z_]*[a-z])\b"));
        // `flannel_cni` is a value of the Helm chart.
        let invented: Vec<_> =
            shown.difference(&code).filter(|name| *name != "flannel_cni").collect();
        assert!(invented.is_empty(), "{path} names metrics that do not exist: {invented:?}");
    }
    let table = first_cells(&read("docs/monitoring.md"), "| metric |");
    same(
        "metrics",
        &plain(&table.iter().map(|cell| cell.split('{').next().unwrap().to_owned()).collect()),
        &code,
    );
}

#[test]
fn documented_conditions_and_reasons_match_the_code() {
    let page = read("docs/operations.md");
    same(
        "conditions",
        &first_cells(&page, "| name | not ready while"),
        &Condition::ALL.iter().map(ToString::to_string).collect(),
    );
    let labels =
        |file: &str, pattern: &str| -> Names { words(&without_tests(&read(file)), pattern) };
    same(
        "reasons",
        &first_cells(&page, "| reason |"),
        &labels("subnet-lease/src/admission/terms.rs", r#"\w+::\w+ => "([a-z-]+)","#),
    );
    same(
        "reasons",
        &first_cells(&read("docs/monitoring.md"), "| `reason` of dropped packets"),
        &labels("backends/packet-engine/src/drop_error.rs", r#"\w+ = "([a-z0-9_]+)","#),
    );
}

#[test]
fn every_check_has_a_table_entry_and_a_section() {
    let page = read("docs/doctor-checks.md");
    let ids: Vec<&str> = checks().map(|check| check.id).collect();
    for check in checks() {
        let row = format!("| [`{0}`](#{0}) | {1} |", check.id, check.severity);
        assert!(page.contains(&row), "docs/doctor-checks.md lacks {row}");
    }
    let sections: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .filter(|section| ids.contains(section))
        .collect();
    assert_eq!(sections, ids, "a section for each check, in order");
}

#[test]
fn pages_that_are_linked_exist_and_are_in_the_summary() {
    let target = Regex::new(r"\]\(([^)#:]+)[)#]").unwrap();
    let summary = words(&read("docs/SUMMARY.md"), r"\]\(([^)#]+)");
    for (path, text) in pages() {
        let folder = workspace().join(&path).parent().unwrap().to_owned();
        for link in target.captures_iter(&text) {
            assert!(folder.join(&link[1]).exists(), "{path}: no {}", &link[1]);
        }
        let name = path.strip_prefix("docs/").unwrap_or("SUMMARY.md");
        assert!(name == "SUMMARY.md" || summary.contains(name), "{path}");
    }
}
