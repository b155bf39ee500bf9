//! Accesses a Kubernetes cluster through kubectl's kubeconfig, lists flannel's pods, and runs commands in
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess, ListParams};
use kube::client::UpgradeConnectionError;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use terminal::out;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The labels of flannel's pods in the manifests of flannel-rs and Go flannel, and in Talos'.
const LABELS: [&str; 2] = ["app=flannel", "k8s-app=flannel"];
/// Flannel's namespace in the manifests, for a user who may not list the pods of all namespaces.
const NAMESPACE: &str = "kube-flannel";
/// The daemon's container.
const CONTAINER: &str = "kube-flannel";
/// For a list request to the API.
pub(crate) const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest output of a command, in bytes.
const LIMIT: u64 = 24 << 20;
/// The HTTP status for a lack of permission.
const FORBIDDEN: u16 = 403;

/// Which cluster.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ClusterFlags {
    /// Kubeconfig of the cluster; default: $KUBECONFIG, else ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig; default: the kubeconfig's current context.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ClusterFlags {
    /// Whether a flag selects a cluster.
    pub(crate) fn is_named(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    pub(crate) async fn connect(&self) -> Result<Cluster> {
        let (client, server) = connect(self.kubeconfig.as_deref(), self.context.as_deref()).await?;
        Ok(Cluster { client, server })
    }
}

/// A connection to the API of a cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// URL of the API, for error messages.
    server: String,
}

impl Cluster {
    /// One pod for each node, by the node's name.
    pub(crate) async fn pods(&self) -> Result<BTreeMap<String, Pod>> {
        let server = &self.server;
        let pods = tokio::time::timeout(LIST_TIMEOUT, flannel_pods(&self.client))
            .await
            .map_err(|_| anyhow!("{server} did not respond within {LIST_TIMEOUT:?}"))?
            .with_context(|| format!("cannot list flannel's pods at {server}"))?;
        if pods.is_empty() {
            bail!(
                "no pod at {server} has the label {}: flannel does not run there as a DaemonSet",
                LABELS.join(" or ")
            );
        }
        let (pods, twice) = by_node(pods);
        for [one, other] in twice {
            out::complain(format!(
                "two flannelds, in the pods {one} and {other}, change the same devices of one node: delete the DaemonSet of one of them"
            ));
        }
        Ok(pods)
    }
}

/// kubectl finds this program by this file name for `kubectl flannel`.
const PLUGIN: &str = "kubectl-flannel";

pub(crate) fn is_kubectls_plugin() -> bool {
    let name = std::env::args_os().next();
    name.as_deref().map(Path::new).and_then(Path::file_stem).is_some_and(|name| name == PLUGIN)
}

/// True if one is at a path that kubectl searches.
pub(crate) fn has_kubeconfig() -> bool {
    match std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) {
        Some(files) => std::env::split_paths(&files).any(|file| file.exists()),
        None => std::env::home_dir().is_some_and(|home| home.join(".kube/config").exists()),
    }
}

async fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<(Client, String)> {
    // Errors of the parser are not shown, because they may quote secrets from the file.
    let config = match kubeconfig {
        Some(file) if !file.exists() => bail!("the kubeconfig {} does not exist", file.display()),
        Some(file) => Kubeconfig::read_from(file).map_err(|_| {
            anyhow!(
                "cannot read {} as a kubeconfig; check the file with kubectl --kubeconfig={} config view",
                file.display(),
                file.display()
            )
        })?,
        None if !has_kubeconfig() => bail!(
            "no kubeconfig found; set --kubeconfig or KUBECONFIG; on a control plane of kubeadm, use /etc/kubernetes/admin.conf"
        ),
        None => Kubeconfig::read()
            .map_err(|_| anyhow!("cannot use the kubeconfig; check the file with kubectl config view"))?,
    };
    let options =
        KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let named = context
        .map_or_else(|| "its current context".to_owned(), |name| format!("its context {name}"));
    let config = Config::from_custom_kubeconfig(config, &options)
        .await
        .map_err(|_| {
            anyhow!("the kubeconfig has no server for {named}; list the contexts with kubectl config get-contexts")
        })?;
    let server = config.cluster_url.to_string();
    let server = server.trim_end_matches('/').to_owned();
    if config.proxy_url.is_some() {
        bail!(
            "the kubeconfig sets a proxy for {server}, which flannelctl cannot use; run flannelctl doctor in each pod with kubectl exec"
        );
    }
    let client = Client::try_from(config)
        .map_err(|error| anyhow!("cannot connect to {server}: {}", first_line(&error)))?;
    Ok((client, server))
}

