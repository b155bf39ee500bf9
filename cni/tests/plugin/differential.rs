//! Our plugin and Go flannel's plugin pass equal configurations to the delegate.

use crate::bed::{Bed, plugin};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};
use std::fs;

/// Environment variable with the path of Go flannel's plugin.
const OTHER: &str = "GO_FLANNEL_CNI";
const CASES: usize = 300;
/// A network configuration and the text of a subnet.env.
#[derive(Clone, Debug)]
struct Case {
    conf: Value,
    subnet_env: String,
}

/// What must be equal for both plugins after ADD and DEL.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    exits: [i32; 2],
    received: [Option<Value>; 2],
    calls: Vec<String>,
    /// The output of a successful ADD.
    result: Option<Value>,
}

/// An object with a random subset of the keys, each with one of its listed values.
fn some(keys: Vec<(&'static str, Vec<Value>)>) -> impl Strategy<Value = Map<String, Value>> {
    let key = |(name, values): (&'static str, Vec<Value>)| {
        proptest::option::weighted(0.3, proptest::sample::select(values))
            .prop_map(move |value| value.map(|value| (name.to_owned(), value)))
    };
    keys.into_iter()
        .map(key)
        .collect::<Vec<_>>()
        .prop_map(|keys| keys.into_iter().flatten().collect())
}

fn delegate() -> impl Strategy<Value = Map<String, Value>> {
    let flags = || vec![json!(true), json!(false)];
    some(vec![
        ("hairpinMode", flags()),
        ("isGateway", flags()),
        ("isDefaultGateway", flags()),
        ("ipMasq", flags()),
        ("promiscMode", flags()),
        ("forceAddress", flags()),
        ("mtu", vec![json!(1300), json!(9000), json!(0), json!(1450.0), json!(1e3)]),
        ("bridge", vec![json!("cni1"), json!("a<b>&c"), json!("br\u{e9}\u{2028}")]),
        ("vlan", vec![json!(7), json!([1, 2.5, -3]), json!(null)]),
        ("type", vec![json!("bridge"), json!("ptp"), json!("ipvlan")]),
        (
            "nested",
            vec![json!({"z": 1, "a": {"y": [true, null, "x"], "b": 9_007_199_254_740_991_i64}})],
        ),
    ])
}

fn ipam() -> impl Strategy<Value = Map<String, Value>> {
    some(vec![
        ("type", vec![json!("host-local"), json!("static")]),
        ("dataDir", vec![json!("/nowhere/data")]),
        (
            "routes",
            vec![
                json!([]),
                json!([{"dst": "192.0.2.0/24"}]),
                json!([{"dst": "0.0.0.0/0", "gw": "10.244.7.1"}, {"dst": "fd00::/8"}]),
            ],
        ),
        ("ranges", vec![json!([[{"subnet": "192.0.2.0/24"}]])]),
        ("resolvConf", vec![json!("/etc/resolv.conf")]),
    ])
}

fn case() -> impl Strategy<Value = Case> {
    const V4: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\n";
    const TWO: &str = "FLANNEL_NETWORK=10.244.0.0/16,10.96.0.0/12\nFLANNEL_SUBNET=10.244.7.1/26\n";
    const V6: &str = "FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:7::1/64\n";
    let families =
        proptest::sample::select(vec![(V4, ""), (V4, V6), (TWO, ""), (TWO, V6), ("", V6)]);
    let rest = (
        proptest::sample::select(vec![1450_u32, 1500, 0, 65_535]),
        any::<bool>(),
        proptest::sample::select(vec!["", "OTHER=1\n"]),
    );
    let versions = vec!["", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    let names = vec!["cbr0", "a.b-c_1", "n0"];
    (
        (families, rest),
        (proptest::sample::select(names), proptest::sample::select(versions)),
        (proptest::option::weighted(0.8, delegate()), proptest::option::weighted(0.5, ipam())),
        some(vec![
            (
                "runtimeConfig",
                vec![json!({"portMappings": [{"hostPort": 80, "containerPort": 8080}]})],
            ),
            ("capabilities", vec![json!({"portMappings": true})]),
        ]),
    )
        .prop_map(
            |(((v4, v6), (mtu, masq, more)), (name, version), (delegate, ipam), mut conf)| {
                conf.extend([
                    ("name".to_owned(), json!(name)),
                    ("type".to_owned(), json!("flannel")),
                ]);
                if !version.is_empty() {
                    conf.insert("cniVersion".to_owned(), json!(version));
                }
                for (key, value) in [("delegate", delegate), ("ipam", ipam)] {
                    if let Some(value) = value {
                        conf.insert(key.to_owned(), value.into());
                    }
                }
                Case {
                    conf: conf.into(),
                    subnet_env: format!("{v4}{v6}FLANNEL_MTU={mtu}\nFLANNEL_IPMASQ={masq}\n{more}"),
                }
            },
        )
}

fn cases() -> Vec<Case> {
    let mut runner = TestRunner::deterministic();
    let case = case();
    (0..CASES).map(|_| case.new_tree(&mut runner).unwrap().current()).collect()
}

fn outcome(plugin: &str, case: &Case) -> Outcome {
    let bed = Bed::of(plugin.to_owned(), &["bridge", "ptp", "ipvlan"]);
    fs::write(bed.path("subnet.env"), &case.subnet_env).unwrap();
    let conf = bed.conf(&case.conf);
    // `Bed::conf` adds a version. Remove it if the case has none.
    let mut conf: Value = serde_json::from_str(&conf).unwrap();
    if case.conf.get("cniVersion").is_none() {
        conf.as_object_mut().unwrap().remove("cniVersion");
    }
    let calls = ["ADD", "DEL"].map(|verb| bed.call_for(verb, "c0ffee", "eth0", &conf.to_string()));
    // Configurations may contain the path of the bed's folder, which differs between the two.
    let folder = bed.path("").to_str().unwrap().trim_end_matches('/').to_owned();
    Outcome {
        exits: [calls[0].exit, calls[1].exit],
        received: ["ADD", "DEL"].map(|verb| {
            let text = bed.received(verb)?.replace(&folder, "DIR");
            Some(serde_json::from_str(&text).unwrap())
        }),
        calls: bed.calls(),
        result: serde_json::from_str(&calls[0].stdout).ok().filter(|_| calls[0].exit == 0),
    }
}

/// The cases in which our plugin and another one differ.
fn differences(other: &str, cases: &[Case]) -> Vec<String> {
    let ours = plugin();
    let difference = |case: &Case| {
        let (ours, theirs) = (outcome(&ours, case), outcome(other, case));
        (ours != theirs).then(|| format!("{case:#?}\nours:   {ours:#?}\ntheirs: {theirs:#?}"))
    };
    cases.iter().filter_map(difference).collect()
}

#[test]
#[ignore = "run by make test-interop GO_FLANNEL_CNI=/path/to/flannel"]
fn three_hundred_cases_are_equal() {
    let other = std::env::var(OTHER).unwrap_or_default();
    assert!(
        fs::metadata(&other).is_ok_and(|file| file.is_file()),
        "{OTHER}={other} is no file; it is the path of Go flannel's CNI plugin"
    );
    let differences = differences(&other, &cases());
    assert!(differences.is_empty(), "{} of {CASES} differ:\n{}", differences.len(), differences[0]);
}
