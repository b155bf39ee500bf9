//! A network that a node has joined: a reconciler, and the packet engines of the network's devices.

use crate::backend::{Backend, Datapath};
use crate::status::{NetworkHandle, Status, StatusSources};
use netstate::{Facts, Key, Underlay, Value};
use reconcile::Plan;
use reconcile::progress::Progress;
use reconcile::{Options, Reconciler};
use std::sync::Arc;
use subnet_lease::{LeaseTable, Peer};
use types::{Problem, Subnets};

/// Makes the first pass of the network's reconciler. Fails if the data plane cannot be set up at
/// all. The handle provides the status while the reconciler runs.
pub async fn join_network(
    backend: Box<dyn Backend>,
    own: Subnets,
    underlay: &Underlay,
    leases: &LeaseTable,
    options: Options,
) -> Result<(Reconciler, Arc<dyn NetworkHandle>), Problem> {
    let plan = backend.plan(own)?;
    let Datapath { kernel, sources } = backend.datapath(plan.scope(), underlay)?;
    let reconciler = Reconciler::join(plan.clone(), kernel, underlay, leases, options).await?;
    let handle = Handle { plan, progress: reconciler.progress(), sources };
    Ok((reconciler, Arc::new(handle)))
}

/// Works independently of the task that runs the network's reconciler.
struct Handle {
    plan: Arc<dyn Plan>,
    progress: Arc<Progress>,
    sources: StatusSources,
}

impl NetworkHandle for Handle {
    fn status(&self) -> Status {
        Status::of(&self.progress, &self.sources)
    }

    /// The kernel objects of the peer, and this node's routes that cover its subnet.
    fn needs(&self, peer: &Peer<'_>, facts: &Facts) -> Vec<(Key, Value)> {
        let leads_there =
            |key: &Key| matches!(key, Key::Route(net, _) if net.contains(&peer.subnet));
        let base = self.plan.base(facts).0.into_iter();
        let shared = base.filter(|(key, _)| leads_there(key));
        let own = self.plan.of_peer(peer, facts).into_iter();
        own.chain(shared).collect()
    }
}
