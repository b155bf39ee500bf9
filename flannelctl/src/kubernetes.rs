//! A cluster of Kubernetes as kubectl reaches it: by a kubeconfig, with flannel's pods and what runs in them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess, ListParams};
use kube::client::UpgradeConnectionError;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use tokio::io::{AsyncRead, AsyncReadExt};
use types::Coded;

/// The label of flannel's pods, ours and Go flannel's.
const LABEL: &str = "app=flannel";
/// The namespace of the manifests, for a user who may not list the pods of all namespaces.
const NAMESPACE: &str = "kube-flannel";
/// The container of the daemon.
const CONTAINER: &str = "kube-flannel";
/// How long the API may take for a list.
pub(crate) const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// The most that a command may print, in bytes.
const LIMIT: u64 = 24 << 20;
/// The code of the API's refusal.
const FORBIDDEN: u16 = 403;

/// Which cluster.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ClusterFlags {
    /// The kubeconfig of the cluster, as kubectl has it; default: $KUBECONFIG, else ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig; default: its current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ClusterFlags {
    /// Whether a cluster is named.
    pub(crate) fn is_named(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// Connects to the API of the cluster.
    ///
    /// # Errors
    /// There is no kubeconfig, or it cannot be used.
    pub(crate) async fn connect(&self) -> Result<Cluster> {
        let (client, server) = connect(self.kubeconfig.as_deref(), self.context.as_deref()).await?;
        Ok(Cluster { client, server })
    }
}

/// A connection to the API of a cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// The API's address, for messages.
    server: String,
}

impl Cluster {
    /// Lists flannel's pods, one a node.
    ///
    /// # Errors
    /// The API does not answer, refuses, or knows no pod of flannel.
    pub(crate) async fn pods(&self) -> Result<BTreeMap<String, Pod>> {
        let server = &self.server;
        let pods = tokio::time::timeout(LIST_TIMEOUT, flannel_pods(&self.client))
            .await
            .map_err(|_| anyhow!("{server} does not answer within {LIST_TIMEOUT:?}"))?
            .with_context(|| format!("cannot list flannel's pods at {server}"))?;
        if pods.is_empty() {
            bail!(
                "no pod at {server} has the label {LABEL}: flannel does not run there as a DaemonSet"
            );
        }
        Ok(by_node(pods))
    }
}

/// The name by which kubectl runs a program as `kubectl flannel`.
const PLUGIN: &str = "kubectl-flannel";

/// Whether kubectl runs this program.
pub(crate) fn is_kubectls_plugin() -> bool {
    let name = std::env::args_os().next();
    name.as_deref()
        .map(Path::new)
        .and_then(Path::file_stem)
        .is_some_and(|name| name == PLUGIN)
}

/// Whether there is a file in which kubectl would find a cluster.
pub(crate) fn has_kubeconfig() -> bool {
    match std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) {
        Some(files) => std::env::split_paths(&files).any(|file| file.exists()),
        None => std::env::home_dir().is_some_and(|home| home.join(".kube/config").exists()),
    }
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

pub(crate) fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("unknown")
}

pub(crate) fn is_running(pod: &Pod) -> bool {
    phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none()
}

/// The pod of a node.
///
/// # Errors
/// There is none on it; names those that have one.
pub(crate) fn on_node<'a>(pods: &'a BTreeMap<String, Pod>, node: &str) -> Result<&'a Pod> {
    pods.get(node).with_context(|| {
        let names: Vec<&str> = pods.keys().map(String::as_str).collect();
        format!(
            "no pod of flannel is on a node {node}: they are on {}",
            names.join(", ")
        )
    })
}

/// What a command in a pod printed, and how it ended.
pub(crate) struct Printed {
    pub(crate) out: Vec<u8>,
    pub(crate) error: String,
    /// What the API says of its end.
    pub(crate) message: String,
    /// Its exit code; 1 if it is not known.
    pub(crate) code: u8,
}

/// The exit code in the API's words: none of a failure means success.
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

