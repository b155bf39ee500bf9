//! `GET /api/v1/routes`: compares the kernel with the desired state at each request.

use jiff::Timestamp;
use netstate::inspect::{Inspection, inspect};
use netstate::protocols::Protocols;
use netstate::reconcile::questions::KernelAudit;
use node_api::Rules;
use node_api::routes::{Routes, SCHEMA};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Timeout for reading the kernel's state. Clients wait at most three seconds for the whole response.
const TIMEOUT: Duration = Duration::from_millis(2500);

/// Serialises the reads: flanneld reads the kernel for one client at a time.
static ONE: Semaphore = Semaphore::const_new(1);

/// Error when flanneld cannot compare the kernel with the desired state.
#[derive(Debug, thiserror::Error)]
pub enum RoutesError {
    /// Lack of a network on this node.
    #[error(
        "this node has no network yet, so it needs no kernel objects; flannelctl status shows what flanneld waits for"
    )]
    NoNetwork,
    /// A busy reconcile loop.
    #[error(
        "flanneld did not compare the kernel with the desired state within {TIMEOUT:?}: its reconcile task is busy, or the kernel does not respond; run flannelctl status"
    )]
    Late,
    /// Failure to read the kernel's state.
    #[error("cannot read the kernel's state: {0}")]
    Unreadable(#[from] netstate::kernel::KernelError),
}

/// Compares the kernel's current state with the desired state.
pub(super) async fn routes(
    kernel_audit: Option<KernelAudit>,
    node: String,
    rules: Option<Rules>,
) -> Result<Routes, RoutesError> {
    let kernel_audit = kernel_audit.ok_or(RoutesError::NoNetwork)?;
    let look = async {
        let _turn = ONE.acquire().await;
        kernel_audit.look().await
    };
    let sighting = timeout(TIMEOUT, look).await.map_err(|_| RoutesError::Late)??;
    let at = Timestamp::now();
    // On a separate thread, so that the loops for packets and leases do not wait: tens of thousands of objects take a while.
    let compared =
        tokio::task::spawn_blocking(move || inspect(&sighting, &Protocols::of_this_host()));
    let Ok(Inspection { objects, foreign }) = compared.await else {
        return Err(RoutesError::Late);
    };
    Ok(Routes { schema: SCHEMA.to_owned(), at, node, objects, foreign, rules })
}
