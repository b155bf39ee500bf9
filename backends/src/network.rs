//! A running network: a reconciler, and the packet engines of the network's devices.

use crate::backend::{Backend, BackgroundWork, Datapath};
use crate::status::{NetworkHandle, Status, StatusSources};
use netstate::kernel::Facts;
use netstate::object::{Key, Value};
use netstate::underlay::Underlay;
use reconcile::plan::{Announced, Plan};
use reconcile::progress::Progress;
use reconcile::questions::KernelAudit;
use reconcile::{Inputs, Options, Reconciler};
use std::sync::Arc;
use subnet_lease::{LeaseTable, Peer};
use tokio::sync::watch;
use types::{Problem, Subnets};

pub struct Network {
    reconciler: Reconciler,
    background: BackgroundWork,
    handle: Arc<dyn NetworkHandle>,
}

impl Network {
    /// Makes the reconciler's first pass. Fails if the data plane cannot be set up at all.
    pub async fn join(
        backend: Box<dyn Backend>,
        own: Subnets,
        underlay: &Underlay,
        leases: &LeaseTable,
        options: Options,
    ) -> Result<Self, Problem> {
        let plan = backend.plan(own)?;
        let Datapath { kernel, sources, background } = backend.datapath(plan.scope(), underlay)?;
        let reconciler = Reconciler::join(plan.clone(), kernel, underlay, leases, options).await?;
        let handle = Arc::new(Handle { plan, progress: reconciler.progress(), sources });
        Ok(Self { reconciler, background, handle })
    }

    /// Keeps the kernel in sync with the leases and the underlay until `inputs` signals a stop.
    /// Sends changed announcements of this node to `out`.
    pub async fn run(self, inputs: Inputs, out: watch::Sender<Announced>) {
        tokio::select! {
            () = self.reconciler.run(inputs, out) => {}
            never = self.background => match never {},
        }
    }

    /// Provides the status while the network runs.
    pub fn observer(&self) -> Arc<dyn NetworkHandle> {
        self.handle.clone()
    }

    /// Audits the kernel state while the network runs.
    pub fn kernel_audit(&self) -> KernelAudit {
        self.reconciler.kernel_audit()
    }
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
