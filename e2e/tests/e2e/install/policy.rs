//! The admission policy: a flannel pod changes its own Node, and of it only what is flannel's.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{ApiClient, ApiServer, Lab, NodeObject, eventually_ok};
use serde_json::{Value, json};

use super::{api_server, repository};

const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";

/// What a flannel pod on n1 sends to the status of a Node, and the end of the refusal; "" where it passes.
fn patches() -> Vec<(
    &'static str,
    &'static str,
    &'static str,
    Value,
    &'static str,
)> {
    let annotations = |text: &str| json!({ "metadata": { "annotations": { text: "x" } } });
    let condition = |kind: &str| json!({ "status": { "conditions": [{ "type": kind, "status": "False", "reason": "FlannelIsUp" }] } });
    let status = |field: &str, value: Value| json!({ "status": { field: value } });
    let of_status = "may change the condition NetworkUnavailable only";
    let foreign = "may change flannel's annotations only";
    let not_ours = "are not flannel's to change";
    vec![
        (
            "our annotations",
            "n1",
            MERGE,
            annotations("flannel.alpha.coreos.com/public-ip"),
            "",
        ),
        (
            "one of ours removed",
            "n1",
            MERGE,
            json!({ "metadata": { "annotations": { "flannel.alpha.coreos.com/public-ip": null } } }),
            "",
        ),
        (
            "Go flannel's annotations",
            "n1",
            STRATEGIC,
            annotations("flannel.alpha.coreos.com/backend-data"),
            "",
        ),
        (
            "the condition",
            "n1",
            STRATEGIC,
            condition("NetworkUnavailable"),
            "",
        ),
        (
            "the condition again",
            "n1",
            STRATEGIC,
            condition("NetworkUnavailable"),
            "",
        ),
        (
            "another Node",
            "n2",
            MERGE,
            annotations("flannel.alpha.coreos.com/public-ip"),
            "may change its own Node only, not \"n2\"",
        ),
        (
            "a foreign annotation",
            "n1",
            MERGE,
            annotations("example.org/x"),
            foreign,
        ),
        (
            "a foreign annotation changed",
            "n1",
            STRATEGIC,
            annotations("example.org/there"),
            foreign,
        ),
        (
            "a foreign annotation removed",
            "n1",
            MERGE,
            json!({ "metadata": { "annotations": { "example.org/there": null } } }),
            foreign,
        ),
        (
            "a label",
            "n1",
            MERGE,
            json!({ "metadata": { "labels": { "role": "admin" } } }),
            not_ours,
        ),
        (
            "a finalizer",
            "n1",
            MERGE,
            json!({ "metadata": { "finalizers": ["example.org/x"] } }),
            not_ours,
        ),
        (
            "another condition",
            "n1",
            STRATEGIC,
            condition("Ready"),
            of_status,
        ),
        (
            "an address",
            "n1",
            STRATEGIC,
            status(
                "addresses",
                json!([{ "type": "InternalIP", "address": "192.0.2.1" }]),
            ),
            of_status,
        ),
        (
            "capacity",
            "n1",
            MERGE,
            status("capacity", json!({ "cpu": "1000" })),
            of_status,
        ),
        (
            "allocatable",
            "n1",
            MERGE,
            status("allocatable", json!({ "cpu": "1000" })),
            of_status,
        ),
        (
            "images",
            "n1",
            MERGE,
            status("images", json!([{ "names": ["x"] }])),
            of_status,
        ),
        (
            "the phase",
            "n1",
            MERGE,
            status("phase", json!("Terminated")),
            of_status,
        ),
        (
            "volumes in use",
            "n1",
            MERGE,
            status("volumesInUse", json!(["x"])),
            of_status,
        ),
        (
            "attached volumes",
            "n1",
            MERGE,
            status(
                "volumesAttached",
                json!([{ "name": "x", "devicePath": "y" }]),
            ),
            of_status,
        ),
        (
            "the kernel's version",
            "n1",
            MERGE,
            status("nodeInfo", json!({ "kernelVersion": "9" })),
            of_status,
        ),
        (
            "kubelet's port",
            "n1",
            MERGE,
            status(
                "daemonEndpoints",
                json!({ "kubeletEndpoint": { "Port": 1 } }),
            ),
            of_status,
        ),
        (
            "runtime handlers",
            "n1",
            MERGE,
            status("runtimeHandlers", json!([{ "name": "x" }])),
            of_status,
        ),
    ]
}

fn send(client: &ApiClient, node: &str, kind: &str, patch: &Value) -> Result<(u16, String)> {
    let (code, answer) = client.request(
        "PATCH",
        &format!("/api/v1/nodes/{node}/status"),
        Some((kind, patch)),
    )?;
    Ok((
        code,
        answer["message"].as_str().unwrap_or_default().to_owned(),
    ))
}

fn prepare(lab: &Lab) -> Result<ApiServer> {
    let api = api_server(lab, &[])?;
    for file in ["conf/kube-flannel.yml", "conf/kube-flannel-policy.yml"] {
        api.kubectl(&[
            "apply",
            "--filename",
            &repository(file).display().to_string(),
        ])?;
    }
    for name in ["n1", "n2"] {
        api.admin()
            .create_node(&NodeObject::new(name).annotation("example.org/there", "before"))?;
    }
    Ok(api)
}

#[test]
fn a_flannel_pod_changes_its_own_node_and_only_what_is_flannel_s() -> Result<()> {
    Lab::run("admission policy", |lab| {
        let api = prepare(lab)?;
        let pod = api.client_of_pod("kube-flannel", "flannel", "on-n1", "n1")?;
        // The server needs a moment until the policy counts; until then each try changes something.
        let foreign = |value: usize| json!({ "metadata": { "annotations": { "example.org/probe": value.to_string() } } });
        let mut tries = 0..;
        eventually_ok(Duration::from_secs(60), "the policy is in force", || {
            let (code, message) = send(
                &pod,
                "n1",
                MERGE,
                &foreign(tries.next().unwrap_or_default()),
            )?;
            ensure!(code == 422, "{code} {message}");
            Ok(())
        })?;
        for (what, node, kind, patch, refusal) in patches() {
            let (code, message) = send(&pod, node, kind, &patch)?;
            match refusal {
                "" => ensure!(code == 200, "{what}: {code} {message}"),
                _ => ensure!(
                    code == 422 && message.contains(refusal),
                    "{what}: {code} {message:?}, not {refusal:?}"
                ),
            }
        }
        // A token that was not issued for a pod names no node.
        let anywhere = api.client_of("kube-flannel", "flannel", &json!({}))?;
        let ours =
            json!({ "metadata": { "annotations": { "flannel.alpha.coreos.com/public-ip": "x" } } });
        let (code, message) = send(&anywhere, "n1", MERGE, &ours)?;
        ensure!(
            code == 422 && message.contains("may change its own Node only"),
            "a token of no pod: {code} {message}"
        );
        // Nobody else is concerned.
        ensure!(
            send(&api.admin(), "n2", MERGE, &foreign(0))?.0 == 200,
            "an administrator is refused"
        );
        Ok(())
    })
}
