//! The findings of all nodes of Kubernetes: `flannelctl doctor` run by `exec` in flannel's pods, as `kubectl exec` does it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use doctor::Report;
use doctor::finding::SCHEMA;
use futures_util::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{AttachParams, AttachedProcess, ListParams};
use kube::client::UpgradeConnectionError;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use node_api::{Source, Unanswered};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::Semaphore;

use super::{Answer, Answers};
use crate::store;

/// The label of flannel's pods, ours and Go flannel's.
const LABEL: &str = "app=flannel";
/// The namespace of the manifests, for a user who may not list the pods of all namespaces.
const NAMESPACE: &str = "kube-flannel";
/// The container of the daemon.
const CONTAINER: &str = "kube-flannel";
/// How long the API may take for a list.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a node may take, and for each node a little more.
const NODE_TIMEOUT: Duration = Duration::from_secs(8);
const NODE_SHARE: Duration = Duration::from_millis(30);
/// So many nodes are asked at once.
const AT_ONCE: usize = 64;
/// The largest report, in bytes.
const LIMIT: u64 = 8 << 20;
/// The code of the API's refusal.
const FORBIDDEN: u16 = 403;

/// Whether there is a file in which kubectl would find a cluster.
pub(super) fn has_kubeconfig() -> bool {
    match std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) {
        Some(files) => std::env::split_paths(&files).any(|file| file.exists()),
        None => std::env::home_dir().is_some_and(|home| home.join(".kube/config").exists()),
    }
}

/// Asks the doctors of all nodes.
///
/// # Errors
/// There is no kubeconfig that can be used, the API does not answer, or it refuses to list flannel's pods.
pub(super) fn ask(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Answers> {
    store::run(async {
        let (client, server) = connect(kubeconfig, context).await?;
        let pods = tokio::time::timeout(LIST_TIMEOUT, flannel_pods(&client))
            .await
            .map_err(|_| anyhow!("{server} does not answer within {LIST_TIMEOUT:?}"))?
            .with_context(|| format!("cannot list flannel's pods at {server}"))?;
        let nodes = tokio::time::timeout(LIST_TIMEOUT, nodes(&client)).await;
        // Who may not list Nodes is told of those alone that have a pod.
        let nodes = nodes.ok().and_then(Result::ok).unwrap_or_default();
        if pods.is_empty() {
            bail!(
                "no pod at {server} has the label {LABEL}: flannel does not run there as a DaemonSet"
            );
        }
        Ok(ask_all(&client, by_node(pods), nodes).await)
    })
}

async fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<(Client, String)> {
    // What a parser quotes of the file may be a secret.
    let config = match kubeconfig {
        Some(file) if !file.exists() => bail!("there is no kubeconfig {}", file.display()),
        Some(file) => Kubeconfig::read_from(file).map_err(|_| {
            anyhow!(
                "{} is no kubeconfig, or cannot be read: kubectl --kubeconfig={} config view tells why",
                file.display(),
                file.display()
            )
        })?,
        None if !has_kubeconfig() => bail!(
            "there is no kubeconfig: name one with --kubeconfig or KUBECONFIG; on a control plane of kubeadm it is /etc/kubernetes/admin.conf"
        ),
        None => Kubeconfig::read().map_err(|_| {
            anyhow!("the kubeconfig cannot be used: kubectl config view tells why")
        })?,
    };
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    let named = context.map_or_else(
        || "its current context".to_owned(),
        |name| format!("its context {name}"),
    );
    let config = Config::from_custom_kubeconfig(config, &options)
        .await
        .map_err(|_| {
            anyhow!("the kubeconfig does not say how to reach the cluster of {named}: kubectl config get-contexts lists them")
        })?;
    let server = config.cluster_url.to_string();
    let server = server.trim_end_matches('/').to_owned();
    if config.proxy_url.is_some() {
        bail!(
            "{server} is reached by a proxy, which flannelctl cannot use: run flannelctl doctor in each pod with kubectl exec"
        );
    }
    let client = Client::try_from(config)
        .map_err(|error| anyhow!("cannot connect to {server}: {}", first_line(&error)))?;
    Ok((client, server))
}

/// The pods of all namespaces, else of flannel's own one.
async fn flannel_pods(client: &Client) -> Result<Vec<Pod>, kube::Error> {
    let labels = ListParams::default().labels(LABEL);
    let all: Api<Pod> = Api::all(client.clone());
    match all.list(&labels).await {
        Ok(pods) => Ok(pods.items),
        Err(kube::Error::Api(status)) if status.code == FORBIDDEN => {
            let own: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
            Ok(own.list(&labels).await?.items)
        }
        Err(error) => Err(error),
    }
}

/// The names of the Nodes that run Linux.
async fn nodes(client: &Client) -> Result<Vec<String>, kube::Error> {
    let all: Api<Node> = Api::all(client.clone());
    let linux = |node: &Node| {
        node.labels()
            .get("kubernetes.io/os")
            .is_none_or(|os| os == "linux")
    };
    let list = all.list(&ListParams::default()).await?;
    let names = list.items.into_iter().filter(linux);
    Ok(names.map(|node| node.name_any()).collect())
}

/// One pod a node: one that runs before one that does not.
fn by_node(pods: Vec<Pod>) -> BTreeMap<String, Pod> {
    let mut found: BTreeMap<String, Pod> = BTreeMap::new();
    for pod in pods {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        if let Some(node) = node {
            let old = found.get(&node);
            if old.is_none_or(|old| !is_running(old)) {
                found.insert(node, pod);
            }
        }
    }
    found
}

fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("unknown")
}

