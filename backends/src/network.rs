//! A running network: a reconciler, and the packet engines of the network's devices.

use crate::backend::{Network, Setup};
use crate::status::{NetworkHandle, Status, StatusSources};
use async_trait::async_trait;
use ipnet::IpNet;
use netstate::kernel::{Facts, Kernel};
use netstate::netlink::NetlinkKernel;
use netstate::object::{KernelState, Key, Value};
use netstate::scope::Scope;
use netstate::underlay::Underlay;
use reconcile::plan::{Announced, Plan};
use reconcile::progress::Progress;
use reconcile::questions::KernelAudit;
use reconcile::{Inputs, Reconciler};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use subnet_lease::{LeaseTable, Peer};
use tokio::sync::{Notify, watch};
use types::{Coded, Problem};

/// Runs concurrently with the network's reconciler.
pub(crate) type BackgroundWork = Pin<Box<dyn Future<Output = ()> + Send>>;
/// The argument tells the reconciler that the plan has changed.
pub(crate) type BeginBackground = Box<dyn FnOnce(Arc<Notify>) -> BackgroundWork + Send>;

struct Running {
    reconciler: Reconciler,
    background: Option<BackgroundWork>,
    observer: Arc<dyn NetworkHandle>,
}

/// The MAC or public key that each peer's subnet has in the kernel. Empty if the kernel cannot be
/// read: an older lease then counts more.
pub(crate) async fn in_kernel(scope: &Scope) -> BTreeMap<IpNet, String> {
    let read = async { NetlinkKernel::open()?.read(scope, &KernelState::default()).await };
    match read.await {
        Ok(found) => found.ours.identities(),
        Err(error) => {
            tracing::warn!(code = error.code(), %error, "cannot read which MACs and keys the kernel has");
            BTreeMap::new()
        }
    }
}

/// Like [`join`], for a network without a packet engine and without background work.
pub(crate) async fn join_kernel(
    plan: impl Plan + 'static,
    underlay: &Underlay,
    leases: &LeaseTable,
    setup: &Setup,
) -> Result<Box<dyn Network>, Problem> {
    let sources = StatusSources::default();
    join(plan, NetlinkKernel::open()?, sources, underlay, leases, setup, None).await
}

/// Applies a plan for the first time. `background` runs concurrently with the reconciler. Fails if
/// the data plane cannot be set up at all.
pub(crate) async fn join(
    plan: impl Plan + 'static,
    kernel: impl Kernel + 'static,
    sources: StatusSources,
    underlay: &Underlay,
    leases: &LeaseTable,
    setup: &Setup,
    background: Option<BeginBackground>,
) -> Result<Box<dyn Network>, Problem> {
    let (plan, kernel) = (Arc::new(plan), Box::new(kernel));
    let reconciler = Reconciler::join(plan, kernel, underlay, leases, setup.options).await?;
    let observer =
        Arc::new(Handle { plan: reconciler.plan(), progress: reconciler.progress(), sources });
    let background = background.map(|begin| begin(reconciler.replanned()));
    Ok(Box::new(Running { reconciler, background, observer }))
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

#[async_trait]
impl Network for Running {
    async fn run(self: Box<Self>, inputs: Inputs, out: watch::Sender<Announced>) {
        let run = self.reconciler.run(inputs, out);
        match self.background {
            None => run.await,
            Some(background) => tokio::select! {
                () = run => {}
                // Background work that ends does not end the network.
                () = async { background.await; std::future::pending::<()>().await } => {}
            },
        }
    }

    fn observer(&self) -> Arc<dyn NetworkHandle> {
        self.observer.clone()
    }

    fn kernel_audit(&self) -> KernelAudit {
        self.reconciler.kernel_audit()
    }
}
