//! `flannelctl doctor --cluster`: prints the findings of all nodes, grouped by cause.

mod answer;
mod fold;
mod pods;
mod rows;
mod text;

use std::process::ExitCode;

use anyhow::Result;
use node_api::{Cluster, Node, StoreKind};

use crate::ask;
use crate::kubernetes::{ClusterFlags, has_kubeconfig, is_kubectls_plugin};
use crate::place::Place;
use crate::remote;

pub(super) use text::text;

/// Which cluster.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ClusterArgs {
    /// Diagnoses all nodes and groups the findings by cause: on Kubernetes in flannel's pods, otherwise through this node's daemon.
    #[arg(long)]
    cluster: bool,
    /// Runs the doctor in flannel's pod on this Kubernetes node; needs a kubeconfig.
    #[arg(long, value_name = "NODE", conflicts_with = "cluster")]
    node: Option<String>,
    #[command(flatten)]
    flags: ClusterFlags,
}

impl ClusterArgs {
    /// Runs the doctor in a pod if the flags name a node. `None` if it has to run on this node or on all
    /// nodes.
    pub(super) fn run_on_node(&self) -> Result<Option<ExitCode>> {
        match &self.node {
            Some(node) => remote::run(Some(node), &self.flags),
            None => Ok(None),
        }
    }

    /// True by default if kubectl runs this program as `kubectl-flannel`.
    pub(super) fn is_cluster(&self) -> bool {
        self.cluster || self.flags.is_named() || is_kubectls_plugin()
    }
}

/// The findings of all nodes, grouped by cause. Fails if neither the cluster's API nor this node's daemon
/// responds.
pub(super) fn look(args: &ClusterArgs, place: &Place) -> Result<Cluster> {
    let answers = if args.flags.is_named() || is_kubectls_plugin() {
        pods::ask(&args.flags)?
    } else {
        match ask::node(&place.subnet_file, true) {
            // The daemon can ask its peers with any store, but the doctors in the pods report more details.
            Ok(node) if is_of_kubernetes(&node) && has_kubeconfig() => pods::ask(&args.flags)?,
            Ok(_) => rows::ask(place)?,
            Err(_) if has_kubeconfig() => pods::ask(&args.flags)?,
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
        "no kubeconfig names a cluster (--kubeconfig, $KUBECONFIG, ~/.kube/config), and no daemon on this node can ask the other nodes",
    )
}
