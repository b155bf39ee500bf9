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
    // Former names of flags.
    "page-ip",
    // Of e2e/run.py.
    "resume",
    "write",
    // Of kubectl.
    "from-file",
    "page-port",
    "add-port",
    "allow-direct-routing",
    "field-selector",
    "ignore-not-found",
    "reset-then-reuse-values",
    "reset-values",
    "values",
    "all-namespaces",
    "all-targets",
    "bip",
    "cascade",
    "check",
    "collect",
    "comment",
    "containerd",
    "endpoints",
    "exact",
    "exclude",
    "format",
    "keys-only",
    "pipe",
    "quiet",
    "random-fully",
    "selector",
    "ip-masq",
    "keep",
    "lib",
    "mark",
    "mtu",
    "noflush",
    "nocapture",
    "now",
    "permanent",
    "previous",
    "prefix",
    "print-value-only",
    "release",
    "reload",
    "system",
    "take-ownership",
    "test",
    "test-threads",
    "trusted-ca-file",
    "version",
    "wait",
    "workspace",
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
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(workspace().join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the path in the workspace and the text of every documentation page.
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
    paths
        .into_iter()
        .map(|path| (path.clone(), read(&path)))
        .collect()
}

/// Returns the documentation pages. Omits the list in `docs/doctor-commands.md`, which another test generates.
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

/// Returns the texts of the Rust source files below a folder, without tests.
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

/// Returns the text of a Rust source file before its test module.
fn without_tests(source: &str) -> String {
    source
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap()
        .to_owned()
}

/// Returns the string literals of a Rust source file, in the order of their occurrence.
fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            let (text, after) = raw.split_once("\"#").unwrap();
            found.push(text.to_owned());
            rest = after;
        } else if rest.starts_with("'\"'") || rest.starts_with("b'\"'") {
            rest = rest.split_once("\"'").unwrap().1;
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let mut text = String::new();
            let mut chars = quoted.chars();
            while let Some(c) = chars.next().filter(|c| *c != '"') {
                match (c, if c == '\\' { chars.next() } else { None }) {
                    (_, Some('\n')) => chars = chars.as_str().trim_start().chars(),
                    (_, Some('n' | 't')) => text.push(' '),
                    (_, Some(escaped)) => text.push(escaped),
                    _ => text.push(c),
                }
            }
            found.push(text);
            rest = chars.as_str();
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    found
}

/// Returns all texts that the first group of the pattern matches in `text`.
fn words(text: &str, pattern: &str) -> Names {
    Regex::new(pattern)
        .unwrap()
        .captures_iter(text)
        .map(|found| found[1].to_owned())
        .collect()
}

/// Returns the command-line flags in a text: words that begin with two dashes.
fn flags(text: &str) -> Names {
    words(text, r"(?:^|[^-\w])--([a-z](?:[a-z0-9_-]*[a-z0-9])?)")
}

/// Returns the command-line flags that clap structs in a source file declare.
fn declared_flags(source: &str) -> Names {
    let field = r"#\[arg\(([^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*|//[^\n]*\n\s*)*(?:pub(?:\([a-z]+\))? )?(?:r#)?([a-z_0-9]+):";
    let named = Regex::new(r#"\blong\s*=\s*"([^"]+)""#).unwrap();
    let declared = Regex::new(field).unwrap();
    let of = |found: regex::Captures<'_>| match named.captures(&found[1]) {
        Some(name) => Some(name[1].to_owned()),
        None => Regex::new(r"\blong\b")
            .unwrap()
            .is_match(&found[1])
            .then(|| found[2].replace('_', "-")),
    };
    declared.captures_iter(source).filter_map(of).collect()
}

