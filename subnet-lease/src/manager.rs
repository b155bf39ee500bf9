//! The interface of every store: a few methods, which each manager implements in full.

pub use crate::claim::{Choice, Claim, HostEvidence, HostQueries};
use crate::config::NetworkConfig;
use crate::entry::{Entry, Listing};
use crate::lease::{Lease, LeaseAttrs};
use crate::reason::{Lasting, Reason};
use crate::table::LeaseEvent;
use async_trait::async_trait;
use futures_util::stream::BoxStream;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use types::{Addresses, DaemonPod, Subnets};
use types::{Coded, Problem};

/// The state of a held lease, published whenever it changes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Held {
    /// When the lease expires unless it is renewed (boot-time clock); none for a reservation.
    pub until: Option<Duration>,
    /// When it was renewed last (boot-time clock); none where leases are not renewed.
    pub renewed: Option<Duration>,
    /// What is wrong; none while all is well.
    pub trouble: Option<Reason>,
    /// Whether the trouble makes the node not ready at once, however short it lasts.
    pub grave: bool,
    /// The lease, once there is one.
    pub lease: Option<Lease>,
    /// Changes of this node that are not published yet.
    pub unpublished: Option<Unpublished>,
}

/// Changed attributes that are not in the store yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpublished {
    /// Since when (boot-time clock).
    pub since: Duration,
    /// What the peers do not know.
    pub what: Problem,
}

/// What a node tells the store while it holds its lease.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// What it publishes.
    pub attrs: watch::Receiver<LeaseAttrs>,
    /// Whether its kernel does what the leases ask for.
    pub programmed: watch::Receiver<bool>,
}

/// Why holding a lease ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The subnet belongs to another node, or is gone for good: the daemon has to start over.
    Taken(Problem),
    /// Another instance of this node holds the lease: this one has to stop.
    Displaced(Problem),
    /// The store gave this node another subnet, or took it away: the network has to be restarted.
    Moved(Problem),
}

impl Lost {
    /// Returns why the lease was lost.
    pub fn problem(&self) -> &Problem {
        match self {
            Lost::Taken(problem) | Lost::Displaced(problem) | Lost::Moved(problem) => problem,
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem().fmt(f)
    }
}

/// A task on which holding a lease depends has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// No lease was acquired.
    NoLease,
    /// The watch of this node's lease.
    Watch,
    /// The source of what is published.
    Publication,
    /// Following this node's Node.
    OwnNode,
    /// Following the Nodes.
    Nodes,
}

impl Coded for Stopped {
    fn code(&self) -> &'static str {
        match self {
            Stopped::NoLease => "no-lease-acquired",
            Stopped::Watch => "lease-watch-ended",
            Stopped::Publication => "publication-ended",
            Stopped::OwnNode => "own-node-watch-ended",
            Stopped::Nodes => "nodes-watch-ended",
        }
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        types::problem::text(f, self, |f| {
            f.write_str(match self {
                Stopped::NoLease => "no lease was acquired",
                Stopped::Watch => "the watch of this node's lease ended",
                Stopped::Publication => "publication ended",
                Stopped::OwnNode => "following this node's Node ended",
                Stopped::Nodes => "following the Nodes ended",
            })
        })
    }
}

impl Lasting for Stopped {}

/// Why a manager cannot do what it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A retry may succeed: the store does not answer, or the configuration is missing or unreadable.
    Unavailable(Reason),
    /// A retry cannot succeed.
    Refused(Problem),
}

impl Error {
    /// Creates an error after which the caller retries.
    pub fn unavailable(why: impl Into<Reason>) -> Self {
        Error::Unavailable(why.into())
    }

    /// Creates an error that ends the daemon.
    pub fn refused(why: impl Into<Problem>) -> Self {
        Error::Refused(why.into())
    }

    /// Returns the problem without the decision to retry.
    pub fn problem(&self) -> &Problem {
        match self {
            Error::Unavailable(reason) => &reason.problem,
            Error::Refused(problem) => problem,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem().fmt(f)
    }
}

impl std::error::Error for Error {}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Unavailable(reason) => reason.problem,
            Error::Refused(problem) => problem,
        }
    }
}

/// What a store that knows its nodes says of this one, before the node asks for its lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node's name there, which identifies it.
    pub id: String,
    /// The subnets that the store assigned, of the families of the network.
    pub subnets: Option<Subnets>,
    /// The public addresses that an operator chose there; they beat the flags.
    pub public: Option<Addresses>,
    /// The addresses that this node published last.
    pub published: Vec<IpAddr>,
    /// The addresses that the store has for this node from elsewhere (a Node's InternalIPs), the preferred first.
    pub internal: Vec<IpAddr>,
    /// Whether an operator chose the published address, behind which the node's own is: then others may have that one too.
    pub overwritten: bool,
    /// The addresses that other nodes claim.
    pub taken: BTreeMap<IpAddr, Claimant>,
}

