//! `--node`: runs a command in flannel's pod on a Kubernetes node, and prints its output.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use terminal::out;

use crate::kubernetes::{self, Cluster, ClusterFlags, is_kubectls_plugin, respond_within};
use crate::store;

/// For a command in a pod. Commands have their own limits, and that of `flannelctl probe` is the longest.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);
/// The pod does not get these flags. Each takes a value.
const OWN_FLAGS: [&str; 3] = ["--node", "--kubeconfig", "--context"];

/// Options that select the Kubernetes node on which a command runs.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RemoteFlags {
    /// Runs the command in flannel's pod on this Kubernetes node; needs a kubeconfig.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    #[command(flatten)]
    cluster: ClusterFlags,
}

impl RemoteFlags {
    /// Runs the command in a pod if the flags name a node. `None` if it has to run on this machine. Fails if
    /// they name a cluster but no node.
    pub(crate) fn run(&self) -> Result<Option<ExitCode>> {
        run(self.node.as_deref(), &self.cluster)
    }

    /// Fails if the flags name a cluster but no node.
    pub(crate) fn named(&self) -> Result<Option<&str>> {
        if self.node.is_none() && (self.cluster.is_named() || is_kubectls_plugin()) {
            bail!("the options name a cluster but no node; add --node");
        }
        Ok(self.node.as_deref())
    }

    pub(crate) fn cluster(&self) -> &ClusterFlags {
        &self.cluster
    }
}

/// Like [`RemoteFlags::run`]; `None` if the flags name no node.
pub(crate) fn run(node: Option<&str>, flags: &ClusterFlags) -> Result<Option<ExitCode>> {
    let Some(node) = node else {
        if flags.is_named() || is_kubectls_plugin() {
            bail!("the options name a cluster but no node; add --node");
        }
        return Ok(None);
    };
    let words = without_own(std::env::args().skip(1));
    if words.iter().any(|word| word == "--watch") {
        bail!("--watch works only on this node; run `watch flannelctl … --node {node}`");
    }
    let command: Vec<&str> =
        std::iter::once("flannelctl").chain(words.iter().map(String::as_str)).collect();
    store::run(async {
        let cluster: Cluster = flags.connect().await?;
        let pods = cluster.pods().await?;
        let pod = kubernetes::on_node(&pods, node)?;
        let printed = kubernetes::exec(&cluster.client, pod, &command);
        let printed = respond_within(TIMEOUT, printed).await.with_context(|| node.to_owned())?;
        if printed.out.is_empty() {
            let said = printed.error.lines().next().unwrap_or_default();
            bail!("{node}: {}", if said.is_empty() { printed.message.as_str() } else { said });
        }
        let text = String::from_utf8_lossy(&printed.out);
        out::print(text.trim_end());
        Ok(Some(ExitCode::from(printed.code)))
    })
}

/// The command line for the pod, without [`OWN_FLAGS`].
fn without_own(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut skips = false;
    for word in words {
        if std::mem::take(&mut skips) {
            continue;
        }
        let name = word.split('=').next().unwrap_or_default();
        if OWN_FLAGS.contains(&name) {
            skips = name == word;
            continue;
        }
        kept.push(word);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_cluster_stay_here() {
        let of = |line: &str| without_own(line.split(' ').map(str::to_owned)).join(" ");
        assert_eq!(of("peers --node n2 --all"), "peers --all");
        assert_eq!(
            of("probe --kubeconfig=/a --node=n2 10.244.3.7 --context c -o json"),
            "probe 10.244.3.7 -o json"
        );
        assert_eq!(of("status --subnet-file /x"), "status --subnet-file /x");
    }
}