fn is_running(pod: &Pod) -> bool {
    phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none()
}

/// Asks all of them at once, within a time by their number.
async fn ask_all(client: &Client, pods: BTreeMap<String, Pod>, nodes: Vec<String>) -> Answers {
    let share = NODE_SHARE.saturating_mul(u32::try_from(pods.len()).unwrap_or(u32::MAX));
    let timeout = NODE_TIMEOUT.saturating_add(share);
    let end = tokio::time::Instant::now() + timeout;
    let mut missing: BTreeMap<String, String> = nodes
        .into_iter()
        .filter(|node| !pods.contains_key(node))
        .map(|node| (node, "no pod of flannel is on it".to_owned()))
        .collect();
    let turns = Semaphore::new(AT_ONCE);
    let mut answered = Vec::new();
    let names: BTreeSet<&String> = pods.keys().collect();
    for node in names {
        missing.insert(
            node.clone(),
            format!("its pod did not answer within {}", seconds(timeout)),
        );
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
                answered.push(Answer {
                    node: node.clone(),
                    causes: report.causes().cloned().collect(),
                });
            }
            Err(why) => {
                missing.insert(node.clone(), why);
            }
        }
    }
    drop(asked);
    Answers {
        source: Source::Pods,
        answered,
        unanswered: missing
            .into_iter()
            .map(|(node, why)| Unanswered { node, why })
            .collect(),
    }
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs())
}

/// Runs the doctor in a pod.
///
/// # Errors
/// Says why there is no report.
async fn run(client: &Client, pod: &Pod) -> Result<Report, String> {
    if !is_running(pod) {
        return Err(format!(
            "its pod {} does not run: it is {}",
            pod.name_any(),
            phase(pod)
        ));
    }
    let namespace = pod.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let parameters = AttachParams::default()
        .stdin(false)
        .container(container(pod));
    let command = ["flannelctl", "doctor", "-o", "json"];
    let mut process = api
        .exec(&pod.name_any(), command, &parameters)
        .await
        .map_err(|error| refusal(&error, pod))?;
    let status = process.take_status();
    let (out, _) = tokio::join!(
        read(AttachedProcess::stdout(&mut process)),
        // Its buffer is small, and has to be emptied.
        read(AttachedProcess::stderr(&mut process))
    );
    let report: Result<Report, _> = serde_json::from_slice(&out);
    match report {
        Ok(report) if report.schema == SCHEMA => Ok(report),
        Ok(report) => Err(format!(
            "its doctor answers with the schema {}, not {SCHEMA}: it has another version",
            report.schema
        )),
        Err(_) => {
            let status = match status {
                Some(status) => status.await,
                None => None,
            };
            let message = status.and_then(|status| status.message).unwrap_or_default();
            Err(no_report(pod, out.is_empty(), &message))
        }
    }
}

/// Why a pod printed no report. `message`: what the API says of the command's end.
fn no_report(pod: &Pod, is_empty: bool, message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    match (is_empty, line) {
        (false, _) => format!("what its pod {} prints is no report", pod.name_any()),
        (true, "") => format!("its pod {} printed nothing", pod.name_any()),
        (true, line) => format!(
            "flannelctl does not run in its pod {} (Go flannel's image has none): {line}",
            pod.name_any()
        ),
    }
}

/// Why the API does not run the command.
fn refusal(error: &kube::Error, pod: &Pod) -> String {
    let namespace = pod.namespace().unwrap_or_default();
    let code = match error {
        kube::Error::Api(status) => status.code,
        kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(code)) => {
            code.as_u16()
        }
        _ => 0,
    };
    match code {
        FORBIDDEN => format!(
            "this user may not create pods/exec in the namespace {namespace}: ask for that right"
        ),
        0 => format!(
            "the API server did not run the command: {}",
            first_line(error)
        ),
        code => format!(
            "the API server did not run the command, with code {code}: it may not reach the kubelet of that node"
        ),
    }
}

/// The daemon's container.
fn container(pod: &Pod) -> String {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let names: Vec<&str> = containers
        .map(|container| container.name.as_str())
        .collect();
    let found = names.iter().find(|name| **name == CONTAINER);
    found
        .or(names.first())
        .map_or(CONTAINER, |name| *name)
        .to_owned()
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What came until an error is judged by what it is.
        let _ = stream.take(LIMIT).read_to_end(&mut bytes).await;
    }
    bytes
}

fn first_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(node: &str, name: &str, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "kube-flannel" },
            "spec": { "nodeName": node, "containers": [{ "name": "sidecar" }, { "name": "kube-flannel" }] },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[test]
    fn pod_that_runs_is_asked_before_one_that_does_not() {
        for pods in [
            ["Running", "Failed"].map(|phase| pod("n1", phase, phase)),
            ["Failed", "Running"].map(|phase| pod("n1", phase, phase)),
        ] {
            let found = by_node(pods.to_vec());
            assert_eq!(found.len(), 1);
            assert_eq!(found["n1"].name_any(), "Running");
        }
        assert_eq!(container(&pod("n1", "a", "Running")), "kube-flannel");
        assert!(by_node(vec![Pod::default()]).is_empty());
    }

    #[test]
    fn missing_report_has_its_reason() {
        let pod = pod("n1", "flannel-x", "Running");
        let go = no_report(
            &pod,
            true,
            "exec: \"flannelctl\": executable file not found in $PATH\nmore",
        );
        assert!(
            go.contains("Go flannel") && go.ends_with("not found in $PATH"),
            "{go}"
        );
        assert!(no_report(&pod, false, "").contains("no report"));
        assert!(no_report(&pod, true, "").contains("nothing"));
    }
}
