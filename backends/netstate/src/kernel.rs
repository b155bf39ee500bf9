//! The kernel interface that the reconciler uses: read our objects, gather facts, apply operations, wait for changes.

pub use crate::failure::{FailureKind, KernelError, OpError};
use crate::forwarding::Forwarding;
use crate::names::{LinkName, Mac};
use crate::object::{KernelState, Key, Op};
use crate::route::RouteSpec;
use crate::scope::Scope;
use crate::survey::Survey;
use crate::underlay::Underlay;
use crate::wireguard::{PublicKey, Session};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Facts about the host that a plan needs in addition to the leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The chosen underlay, with its current name and MTU.
    pub underlay: Underlay,
    /// The queried addresses that the underlay reaches without a gateway.
    pub on_link: BTreeSet<IpAddr>,
    /// MACs set by another program, which the reconciler has accepted.
    pub accepted_macs: BTreeMap<LinkName, Mac>,
}

/// The objects found in the kernel: ours, and routes that Go flannel may have left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExistingState {
    /// Objects in this network's scope: on its devices, or with its protocol number.
    pub ours: KernelState,
    /// Routes of protocol `boot` inside our networks and not on our links: candidates for adoption.
    pub leftovers: Vec<(Key, RouteSpec)>,
    /// The sessions of WireGuard's peers.
    pub sessions: Sessions,
    /// Those of the peers that have allowed IPs outside our networks, too.
    pub mixed: BTreeSet<Key>,
}

/// The sessions of WireGuard's peers, by interface and peer.
pub type Sessions = BTreeMap<(LinkName, PublicKey), Session>;

/// A kernel, real or fake.
#[async_trait]
pub trait Kernel: Send {
    /// All our objects in the kernel.
    ///
    /// # Errors
    /// Any part could not be read completely. A partial state would be mistaken for removals.
    async fn read(&mut self, scope: &Scope) -> Result<ExistingState, KernelError>;

    /// Our peers of WireGuard alone, with their allowed IPs and sessions, as in [`Kernel::read`]. None of their changes is announced.
    ///
    /// # Errors
    /// Any part could not be read completely.
    async fn read_peers(&mut self, _scope: &Scope) -> Result<ExistingState, KernelError> {
        Ok(ExistingState::default())
    }

    /// Reads all objects in our networks and on the devices that were ours at the last [`Kernel::read`], of any program.
    ///
    /// # Errors
    /// Any part could not be read completely.
    async fn survey(&mut self, scope: &Scope) -> Result<Survey, KernelError>;

    /// The underlay, and which of the queried addresses are on-link. A failed lookup repeats the last answer.
    ///
    /// # Errors
    /// The kernel does not answer.
    async fn facts(
        &mut self,
        underlay: &Underlay,
        queries: &[IpAddr],
    ) -> Result<Facts, KernelError>;

    /// The addresses that the current underlay reaches without a gateway. Answers for other addresses stay.
    async fn on_link(&mut self, queries: &[IpAddr]) -> BTreeSet<IpAddr>;

    /// Sets how the packet engine, if there is one, forwards packets.
    fn forward(&mut self, _forwarding: Vec<Forwarding>) {}

    /// Applies all operations in order and collects the failures.
    async fn apply(&mut self, ops: &[Op]) -> Vec<OpError>;

    /// Begins sessions with peers of WireGuard that were just added, instead of waiting for a packet to them: what they send in a session of
    /// before would be lost until they notice.
    async fn greet(&mut self, _peers: &[(LinkName, PublicKey)]) {}

    /// Returns when one of our objects, the underlay or (if there are on-link queries) the main table has changed. A notification that
    /// matches `known` is not a change: our own writes come back this way.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped: unread notifications stay queued.
    async fn wait_for_change(&mut self, scope: &Scope, known: Option<&KernelState>);

    /// Whether a queued notification would end [`Kernel::wait_for_change`]. All queued notifications are consumed.
    fn change_pending(&mut self, scope: &Scope, known: Option<&KernelState>) -> bool;
}
