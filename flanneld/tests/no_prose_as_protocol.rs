//! Tests that no code searches for words in flannel's own messages, and that what a function returns as its
//! error is called an error.
//!
//! `docs/architecture.md` describes the rules for errors.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::buffer::{Cursor, TokenBuffer};
use syn::visit::{self, Visit};

/// Methods that search in a text.
const SEARCHES: &[&str] = &[
    "contains",
    "ends_with",
    "find",
    "rfind",
    "rsplit",
    "rsplit_once",
    "split",
    "split_once",
    "starts_with",
    "strip_prefix",
    "strip_suffix",
    "trim_end_matches",
    "trim_start_matches",
];

/// The source files that classify messages of other programs, each with the reason why no error code can replace
/// these messages.
const FOREIGN: &[(&str, &str)] = &[
    ("cni/src/verbs/check.rs", "the bridge plugin tells a missing route by code 999 and a text"),
    ("cni/src/verbs/gc.rs", "plugins of before CNI 1.1 refuse GC by code 4 or 999 and a text"),
    ("e2e/lab/src/daemon/flanneld.rs", "the log of a panic is the standard library's"),
    ("e2e/lab/src/host/monitor.rs", "the output of nft monitor"),
    (
        "subnet-lease/src/etcd/call_error.rs",
        "etcd tells many failures by gRPC's Unknown or Unavailable and a text",
    ),
    ("subnet-lease/src/foreign.rs", "the resolver's errors have nothing but words"),
    ("subnet-lease/src/kube/status.rs", "a Status names who may not do what in its message only"),
    ("backends/traffic-rules/src/iptables_text.rs", "the output of iptables-save"),
    (
        "backends/traffic-rules/src/programs.rs",
        "iptables and nft have exit codes 1 to 4 for all that fails",
    ),
];

/// Types in the place of a result's error that have another name: what people and files get, parameters, and values that
/// the caller takes back.
const NO_ERRORS: &[&str] = &["E", "Option", "Problem", "Subnets", "Vec", "u8"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// By path in the workspace: all crates except the end-to-end tests. Omits test modules.
fn sources() -> BTreeMap<String, syn::File> {
    let root = workspace();
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            let inside = name.split('/').any(|part| part == "src");
            if path.is_dir() {
                let skipped = name.starts_with('.')
                    || matches!(name.as_str(), "e2e/src" | "fuzz" | "target")
                    || (!inside && name.ends_with("/tests"));
                if !skipped {
                    folders.push(path);
                }
            } else if inside && name.ends_with(".rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.insert(
                    name.clone(),
                    syn::parse_file(&text).unwrap_or_else(|error| panic!("{name}: {error}")),
                );
            }
        }
    }
    let tests: Vec<String> =
        found.iter().flat_map(|(name, file)| test_modules(name, file)).collect();
    found.retain(|name, _| {
        !tests.iter().any(|module| {
            name.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    });
    found
}

/// The paths of the test-only modules that a source file declares, without the extension.
fn test_modules(name: &str, file: &syn::File) -> Vec<String> {
    let here = name.strip_suffix(".rs").unwrap();
    let here = here
        .strip_suffix("/lib")
        .or_else(|| here.strip_suffix("/main"))
        .or_else(|| here.strip_suffix("/mod"))
        .unwrap_or(here);
    let of = |item: &syn::Item| match item {
        syn::Item::Mod(module) if is_test(&module.attrs) && module.content.is_none() => {
            Some(format!("{here}/{}", module.ident))
        }
        _ => None,
    };
    file.items.iter().filter_map(of).collect()
}

/// True if the compiler includes an item only in tests.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => {
            list.path.is_ident("cfg") && list.tokens.to_string().starts_with("test")
        }
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::NameValue(_) => false,
    })
}

/// True for two words separated by a space.
fn is_prose(text: &str) -> bool {
    let chars: Vec<char> = text.chars().collect();
    chars
        .windows(3)
        .any(|three| three[0].is_alphabetic() && three[1] == ' ' && three[2].is_alphabetic())
}

/// Collects the phrases in an expression: literals, and the values of constants from the same file.
struct Phrases<'a> {
    constants: &'a BTreeMap<String, Vec<String>>,
    found: Vec<String>,
}

impl<'ast> Visit<'ast> for Phrases<'_> {
    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        if is_prose(&text.value()) {
            self.found.push(text.value());
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let Some(last) = path.segments.last() {
            self.found
                .extend(self.constants.get(&last.ident.to_string()).cloned().unwrap_or_default());
        }
    }

    /// Macros print their phrases and do not search for them.
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}
}

/// Detects whether an expression calls a method of [`SEARCHES`].
#[derive(Default)]
struct Searched(bool);

impl<'ast> Visit<'ast> for Searched {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.0 |= SEARCHES.contains(&call.method.to_string().as_str())
            && !matches!(call.args.first(), Some(syn::Expr::Closure(_) | syn::Expr::Lit(_)));
        visit::visit_expr_method_call(self, call);
    }
}

/// Collects the phrases that the code of a source file searches for.
struct Searches<'a> {
    constants: &'a BTreeMap<String, Vec<String>>,
    found: BTreeSet<String>,
}