/// Runs a command in the daemon's container.
///
/// # Errors
/// Says why the API did not run it.
pub(crate) async fn exec(
    client: &Client,
    pod: &Pod,
    command: &[&str],
) -> Result<Printed, PodError> {
    let namespace = pod.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let parameters = AttachParams::default()
        .stdin(false)
        .container(container(pod));
    let mut process = api
        .exec(&pod.name_any(), command.iter().copied(), &parameters)
        .await
        .map_err(|error| PodError::refusal(error, pod))?;
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

/// Why a pod gave no answer.
#[derive(Debug)]
pub(crate) enum PodError {
    /// This user may not run commands in pods of this namespace.
    Forbidden(String),
    /// The API server refused with this code.
    Refused(u16),
    /// The API server did not answer as it should.
    Api(kube::Error),
    /// The pod does not run.
    NotRunning {
        /// Its name.
        pod: String,
        /// Its phase, as the API has it.
        phase: String,
    },
    /// The command cannot be run in the pod.
    NoProgram {
        /// The pod.
        pod: String,
        /// What the API says of it.
        message: String,
    },
    /// The command printed nothing.
    Silent(String),
    /// The command printed something else than a report.
    NoReport(String),
    /// The report has another schema.
    Schema(String),
    /// No answer came within this time.
    Timeout(Duration),
}

impl Coded for PodError {
    fn code(&self) -> &'static str {
        match self {
            Self::Forbidden(_) => "exec-forbidden",
            Self::Refused(_) => "exec-refused",
            Self::Api(_) => "api-failed",
            Self::NotRunning { .. } => "pod-not-running",
            Self::NoProgram { .. } => "no-flannelctl",
            Self::Silent(_) => "pod-silent",
            Self::NoReport(_) => "no-report",
            Self::Schema(_) => "answer-schema",
            Self::Timeout(_) => "pod-timeout",
        }
    }
}

impl fmt::Display for PodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        types::problem::text(f, self, |f| match self {
            Self::Forbidden(namespace) => write!(
                f,
                "this user may not create pods/exec in the namespace {namespace}: ask for that right"
            ),
            Self::Refused(code) => write!(
                f,
                "the API server did not run the command, with code {code}: it may not reach the kubelet of that node"
            ),
            Self::Api(error) => write!(f, "the API server: {}", first_line(error)),
            Self::NotRunning { pod, phase } => {
                write!(f, "its pod {pod} does not run: it is {phase}")
            }
            Self::NoProgram { pod, message } => write!(
                f,
                "flannelctl does not run in its pod {pod} (Go flannel's image has none): {message}"
            ),
            Self::Silent(pod) => write!(f, "its pod {pod} printed nothing"),
            Self::NoReport(pod) => write!(f, "what its pod {pod} prints is no report"),
            Self::Schema(theirs) => write!(
                f,
                "its doctor answers with the schema {theirs}: it has another version"
            ),
            Self::Timeout(time) => write!(f, "its pod did not answer within {} s", time.as_secs()),
        })
    }
}

impl std::error::Error for PodError {}

impl PodError {
    /// Why the API does not run a command.
    fn refusal(error: kube::Error, pod: &Pod) -> Self {
        let code = match &error {
            kube::Error::Api(status) => status.code,
            kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(code)) => {
                code.as_u16()
            }
            _ => return Self::Api(error),
        };
        match code {
            FORBIDDEN => Self::Forbidden(pod.namespace().unwrap_or_default()),
            code => Self::Refused(code),
        }
    }
}

/// The daemon's container.
pub(crate) fn container(pod: &Pod) -> String {
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
            "spec": { "nodeName": node, "containers": [{ "name": "sidecar" }, { "name": "kube-flannel" }] },
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
            let found = by_node(pods.to_vec());
            assert_eq!(found.len(), 1);
            assert_eq!(found["n1"].name_any(), "Running");
        }
        assert_eq!(container(&pod("n1", "a", "Running")), "kube-flannel");
        assert!(by_node(vec![Pod::default()]).is_empty());
    }
}