/// Another node that claims an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Name of the node, as the store identifies it.
    pub node: String,
    /// Whether flannel serves it.
    pub served: bool,
    /// Whether it publishes the address to the other nodes, and flannel serves it.
    pub publishes: bool,
}

/// Keeps leases: in etcd, in a directory, in the Kubernetes API. Tools use the store alone; a daemon has one node served by it.
#[async_trait]
pub trait SubnetManager: LeaseStore {
    /// The present network configuration.
    ///
    /// # Errors
    /// `Unavailable` while it is missing, unreadable or invalid.
    async fn network_config(&self) -> Result<NetworkConfig, Error>;

    /// What the store knows of this node; `None` from a store that knows nothing of nodes before they have a lease.
    ///
    /// # Errors
    /// `Unavailable` while the store has no subnet for this node.
    async fn node_info(&self, _config: &NetworkConfig) -> Result<Option<NodeInfo>, Error> {
        Ok(None)
    }

    /// The pods of flannel on this node, in the namespace of this daemon's pod; `None` from a store that knows no pods.
    ///
    /// # Errors
    /// The store does not answer, or refuses.
    async fn daemon_pods(&self, _namespace: &str) -> Option<Result<Vec<DaemonPod>, Reason>> {
        None
    }

    /// Changes whenever that may have changed; `None` from a store that knows no nodes.
    fn node_info_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// The addresses of the store's servers, where they help to find the interface; empty where they cannot be read.
    async fn servers(&self) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Withdraws published addresses that this host no longer has: another node may be waiting for one of them. An address that an operator
    /// chose stays. Failures are not reported: peers know the address as before.
    async fn withdraw(&self, _local: &[IpAddr]) {}

    /// Tells the operators of the store what they have to do about this node's interface.
    async fn tell_operator(&self, _problem: &Problem) {}

    /// What this node published last time (MAC, keys), if a lease is its own.
    ///
    /// # Errors
    /// `Refused` if another live node holds the lease of this node's address.
    async fn stored(
        &self,
        claim: &Claim,
        config: &NetworkConfig,
    ) -> Result<Option<LeaseAttrs>, Error>;

    /// Waits for a lease of this node: its own, or a new one.
    ///
    /// # Errors
    /// `Refused` if another live node uses this node's address or identity.
    async fn acquire(
        &self,
        claim: &Claim,
        config: &NetworkConfig,
        attrs: &LeaseAttrs,
        state: &watch::Sender<Held>,
    ) -> Result<Lease, Error>;

    /// All leases as they change. Begins with `Reset`, reconnects and resumes by itself, never ends.
    fn watch(&self) -> BoxStream<'_, LeaseEvent>;

    /// Keeps the lease as its sole owner: renews it, publishes changed attributes, reports its state. Returns when it is lost for good.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the lease as it is.
    async fn hold(
        &self,
        claim: &Claim,
        config: &NetworkConfig,
        node: NodeState,
        state: watch::Sender<Held>,
    ) -> Lost;

    /// When the holder of a lease was last heard of; `None` where that cannot be told. Costs a request or two.
    async fn last_heard(&self, _lease: &Subnets) -> Option<LastHeard> {
        None
    }

    /// Tells which addresses this host has now: a connection from any other local address is replaced.
    fn readdressed(&self, _local: &[IpAddr]) {}

    /// Counts of calls to the store, and the leases that cannot be read.
    fn counters(&self) -> Arc<Counters>;

    /// Reconnects to the store and reads its TLS files again; false for a store without a connection.
    fn renew(&self) -> bool {
        false
    }
}

/// What the store knows of the holder of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastHeard {
    /// How long ago it was heard of.
    pub ago: Duration,
    /// What Kubernetes says of its Node; `None` with other stores.
    pub node: Option<NodeHealth>,
}

/// What Kubernetes says of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Whether its condition Ready is True.
    pub ready: bool,
    /// Whether it is cordoned: no new pods are placed there.
    pub cordoned: bool,
}

/// When a holder was last seen, and when its lease ends unless it is renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Liveness {
    /// How long ago the holder was last seen; `None` where that cannot be told.
    pub heard: Option<Duration>,
    /// Time until the lease ends; `None` where it does not.
    pub left: Option<Duration>,
}

/// In what a store differs for an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nature {
    /// Whether leases end with the Nodes that they are written on. Then nothing can be reserved.
    pub of_nodes: bool,
    /// Whether each question about a holder takes a request to a server.
    pub asks_a_server: bool,
}

