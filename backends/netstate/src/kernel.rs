//! The kernel as the reconciler sees it: read what is ours, gather facts, apply operations, wake when somebody disturbs.

use crate::forwarding::Forwarding;
use crate::names::{LinkName, Mac};
use crate::object::{KernelState, Key, Op};
use crate::route::RouteSpec;
use crate::scope::Scope;
use crate::underlay::Underlay;
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// What a plan needs to know about the world beside the leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The underlay: as it was chosen, with the name and MTU that it has now.
    pub underlay: Underlay,
    /// Those of the asked addresses that are reached over the underlay without a gateway.
    pub on_link: BTreeSet<IpAddr>,
    /// MACs that somebody else insists on; the reconciler gave in.
    pub conceded: BTreeMap<LinkName, Mac>,
}

/// What was found: our objects, and routes that Go flannel may have left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// What is ours.
    pub ours: KernelState,
    /// Routes of protocol `boot` inside our networks that are not on a link of ours: candidates for adoption.
    pub leftovers: Vec<(Key, RouteSpec)>,
}

/// Why an operation failed, in the kinds that callers act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Somebody else's object is in the way; waits for them.
    Conflict,
    /// The kernel cannot do this at all.
    Unsupported,
    /// Anything else; tried again.
    Other,
}

/// An operation that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot {verb} {key}: {why}")]
pub struct OpError {
    /// What was attempted.
    pub verb: &'static str,
    /// On what.
    pub key: Key,
    /// What kind of failure.
    pub failure: Failure,
    /// What the kernel said, and the remedy.
    pub why: String,
}

/// Why the kernel could not be read or asked.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub struct KernelError {
    /// What was attempted.
    pub what: String,
    /// What came instead.
    pub why: String,
}

/// A kernel, real or not.
#[async_trait]
pub trait Kernel: Send {
    /// Everything of ours that the kernel holds.
    ///
    /// # Errors
    /// When any part could not be read whole: half a state would be taken for removals.
    async fn read(&mut self, scope: &Scope) -> Result<Found, KernelError>;

    /// The underlay and which of the asked addresses are on-link; a failed look-up repeats the last answer.
    ///
    /// # Errors
    /// When the kernel does not answer.
    async fn facts(&mut self, underlay: &Underlay, asks: &[IpAddr]) -> Result<Facts, KernelError>;

    /// Which of these addresses are reached over the underlay of the last facts without a gateway; the others' answers stay.
    async fn on_link(&mut self, asks: &[IpAddr]) -> BTreeSet<IpAddr>;

    /// Packets of our own engine, where there is one, are forwarded so from now on.
    fn forward(&mut self, _forwarding: Vec<Forwarding>) {}

    /// Applies all operations in order; failures are collected, none hides another.
    async fn apply(&mut self, ops: &[Op]) -> Vec<OpError>;

    /// Returns when something of ours, of the underlay, or (while there are asks) of the main table has changed. A notice that says of
    /// an object what is `known` of it is no change: our own writes come back as such.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped: what was not waited for is still queued.
    async fn disturbed(&mut self, scope: &Scope, known: Option<&KernelState>);

    /// Whether a notice that has come already would end [`Kernel::disturbed`]; all that have come are taken.
    fn is_disturbed(&mut self, scope: &Scope, known: Option<&KernelState>) -> bool;
}
