//! Tests that no statement reads a value of a `watch` channel while it already reads the value.
//!
//! `watch::Receiver::borrow` returns a guard of a read-write lock. The guard of a temporary lives until the end of
//! its statement, and in a struct expression until the end of the whole expression. A writer that waits for the first
//! guard blocks the second read, so both wait for good.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// The text of an expression that consists of names, fields and calls without arguments, and `None` for others.
fn name(expression: &syn::Expr) -> Option<String> {
    match expression {
        syn::Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
        syn::Expr::Field(field) => match &field.member {
            syn::Member::Named(member) => Some(format!("{}.{member}", name(&field.base)?)),
            syn::Member::Unnamed(index) => Some(format!("{}.{}", name(&field.base)?, index.index)),
        },
        syn::Expr::MethodCall(call) if call.args.is_empty() => {
            Some(format!("{}.{}()", name(&call.receiver)?, call.method))
        }
        syn::Expr::Paren(inner) => name(&inner.expr),
        syn::Expr::Reference(inner) => name(&inner.expr),
        _ => None,
    }
}

/// The reads in one statement, each as the text of the value that is read.
#[derive(Default)]
struct Reads {
    /// Reads in the statement itself. Their guards live until its end.
    own: Vec<String>,
    /// Reads in the statements of blocks within the statement.
    within: BTreeSet<String>,
    depth: usize,
}

impl<'ast> Visit<'ast> for Reads {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.args.is_empty()
            && (call.method == "borrow" || call.method == "borrow_and_update")
            && let Some(value) = name(&call.receiver)
        {
            if self.depth == 0 {
                self.own.push(value);
            } else {
                self.within.insert(value);
            }
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.depth += 1;
        visit::visit_block(self, block);
        self.depth -= 1;
    }

    // The condition of `if` and `while` drops its temporaries before the block, unless the condition is a `let`.
    fn visit_expr_if(&mut self, node: &'ast syn::ExprIf) {
        self.condition(&node.cond);
        self.visit_block(&node.then_branch);
        if let Some((_, other)) = &node.else_branch {
            self.visit_expr(other);
        }
    }

    fn visit_expr_while(&mut self, node: &'ast syn::ExprWhile) {
        self.condition(&node.cond);
        self.visit_block(&node.body);
    }
}

/// True for a `let` or a chain with a `let`.
fn has_let(condition: &syn::Expr) -> bool {
    match condition {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(chain) => has_let(&chain.left) || has_let(&chain.right),
        _ => false,
    }
}

impl Reads {
    fn condition(&mut self, condition: &syn::Expr) {
        let lives_on = has_let(condition);
        self.depth += usize::from(!lives_on);
        self.visit_expr(condition);
        self.depth -= usize::from(!lives_on);
    }

    fn twice(&self) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        self.own
            .iter()
            .filter(|value| !seen.insert(*value) || self.within.contains(*value))
            .cloned()
            .collect()
    }
}

/// The values that a statement of a file reads while it already reads them.
#[derive(Default)]
struct Found(BTreeSet<String>);

impl<'ast> Visit<'ast> for Found {
    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        let mut reads = Reads::default();
        reads.visit_stmt(statement);
        self.0.extend(reads.twice());
        visit::visit_stmt(self, statement);
    }
}

fn found(text: &str) -> BTreeSet<String> {
    let mut found = Found::default();
    found.visit_file(&syn::parse_file(text).unwrap());
    found.0
}

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn no_statement_reads_a_watched_value_twice() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for part in ["flanneld", "backends", "subnet-lease", "cni", "flannelctl"] {
        sources(&root.join(part), &mut files);
    }
    assert!(files.len() > 300, "{} files", files.len());
    let twice: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            found(&text).into_iter().map(move |value| format!("{}: {value}", file.display()))
        })
        .collect();
    assert!(
        twice.is_empty(),
        "read each value once, in a statement of its own:\n{}",
        twice.join("\n")
    );
}

#[test]
fn second_read_is_found() {
    for (body, is_found) in [
        ("Counts { age: held.borrow().age, end: held.borrow().end }", true),
        ("let both = (held.borrow().age, held.borrow().end);", true),
        ("match held.borrow().own { _ => { let end = held.borrow().end; } }", true),
        ("for peer in table.borrow().iter() { let all = table.borrow().len(); }", true),
        ("if let Some(own) = &held.borrow().own { held.borrow().end; }", true),
        ("if is_known && let Some(own) = &held.borrow().own { held.borrow().end; }", true),
        ("if held.borrow().is_over { held.borrow().end; }", false),
        ("let age = held.borrow().age; let end = held.borrow().end;", false),
        ("loop { held.borrow().age; held.borrow().end; }", false),
        ("let both = (held.borrow().age, env.borrow().mtu);", false),
    ] {
        let text = format!("fn read() {{ {body} }}");
        assert_eq!(!found(&text).is_empty(), is_found, "{body}");
    }
}
