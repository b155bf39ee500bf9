//! Checks that the admission policy lets a flannel pod change only its own Node, and only flannel's fields of the Node.

use anyhow::{Result, ensure};
use lab::{ApiClient, ApiServer, Lab, NodeObject, until_ok};
use serde_json::{Value, json};

use super::{repository_path, start_real_api_server_on_new_host};

const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";

const OF_STATUS: &str = "may change the condition NetworkUnavailable only";
const FOREIGN: &str = "may change flannel's annotations only";
const NOT_OURS: &str = "are not flannel's to change";

/// From a flannel pod on n1 to the status of a Node.
#[derive(Clone)]
struct Patch {
    name: &'static str,
    node: &'static str,
    /// The Content-Type.
    kind: &'static str,
    body: Value,
    /// The end of the API server's error message; `None` if it accepts the patch.
    refusal: Option<&'static str>,
}

impl Patch {
    fn merge(name: &'static str, body: Value, refusal: Option<&'static str>) -> Patch {
        Patch { name, node: "n1", kind: MERGE, body, refusal }
    }

    fn strategic(name: &'static str, body: Value, refusal: Option<&'static str>) -> Patch {
        Patch { kind: STRATEGIC, ..Patch::merge(name, body, refusal) }
    }
}

fn annotation_patch(name: &str) -> Value {
    json!({ "metadata": { "annotations": { name: "x" } } })
}

fn removed_annotation(name: &str) -> Value {
    json!({ "metadata": { "annotations": { name: null } } })
}

fn condition_patch(kind: &str) -> Value {
    json!({ "status": { "conditions": [{ "type": kind, "status": "False", "reason": "FlannelIsUp" }] } })
}

/// Patches that flanneld sends, and the same ones for another Node.
fn patches_sent_by_flanneld() -> Vec<Patch> {
    let public_ip = "flannel.alpha.coreos.com/public-ip";
    vec![
        Patch::merge("our annotations", annotation_patch(public_ip), None),
        Patch::merge("one of ours removed", removed_annotation(public_ip), None),
        Patch::strategic(
            "Go flannel's annotations",
            annotation_patch("flannel.alpha.coreos.com/backend-data"),
            None,
        ),
        Patch::strategic("the condition", condition_patch("NetworkUnavailable"), None),
        Patch::strategic("the condition again", condition_patch("NetworkUnavailable"), None),
        Patch {
            node: "n2",
            ..Patch::merge(
                "another Node",
                annotation_patch(public_ip),
                Some("may change its own Node only, not \"n2\""),
            )
        },
    ]
}

fn metadata_patches() -> Vec<Patch> {
    vec![
        Patch::merge("a foreign annotation", annotation_patch("example.org/x"), Some(FOREIGN)),
        Patch::strategic(
            "a foreign annotation changed",
            annotation_patch("example.org/there"),
            Some(FOREIGN),
        ),
        Patch::merge(
            "a foreign annotation removed",
            removed_annotation("example.org/there"),
            Some(FOREIGN),
        ),
        Patch::merge(
            "a label",
            json!({ "metadata": { "labels": { "role": "admin" } } }),
            Some(NOT_OURS),
        ),
        Patch::merge(
            "a finalizer",
            json!({ "metadata": { "finalizers": ["example.org/x"] } }),
            Some(NOT_OURS),
        ),
    ]
}

/// Patches that kubelet and the controller manager send.
fn status_patches() -> Vec<Patch> {
    let status = |field: &str, value: Value| json!({ "status": { field: value } });
    let address = json!([{ "type": "InternalIP", "address": "192.0.2.1" }]);
    let port = json!({ "kubeletEndpoint": { "Port": 1 } });
    let attached = json!([{ "name": "x", "devicePath": "y" }]);
    let merged = [
        ("capacity", "capacity", json!({ "cpu": "1000" })),
        ("allocatable", "allocatable", json!({ "cpu": "1000" })),
        ("images", "images", json!([{ "names": ["x"] }])),
        ("the phase", "phase", json!("Terminated")),
        ("volumes in use", "volumesInUse", json!(["x"])),
        ("attached volumes", "volumesAttached", attached),
        ("the kernel's version", "nodeInfo", json!({ "kernelVersion": "9" })),
        ("kubelet's port", "daemonEndpoints", port),
        ("runtime handlers", "runtimeHandlers", json!([{ "name": "x" }])),
    ];
    let strategic = [
        Patch::strategic("another condition", condition_patch("Ready"), Some(OF_STATUS)),
        Patch::strategic("an address", status("addresses", address), Some(OF_STATUS)),
    ];
    strategic
        .into_iter()
        .chain(
            merged.map(|(name, field, value)| {
                Patch::merge(name, status(field, value), Some(OF_STATUS))
            }),
        )
        .collect()
}

fn patch_node_status(
    client: &ApiClient,
    node: &str,
    kind: &str,
    patch: &Value,
) -> Result<(u16, String)> {
    let (code, answer) =
        client.request("PATCH", &format!("/api/v1/nodes/{node}/status"), Some((kind, patch)))?;
    Ok((code, answer["message"].as_str().unwrap_or_default().to_owned()))
}

fn api_with_policy_and_nodes(lab: &Lab) -> Result<ApiServer> {
    let api = start_real_api_server_on_new_host(lab, &[])?;
    for file in ["conf/kube-flannel.yml", "conf/kube-flannel-policy.yml"] {
        api.kubectl(&["apply", "--filename", &repository_path(file).display().to_string()])?;
    }
    for name in ["n1", "n2"] {
        api.admin()
            .create_node(&NodeObject::new(name).annotation("example.org/there", "before"))?;
    }
    Ok(api)
}

#[test]
fn flannel_pod_changes_only_flannels_fields_of_its_own_node() -> Result<()> {
    Lab::run("admission policy", |lab| {
        let api = api_with_policy_and_nodes(lab)?;
        let pod = api.create_pod_and_client("kube-flannel", "flannel", "on-n1", "n1")?;
        // The API server applies a new policy after a moment. Each attempt writes another value, because a patch without a change is accepted.
        let foreign = |value: usize| json!({ "metadata": { "annotations": { "example.org/probe": value.to_string() } } });
        let mut tries = 0..;
        until_ok("the policy is in force", || {
            let (code, message) =
                patch_node_status(&pod, "n1", MERGE, &foreign(tries.next().unwrap_or_default()))?;
            ensure!(code == 422, "{code} {message}");
            Ok(())
        })?;
        for patch in [patches_sent_by_flanneld(), metadata_patches(), status_patches()].concat() {
            let (code, message) = patch_node_status(&pod, patch.node, patch.kind, &patch.body)?;
            match patch.refusal {
                None => ensure!(code == 200, "{}: {code} {message}", patch.name),
                Some(refusal) => ensure!(
                    code == 422 && message.contains(refusal),
                    "{}: {code} {message:?}, not {refusal:?}",
                    patch.name
                ),
            }
        }
        // A token that was not issued for a pod does not name a node.
        let anywhere = api.request_service_account_client("kube-flannel", "flannel", &json!({}))?;
        let ours = annotation_patch("flannel.alpha.coreos.com/public-ip");
        let (code, message) = patch_node_status(&anywhere, "n1", MERGE, &ours)?;
        ensure!(
            code == 422 && message.contains("may change its own Node only"),
            "a token of no pod: {code} {message}"
        );
        // The policy applies to flannel's service account only.
        ensure!(
            patch_node_status(&api.admin(), "n2", MERGE, &foreign(0))?.0 == 200,
            "an administrator is refused"
        );
        Ok(())
    })
}
