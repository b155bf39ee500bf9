//! Tests the status page in a real browser: clusters of 3 to 1000 nodes, screens of 320 to 1280 pixels, light and dark colours.
//!
//! If `FLANNEL_WRITE_DOCS=1` is set, the tests also renew the screenshots in the documentation.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "page/cluster.rs"]
mod cluster;
#[path = "page/server.rs"]
mod server;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cluster::{Fault, cluster};
use serde_json::{Value, json};
use server::Server;

const WIDTHS: [u32; 3] = [320, 390, 1280];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Panics with the list of problems if the browser finds any.
fn check(job: &Value) {
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache"),
        PathBuf::from,
    );
    let modules = cache.join("flannel-rs/browser");
    assert!(modules.exists(), "{} is missing: run e2e/setup.sh page", modules.display());
    let mut child = Command::new("node")
        .arg(repository().join("e2e/browser/check.mjs"))
        .arg("-")
        .env("CHROMIUM", "/usr/bin/chromium")
        .env("BROWSER_MODULES", modules)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = format!("{job}\n");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
}

/// Each combination of a screen width and a colour scheme.
fn variants(widths: &[u32]) -> Vec<Value> {
    let of = |width: &u32| {
        ["light", "dark"].map(|scheme| json!({"width": width, "height": 900, "scheme": scheme}))
    };
    widths.iter().flat_map(of).collect()
}

/// For each number of nodes, tests a healthy cluster and one with a fault, in all variants.
fn sizes(counts: &[usize]) {
    for count in counts {
        for (fault, text) in [
            (Fault::None, format!("All {count} nodes reach each other")),
            (Fault::Cut(count - 1), format!("node-{count} is cut off")),
        ] {
            let server = Server::start(cluster(*count, fault));
            check(&json!({
                "url": server.url(),
                "variants": variants(&WIDTHS),
                "expect": {"title_contains": text, "texts": ["This node", "Events"]},
            }));
        }
    }
}

#[test]
fn browser_finds_no_fault_with_3_and_200_nodes() {
    sizes(&[3, 200]);
}

#[test]
#[ignore = "takes minutes: part of make soak"]
fn browser_finds_no_fault_with_24_and_1000_nodes() {
    sizes(&[24, 1000]);
}

#[test]
fn one_bad_pair_in_a_million_is_reached_by_keyboard() {
    let server = Server::start(cluster(1000, Fault::Pair(7, 641)));
    check(&json!({
        "url": server.url(),
        "variants": [{"width": 1280, "height": 900, "scheme": "light"}],
        "expect": {"title_contains": "node-7 does not reach node-641"},
        "reach": {"from": "node-7", "to": "node-641", "state": "cut-off"},
    }));
}

#[test]
fn hostile_names_are_shown_as_text() {
    let hostile = "<img src=x onerror=alert(1)>";
    let mut node = cluster(3, Fault::Cut(2));
    node.node = hostile.to_owned();
    cluster::rename(&mut node, 2, hostile);
    let server = Server::start(node);
    check(&json!({
        "url": server.url(),
        "variants": variants(&[390, 1280]),
        "expect": {"title_contains": format!("{hostile} is cut off"), "texts": [format!("{hostile} is cut off")]},
    }));
}

#[test]
fn page_works_without_results() {
    let mut node = cluster(3, Fault::None);
    node.mesh = None;
    for (node, text) in [
        (node, "node-1 is ready"),
        (cluster(1, Fault::None), "node-1 is ready"),
        (node_api::Node::default(), "This node is not ready"),
    ] {
        let server = Server::start(node);
        check(&json!({
            "url": server.url(),
            "variants": variants(&[320, 1280]),
            "expect": {"title_contains": text},
        }));
    }
}

/// Name, number of nodes, fault, width and height of each screenshot in the documentation.
const PICTURES: [(&str, usize, Fault, u32, u32); 5] = [
    ("healthy", 3, Fault::None, 1280, 1240),
    ("cut-off", 6, Fault::Cut(5), 1280, 1500),
    ("small-mtu", 3, Fault::SmallMtu(2), 1280, 1400),
    ("200-nodes", 200, Fault::Cut(136), 1280, 1700),
    ("phone", 3, Fault::SmallMtu(2), 390, 1600),
];

#[test]
fn documentation_has_the_pictures_of_the_page() {
    let docs = repository().join("docs");
    let write = std::env::var_os("FLANNEL_WRITE_DOCS").is_some();
    for (name, count, fault, width, height) in PICTURES {
        let file = |scheme: &str| docs.join(format!("page-{name}-{scheme}.webp"));
        if write {
            let shot = |scheme: &str| json!({"width": width, "height": height, "scheme": scheme, "shot": file(scheme)});
            let server = Server::start(cluster(count, fault));
            check(&json!({"url": server.url(), "variants": [shot("light"), shot("dark")]}));
        }
        for scheme in ["light", "dark"] {
            let file = file(scheme);
            let picture =
                fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert_eq!(picture.get(8..12), Some(&b"WEBP"[..]), "{}", file.display());
        }
    }
    for page in ["README.md", "docs/monitoring.md"] {
        let text = fs::read_to_string(repository().join(page)).unwrap();
        assert!(
            text.contains("page-cut-off-light.webp") && text.contains("page-cut-off-dark.webp"),
            "{page}"
        );
    }
}
