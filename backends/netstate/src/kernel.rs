//! What the reconciler asks of a kernel: read objects, gather facts, apply operations and wait for
//! changes.

use crate::names::{LinkName, Mac};
use crate::object::route::RouteSpec;
use crate::object::wireguard_peer::{PublicKey, Session};
use crate::object::{KernelState, Key, Op};
use crate::report::survey::Survey;
use crate::scope::Scope;
use crate::underlay::Underlay;
use async_trait::async_trait;
use ipnet::IpNet;
pub use netlink::KernelError;
use netlink::static_code;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use thiserror::Error;
use types::{Coded, Problem};

/// What a plan needs to know about the host besides the leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The chosen one, with its current name and MTU.
    pub underlay: Underlay,
    /// The queried addresses to which the underlay needs no gateway.
    pub on_link: BTreeSet<IpAddr>,
    /// Set by another program and accepted by the reconciler.
    pub accepted_macs: BTreeMap<LinkName, Mac>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExistingState {
    /// Objects on this network's devices or with its protocol number.
    pub ours: KernelState,
    /// Routes of protocol `boot` inside flannel's networks but not on flannel's links: candidates
    /// for adoption.
    pub leftovers: Vec<(Key, RouteSpec)>,
    pub sessions: Sessions,
    /// flannel's WireGuard peers that also have allowed IPs outside flannel's networks.
    pub mixed: BTreeSet<Key>,
}

/// Forwarding entries of the userspace datapath, from which a packet engine builds its own lookup
/// table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// The packet engine's TUN device.
    pub device: LinkName,
    /// In bytes.
    pub mtu: u32,
    /// Each peer's subnet and next hop.
    pub peers: Vec<(IpNet, NextHop)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The destination of this node's datagrams and the source of the peer's.
    pub address: SocketAddr,
    /// The VTEP's, if the encapsulation uses a MAC.
    pub mac: Option<Mac>,
    /// Whether the peer accepts encapsulated IPv6 packets.
    pub carries_v6: bool,
    /// Whether the peer honours the outer ECN field (RFC 6040 normal mode).
    pub outer_ecn: bool,
}

pub type Sessions = BTreeMap<(LinkName, PublicKey), Session>;

#[async_trait]
pub trait Kernel: Send {
    /// Reads all objects of flannel. An incomplete dump is an error: the reconciler would take a
    /// missing object for a removed one. A decorator may show an object that it leaves alone as it
    /// is in `want`, the desired state.
    async fn read(
        &mut self,
        scope: &Scope,
        want: &KernelState,
    ) -> Result<ExistingState, KernelError>;

    /// All objects of any program in flannel's networks and on the devices that were flannel's at
    /// the last [`Kernel::read`]. An incomplete dump is an error.
    async fn survey(&mut self, scope: &Scope) -> Result<Survey, KernelError>;

    /// Reads the state of the underlay, and looks up which of the queried addresses are on-link. If
    /// a lookup fails, its last successful result holds.
    async fn facts(
        &mut self,
        underlay: &Underlay,
        queries: &[IpAddr],
    ) -> Result<Facts, KernelError>;

    /// The queried addresses that the underlay reaches without a gateway. Earlier results for other
    /// addresses stay valid.
    async fn on_link(&mut self, queries: &[IpAddr]) -> BTreeSet<IpAddr>;

    /// Does nothing without a packet engine.
    fn forward(&mut self, _forwarding: Vec<Forwarding>) {}

    /// Applies all operations in order and collects the failures.
    async fn apply(&mut self, ops: &[Op]) -> Vec<OpError>;

    /// Waits until an object of flannel, the underlay or (if the plan needs on-link queries) the
    /// main routing table may have changed. A notification that matches `known` is not a change: the
    /// kernel also reports flanneld's own writes.
    ///
    /// # Cancel safety
    /// Dropping the future loses no notification: unread notifications stay queued.
    async fn wait_for_change(&mut self, scope: &Scope, known: Option<&KernelState>);

    /// True if a queued notification would end [`Kernel::wait_for_change`]. Consumes them all.
    fn change_pending(&mut self, scope: &Scope, known: Option<&KernelState>) -> bool;
}

/// A kernel with WireGuard, whose peers change without notifications.
#[async_trait]
pub trait WireguardKernel: Kernel {
    /// Reads only flannel's WireGuard peers, with their allowed IPs and sessions, as in
    /// [`Kernel::read`]. An incomplete dump is an error.
    async fn read_peers(&mut self, scope: &Scope) -> Result<ExistingState, KernelError>;

    /// Starts sessions with newly added peers, without waiting for a packet to them. What a peer
    /// sends in an earlier session is lost until it notices the new one.
    async fn greet(&mut self, _peers: &[(LinkName, PublicKey)]) {}
}

/// How the reconciler handles a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The kernel refuses only this object: a foreign object conflicts with it, or the kernel cannot use its address.
    Conflict,
    Unsupported,
    /// The reconciler retries the operation.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Coded)]
#[error("cannot {verb} {key}: {why}")]
#[code(static_code(why))]
#[detail(why.detail.clone())]
pub struct OpError {
    /// An infinitive.
    pub verb: &'static str,
    pub key: Key,
    pub kind: FailureKind,
    pub why: Problem,
}

impl OpError {
    pub fn new(op: &Op, kind: FailureKind, why: impl Into<Problem>) -> Self {
        Self { verb: op.verb(), key: *op.key(), kind, why: why.into() }
    }
}

impl From<OpError> for KernelError {
    fn from(error: OpError) -> Self {
        Self::new(format!("cannot {} {}", error.verb, error.key), error.why)
    }
}

pub(crate) fn vanished_interface() -> Problem {
    Problem::new("interface-missing", "the interface no longer exists")
}
