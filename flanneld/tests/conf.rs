//! Tests that this version of flanneld accepts the files in conf/.

#![allow(clippy::unwrap_used, clippy::panic)]

use options::Invocation;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use subnet_lease::NetworkConfig;

fn conf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf")
}

#[test]
fn shipped_network_configurations_are_valid() {
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(conf().join("net-conf")).unwrap() {
        let path = entry.unwrap().path();
        let config = NetworkConfig::parse(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(name.starts_with(&config.backend), "{name} configures {}", config.backend);
        assert_eq!(
            name.ends_with("-dual"),
            config.pools.v4().is_some() && config.pools.v6().is_some(),
            "{name}"
        );
        seen.push(name);
    }
    assert!(seen.len() >= 8, "{seen:?}");
}

#[test]
fn example_environment_names_existing_variables() {
    let text = std::fs::read_to_string(conf().join("default/flanneld")).unwrap();
    let help = match options::read(["--help-all".into()], &|_| None, &[]) {
        Invocation::Help(text) => text,
        other => panic!("{other:?}"),
    };
    let assignments = |text: &str| -> BTreeMap<String, String> {
        text.lines()
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    let commented = text.replace("#FLANNELD_", "FLANNELD_");
    for variables in [assignments(&text), assignments(&commented)] {
        for name in variables.keys().filter(|name| name.starts_with("FLANNELD_")) {
            let flag = name.trim_start_matches("FLANNELD_").to_lowercase().replace('_', "-");
            assert!(help.contains(&format!("--{flag}")), "{name}");
        }
        let value = |name: &str| variables.get(name).map(Into::into);
        let read = options::read([], &value, &backends::backend_names());
        assert!(matches!(read, Invocation::Run(_)), "{read:?}");
    }
}

#[test]
fn systemd_unit_preserves_run_flannel() {
    let unit = std::fs::read_to_string(conf().join("flanneld.service")).unwrap();
    assert!(!unit.lines().any(|line| line.starts_with("RuntimeDirectory")));
    for line in [
        "Type=notify",
        "Restart=always",
        "EnvironmentFile=-/etc/default/flanneld",
        "FileDescriptorStoreMax=16",
        "CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW",
    ] {
        assert!(unit.lines().any(|have| have == line), "{line}");
    }
}
