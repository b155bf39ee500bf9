//! Requests of the manager to the Kubernetes API, other than those that follow Nodes.

use super::api::{Api, Call};
use super::events::NodeEvent;
use super::node::Node;
use super::patches;
use super::request_error::RequestError;
use crate::json::Object;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Features whose permissions old manifests do not grant. Without one, the node skips the feature, and logs the refusal once.
#[derive(Debug, Default)]
pub(super) struct Extras {
    events: AtomicBool,
    slices: AtomicBool,
    /// When the server last refused an Event.
    refused: Mutex<Option<Instant>>,
    /// The addresses of the API servers, and when the node last read them.
    servers: Mutex<Option<(Instant, Vec<IpAddr>)>>,
}

/// The node caches the addresses of the API servers for this time. They change when an operator adds a node to the control plane.
const SERVERS: Duration = Duration::from_secs(300);
/// After a refusal, the node posts no Event for this time. An administrator may grant the permission later.
const REFUSED: Duration = Duration::from_secs(300);

impl Extras {
    fn log_refusal_once(logged: &AtomicBool, failure: &RequestError, lost: &str) {
        if failure.status == Some(StatusCode::FORBIDDEN) {
            if !logged.swap(true, Relaxed) {
                tracing::info!(error = %failure.trouble, "{lost}");
            }
        } else {
            tracing::debug!(error = %failure.trouble, "{lost}");
        }
    }

    /// For operators who check Events first. True if the server accepted it.
    pub(super) async fn event(&self, api: &Api, node: &Node, event: &NodeEvent) -> bool {
        if self.refused.lock().is_some_and(|at| at.elapsed() < REFUSED) {
            return false;
        }
        let now = jiff::Timestamp::now();
        let stamp = format!("{:.0}", now);
        // The server refuses longer messages.
        let text: String = event.to_string().chars().take(1000).collect();
        let body = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": format!("{}.flannel.{:x}", node.name, now.as_nanosecond()), "namespace": "default" },
            // The kubelet's own Events on a Node have the name as uid. `kubectl describe node` searches for both forms.
            "involvedObject": { "kind": "Node", "name": node.name, "uid": node.name },
            "reason": event.reason().as_str(),
            "message": text,
            "type": "Warning",
            "source": { "component": "flannel", "host": node.name },
            "reportingComponent": "flannel",
            "reportingInstance": node.name,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        });
        let call = Call {
            kind: "post-event",
            what: "post an Event".to_owned(),
            method: Method::POST,
            path: "/api/v1/namespaces/default/events".to_owned(),
            content: Some(("application/json", body.to_string().into_bytes())),
        };
        match api.read(&call).await {
            Ok(_) => true,
            Err(failure) => {
                Self::log_refusal_once(
                    &self.events,
                    &failure,
                    "cannot post Events on this Node; continuing without them",
                );
                if failure.status == Some(StatusCode::FORBIDDEN) {
                    *self.refused.lock() = Some(Instant::now());
                }
                false
            }
        }
    }

    /// Empty if the addresses are unreadable.
    pub(super) async fn servers(&self, api: &Api) -> Vec<IpAddr> {
        let cached = self.servers.lock().clone();
        if let Some((_, servers)) = cached.filter(|(at, _)| at.elapsed() < SERVERS) {
            return servers;
        }
        let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?limit=10&labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes";
        match api
            .read(&Call::get(
                "list-endpointslices",
                "list the EndpointSlices of the Service kubernetes",
                path,
            ))
            .await
        {
            Ok(text) => {
                let servers = endpoints(&text);
                *self.servers.lock() = Some((Instant::now(), servers.clone()));
                servers
            }
            Err(failure) => {
                Self::log_refusal_once(
                    &self.slices,
                    &failure,
                    "cannot read the addresses of the API servers; choosing the interface without them",
                );
                if self.slices.load(Relaxed) {
                    // Cache the empty list, so that a permission that is granted later is noticed later.
                    *self.servers.lock() = Some((Instant::now(), Vec::new()));
                }
                Vec::new()
            }
        }
    }
}

/// The addresses in a list of EndpointSlices.
fn endpoints(text: &str) -> Vec<IpAddr> {
    let parse = |raw: &RawValue, name: &str| -> Vec<String> {
        let object = Object::parse(raw.get()).ok();
        object
            .and_then(|object| {
                Some(
                    object
                        .read_raw_list(name)
                        .ok()?
                        .into_iter()
                        .map(|raw| raw.get().to_owned())
                        .collect(),
                )
            })
            .unwrap_or_default()
    };
    let Ok(list) = Object::parse(text) else {
        return Vec::new();
    };
    let slices = list.read_raw_list("items").unwrap_or_default();
    let endpoints = slices.into_iter().flat_map(|slice| parse(slice, "endpoints"));
    let addresses = endpoints
        .filter_map(|endpoint| Some(parse(serde_json::from_str(&endpoint).ok()?, "addresses")))
        .flatten();
    addresses
        .filter_map(|address| serde_json::from_str::<String>(&address).ok()?.parse().ok())
        .collect()
}

/// Sets and removes annotations. The result is the Node after the change.
pub(super) async fn annotate(
    api: &Api,
    name: &str,
    uid: &str,
    annotations: &BTreeMap<String, Option<String>>,
) -> Result<Option<Node>, RequestError> {
    let body = patches::annotations_body(uid, annotations);
    patch(
        api,
        name,
        "patch-annotations",
        "publish this node's annotations",
        "application/merge-patch+json",
        &body,
    )
    .await
}

/// Clears the condition NetworkUnavailable. The result is the Node after the change.
pub(super) async fn clear_condition(
    api: &Api,
    name: &str,
    uid: &str,
) -> Result<Option<Node>, RequestError> {
    let now = format!("{:.0}", jiff::Timestamp::now());
    let body = patches::condition_body(uid, &now);
    patch(
        api,
        name,
        "patch-condition",
        "clear the condition NetworkUnavailable",
        "application/strategic-merge-patch+json",
        &body,
    )
    .await
}

async fn patch(
    api: &Api,
    name: &str,
    kind: &'static str,
    what: &str,
    content: &'static str,
    body: &serde_json::Value,
) -> Result<Option<Node>, RequestError> {
    let call = Call {
        kind,
        what: what.to_owned(),
        method: Method::PATCH,
        path: format!("/api/v1/nodes/{name}/status"),
        content: Some((content, body.to_string().into_bytes())),
    };
    let text = api.read(&call).await?;
    Ok(Node::read(&text, &api.options().prefix).ok())
}

/// The Node that runs a pod.
pub(super) async fn node_of_pod(
    api: &Api,
    namespace: &str,
    pod: &str,
) -> Result<Option<String>, RequestError> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
    let text =
        api.read(&Call::get("get-pod", format!("read the pod {namespace}/{pod}"), path)).await?;
    let pod = Object::parse(&text).ok();
    let spec = pod.and_then(|pod| pod.get("spec").and_then(|raw| Object::parse(raw.get()).ok()));
    Ok(spec
        .and_then(|spec| spec.read("nodeName").ok().flatten())
        .filter(|name: &String| !name.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_endpoint_slices() {
        let text = r#"{"items":[{"endpoints":[{"addresses":["192.168.56.10"]},{"addresses":["fd00::1","x",7]},{}]},{"endpoints":null},7]}"#;
        let want: [IpAddr; 2] = ["192.168.56.10".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(endpoints(text), want);
        assert!(endpoints("{").is_empty());
    }
}
