//! `flannelctl doctor --cluster`: the findings of all nodes, folded by cause.

mod fold;
mod pods;
mod rows;
mod text;

use std::path::PathBuf;

use anyhow::Result;
use doctor::Finding;
use node_api::{Cluster, Node, Source, StoreKind, Unanswered};

use crate::ask;
use crate::place::Place;

pub(super) use text::text;

/// Which cluster.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ClusterArgs {
    /// Ask the doctors of all nodes, and fold their findings by cause: on Kubernetes in flannel's pods, otherwise by this node's daemon.
    #[arg(long)]
    cluster: bool,
    /// The kubeconfig of the cluster, as kubectl has it; default: $KUBECONFIG, else ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig; default: its current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// The findings of one node that nothing on it explains.
#[derive(Clone, Debug)]
struct Answer {
    node: String,
    causes: Vec<Finding>,
}

/// What all nodes answered.
#[derive(Clone, Debug)]
struct Answers {
    source: Source,
    answered: Vec<Answer>,
    unanswered: Vec<Unanswered>,
}

impl ClusterArgs {
    /// Whether all nodes are to be asked: kubectl runs this program as `kubectl-flannel` for the cluster.
    pub(super) fn is_cluster(&self) -> bool {
        self.cluster
            || self.kubeconfig.is_some()
            || self.context.is_some()
            || crate::is_kubectls_plugin()
    }
}

/// Asks all nodes.
///
/// # Errors
/// Neither the cluster's API nor this node's daemon answers.
pub(super) fn look(args: &ClusterArgs, place: &Place) -> Result<Cluster> {
    let is_named = args.kubeconfig.is_some() || args.context.is_some();
    let answers = if is_named || crate::is_kubectls_plugin() {
        pods::ask(args.kubeconfig.as_deref(), args.context.as_deref())?
    } else {
        match ask::node(&place.subnet_file, true) {
            // A daemon hears its peers with any store; what pods answer says more.
            Ok(node) if is_of_kubernetes(&node) && pods::has_kubeconfig() => pods::ask(None, None)?,
            Ok(_) => rows::ask(place)?,
            Err(_) if pods::has_kubeconfig() => pods::ask(None, None)?,
            Err(why) => return Err(no_way(why)),
        }
    };
    Ok(fold::fold(answers, jiff::Timestamp::now()))
}

fn is_of_kubernetes(node: &Node) -> bool {
    let kind = node.store.as_ref().and_then(|store| store.kind);
    kind == Some(StoreKind::Kubernetes)
}

fn no_way(why: ask::AskError) -> anyhow::Error {
    anyhow::Error::new(why).context(
        "no kubeconfig names a cluster (--kubeconfig, $KUBECONFIG, ~/.kube/config), and no daemon of this node can ask the others",
    )
}