/// Lists the pods of all namespaces, or only of flannel's own if the user may not list all.
async fn flannel_pods(client: &Client) -> Result<Vec<Pod>, kube::Error> {
    let mut pods = Vec::new();
    for label in LABELS {
        let labels = ListParams::default().labels(label);
        let all: Api<Pod> = Api::all(client.clone());
        let list = match all.list(&labels).await {
            Err(kube::Error::Api(status)) if status.code == FORBIDDEN => {
                let own: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
                own.list(&labels).await
            }
            list => list,
        };
        pods.extend(list?);
    }
    Ok(pods)
}

/// One pod for each node, and the pairs of pods of two DaemonSets that run on one node. A running pod takes
/// precedence over another. Pods outside the host's network are no daemons.
fn by_node(pods: Vec<Pod>) -> (BTreeMap<String, Pod>, BTreeSet<[String; 2]>) {
    let (mut found, mut twice) = (BTreeMap::<String, Pod>::new(), BTreeSet::new());
    let name = |pod: &Pod| {
        let namespace = pod.namespace().unwrap_or_default();
        format!("{namespace}/{}", pod.name_any())
    };
    for pod in pods {
        let spec = pod.spec.as_ref();
        let Some(node) = spec
            .filter(|spec| spec.host_network == Some(true))
            .and_then(|spec| spec.node_name.clone())
        else {
            continue;
        };
        match found.get(&node).filter(|old| require_running(old).is_ok()) {
            Some(old) => {
                if require_running(&pod).is_ok() && old.namespace() != pod.namespace() {
                    twice.insert([name(old), name(&pod)]);
                }
            }
            None => {
                found.insert(node, pod);
            }
        }
    }
    (found, twice)
}

/// A pod that is being deleted does not pass, although its phase is still `Running`.
pub(crate) fn require_running(pod: &Pod) -> Result<()> {
    let name = pod.name_any();
    if pod.metadata.deletion_timestamp.is_some() {
        bail!("the pod {name} is being deleted");
    }
    let status = pod.status.as_ref();
    match status.and_then(|status| status.phase.as_deref()) {
        Some("Running") => Ok(()),
        phase => {
            bail!("the pod {name} is not running: its phase is {}", phase.unwrap_or("unknown"))
        }
    }
}

/// Flannel's pod on a node. Without one, the error names the nodes that have a pod.
pub(crate) fn on_node<'a>(pods: &'a BTreeMap<String, Pod>, node: &str) -> Result<&'a Pod> {
    pods.get(node).with_context(|| {
        let names: Vec<&str> = pods.keys().map(String::as_str).collect();
        format!("no flannel pod runs on the node {node}; flannel pods run on {}", names.join(", "))
    })
}

/// What a command in a pod printed, and how it ended.
pub(crate) struct Printed {
    pub(crate) out: Vec<u8>,
    pub(crate) error: String,
    /// The API's message about the end of the command.
    pub(crate) message: String,
    /// 1 if the API reports no exit code.
    pub(crate) code: u8,
}

/// From the API's `Status` object: 0 for success, and 1 for a failure without an exit code.
fn exit_code(status: &Status) -> u8 {
    if status.status.as_deref() == Some("Success") {
        return 0;
    }
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let code = causes
        .flatten()
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"))
        .and_then(|cause| cause.message.as_deref())
        .and_then(|code| code.parse().ok());
    code.unwrap_or(1)
}

/// Runs a command in the daemon's container. The error is why the API did not run it.
pub(crate) async fn exec(client: &Client, pod: &Pod, command: &[&str]) -> Result<Printed> {
    let namespace = pod.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let parameters = AttachParams::default().stdin(false).container(container(pod));
    let mut process = api
        .exec(&pod.name_any(), command.iter().copied(), &parameters)
        .await
        .map_err(|error| explain_refusal(&error, pod))?;
    let status = process.take_status();
    let (out, error) = tokio::join!(
        read(AttachedProcess::stdout(&mut process)),
        read(AttachedProcess::stderr(&mut process))
    );
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    Ok(Printed {
        out,
        error: String::from_utf8_lossy(&error).into_owned(),
        code: status.as_ref().map_or(1, exit_code),
        message: status.and_then(|status| status.message).unwrap_or_default(),
    })
}

