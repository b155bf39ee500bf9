//! Tests the rules for dependencies and names: each crate uses only permitted crates, the modules of a crate form no import
//! cycles, functions are verbs with their object, and folders stay small.
//!
//! `docs/architecture.md` describes these rules.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use syn::visit::{self, Visit};

/// Each crate, and the other workspace crates on which it may depend.
const LAW: &[(&str, &[&str])] = &[
    ("coded", &[]),
    ("types", &["coded"]),
    ("subnet-lease", &["types"]),
    ("packet-engine", &["types"]),
    ("wireguard-userspace", &["packet-engine", "types"]),
    ("netlink", &["types"]),
    ("netstate", &["netlink", "types"]),
    ("reconcile", &["netstate", "subnet-lease", "types"]),
    ("traffic-rules", &["netlink", "types"]),
    (
        "backends",
        &[
            "netlink",
            "netstate",
            "packet-engine",
            "reconcile",
            "subnet-lease",
            "types",
            "wireguard-userspace",
        ],
    ),
    ("run-dir", &["types"]),
    ("doctor", &["netlink", "netstate", "run-dir", "traffic-rules", "types"]),
    ("install-file", &[]),
    ("probing", &["subnet-lease", "types"]),
    ("node-api", &["doctor", "probing", "run-dir", "types"]),
    ("options", &["packet-engine", "subnet-lease", "traffic-rules", "types"]),
    (
        "flanneld",
        &[
            "backends",
            "doctor",
            "install-file",
            "netlink",
            "netstate",
            "node-api",
            "options",
            "probing",
            "reconcile",
            "run-dir",
            "subnet-lease",
            "traffic-rules",
            "types",
        ],
    ),
    ("flannel-cni", &[]),
    ("wait", &[]),
    ("lab", &["wait"]),
    (
        "flannelctl",
        &[
            "backends",
            "terminal",
            "doctor",
            "netlink",
            "netstate",
            "node-api",
            "options",
            "probing",
            "run-dir",
            "subnet-lease",
            "traffic-rules",
            "types",
        ],
    ),
    ("terminal", &["types"]),
    ("flannel-lab", &["terminal", "lab", "types"]),
    ("e2e", &["lab"]),
];

/// Crates on which a crate must not depend, either directly or indirectly.
const WITHOUT: &[(&str, &[&str])] = &[
    // This program starts for every pod, and is also built for other architectures.
    ("flannel-cni", &["rand", "ring", "run-dir", "subnet-lease", "tokio", "tracing"]),
    ("run-dir", &["axum", "etcd-client", "tokio"]),
    ("probing", &["axum", "etcd-client", "socket2", "tokio"]),
    ("doctor", &["axum", "etcd-client", "prometheus-client"]),
    ("packet-engine", &["etcd-client", "netlink-sys", "ring", "subnet-lease", "tokio"]),
    ("wireguard-userspace", &["etcd-client", "netlink-sys", "subnet-lease", "tokio"]),
    ("netstate", &["axum", "etcd-client", "packet-engine", "subnet-lease"]),
    ("flannelctl", &["e2e", "flanneld", "lab", "prometheus-client"]),
    ("lab", &["flanneld", "backends", "subnet-lease"]),
];

/// The largest share of free functions whose names are one word, in percent, by folder. Where the code is written anew, the number falls.
const ONE_WORD: &[(&str, usize)] = &[
    ("", 42),
    ("backends/packet-engine/src", 0),
    ("backends/wireguard-userspace/src", 0),
    ("e2e", 1),
];

