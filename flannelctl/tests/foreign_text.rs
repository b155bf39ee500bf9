//! Untrusted text in the store or in a flag reaches the operator's terminal only as visible text, and a
//! secret never does.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy.toml allows it in tests, but does not know their helpers"
)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use proptest::prelude::*;
use regex::Regex;
use serde_json::{Value, json};
use types::printable;

/// Invisible characters, and control sequences that clear a screen, begin a line, set a title or reverse
/// text.
const HOSTILE: &str = "a\u{1b}[2J\u{1b}]0;title\u{7}\r\nb\u{9b}31m\u{202e}cod\u{2066}\u{200b}\u{feff}\u{ad}\u{7f}\u{e0041}\u{2028}z";

fn flannelctl(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flannelctl"))
        .args(args)
        .env("FLANNELD_SUBNET_DIR", folder)
        .env_remove("FLANNELD_ETCD_ENDPOINTS")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Fails unless the output has only printable text and newlines. This uses Unicode classes instead of the
/// code under test.
#[track_caller]
fn require_visible(output: &Output) -> String {
    let hidden = Regex::new(r"[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}--\n]").unwrap();
    for bytes in [&output.stdout, &output.stderr] {
        let text = std::str::from_utf8(bytes).unwrap();
        let found = hidden.find(text).map(|found| (found.as_str(), found.start()));
        assert_eq!(found, None, "in {text:?}");
    }
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn value(text: &str) -> Value {
    json!({
        "PublicIP": "192.168.56.101",
        "PublicIPv6": null,
        "BackendType": text,
        "BackendData": { "VNI": 1, "VtepMAC": text },
        "NodeID": { "id": text, "name": text, "instance": text, "rank": 1 },
    })
}

/// A directory of leases: readable ones, one whose value is not JSON, and one whose key names no subnet.
fn store(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let subnets = folder.path().join("subnets");
    fs::create_dir(&subnets).unwrap();
    fs::write(folder.path().join("config"), format!(r#"{{"Network":{}}}"#, Value::from(text)))
        .unwrap();
    fs::write(subnets.join("10.5.1.0-24"), value(text).to_string()).unwrap();
    fs::write(subnets.join("10.5.2.0-24"), format!("{text}{{")).unwrap();
    fs::write(subnets.join("10.5.4.0-24"), value(text).to_string()).unwrap();
    fs::write(subnets.join(name(text)), value(text).to_string()).unwrap();
    folder
}

/// A file name that contains the text without `/` and NUL, at most 200 bytes long.
fn name(text: &str) -> String {
    let mut name: String = format!("k{}", text.replace(['/', '\0'], ""));
    while name.len() > 200 {
        name.pop();
    }
    name
}

fn require_visible_outputs(text: &str) {
    let store = store(text);
    let folder = store.path();
    let listed = flannelctl(folder, &["leases"]);
    assert!(listed.status.success(), "{listed:?}");
    let table = require_visible(&listed);
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout).lines().count(),
        5,
        "a line a key and the heading, whatever is in a name: {table}"
    );

    let document = flannelctl(folder, &["leases", "--json"]);
    require_visible(&document);
    let found: Value = serde_json::from_slice(&document.stdout).unwrap();
    let lease =
        found.as_array().unwrap().iter().find(|lease| lease["key"] == "10.5.1.0-24").unwrap();
    // JSON contains the unchanged text, in escaped form.
    assert_eq!((&lease["node"]["name"], &lease["backend"]), (&json!(text), &json!(text)));

    let refused = flannelctl(folder, &["release", "10.5.1.0/24"]);
    assert_eq!(refused.status.code(), Some(1));
    require_visible(&refused);
    assert!(
        require_visible(&flannelctl(folder, &["release", "10.5.1.0/24", "--force", "--yes"]))
            .contains("released")
    );

    let clean: String = text.replace('\0', "");
    require_visible(&flannelctl(folder, &["release", "--", &clean]));
    require_visible(&flannelctl(folder, &["cleanup", "--dry-run", "--network", &clean]));
    require_visible(&flannelctl(folder, &[&format!("x{clean}")]));
    let nowhere = folder.join(name(text));
    require_visible(&flannelctl(&nowhere, &["leases"]));

    // A key is also found by its escaped form.
    if name(text).chars().count() < 60 {
        let shown = printable::value(&name(text)).into_owned();
        let released = flannelctl(folder, &["release", "--yes", "--force", "--", &shown]);
        assert!(require_visible(&released).contains("released"), "{shown}: {released:?}");
        assert!(!folder.join("subnets").join(OsStr::from_bytes(name(text).as_bytes())).exists());
    }
}

#[test]
fn hostile_name_is_escaped() {
    require_visible_outputs(HOSTILE);
}

#[test]
fn long_name_is_cut() {
    let store = store(&"n".repeat(10_000));
    let listed = flannelctl(store.path(), &["leases"]);
    require_visible(&listed);
    let (table, complaint) =
        (String::from_utf8_lossy(&listed.stdout), String::from_utf8_lossy(&listed.stderr));
    assert!(
        table.lines().all(|line| line.chars().count() < 2000) && table.contains("10000 bytes"),
        "{table}"
    );
    assert!(complaint.chars().count() <= printable::LINE + 20, "{}", complaint.len());
}

/// Random text that often contains control characters and invisible characters.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        any::<String>(),
        prop::sample::select(vec![
            "\u{1b}", "\u{9b}", "\n", "\r", "\t", "\u{85}", "\u{202e}", "\u{2067}", "\u{2029}",
            "\u{200f}", "\\u{1b}", "\"", "\\"
        ])
        .prop_map(str::to_owned),
        "[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}\\p{Co}]{1,4}",
        "\u{1b}\\[[0-9;]{0,4}[mJHKA]",
        "[ -~]{1,8}",
    ];
    prop::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn foreign_text_is_always_escaped(text in text()) {
        require_visible_outputs(&text);
    }
}

#[test]
fn password_in_a_variable_is_not_in_help_completions_or_manual_pages() {
    let pages = tempfile::tempdir().unwrap();
    for line in [
        "leases --help",
        "completion bash",
        "completion zsh",
        "completion fish",
        "completion elvish",
        "completion powershell",
        &format!("man {}", pages.path().display()),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_flannelctl"))
            .args(line.split(' '))
            .env("FLANNELD_ETCD_PASSWORD", "s3cret")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !text.contains("s3cret"), "{line}: {text}");
    }
    for page in fs::read_dir(pages.path()).unwrap() {
        let text = fs::read_to_string(page.unwrap().path()).unwrap();
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn closed_output_is_no_crash() {
    let store = store("n");
    let mut child = Command::new(env!("CARGO_BIN_EXE_flannelctl"))
        .arg("leases")
        .env("FLANNELD_SUBNET_DIR", store.path())
        .env("RUST_BACKTRACE", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !complaint.contains("panicked"),
        "{} {complaint}",
        output.status
    );
}
