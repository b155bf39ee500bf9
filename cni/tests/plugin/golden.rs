//! Compares the plugin with recorded results of Go flannel's plugin, except for intended differences.

use crate::bed::Bed;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

struct Wanted {
    code: Option<u64>,
    calls: Vec<String>,
    data: Value,
}

/// The recorded result of Go flannel's plugin with the intended differences. Error texts count too, except
/// those of JSON decoders.
fn wanted(case: &str, golden: &Value) -> Wanted {
    let mut calls: Vec<String> = golden["delegate calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call.as_str().unwrap().to_owned())
        .collect();
    let mut data = golden["data dir"].clone();
    let code = match case {
        "no-subnet-file" => Some(11),
        "cmd-status-no-file" => Some(50),
        "cmd-gc" => {
            calls.extend(["DEL bridge".to_owned(), "GC bridge".to_owned()]);
            data = serde_json::json!({});
            None
        }
        _ => None,
    };
    Wanted { code, calls, data }
}

fn compare(case: &str, golden: &Value) {
    let bed = Bed::new(&["bridge", "ptp", "ipvlan"]);
    let folder = bed.path("");
    let folder = folder.to_str().unwrap().trim_end_matches('/');
    let here = |text: &str| text.replace("DIR", folder);
    match golden["subnet.env"].as_str() {
        Some(text) => fs::write(bed.path("subnet.env"), text).unwrap(),
        None => fs::remove_file(bed.path("subnet.env")).unwrap(),
    }
    let conf = golden["conf"].as_str().map_or_else(|| golden["conf"].to_string(), str::to_owned);
    let wanted = wanted(case, golden);
    for call in golden["calls"].as_array().unwrap() {
        let command = call["command"].as_str().unwrap();
        let answer = bed.call_for(command, "c0ffee", "eth0", &here(&conf));
        assert_eq!(answer.stderr, "", "{case} {command}");
        let exit = if wanted.code == Some(50) { 1 } else { call["exit"].as_i64().unwrap() };
        assert_eq!(i64::from(answer.exit), exit, "{case} {command}: {answer:?}");
        let printed: Value =
            serde_json::from_str(&here(call["stdout"].as_str().unwrap())).unwrap_or_default();
        if exit == 0 {
            assert_eq!(
                serde_json::from_str::<Value>(&answer.stdout).unwrap_or_default(),
                printed,
                "{case} {command}"
            );
            continue;
        }
        let code = wanted.code.or(printed["code"].as_u64()).unwrap();
        let error = answer.error();
        assert_eq!(error["code"], code, "{case} {command}: {error}");
        if code != 6 && code != 50 {
            assert_eq!(error["msg"], printed["msg"], "{case} {command}");
        }
        assert!(error["cniVersion"].is_string(), "{case} {command}: {error}");
    }
    assert_eq!(bed.calls(), wanted.calls, "{case}");
    for verb in ["ADD", "DEL"] {
        if let Some(netconf) = golden[format!("delegate-{verb}")].as_str() {
            assert_eq!(
                bed.received(verb).map(|text| document(&text)),
                Some(document(&here(netconf))),
                "{case} {verb}"
            );
        }
    }
    let data: BTreeMap<String, Value> =
        bed.data().into_iter().map(|(name, text)| (name, document(&text))).collect();
    let wanted: BTreeMap<String, Value> = wanted
        .data
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, text)| (name.clone(), document(&here(text.as_str().unwrap()))))
        .collect();
    assert_eq!(data, wanted, "{case}");
}

/// Distinguishes integers from floats, as Go's decoder does.
fn document(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|why| panic!("{why}: {text}"))
}

#[test]
fn golden_cases_are_equal() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut cases = 0;
    std::thread::scope(|scope| {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            cases += 1;
            scope.spawn(move || {
                let golden: Value =
                    serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
                compare(path.file_stem().unwrap().to_str().unwrap(), &golden);
            });
        }
    });
    assert_eq!(cases, 32);
}
