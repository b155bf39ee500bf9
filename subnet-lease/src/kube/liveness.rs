//! What Kubernetes says of another node: whether its kubelet reports, and whether it is cordoned.

use super::api::{Api, Call};
use super::trouble::KubeTrouble;
use crate::manager::{LastHeard, NodeHealth};
use jiff::Timestamp;
use serde_json::Value;
use std::time::Duration;

/// Reads the Node with a name.
///
/// # Errors
/// The API refuses, or does not answer.
pub(super) async fn of_node(api: &Api, name: &str) -> Result<Option<LastHeard>, KubeTrouble> {
    let call = Call::get(
        "get-node",
        format!("read the Node {name}"),
        format!("/api/v1/nodes/{name}"),
    );
    let text = api.read(&call).await.map_err(|failure| failure.trouble)?;
    let node: Value =
        serde_json::from_str(&text).map_err(|error| KubeTrouble::Answer(error.to_string()))?;
    Ok(read(&node, Timestamp::now()))
}

/// What a Node says; `None` without its condition Ready.
fn read(node: &Value, now: Timestamp) -> Option<LastHeard> {
    let conditions = node.pointer("/status/conditions")?.as_array()?;
    let ready = conditions
        .iter()
        .find(|condition| condition.get("type").and_then(Value::as_str) == Some("Ready"))?;
    let is_ready = ready.get("status").and_then(Value::as_str) == Some("True");
    let time = |field: &str| ready.get(field)?.as_str()?.parse::<Timestamp>().ok();
    let since = |at: Timestamp| Duration::try_from(now.duration_since(at)).unwrap_or_default();
    Some(LastHeard {
        ago: if is_ready {
            Duration::ZERO
        } else {
            time("lastHeartbeatTime")
                .or_else(|| time("lastTransitionTime"))
                .map(since)
                .unwrap_or_default()
        },
        node: Some(NodeHealth {
            ready: is_ready,
            cordoned: node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_heard_as_long_as_it_is_ready() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let of = |status: &str, spec: &str| {
            let text = format!(
                r#"{{"spec":{spec},"status":{{"conditions":[{{"type":"MemoryPressure","status":"False"}},
                {{"type":"Ready","status":"{status}","lastHeartbeatTime":"2026-01-01T00:01:00Z","lastTransitionTime":"2026-01-01T00:02:00Z"}}]}}}}"#
            );
            read(&serde_json::from_str(&text).unwrap(), now)
        };
        let heard = |seconds, ready, cordoned| {
            Some(LastHeard {
                ago: Duration::from_secs(seconds),
                node: Some(NodeHealth { ready, cordoned }),
            })
        };
        assert_eq!(of("True", "{}"), heard(0, true, false));
        assert_eq!(of("Unknown", "{}"), heard(540, false, false));
        assert_eq!(
            of("False", r#"{"unschedulable":true}"#),
            heard(540, false, true)
        );
        // A clock that is behind.
        let early = "2025-01-01T00:00:00Z".parse().unwrap();
        let node = serde_json::json!({"status": {"conditions": [
            {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:02:00Z"}
        ]}});
        assert_eq!(read(&node, early), heard(0, false, false));
        assert_eq!(read(&serde_json::json!({"status": 7}), now), None);
        assert_eq!(
            read(&serde_json::json!({"status": {"conditions": [7]}}), now),
            None
        );
    }
}