impl Searches<'_> {
    fn phrases(&mut self, of: &syn::Expr) {
        let mut phrases = Phrases { constants: self.constants, found: Vec::new() };
        phrases.visit_expr(of);
        self.found.extend(phrases.found);
    }

    /// Finds calls of the methods in [`SEARCHES`] among the tokens of a macro.
    fn tokens(&mut self, mut at: Cursor<'_>) {
        let mut search = false;
        while !at.eof() {
            if let Some((inside, _, _, after)) = at.any_group() {
                if search {
                    self.literals(inside);
                }
                self.tokens(inside);
                (search, at) = (false, after);
            } else if let Some((name, after)) = at.ident() {
                (search, at) = (SEARCHES.contains(&name.to_string().as_str()), after);
            } else if let Some((_, after)) = at.token_tree() {
                (search, at) = (false, after);
            } else {
                break;
            }
        }
    }

    fn literals(&mut self, mut at: Cursor<'_>) {
        while let Some((_, after)) = at.token_tree() {
            if let Some((literal, _)) = at.literal()
                && let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string())
                && is_prose(&text.value())
            {
                self.found.insert(text.value());
            }
            if let Some((inside, ..)) = at.any_group() {
                self.literals(inside);
            }
            at = after;
        }
    }
}

impl<'ast> Visit<'ast> for Searches<'_> {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let first = call.args.first();
        match first {
            // `["no such", …].iter().any(|words| text.contains(words))`
            Some(syn::Expr::Closure(closure)) => {
                let mut searched = Searched::default();
                searched.visit_expr_closure(closure);
                if searched.0 {
                    self.phrases(&call.receiver);
                }
            }
            Some(what) if SEARCHES.contains(&call.method.to_string().as_str()) => {
                self.phrases(what);
            }
            _ => {}
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        // `str::contains(text, "no such")`
        if let syn::Expr::Path(path) = &*call.func
            && path.path.segments.len() > 1
            && path
                .path
                .segments
                .last()
                .is_some_and(|last| SEARCHES.contains(&last.ident.to_string().as_str()))
        {
            call.args.iter().for_each(|argument| self.phrases(argument));
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_for_loop(&mut self, turn: &'ast syn::ExprForLoop) {
        let mut searched = Searched::default();
        searched.visit_block(&turn.body);
        if searched.0 {
            self.phrases(&turn.expr);
        }
        visit::visit_expr_for_loop(self, turn);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.tokens(TokenBuffer::new2(item.tokens.clone()).begin());
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }
}

/// Collects the constants of a source file that contain phrases.
#[derive(Default)]
struct Constants(BTreeMap<String, Vec<String>>);

impl<'ast> Visit<'ast> for Constants {
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        let none = BTreeMap::new();
        let mut phrases = Phrases { constants: &none, found: Vec::new() };
        phrases.visit_expr(&item.expr);
        if !phrases.found.is_empty() {
            self.0.insert(item.ident.to_string(), phrases.found);
        }
    }
}

/// The phrases that the code of a source file searches for.
fn searched(file: &syn::File) -> BTreeSet<String> {
    let mut constants = Constants::default();
    constants.visit_file(file);
    let mut searches = Searches { constants: &constants.0, found: BTreeSet::new() };
    searches.visit_file(file);
    searches.found
}

/// The error types of results in a source file whose names do not end with `Error`.
#[derive(Default)]
struct MisnamedErrors(BTreeSet<String>);

impl<'ast> Visit<'ast> for MisnamedErrors {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        if segment.ident == "Result"
            && let syn::PathArguments::AngleBracketed(arguments) = &segment.arguments
            && let Some(syn::GenericArgument::Type(syn::Type::Path(error))) =
                arguments.args.iter().nth(1)
            && let Some(last) = error.path.segments.last()
        {
            let name = last.ident.to_string();
            if !name.ends_with("Error") && !NO_ERRORS.contains(&name.as_str()) {
                self.0.insert(name);
            }
        }
        visit::visit_path_segment(self, segment);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }
}

#[test]
fn own_texts_are_never_matched_by_their_words() {
    let sources = sources();
    for (file, reason) in FOREIGN {
        let source =
            sources.get(*file).unwrap_or_else(|| panic!("{file} is gone: take it off the list"));
        assert!(
            !searched(source).is_empty(),
            "{file} searches for no phrase any more: take it off the list"
        );
        assert!(!reason.is_empty(), "{file} needs a reason");
    }
    let foreign: BTreeSet<&str> = FOREIGN.iter().map(|(file, _)| *file).collect();
    let found: BTreeSet<(&str, String)> = sources
        .iter()
        .filter(|(name, _)| !foreign.contains(name.as_str()))
        .flat_map(|(name, file)| searched(file).into_iter().map(|phrase| (name.as_str(), phrase)))
        .collect();
    assert!(
        found.is_empty(),
        "what failed is recognised by the words of a text: give its error a variant with data instead: {found:#?}"
    );
}

#[test]
fn what_fails_is_called_an_error() {
    let mut found = BTreeSet::new();
    for (name, file) in sources() {
        let mut misnamed = MisnamedErrors::default();
        misnamed.visit_file(&file);
        found.extend(misnamed.0.into_iter().map(|error| (name.clone(), error)));
    }
    assert!(
        found.is_empty(),
        "a Result's error in production: call it …Error, or give a types::Problem instead of a text: {found:#?}"
    );
}