/// Returns the code spans of a page outside code blocks, and each line in the page's code blocks with the block's
/// language.
fn spans_and_blocks(page: &str) -> (Vec<String>, Vec<(String, String)>) {
    let (mut prose, mut blocks, mut block) = (String::new(), Vec::new(), None::<String>);
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), &block) {
            (Some(kind), None) => block = Some(kind.to_owned()),
            (Some(_), Some(_)) => block = None,
            (None, Some(kind)) => blocks.push((kind.clone(), line.to_owned())),
            (None, None) => {
                // A span does not continue in another paragraph or table row.
                let own = line.is_empty() || line.starts_with(['|', '#', '-']);
                prose.push_str(if own { "\n" } else { " " });
                prose.push_str(&line.replace("\\|", "|"));
            }
        }
    }
    let spans = prose
        .lines()
        .flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect();
    (spans, blocks)
}

/// Returns the code spans in the first column of each table whose first line begins with `heading`.
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
    assert!(
        missing.is_empty(),
        "{what} that no page explains: {missing:?}"
    );
    assert!(
        invented.is_empty(),
        "{what} that do not exist: {invented:?}"
    );
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
    assert!(
        invented.is_empty(),
        "docs/options.md names flags that are not there: {invented:?}"
    );
    assert!(
        read("docs/migrating.md").contains(&format!("for all {} flags.", known.len())),
        "docs/migrating.md counts other than {}",
        known.len()
    );
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
        literals(&source)
            .iter()
            .for_each(|text| known.extend(flags(text)));
    }
    known.extend(FOREIGN_FLAGS.iter().map(|flag| (*flag).to_owned()));
    let mut shown = Names::new();
    for (path, text) in pages_by_hand() {
        let invented: Vec<_> = flags(&text).difference(&known).cloned().collect();
        assert!(
            invented.is_empty(),
            "{path} names flags that do not exist: {invented:?}"
        );
        shown.extend(flags(&text));
    }
    let missing: Vec<_> = own.difference(&shown).collect();
    assert!(
        missing.is_empty(),
        "no page explains these flags of flannelctl: {missing:?}"
    );
}

/// Tests that documented commands name the store. Commands without a store query etcd on this machine, and most nodes
/// do not run etcd.
#[test]
fn commands_that_need_the_store_name_it() {
    for (name, page) in pages_by_hand() {
        for (_, block) in spans_and_blocks(&page)
            .1
            .iter()
            .filter(|(language, _)| language == "sh")
        {
            for line in block.lines().filter(|line| {
                ["leases", "release", "reserve"]
                    .iter()
                    .any(|command| line.contains(&format!("flannelctl {command}")))
            }) {
                let named = ["--etcd-endpoints=", "--subnet-dir=", "--kube-subnet-mgr"]
                    .iter()
                    .any(|flag| line.contains(flag));
                assert!(named, "{name}: this command names no store: {line}");
            }
        }
    }
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
        let invented: Vec<_> = words(&text, r"\b(FLANNELD?_[A-Z_]*[A-Z])\b")
            .difference(&known)
            .cloned()
            .collect();
        assert!(
            invented.is_empty(),
            "{path} names variables that do not exist: {invented:?}"
        );
    }
    // Variables of the system, which the programs read.
    let plain = ["PATH", "TERM", "HOME", "XDG_CACHE_HOME"]
        .map(str::to_owned)
        .into();
    let all: String = pages().into_iter().map(|(_, text)| text).collect();
    let missing: Vec<_> = asked
        .difference(&plain)
        .filter(|name| !all.contains(name.as_str()))
        .collect();
    assert!(asked.contains("RUST_LOG"), "{asked:?}");
    assert!(
        missing.is_empty(),
        "no page explains these variables: {missing:?}"
    );
}