/// A store as an operator's tools use it, who serve no node.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Where the leases are: `the Nodes of Kubernetes`.
    fn place(&self) -> String;

    /// In what it differs from other stores.
    fn nature(&self) -> Nature {
        Nature::default()
    }

    /// The network configuration.
    ///
    /// # Errors
    /// It is missing, unreadable or invalid.
    async fn config(&self) -> Result<NetworkConfig, Error>;

    /// Reads all leases from the store.
    ///
    /// # Errors
    /// The store does not answer.
    async fn list(&self) -> Result<Listing, Reason>;

    /// The last sign of life of a holder.
    ///
    /// # Errors
    /// The store does not answer.
    async fn liveness(&self, entry: &Entry) -> Result<Liveness, Reason>;

    /// Takes a lease away, unless it changed since it was listed; whether it did.
    ///
    /// # Errors
    /// The store does not answer.
    async fn release(&self, entry: &Entry) -> Result<bool, Reason>;

    /// Writes a lease that never ends: a new one, or in the place of `present` unless that has changed since it was listed; whether it did.
    ///
    /// # Errors
    /// The store does not answer, or its leases cannot be reserved.
    async fn reserve(
        &self,
        subnets: &Subnets,
        value: String,
        present: Option<&Entry>,
    ) -> Result<bool, Reason>;
}

/// Counters and states of a manager, which metrics and `/status` read.
#[derive(Debug, Default)]
pub struct Counters {
    calls: std::sync::Mutex<BTreeMap<&'static str, u64>>,
    unreadable: std::sync::Mutex<BTreeMap<String, Problem>>,
    unavailable: std::sync::Mutex<Option<Problem>>,
    unfollowed: std::sync::Mutex<Option<Problem>>,
    /// Boot time in milliseconds; 0 before the first answer.
    heard: std::sync::atomic::AtomicU64,
}

impl Counters {
    /// Counts one call to the store.
    pub fn call(&self, kind: &'static str) {
        if let Ok(mut calls) = self.calls.lock() {
            *calls.entry(kind).or_default() += 1;
        }
    }

    /// Returns the number of calls to the store since the start, by kind.
    pub fn calls(&self) -> Vec<(&'static str, u64)> {
        self.calls
            .lock()
            .map(|calls| calls.iter().map(|(kind, count)| (*kind, *count)).collect())
            .unwrap_or_default()
    }

    /// Notes that the store has answered, or sent something.
    pub fn heard(&self) {
        self.heard.store(
            u64::try_from(boot_time().as_millis()).unwrap_or(u64::MAX),
            std::sync::atomic::Ordering::Relaxed,
        );
    }

    /// When the store was heard last (boot-time clock).
    pub fn last_heard(&self) -> Option<Duration> {
        Some(self.heard.load(std::sync::atomic::Ordering::Relaxed))
            .filter(|heard| *heard > 0)
            .map(Duration::from_millis)
    }

    /// Notes that the store is unavailable, and why. A single lost answer does not count.
    pub fn set_unavailable(&self, why: Problem) {
        if let Ok(mut unavailable) = self.unavailable.lock() {
            *unavailable = Some(why);
        }
    }

    /// Notes that the store is available: `why_unavailable` returns `None`.
    pub fn set_available(&self) {
        if let Ok(mut unavailable) = self.unavailable.lock() {
            *unavailable = None;
        }
    }

    /// Why the store is unavailable; none while it is available or its state is unknown.
    pub fn why_unavailable(&self) -> Option<Problem> {
        self.unavailable
            .lock()
            .ok()
            .and_then(|unavailable| unavailable.clone())
    }

    /// Notes why the leases cannot be followed, or that they are.
    pub fn following(&self, trouble: Option<Problem>) {
        if let Ok(mut unfollowed) = self.unfollowed.lock() {
            *unfollowed = trouble;
        }
    }

    /// Why the leases cannot be followed, as far as it is known; the store may be available all the same.
    pub fn why_not_followed(&self) -> Option<Problem> {
        self.unfollowed
            .lock()
            .ok()
            .and_then(|unfollowed| unfollowed.clone())
    }

    /// Notes that a key cannot be read; true if that is new, or the reason is.
    pub fn unreadable(&self, key: &str, reason: Problem) -> bool {
        const KEPT: usize = 1000;
        let Ok(mut known) = self.unreadable.lock() else {
            return false;
        };
        if known.get(key).is_some_and(|known| *known == reason)
            || (known.len() >= KEPT && !known.contains_key(key))
        {
            return false;
        }
        known.insert(key.to_owned(), reason);
        true
    }

    /// Forgets a key that can be read again or is gone.
    pub fn readable(&self, key: &str) {
        if let Ok(mut known) = self.unreadable.lock() {
            known.remove(key);
        }
    }

    /// Forgets all keys that are not among these.
    pub fn only(&self, keys: &BTreeSet<String>) {
        if let Ok(mut known) = self.unreadable.lock() {
            known.retain(|key, _| keys.contains(key));
        }
    }

    /// Keys that cannot be read, with the reason.
    pub fn unreadable_keys(&self) -> Vec<(String, Problem)> {
        self.unreadable
            .lock()
            .map(|known| {
                known
                    .iter()
                    .map(|(key, why)| (key.clone(), why.clone()))
                    .collect()
            })
            .unwrap_or_default()
    }
}

/// The boot-time clock: it runs while the machine sleeps and does not follow the time of day.
pub fn boot_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .unwrap_or_default()
}
