//! The Node and subnet.env equal Go flannel 0.28.9's output for the same input, except for `FlannelRs` in the backend data.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lab::{ApiServer, Families, FlanneldOptions, Host, Lab, NodeObject, Uplink, until_ok};
use serde_json::{Map, Value};

const CASES: [&str; 10] = [
    "alloc",
    "custom-prefix",
    "host-gw",
    "kept-mac",
    "no-condition",
    "overwrite",
    "udp",
    "vxlan",
    "vxlan-dual",
    "vxlan-v6only",
];
/// A test case prescribes it. All other MACs belong to the node's devices.
const KEPT: &str = "02:aa:bb:cc:dd:ee";

fn captures_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/kube")
}

#[test]
fn node_object_and_subnet_env_equal_go_flannels() -> Result<()> {
    Lab::run("Node API: golden", |lab| {
        let lan = lab.create_switch("lan")?;
        let uplink = |last: u8| {
            Uplink::new(&lan, "eth0")
                .address(&format!("10.99.0.{last}/24"))?
                .address(&format!("fd00:99::{last}/64"))
        };
        let machine = lab.create_host("api", &[uplink(1)?.gateway("10.99.0.254")?])?;
        let api = ApiServer::start(&machine, Families::Dual)?;
        let host =
            lab.create_host("n1", &[uplink(11)?.gateway("10.99.0.1")?.gateway("fd00:99::1")?])?;
        for case in CASES {
            run_daemon_and_require_capture(lab, &api, &host, case)
                .with_context(|| format!("case {case}"))?;
            // The next case starts on a new machine.
            host.power_off()?;
            host.power_on()?;
            api.admin().delete_node("n1")?;
        }
        Ok(())
    })
}

/// The input is a test case's; the Node and subnet.env are those of Go flannel.
fn run_daemon_and_require_capture(
    lab: &Lab,
    api: &ApiServer,
    host: &Host,
    case: &str,
) -> Result<()> {
    let golden = |name: &str| {
        std::fs::read_to_string(captures_folder().join(case).join(name))
            .with_context(|| name.to_owned())
    };
    let expected: Value = serde_json::from_str(&golden("node.json")?)?;
    api.admin()
        .create_node(&initial_node_from_capture(&expected, &golden("annotations-before.json")?)?)?;
    let net_conf = lab.ensure_folder(case)?.join("net-conf.json");
    std::fs::write(&net_conf, golden("net-conf.json")?)?;
    let mut options = FlanneldOptions::kube("n1", &net_conf).arg(&format!(
        "--kubeconfig-file={}",
        api.write_kubeconfig(lab::User::Flannel, None)?.display()
    ));
    for flag in golden("flags")?.split_whitespace() {
        options = options.arg(flag);
    }
    let mut daemon = host.start_flanneld_and_wait_ready(&options)?;
    until_ok("the Node is written", || {
        require_equal_annotations_and_conditions(&expected, &api.admin().node("n1")?)
    })?;
    let mut env = golden("subnet.env")?;
    if case == "vxlan-v6only" {
        // Go flannel writes the MTU of a device for IPv4, which does not exist. Packets of this size do not fit.
        env = env.replace("FLANNEL_MTU=1450", "FLANNEL_MTU=1430");
    }
    let written = std::fs::read_to_string(daemon.subnet_file())?;
    ensure!(written == env, "subnet.env is\n{written}\ninstead of\n{env}");
    daemon.terminate()?;
    std::fs::remove_file(daemon.subnet_file())?;
    Ok(())
}

/// The Node that Go flannel found at its start, with its podCIDRs and the annotations `before`.
fn initial_node_from_capture(expected: &Value, before: &str) -> Result<NodeObject> {
    let mut node = NodeObject::new("n1")
        .add_internal_address("10.99.0.11".parse::<IpAddr>()?)
        .add_internal_address("fd00:99::11".parse::<IpAddr>()?);
    for cidr in expected["podCIDRs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        node = node.pod_cidr(cidr);
    }
    let before: Map<String, Value> = serde_json::from_str(before)?;
    for (name, value) in &before {
        node = node.annotation(name, value.as_str().context("text")?);
    }
    Ok(node)
}

/// The annotations and the condition. Ignores times and MACs, which differ in every run.
fn require_equal_annotations_and_conditions(expected: &Value, found: &Value) -> Result<()> {
    let annotations = |value: &Value| -> Vec<(String, String)> {
        let list = value
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| *name != "node.alpha.kubernetes.io/ttl");
        list.map(|(name, value)| (name.clone(), mask_macs(value.as_str().unwrap_or_default())))
            .collect()
    };
    let (mut wanted, now) =
        (annotations(&expected["annotations"]), annotations(&found["metadata"]["annotations"]));
    for (_, data) in wanted
        .iter_mut()
        .filter(|(name, _)| name.ends_with("/backend-data") || name.ends_with("/backend-v6-data"))
    {
        *data = with_flannel_rs_mark(data);
    }
    ensure!(wanted == now, "{now:#?} instead of {wanted:#?}");
    let conditions = |value: &Value| -> Vec<Vec<String>> {
        let list = value.as_array().into_iter().flatten();
        list.map(|condition| {
            ["type", "status", "reason", "message"].map(|name| condition[name].to_string()).to_vec()
        })
        .collect()
    };
    let (wanted, now) =
        (conditions(&expected["conditions"]), conditions(&found["status"]["conditions"]));
    ensure!(wanted == now, "{now:?} instead of {wanted:?}");
    // Our fields were written only through the status subresource.
    let fields = found["metadata"]["managedFields"].as_array().into_iter().flatten();
    let ours: Vec<&Value> = fields
        .filter(|entry| entry["manager"].as_str().is_some_and(|name| name.starts_with("flannel")))
        .collect();
    ensure!(
        !ours.is_empty() && ours.iter().all(|entry| entry["subresource"] == "status"),
        "{ours:?}"
    );
    Ok(())
}

/// Adds `FlannelRs`, which distinguishes flannel-rs' nodes from Go flannel's.
fn with_flannel_rs_mark(data: &str) -> String {
    match data.strip_prefix('{') {
        Some(members) => format!(r#"{{"FlannelRs":1,{members}"#),
        None => r#"{"FlannelRs":1}"#.to_owned(),
    }
}

/// A placeholder for each MAC except the one that the test case prescribes.
fn mask_macs(text: &str) -> String {
    let is_mac =
        |word: &str| word.len() == KEPT.len() && word.split(':').count() == 6 && word != KEPT;
    text.split('"')
        .map(|part| if is_mac(part) { "MAC" } else { part })
        .collect::<Vec<_>>()
        .join("\"")
}
