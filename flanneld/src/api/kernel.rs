//! `GET /api/v1/routes`: compares the kernel with the desired state at each request.

use jiff::Timestamp;
use netstate::report::inspect::{Inspection, inspect_kernel};
use netstate::report::protocols::Protocols;
use node_api::Rules;
use node_api::routes::{Routes, SCHEMA};
use reconcile::questions::KernelAudit;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use types::Problem;

/// Clients wait at most three seconds for the whole response.
const TIMEOUT: Duration = Duration::from_millis(2500);

/// flanneld reads the kernel for one client at a time.
static ONE: Semaphore = Semaphore::const_new(1);

pub(super) async fn routes(
    kernel_audit: Option<KernelAudit>,
    node: String,
    rules: Option<Rules>,
) -> Result<Routes, Problem> {
    let kernel_audit = kernel_audit.ok_or_else(|| {
        Problem::new(
            "routes-without-network",
            "this node has no network yet, so it needs no kernel objects; flannelctl status shows what flanneld waits for",
        )
    })?;
    let late = || {
        let text = format!(
            "flanneld did not compare the kernel with the desired state within {TIMEOUT:?}: its reconcile task is busy, or the kernel does not respond; run flannelctl status"
        );
        Problem::new("routes-late", text)
    };
    let look = async {
        let _turn = ONE.acquire().await;
        kernel_audit.look().await
    };
    let sighting = timeout(TIMEOUT, look).await.map_err(|_| late())?.map_err(|error| {
        Problem::new("routes-unreadable", format!("cannot read the kernel's state: {error}"))
    })?;
    let at = Timestamp::now();
    // On a separate thread, so that the loops for packets and leases do not wait: tens of thousands of objects take a while.
    let compared =
        tokio::task::spawn_blocking(move || inspect_kernel(&sighting, Protocols::of_this_host()));
    let Ok(Inspection { objects, foreign }) = compared.await else {
        return Err(late());
    };
    Ok(Routes { schema: SCHEMA.to_owned(), at, node, objects, foreign, rules })
}