/// Folders with more source files than [`FILES`]. The numbers only fall.
const CROWDED: &[(&str, usize)] = &[
    ("cni/src", 16),
    ("flannelctl/src", 21),
    ("flanneld/doctor/src", 23),
    ("flanneld/doctor/src/checks", 22),
    ("flanneld/probing/src/node", 27),
    ("flanneld/src", 22),
    ("flanneld/src/daemon", 20),
    ("subnet-lease/src", 20),
    ("subnet-lease/src/kube", 25),
    ("subnet-lease/src/protocol", 16),
    ("subnet-lease/types/src", 16),
];
const FILES: usize = 15;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn cargo(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(args)
        .args(["--offline", "--locked"])
        .current_dir(workspace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// For the workspace, including all dependencies.
fn metadata() -> serde_json::Value {
    let target = "--filter-platform=x86_64-unknown-linux-gnu";
    serde_json::from_str(&cargo(&["metadata", "--format-version=1", target])).unwrap()
}

/// The elements of an array in the output of `cargo metadata`.
fn list(value: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    value.as_array().into_iter().flatten()
}

/// The packages of the workspace.
fn members(metadata: &serde_json::Value) -> Vec<&serde_json::Value> {
    let is_member = |package: &&serde_json::Value| {
        list(&metadata["workspace_members"]).any(|member| *member == package["id"])
    };
    list(&metadata["packages"]).filter(is_member).collect()
}

#[test]
fn toolchain_matches_the_rust_version_of_the_workspace() {
    let value = |file: &str, key: &str| {
        let text = std::fs::read_to_string(workspace().join(file)).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap_or_else(|| panic!("{file} has no {key}"));
        line.trim_matches([' ', '=', '"']).to_owned()
    };
    let (channel, version) =
        (value("rust-toolchain.toml", "channel"), value("Cargo.toml", "rust-version"));
    assert!(
        channel.strip_prefix(&version).is_some_and(|patch| patch.starts_with('.')),
        "{channel} is no release of {version}"
    );
}

#[test]
fn crates_keep_the_dependency_law() {
    let metadata = metadata();
    let members = members(&metadata);
    let name = |package: &serde_json::Value| package["name"].as_str().unwrap().to_owned();
    let mut law: Vec<&str> = LAW.iter().map(|(name, _)| *name).collect();
    law.sort_unstable();
    let mut names: Vec<String> = members.iter().map(|package| name(package)).collect();
    names.sort_unstable();
    assert_eq!(names, law, "each crate of the workspace has its line in the law");
    for package in members {
        let (_, allowed) = LAW.iter().find(|(of, _)| package["name"] == *of).unwrap();
        for used in list(&package["dependencies"]).filter(|used| used["kind"] != "dev") {
            let used = name(used);
            assert!(
                !names.contains(&used) || allowed.contains(&&*used),
                "{} uses {used}, which the law does not allow",
                package["name"]
            );
        }
    }
    for (name, banned) in WITHOUT {
        let below = below(name);
        assert!(below.contains(*name));
        for banned in *banned {
            assert!(!below.contains(*banned), "{name} has {banned} below it");
        }
    }
}

/// All packages that Cargo builds for a single crate.
fn below(name: &str) -> BTreeSet<String> {
    let edges = ["--edges=normal,build", "--prefix=none", "--format={p}"];
    let tree = cargo(&[&["tree", "--package", name][..], &edges].concat());
    let names = tree.lines().filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

/// Path of a module inside its crate.
type Module = Vec<String>;

/// Only modules with their own file. Omits files with the name tests.rs.
fn modules(src: &Path) -> BTreeMap<Module, syn::File> {
    let mut found: BTreeMap<Module, syn::File> = BTreeMap::new();
    let mut folders = vec![(src.to_owned(), Module::new())];
    while let Some((folder, path)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let file = entry.unwrap().path();
            let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
            if file.is_dir() {
                folders.push((file, [path.clone(), vec![name]].concat()));
            } else if file.extension().is_some_and(|extension| extension == "rs") && name != "tests"
            {
                let root = path.is_empty() && (name == "lib" || name == "main");
                let module = if root { Module::new() } else { [path.clone(), vec![name]].concat() };
                let text = std::fs::read_to_string(&file).unwrap();
                let parsed = syn::parse_file(&text)
                    .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
                // A crate with a library and a program has two roots.
                found
                    .entry(module)
                    .and_modify(|root| root.items.extend(parsed.items.clone()))
                    .or_insert(parsed);
            }
        }
    }
    found
}

/// Collects the modules of the same crate that a source file imports or names.
struct Imports<'a> {
    here: &'a Module,
    modules: &'a BTreeSet<Module>,
    found: BTreeSet<Module>,
}

impl Imports<'_> {
    /// Records the module of the crate to which a Rust path leads, if any.
    fn path(&mut self, segments: &[String]) {
        let Some((first, rest)) = segments.split_first() else {
            return;
        };
        let mut full = match first.as_str() {
            "crate" => rest.to_vec(),
            "self" => [self.here.clone(), rest.to_vec()].concat(),
            "super" => {
                let ups = segments.iter().take_while(|segment| *segment == "super").count();
                [
                    self.here[..self.here.len().saturating_sub(ups)].to_vec(),
                    segments[ups..].to_vec(),
                ]
                .concat()
            }
            _ if self.modules.contains(&[self.here.clone(), vec![first.clone()]].concat()) => {
                [self.here.clone(), segments.to_vec()].concat()
            }
            _ => return,
        };
        // A path that leads to no module leads to an item in one.
        while !self.modules.contains(&full) {
            if full.pop().is_none() {
                return;
            }
        }
        if full != *self.here {
            self.found.insert(full);
        }
    }

    fn tree(&mut self, base: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [base.to_vec(), vec![name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(base, item)),
            syn::UseTree::Name(name) if name.ident == "self" => self.path(base),
            syn::UseTree::Name(name) => self.path(&with(&name.ident)),
            syn::UseTree::Rename(rename) => self.path(&with(&rename.ident)),
            syn::UseTree::Glob(_) => self.path(base),
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes
        .iter()
        .any(|attribute| attribute.path().is_ident("cfg") && quote(attribute).contains("test"))
}

fn quote(attribute: &syn::Attribute) -> String {
    match &attribute.meta {
        syn::Meta::List(list) => list.tokens.to_string(),
        _ => String::new(),
    }
}

impl<'ast> Visit<'ast> for Imports<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let segments: Vec<String> =
                path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.path(&segments);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        // The contents of a macro are not parsed, so paths are assembled from its tokens.
        let text = item.tokens.to_string().replace(" :: ", "::");
        for word in text
            .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
            .filter(|word| word.contains("::"))
        {
            let segments: Vec<String> = word.split("::").map(str::to_owned).collect();
            self.path(&segments);
        }
        visit::visit_macro(self, item);
    }
}

