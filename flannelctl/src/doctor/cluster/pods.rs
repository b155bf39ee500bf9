//! The findings of all nodes of Kubernetes, from `flannelctl doctor` in flannel's pods. The API runs it there
//! as for `kubectl exec`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use doctor::Report;
use doctor::finding::SCHEMA;
use futures_util::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use node_api::{Source, Unanswered};
use tokio::sync::Semaphore;

use super::answer::{Answer, Answers};
use crate::kubernetes::{ClusterFlags, LIST_TIMEOUT, exec, report_timeout, require_running};
use crate::store;

/// Base of the time limit for the reports of all nodes. Each of the first [`FEW`] nodes adds [`FIRST_SHARE`],
/// and each further one [`NODE_SHARE`].
const NODE_TIMEOUT: Duration = Duration::from_secs(8);
const FEW: usize = 100;
const FIRST_SHARE: Duration = Duration::from_millis(15);
const NODE_SHARE: Duration = Duration::from_millis(30);
/// Nodes that are asked at the same time.
const AT_ONCE: usize = 64;

/// The findings of all nodes from their doctors.
pub(super) fn ask(flags: &ClusterFlags) -> Result<Answers> {
    store::run(async {
        let cluster = flags.connect().await?;
        let pods = cluster.pods().await?;
        let nodes = tokio::time::timeout(LIST_TIMEOUT, nodes(&cluster.client)).await;
        // Without permission to list Nodes, only those with a pod are known.
        let nodes = nodes.ok().and_then(Result::ok).unwrap_or_default();
        Ok(ask_all(&cluster.client, pods, nodes).await)
    })
}

/// The Nodes that run Linux.
async fn nodes(client: &Client) -> Result<Vec<String>, kube::Error> {
    let all: Api<Node> = Api::all(client.clone());
    let linux = |node: &Node| node.labels().get("kubernetes.io/os").is_none_or(|os| os == "linux");
    let list = all.list(&ListParams::default()).await?;
    let names = list.items.into_iter().filter(linux);
    Ok(names.map(|node| node.name_any()).collect())
}

/// The time limit for the reports of `nodes` nodes.
fn time_limit(nodes: usize) -> Duration {
    let times = |share: Duration, nodes: usize| {
        share.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX))
    };
    NODE_TIMEOUT
        .saturating_add(times(FIRST_SHARE, nodes.min(FEW)))
        .saturating_add(times(NODE_SHARE, nodes.saturating_sub(FEW)))
}

/// Asks [`AT_ONCE`] nodes at a time, within the time limit for all of them.
async fn ask_all(client: &Client, pods: BTreeMap<String, Pod>, nodes: Vec<String>) -> Answers {
    let timeout = time_limit(pods.len());
    let end = tokio::time::Instant::now() + timeout;
    let mut missing: BTreeMap<String, String> = nodes
        .into_iter()
        .filter(|node| !pods.contains_key(node))
        .map(|node| (node, "no flannel pod runs on the node".to_owned()))
        .collect();
    let turns = Semaphore::new(AT_ONCE);
    let mut answered = Vec::new();
    for node in pods.keys() {
        missing.insert(node.clone(), report_timeout(timeout).to_string());
    }
    let mut asked: FuturesUnordered<_> = pods
        .iter()
        .map(|(node, pod)| {
            let turns = &turns;
            async move {
                let _turn = turns.acquire().await;
                (node, run(client, pod).await)
            }
        })
        .collect();
    while let Ok(Some((node, outcome))) = tokio::time::timeout_at(end, asked.next()).await {
        match outcome {
            Ok(report) => {
                missing.remove(node);
                let causes = report.causes().cloned();
                answered.push(Answer::reported(
                    node.clone(),
                    causes.map(|finding| (finding.check, finding.severity, finding.peers)),
                ));
            }
            Err(why) => {
                missing.insert(node.clone(), why.to_string());
            }
        }
    }
    drop(asked);
    Answers {
        source: Source::Pods,
        answered,
        unanswered: missing.into_iter().map(|(node, why)| Unanswered { node, why }).collect(),
    }
}

/// Runs the doctor in a pod.
async fn run(client: &Client, pod: &Pod) -> Result<Report> {
    require_running(pod)?;
    let printed = exec(client, pod, &["flannelctl", "doctor", "-o", "json"]).await?;
    match serde_json::from_slice::<Report>(&printed.out) {
        Ok(report) if report.schema == SCHEMA => Ok(report),
        Ok(report) => bail!(
            "the node's doctor uses the schema {}: the node has another version of flannelctl",
            report.schema
        ),
        Err(_) => Err(no_report(pod, printed.out.is_empty(), &printed.message)),
    }
}

/// Why a pod printed no report. `message` is the API's about the end of the command.
fn no_report(pod: &Pod, is_empty: bool, message: &str) -> anyhow::Error {
    let pod = pod.name_any();
    match (is_empty, message.lines().next().unwrap_or_default()) {
        (false, _) => anyhow!("the output of the pod {pod} is not a report"),
        (true, "") => anyhow!("the pod {pod} printed nothing"),
        (true, line) => anyhow!(
            "cannot run flannelctl in the pod {pod} (Go flannel's image does not contain flannelctl): {line}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hundred_nodes_have_at_most_ten_seconds_and_thousand_have_more_for_each() {
        assert!(time_limit(3) < time_limit(100) && time_limit(100) <= Duration::from_secs(10));
        assert!(time_limit(1000) > time_limit(100) * 3);
    }

    fn pod(node: &str, name: &str, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "kube-flannel" },
            "spec": { "nodeName": node, "containers": [{ "name": "sidecar" }, { "name": "kube-flannel" }] },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[test]
    fn missing_report_has_its_reason() {
        let pod = pod("n1", "flannel-x", "Running");
        let go =
            no_report(&pod, true, "exec: \"flannelctl\": executable file not found in $PATH\nmore")
                .to_string();
        assert!(go.contains("Go flannel") && go.ends_with("not found in $PATH"), "{go}");
        for (is_empty, text) in [(false, "is not a report"), (true, "printed nothing")] {
            assert!(no_report(&pod, is_empty, "").to_string().ends_with(text), "{text}");
        }
    }
}