#[test]
fn documented_configuration_keys_match_the_code() {
    let key = Regex::new("^[A-Z][A-Za-z0-9]+$").unwrap();
    let no_keys = [
        // Families and backends are words of texts.
        "IPv4",
        "IPv6",
        "UDP",
        "VXLAN",
        "IPIP",
        "WireGuard",
        // Keys of leases.
        "PublicKey",
        "VtepMAC",
        // The name of a struct.
        "Files",
    ];
    let mut sources = sources("backends/src");
    sources.push(without_tests(&read("subnet-lease/src/config.rs")));
    let code: Names = sources
        .iter()
        .flat_map(|source| literals(source))
        .filter(|name| key.is_match(name) && !no_keys.contains(&name.as_str()))
        .collect();
    let page = first_cells(&read("docs/configuration.md"), "| key |");
    let documented = page
        .iter()
        .map(|key| key.rsplit('.').next().unwrap().to_owned())
        .collect();
    assert!(code.len() >= 20, "{code:?}");
    same("keys", &documented, &code);
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
fn backends_page_matches_the_profiles() {
    let page = read("docs/backends.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .map(cells)
        .collect();
    let cell =
        |label: &str, column: usize| rows.iter().find(|row| row[0] == label).unwrap()[column];
    for profile in backends::profiles() {
        let name = profile.name;
        let column = rows[0]
            .iter()
            .position(|head| *head == name)
            .unwrap_or_else(|| panic!("{name} has no column"));
        let travels = cell("packets travel", column);
        let (ports, overhead) = (profile.encapsulation.ports(), profile.overhead);
        assert!(
            ports.iter().all(|port| travels.contains(&port.to_string())),
            "{name}: {travels}, and its ports are {ports:?}"
        );
        assert_eq!(
            travels.contains("encrypted in"),
            profile.encrypts,
            "{name}: {travels}"
        );
        let mtu = cell("MTU for pods", column);
        let is_said = |bytes: u32| {
            if bytes == 0 {
                mtu == "the underlay's"
            } else {
                mtu.contains(&format!("− {bytes}"))
            }
        };
        assert!(
            is_said(overhead.v4) && is_said(overhead.v6),
            "{name}: {mtu}, and it adds {overhead:?}"
        );
        assert_eq!(
            cell("nodes may be", column).contains("on one link"),
            profile.needs_links,
            "{name}"
        );
        assert!(
            page.lines().any(|line| line
                .strip_prefix("## ")
                .is_some_and(|head| head.split(' ').any(|word| word == name))),
            "{name} has no section"
        );
    }
}

/// Returns the cells of a table row.
fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

#[test]
fn documented_metrics_match_the_code() {
    let name = Regex::new("^[a-z][a-z_]*$").unwrap();
    let mut code = Names::new();
    for (file, program, prefix) in [
        ("flanneld/src/health/metrics.rs", "flannel_", ""),
        ("flanneld/src/health/datapath.rs", "flannel_", "datapath_"),
        ("flanneld/src/health/probes.rs", "flannel_", ""),
        ("flanneld/src/health/devices.rs", "flannel_", ""),
        ("flanneld/src/health/process.rs", "process_", ""),
    ] {
        // The code registers a metric as a name followed by its help text.
        let literals = literals(&without_tests(&read(file)));
        for pair in literals.windows(2) {
            if name.is_match(&pair[0])
                && pair[1].starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit())
                && pair[1].contains(' ')
            {
                code.insert(format!(
                    "{program}{prefix}{}",
                    pair[0].trim_start_matches(prefix)
                ));
            }
        }
    }
    assert!(code.len() >= 25, "{code:?}");
    // The exposition format adds a suffix for the kind of metric.
    let plain = |names: &Names| -> Names {
        names
            .iter()
            .map(|name| {
                name.trim_end_matches("_total")
                    .trim_end_matches("_info")
                    .to_owned()
            })
            .collect()
    };
    let code = plain(&code);
    for (path, text) in pages() {
        let shown = plain(&words(
            &text,
            r"\b((?:flannel|process)_[a-z][a-z_]*[a-z])\b",
        ));
        // `flannel_cni` is a value of the Helm chart.
        let invented: Vec<_> = shown
            .difference(&code)
            .filter(|name| *name != "flannel_cni")
            .collect();
        assert!(
            invented.is_empty(),
            "{path} names metrics that do not exist: {invented:?}"
        );
    }
    let table = first_cells(&read("docs/monitoring.md"), "| metric |");
    same(
        "metrics",
        &plain(
            &table
                .iter()
                .map(|cell| cell.split('{').next().unwrap().to_owned())
                .collect(),
        ),
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
        &labels(
            "subnet-lease/src/admission/terms.rs",
            r#"\w+::\w+ => "([a-z-]+)","#,
        ),
    );
    same(
        "reasons",
        &first_cells(&read("docs/monitoring.md"), "| `reason` of dropped packets"),
        &labels(
            "backends/packet-engine/src/reason.rs",
            r#"\w+ = "([a-z0-9_]+)","#,
        ),
    );
}

#[test]
fn every_check_has_a_table_entry_and_a_section() {
    let page = read("docs/doctor-checks.md");
    let rows: Vec<String> = checks()
        .map(|check| {
            format!(
                "| [`{0}`](#{0}) | {1} | {2} |",
                check.id, check.severity, check.title
            )
        })
        .collect();
    let wanted = format!(
        "| check | severity | what it finds |\n|---|---|---|\n{}\n\n",
        rows.join("\n")
    );
    assert!(
        page.contains(&wanted),
        "docs/doctor-checks.md lists the checks so:\n{wanted}"
    );
    let sections: Vec<&str> = page
        .split("\n### ")
        .skip(1)
        .map(|section| section.split('\n').next().unwrap())
        .collect();
    let documented: Vec<&str> = sections
        .iter()
        .copied()
        .filter(|section| checks().any(|check| check.id == *section))
        .collect();
    assert_eq!(
        documented,
        checks().map(|check| check.id).collect::<Vec<_>>(),
        "each check has a section, in the order of the table"
    );
    // At most four commands resolve the trap, from the first look to pods that reach each other.
    let trap = read("docs/troubleshooting.md");
    let trap = trap
        .split("\n### ")
        .find(|section| section.starts_with("All nodes have the same address"))
        .unwrap();
    let commands = trap
        .split("```sh\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    assert!(
        commands.starts_with("flannelctl doctor\n") && commands.lines().count() <= 4,
        "{commands}"
    );
}

#[test]
fn summary_lists_every_page() {
    let listed = words(&read("docs/SUMMARY.md"), r"\]\(([^)#]+)");
    let existing: Names = pages()
        .iter()
        .filter_map(|(path, _)| path.strip_prefix("docs/"))
        .filter(|name| *name != "SUMMARY.md")
        .map(str::to_owned)
        .collect();
    assert_eq!(listed, existing);
}

#[test]
fn files_and_headings_on_every_page_exist() {
    let slug = |heading: &str| -> String {
        let kept = heading.trim().to_lowercase().replace('`', "");
        kept.chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    let anchors = |text: &str| -> Names {
        text.lines()
            .filter(|line| line.starts_with('#'))
            .map(|line| slug(line.trim_start_matches('#')))
            .collect()
    };
    let pages = pages();
    let link = Regex::new(r"\]\(([^)#\s]*)#([^)\s]+)\)").unwrap();
    let page = Regex::new(r"\]\(([^)#]+)[)#]").unwrap();
    for (path, text) in &pages {
        for found in page
            .captures_iter(text)
            .filter(|found| !found[1].contains("://"))
        {
            assert!(
                workspace()
                    .join(path)
                    .parent()
                    .unwrap()
                    .join(&found[1])
                    .exists(),
                "{path}: there is no {}",
                &found[1]
            );
        }
        for found in link
            .captures_iter(text)
            .filter(|found| !found[1].contains("://"))
        {
            let target = if found[1].is_empty() {
                path.clone()
            } else {
                Path::new(path)
                    .parent()
                    .unwrap()
                    .join(&found[1])
                    .display()
                    .to_string()
            };
            assert!(
                anchors(&read(&target)).contains(&found[2]),
                "{path}: {target} has no heading #{}",
                &found[2]
            );
        }
        // Files of the code, by their paths.
        let (spans, _) = spans_and_blocks(text);
        let folders = [
            "subnet-lease/",
            "backends/",
            "flanneld/",
            "flannelctl/",
            "e2e/",
            "conf/",
            "fuzz/",
        ];
        for span in spans.iter().filter(|span| {
            folders.iter().any(|folder| span.starts_with(folder))
                && !span.contains(['{', '*', ' ', '…'])
        }) {
            assert!(
                workspace().join(span).exists(),
                "{path}: there is no {span}"
            );
        }
    }
}