/// The error is the pod's own, or that it did not respond in time.
pub(crate) async fn respond_within<T>(
    limit: Duration,
    response: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(limit, response).await.unwrap_or_else(|_| Err(report_timeout(limit)))
}

pub(crate) fn report_timeout(limit: Duration) -> anyhow::Error {
    anyhow!("the node's pod did not respond within {} s", limit.as_secs())
}

/// Why the API did not run a command.
fn explain_refusal(error: &kube::Error, pod: &Pod) -> anyhow::Error {
    let code = match error {
        kube::Error::Api(status) => status.code,
        kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(code)) => {
            code.as_u16()
        }
        _ => return explain_failure(error),
    };
    match code {
        FORBIDDEN => anyhow!(
            "this user may not create pods/exec in the namespace {}; request that permission",
            pod.namespace().unwrap_or_default()
        ),
        code => anyhow!(
            "the API server did not run the command (code {code}); check that the API server can reach the kubelet of the node"
        ),
    }
}

pub(crate) fn explain_failure(error: &kube::Error) -> anyhow::Error {
    anyhow!("request to the API server failed: {}", first_line(error))
}

/// The daemon's container.
pub(crate) fn container(pod: &Pod) -> String {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let names: Vec<&str> = containers.map(|container| container.name.as_str()).collect();
    let found = names.iter().find(|name| **name == CONTAINER);
    found.or(names.first()).map_or(CONTAINER, |name| *name).to_owned()
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // The bytes before an error are kept. The caller judges whether they are complete.
        let _ = stream.take(LIMIT).read_to_end(&mut bytes).await;
    }
    bytes
}

pub(crate) fn first_line(error: &dyn std::error::Error) -> String {
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
            "spec": { "nodeName": node, "hostNetwork": true, "containers": [{ "name": "sidecar" }, { "name": "kube-flannel" }] },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[test]
    fn exit_code_is_in_the_causes() {
        let of = |value: serde_json::Value| exit_code(&serde_json::from_value(value).unwrap());
        assert_eq!(of(json!({ "status": "Success" })), 0);
        let failed = json!({ "status": "Failure", "reason": "NonZeroExitCode",
            "details": { "causes": [{ "reason": "ExitCode", "message": "3" }] } });
        assert_eq!(of(failed), 3);
        assert_eq!(of(json!({ "status": "Failure" })), 1);
    }

    #[test]
    fn pod_that_runs_is_asked_before_one_that_does_not() {
        for pods in [
            ["Running", "Failed"].map(|phase| pod("n1", phase, phase)),
            ["Failed", "Running"].map(|phase| pod("n1", phase, phase)),
        ] {
            let (found, twice) = by_node(pods.to_vec());
            assert_eq!((found.len(), twice.len()), (1, 0));
            assert_eq!(found["n1"].name_any(), "Running");
        }
        assert_eq!(container(&pod("n1", "a", "Running")), "kube-flannel");
        assert!(by_node(vec![Pod::default()]).0.is_empty());
    }

    #[test]
    fn second_daemon_of_a_node_is_named_and_a_pod_that_looks_like_one_is_not_asked() {
        let [ours, mut go] = ["ours", "go"].map(|name| pod("n1", name, "Running"));
        go.metadata.namespace = Some("kube-system".to_owned());
        let mut fake = pod("n1", "fake", "Running");
        fake.spec.as_mut().unwrap().host_network = None;
        let (found, twice) = by_node(vec![fake, ours.clone(), ours, go.clone(), go]);
        assert_eq!(found["n1"].name_any(), "ours");
        let pair = ["kube-flannel/ours", "kube-system/go"].map(str::to_owned);
        assert_eq!(Vec::from_iter(twice), [pair]);
    }

    #[test]
    fn pod_that_is_being_deleted_is_not_called_running() {
        assert!(require_running(&pod("n1", "a", "Running")).is_ok());
        let deleted: Pod = serde_json::from_value(json!({
            "metadata": { "name": "a", "deletionTimestamp": "2026-01-02T03:04:05Z" },
            "status": { "phase": "Running" },
        }))
        .unwrap();
        let failed = |pod: &Pod| require_running(pod).unwrap_err().to_string();
        assert_eq!(failed(&deleted), "the pod a is being deleted");
        assert_eq!(
            failed(&pod("n1", "a", "Pending")),
            "the pod a is not running: its phase is Pending"
        );
    }
}
