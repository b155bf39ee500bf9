//! `GET /api/v1/routes`: what the kernel has beside what it should have, read when it is asked for.

use jiff::Timestamp;
use netstate::inspect::{self, Inspection, inspect};
use netstate::protocols::Protocols;
use netstate::reconcile::questions::KernelAudit;
use node_api::Rules;
use node_api::routes::{Foreign, Holder, Kind, Object, Routes, SCHEMA, State};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How long the reading may take: whoever asks waits for three seconds in all.
const TIMEOUT: Duration = Duration::from_millis(2500);

/// The kernel is read for one client after the other.
static ONE: Semaphore = Semaphore::const_new(1);

/// Why there is no document, for whoever asks.
#[derive(Debug, thiserror::Error)]
pub enum Silence {
    /// Nothing is wanted yet.
    #[error(
        "this node has no network yet, so nothing is wanted in its kernel; flannelctl status tells what flanneld waits for"
    )]
    NoNetwork,
    /// The loop that keeps the kernel is busy.
    #[error(
        "the kernel was not compared within {TIMEOUT:?}: flanneld's task for it is busy, or the kernel does not answer; flannelctl status tells more"
    )]
    Late,
    /// The kernel cannot be read.
    #[error("the kernel cannot be read: {0}")]
    Unreadable(#[from] netstate::kernel::KernelError),
}

/// Reads the kernel and compares.
///
/// # Errors
/// There is no network yet, or the kernel cannot be read in time.
pub(super) async fn routes(
    kernel_audit: Option<KernelAudit>,
    node: String,
    rules: Option<Rules>,
) -> Result<Routes, Silence> {
    let kernel_audit = kernel_audit.ok_or(Silence::NoNetwork)?;
    let look = async {
        let _turn = ONE.acquire().await;
        kernel_audit.look().await
    };
    let sighting = timeout(TIMEOUT, look).await.map_err(|_| Silence::Late)??;
    let at = Timestamp::now();
    // Beside the loops that carry packets and leases: tens of thousands of objects take a while.
    let compared =
        tokio::task::spawn_blocking(move || inspect(&sighting, &Protocols::of_this_host()));
    let Ok(Inspection { objects, foreign }) = compared.await else {
        return Err(Silence::Late);
    };
    Ok(Routes {
        schema: SCHEMA.to_owned(),
        at,
        node,
        objects: objects.into_iter().map(object).collect(),
        foreign: foreign.into_iter().map(other).collect(),
        rules,
    })
}

fn object(object: inspect::Object) -> Object {
    let (state, why) = match object.state {
        inspect::ObjectState::AsWanted => (State::AsWanted, None),
        inspect::ObjectState::Missing => (State::Missing, None),
        inspect::ObjectState::Different => (State::Different, None),
        inspect::ObjectState::Refused(why) => (State::Refused, Some(why)),
    };
    let holder = object.holder.map(|holder| Holder {
        node: holder.node,
        subnet: holder.subnet,
        address: holder.address,
    });
    Object {
        kind: kind(object.kind),
        text: object.text,
        holder,
        state,
        found: object.found,
        why,
    }
}

fn other(foreign: inspect::Foreign) -> Foreign {
    let inspect::Foreign {
        kind: is,
        text,
        by,
        own_subnet,
        in_the_way_of,
    } = foreign;
    Foreign {
        kind: kind(is),
        text,
        by,
        own_subnet,
        in_the_way_of,
    }
}

fn kind(kind: inspect::ObjectKind) -> Kind {
    match kind {
        inspect::ObjectKind::Link => Kind::Link,
        inspect::ObjectKind::Address => Kind::Address,
        inspect::ObjectKind::Fdb => Kind::Fdb,
        inspect::ObjectKind::Neighbour => Kind::Neighbour,
        inspect::ObjectKind::WireguardPeer => Kind::WireguardPeer,
        inspect::ObjectKind::AllowedIp => Kind::AllowedIp,
        inspect::ObjectKind::Route => Kind::Route,
        inspect::ObjectKind::Blackhole => Kind::Blackhole,
    }
}
