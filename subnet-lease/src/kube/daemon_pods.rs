//! Lists flannel's pods on a node.

use super::api::{Api, Call};
use serde_json::Value;
use types::{DaemonPod, Problem};

/// The pods of flannel-rs' chart have this annotation.
const OF_CHART: &str = "flannel-rs/net-conf";

/// Leaves out those that are terminating.
pub(super) async fn list(
    api: &Api,
    namespace: &str,
    node: &str,
) -> Result<Vec<DaemonPod>, Problem> {
    // `resourceVersion=0` lets the server answer from its cache, because every node sends this request.
    let path = format!(
        "/api/v1/namespaces/{namespace}/pods?resourceVersion=0&labelSelector=app%3Dflannel&fieldSelector=spec.nodeName%3D{node}"
    );
    let call = Call::get(
        "list-daemon-pods",
        format!("list the pods of flannel in the namespace {namespace}"),
        path,
    );
    let text = api.read(&call).await?;
    read(&text).map_err(|error| Problem::new("kubernetes-answer", error.to_string()))
}

fn read(text: &str) -> serde_json::Result<Vec<DaemonPod>> {
    let list: Value = serde_json::from_str(text)?;
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    Ok(items.filter(|pod| lives(pod)).filter_map(daemon_pod).collect())
}

/// True if the pod has neither succeeded nor failed, and is not terminating.
fn lives(pod: &Value) -> bool {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str);
    pod.pointer("/metadata/deletionTimestamp").is_none_or(Value::is_null)
        && !matches!(phase, Some("Succeeded" | "Failed"))
}

fn daemon_pod(pod: &Value) -> Option<DaemonPod> {
    let metadata = pod.get("metadata")?;
    let name = metadata.get("name")?.as_str()?.to_owned();
    let owners = metadata.get("ownerReferences").and_then(Value::as_array).into_iter().flatten();
    let mut controllers =
        owners.filter(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true));
    let owner = controllers.find_map(|owner| {
        Some(format!("{}/{}", owner.get("kind")?.as_str()?, owner.get("name")?.as_str()?))
    });
    let labels = metadata.get("labels").and_then(Value::as_object).into_iter().flatten();
    let labels =
        labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    let charted =
        metadata.get("annotations").is_some_and(|annotations| annotations.get(OF_CHART).is_some());
    Some(DaemonPod { name, owner, labels, charted })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_pods_are_read_without_those_that_end() {
        let text = r#"{"items":[
            {"metadata":{"name":"a","labels":{"app":"flannel","tier":"node"},"annotations":{"flannel-rs/net-conf":"1"},
              "ownerReferences":[{"kind":"X","name":"x"},{"kind":"DaemonSet","name":"kube-flannel-ds","controller":true}]},"status":{"phase":"Running"}},
            {"metadata":{"name":"b"},"status":{"phase":"Pending"}},
            {"metadata":{"name":"c","deletionTimestamp":"2026-01-01T00:00:00Z"},"status":{"phase":"Running"}},
            {"metadata":{"name":"d"},"status":{"phase":"Failed"}},
            {"metadata":7},7]}"#;
        let labels = [("app", "flannel"), ("tier", "node")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let owner = Some("DaemonSet/kube-flannel-ds".to_owned());
        let want = [
            DaemonPod { name: "a".to_owned(), owner, labels, charted: true },
            DaemonPod { name: "b".to_owned(), ..DaemonPod::default() },
        ];
        assert_eq!(read(text).unwrap(), want);
        assert_eq!(read("{}").unwrap(), []);
        assert!(read("{").is_err());
    }
}