/// A cycle in the graph of imports, if any.
fn circle(graph: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<Module>> {
    fn walk(
        at: &Module,
        graph: &BTreeMap<Module, BTreeSet<Module>>,
        done: &mut BTreeSet<Module>,
        way: &mut Vec<Module>,
    ) -> Option<Vec<Module>> {
        if let Some(begin) = way.iter().position(|module| module == at) {
            return Some(way[begin..].to_vec());
        }
        if done.contains(at) {
            return None;
        }
        way.push(at.clone());
        let found = graph[at].iter().find_map(|next| walk(next, graph, done, way));
        way.pop();
        done.insert(at.clone());
        found
    }
    let mut done = BTreeSet::new();
    graph.keys().find_map(|module| walk(module, graph, &mut done, &mut Vec::new()))
}

fn imports(sources: &BTreeMap<Module, syn::File>) -> BTreeMap<Module, BTreeSet<Module>> {
    let modules: BTreeSet<Module> = sources.keys().cloned().collect();
    let of = |(here, file): (&Module, &syn::File)| {
        let mut imports = Imports { here, modules: &modules, found: BTreeSet::new() };
        imports.visit_file(file);
        (here.clone(), imports.found)
    };
    sources.iter().map(of).collect()
}

#[test]
fn file_imports_have_no_cycle() {
    let metadata = metadata();
    for package in members(&metadata) {
        let src =
            Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().join("src");
        let found = circle(&imports(&modules(&src)));
        assert_eq!(found, None, "{}: files import each other in a circle", package["name"]);
    }
}

/// Every source file of the project, by its path in the workspace.
fn source_files() -> Vec<String> {
    let root = workspace();
    let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() && !name.starts_with('.') && !name.ends_with("target") {
                folders.push(path);
            } else if name.ends_with(".rs") {
                found.push(name);
            }
        }
    }
    found
}

/// The names of the free functions of a file, without tests and `main`, and how many are one word.
fn count_free_functions(file: &str) -> (usize, usize) {
    let text = std::fs::read_to_string(workspace().join(file)).unwrap();
    let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
    let is_free = |item: &syn::Item| match item {
        syn::Item::Fn(function)
            if !function.attrs.iter().any(|attribute| attribute.path().is_ident("test")) =>
        {
            Some(function.sig.ident.to_string()).filter(|name| name != "main")
        }
        _ => None,
    };
    let names: Vec<String> = parsed.items.iter().filter_map(is_free).collect();
    (names.len(), names.iter().filter(|name| !name.contains('_')).count())
}

#[test]
fn free_functions_are_verbs_with_their_object() {
    let counts: Vec<_> =
        source_files().into_iter().map(|file| (count_free_functions(&file), file)).collect();
    for (folder, most) in ONE_WORD {
        let inside = || counts.iter().filter(|(_, file)| file.starts_with(folder));
        let all: usize = inside().map(|((all, _), _)| all).sum();
        let short: usize = inside().map(|((_, short), _)| short).sum();
        assert_eq!(
            (100 * short).div_ceil(all),
            *most,
            "percent of {folder}'s {all} free functions have a name of one word: name what they do, and to what; a share that fell stays"
        );
    }
}

#[test]
fn folders_have_few_files() {
    let mut folders: BTreeMap<String, usize> = BTreeMap::new();
    for file in source_files() {
        let folder = Path::new(&file).parent().unwrap().to_str().unwrap();
        *folders.entry(folder.to_owned()).or_default() += 1;
    }
    folders.retain(|_, files| *files > FILES);
    let listed: BTreeMap<String, usize> =
        CROWDED.iter().map(|(folder, files)| ((*folder).to_owned(), *files)).collect();
    assert_eq!(
        folders, listed,
        "folders with more than {FILES} files: group what belongs together"
    );
}
