//! The kernel interface that the reconciler uses to read objects, gather facts, apply operations and wait for changes.

pub use crate::error::{FailureKind, KernelError, OpError};
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
    /// The queried addresses to which the underlay needs no gateway.
    pub on_link: BTreeSet<IpAddr>,
    /// MACs that another program set and that the reconciler has accepted.
    pub accepted_macs: BTreeMap<LinkName, Mac>,
}

/// The objects found in the kernel: flannel's objects, and routes that Go flannel may have left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExistingState {
    /// Objects that are on this network's devices or have this network's protocol number.
    pub ours: KernelState,
    /// Routes of protocol `boot` inside flannel's networks but not on flannel's links: candidates for adoption.
    pub leftovers: Vec<(Key, RouteSpec)>,
    /// The sessions of WireGuard's peers.
    pub sessions: Sessions,
    /// Keys of flannel's WireGuard peers that also have allowed IPs outside flannel's networks.
    pub mixed: BTreeSet<Key>,
}

/// The sessions of WireGuard's peers, by interface and peer.
pub type Sessions = BTreeMap<(LinkName, PublicKey), Session>;

/// A kernel, real or fake.
#[async_trait]
pub trait Kernel: Send {
    /// Reads all objects of flannel from the kernel.
    ///
    /// # Errors
    /// Returns an error if a dump of the kernel's objects is incomplete, because the reconciler would mistake missing objects for removed objects.
    async fn read(&mut self, scope: &Scope) -> Result<ExistingState, KernelError>;

    /// Reads only flannel's WireGuard peers, with their allowed IPs and sessions, as in [`Kernel::read`]. The
    /// kernel sends no notifications about WireGuard peers.
    ///
    /// # Errors
    /// Returns an error if a dump of the kernel's objects is incomplete.
    async fn read_peers(&mut self, _scope: &Scope) -> Result<ExistingState, KernelError> {
        Ok(ExistingState::default())
    }

    /// Reads all objects of any program in flannel's networks and on the devices that were flannel's at the last [`Kernel::read`].
    ///
    /// # Errors
    /// Returns an error if a dump of the kernel's objects is incomplete.
    async fn survey(&mut self, scope: &Scope) -> Result<Survey, KernelError>;

    /// Reads the state of the underlay, and looks up which of the queried addresses are on-link. If a lookup
    /// fails, this function uses the result of the last successful lookup.
    ///
    /// # Errors
    /// Returns an error if the kernel does not answer.
    async fn facts(
        &mut self,
        underlay: &Underlay,
        queries: &[IpAddr],
    ) -> Result<Facts, KernelError>;

    /// Returns the queried addresses that the underlay reaches without a gateway. Earlier results for addresses outside the query stay valid.
    async fn on_link(&mut self, queries: &[IpAddr]) -> BTreeSet<IpAddr>;

    /// Sets the forwarding entries of the packet engine, if a packet engine exists.
    fn forward(&mut self, _forwarding: Vec<Forwarding>) {}

    /// Applies all operations in order and collects the failures.
    async fn apply(&mut self, ops: &[Op]) -> Vec<OpError>;

    /// Starts sessions with newly added WireGuard peers, without waiting for a packet to the peers.
    /// Packets that a peer sends in an earlier session are lost until the peer notices the new session.
    async fn greet(&mut self, _peers: &[(LinkName, PublicKey)]) {}

    /// Returns when an object of flannel, the underlay or (if the plan needs on-link queries) the main routing table has changed. A notification that
    /// matches `known` is not a change: the kernel also reports flanneld's own writes.
    ///
    /// # Cancel safety
    /// Dropping the future loses no notification: unread notifications stay queued.
    async fn wait_for_change(&mut self, scope: &Scope, known: Option<&KernelState>);

    /// Returns whether a queued notification would end [`Kernel::wait_for_change`]. Consumes all queued notifications.
    fn change_pending(&mut self, scope: &Scope, known: Option<&KernelState>) -> bool;
}
