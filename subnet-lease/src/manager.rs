//! The traits that every store implements, and the types in the signatures of the traits.

pub use crate::claim::{Choice, Claim, HostEvidence, HostQueries};
use crate::config::NetworkConfig;
use crate::entry::{Entry, Listing};
use crate::lease::{Lease, LeaseAttrs};
use crate::reason::{Lasting, Reason};
use crate::table::LeaseEvent;
use async_trait::async_trait;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use types::{Addresses, Coded, DaemonPod, Durations, Histogram, Problem, Subnets};

/// State of this node's lease, which the manager publishes after each change.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Held {
    /// Time at which the lease expires without a renewal (boot-time clock); `None` for a reservation.
    pub until: Option<Duration>,
    /// Time of the last renewal of the lease (boot-time clock); `None` if the store's leases have no renewals.
    pub renewed: Option<Duration>,
    /// The current problem of the lease; `None` if the lease has no problem.
    pub trouble: Option<Reason>,
    /// Whether the problem makes the node unready at once, even if the problem is short.
    pub grave: bool,
    /// The lease, after the node has acquired it.
    pub lease: Option<Lease>,
    /// Attributes that this node has not published yet.
    pub unpublished: Option<Unpublished>,
}

/// Changed attributes that are not in the store yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpublished {
    /// Time at which the attributes changed (boot-time clock).
    pub since: Duration,
    /// Message about the attributes that the peers do not know yet.
    pub what: Problem,
}

/// Published attributes and kernel state that a node passes to the store while the node holds its lease.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// Attributes that the node publishes.
    pub attrs: watch::Receiver<LeaseAttrs>,
    /// Whether the node's kernel is in sync with the leases.
    pub programmed: watch::Receiver<bool>,
}

/// Reason why a node no longer holds its lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.problem())]
pub enum LeaseLostError {
    /// The subnet belongs to another node or is permanently lost. The daemon must lease another subnet.
    Taken(Problem),
    /// Another instance of this node holds the lease. The daemon must stop.
    Displaced(Problem),
    /// The store assigned another subnet to this node, or withdrew the subnet. The daemon must restart the network.
    Moved(Problem),
}

impl LeaseLostError {
    pub fn problem(&self) -> &Problem {
        match self {
            Self::Taken(problem) | Self::Displaced(problem) | Self::Moved(problem) => problem,
        }
    }
}

/// A task that the node needs to hold its lease, and that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Coded)]
pub enum TaskError {
    #[error("the node acquired no lease")]
    #[code("no-lease-acquired")]
    NoLease,
    #[error("the watch of this node's lease ended")]
    #[code("lease-watch-ended")]
    Watch,
    #[error("publication ended")]
    #[code("publication-ended")]
    Publication,
    #[error("the watch of this node's Node ended")]
    #[code("own-node-watch-ended")]
    OwnNode,
    #[error("the task that follows the Nodes ended")]
    #[code("nodes-watch-ended")]
    Nodes,
}

impl Lasting for TaskError {}

/// Reason why a manager cannot carry out a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.problem())]
pub enum Error {
    /// A retry may succeed: the store does not respond, or the configuration is missing or unreadable.
    Unavailable(Reason),
    /// A retry cannot succeed.
    Refused(Problem),
}

impl Error {
    pub fn unavailable(why: impl Into<Reason>) -> Self {
        Error::Unavailable(why.into())
    }

    pub fn refused(why: impl Into<Problem>) -> Self {
        Error::Refused(why.into())
    }

    pub fn problem(&self) -> &Problem {
        match self {
            Error::Unavailable(reason) => &reason.problem,
            Error::Refused(problem) => problem,
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Unavailable(reason) => reason.problem,
            Error::Refused(problem) => problem,
        }
    }
}

/// Information about this node, from a store that knows nodes before they acquire a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node's name in the store, which identifies the node.
    pub id: String,
    /// Subnets that the store assigned to the node, of the network's address families.
    pub subnets: Option<Subnets>,
    /// Public addresses that an operator chose in the store. The addresses in the store take precedence over the flags.
    pub public: Option<Addresses>,
    /// Addresses that this node published last.
    pub published: Vec<IpAddr>,
    /// Addresses that the store has for this node from other sources (a Node's InternalIPs), the preferred address first.
    pub internal: Vec<IpAddr>,
    /// Whether an operator chose the published address, which replaces the node's own address. If an operator chose
    /// the published address, the node's own address need not be unique.
    pub overwritten: bool,
    /// Addresses that other nodes claim.
    pub taken: BTreeMap<IpAddr, Claimant>,
}

/// Another node that claims an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Name of the node in the store.
    pub node: String,
    /// Whether flannel runs on the node.
    pub served: bool,
    /// Whether the node publishes the address to the other nodes and runs flannel.
    pub publishes: bool,
}

/// Manages leases in etcd, in a directory or in the Kubernetes API. Tools use only [`LeaseStore`]. A daemon uses the manager only for its own node.
#[async_trait]
pub trait SubnetManager: LeaseStore {
    /// Returns the current network configuration.
    ///
    /// # Errors
    /// Returns `Unavailable` while the configuration is missing, unreadable or invalid.
    async fn network_config(&self) -> Result<NetworkConfig, Error>;

    /// Reads the configuration that a restarted daemon would use, without any change of the manager's state.
    ///
    /// # Errors
    /// See [`SubnetManager::network_config`].
    async fn next_config(&self) -> Result<NetworkConfig, Error> {
        self.config().await
    }

    /// Returns the store's information about this node; `None` from a store that does not know nodes before they have a lease.
    ///
    /// # Errors
    /// Returns `Unavailable` while the store has no subnet for this node.
    async fn node_info(&self, _config: &NetworkConfig) -> Result<Option<NodeInfo>, Error> {
        Ok(None)
    }

    /// Returns flannel's pods on this node, in the namespace of this daemon's pod; `None` from a store without pods.
    ///
    /// # Errors
    /// Returns an error if the store does not respond or refuses the request.
    async fn daemon_pods(&self, _namespace: &str) -> Option<Result<Vec<DaemonPod>, Reason>> {
        None
    }

    /// Returns a receiver whose value changes whenever [`node_info`](Self::node_info) may have changed; `None` from a store without nodes.
    fn node_info_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// Returns the addresses of the store's servers, which help flanneld to choose the underlay
    /// interface. The list is empty if the addresses are unreadable.
    async fn servers(&self) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Withdraws published addresses that this host no longer has, because another node may be waiting for
    /// one of them. The function keeps an address that an operator chose. The function ignores failures:
    /// after a failure, peers still know the former address.
    async fn withdraw(&self, _local: &[IpAddr]) {}

    /// Reports a problem of this node's interface, with the remedy, to the store's operators.
    async fn tell_operator(&self, _problem: &Problem) {}

    /// Returns the attributes that this node last published (MAC, keys), if one of the leases belongs to this node.
    ///
    /// # Errors
    /// Returns `Refused` if the lease with this node's address belongs to another live node.
    async fn stored(
        &self,
        claim: &Claim,
        config: &NetworkConfig,
    ) -> Result<Option<LeaseAttrs>, Error>;

    /// Waits until this node has a lease: the node's existing lease or a new lease.
    ///
    /// # Errors
    /// Returns `Refused` if another live node uses this node's address or identity.
    async fn acquire(
        &self,
        claim: &Claim,
        config: &NetworkConfig,
        attrs: &LeaseAttrs,
        state: &watch::Sender<Held>,
    ) -> Result<Lease, Error>;

    /// Returns the changes of all leases as a stream. The stream begins with `Reset`, reconnects and resumes on its own, and never ends.
    fn watch(&self) -> BoxStream<'_, LeaseEvent>;

    /// Holds the lease as the only owner: renews the lease, publishes changed attributes and reports the lease's state.
    /// Returns when the node has permanently lost the lease.
    ///
    /// # Cancel safety
    /// Dropping the future does not change the lease.
    async fn hold(
        &self,
        claim: &Claim,
        config: &NetworkConfig,
        node: NodeState,
        state: watch::Sender<Held>,
    ) -> LeaseLostError;

    /// Returns the time since the last heartbeat of a lease's holder, e.g. a renewal; `None` if the time is
    /// unknown. The function sends one or two requests to the store.
    async fn last_heard(&self, _lease: &Subnets) -> Option<LastHeard> {
        None
    }

    /// Passes the current addresses of this host to the manager. The manager closes and reopens a connection whose
    /// local address this host no longer has.
    fn readdressed(&self, _local: &[IpAddr]) {}

    /// Returns the counters of calls to the store, and the unreadable leases.
    fn counters(&self) -> Arc<Counters>;

    /// Reconnects to the store and reads its TLS files again. The function returns false for a store without a connection.
    fn renew(&self) -> bool {
        false
    }
}

/// The store's information about the holder of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastHeard {
    /// Time since the holder's last heartbeat, e.g. a renewal of the lease.
    pub ago: Duration,
    /// State of the holder's Node in Kubernetes; `None` with other stores.
    pub node: Option<NodeHealth>,
}

/// State of a Node in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Whether the Node's condition Ready is True.
    pub ready: bool,
    /// Whether the Node is cordoned, so that Kubernetes schedules no new pods on it.
    pub cordoned: bool,
}

/// Time since a holder's last heartbeat, and the time until the holder's lease expires without a renewal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Liveness {
    /// Time since the holder's last heartbeat, e.g. a renewal of the lease; `None` if unknown.
    pub heard: Option<Duration>,
    /// Time until the lease expires; `None` if the lease does not expire.
    pub left: Option<Duration>,
}

/// Differences between stores that affect an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nature {
    /// Whether a lease disappears with the Node that contains it. If leases disappear with their Nodes, operators cannot reserve subnets.
    pub of_nodes: bool,
    /// Whether each query about a holder requires a request to a server.
    pub asks_a_server: bool,
}

/// Access to a store for an operator's tools, which hold no lease.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Returns the location of the leases for messages, e.g. `the Nodes of Kubernetes`.
    fn place(&self) -> String;

    /// Returns the properties in which the store differs from other stores.
    fn nature(&self) -> Nature {
        Nature::default()
    }

    /// Returns the network configuration.
    ///
    /// # Errors
    /// Returns an error if the configuration is missing, unreadable or invalid.
    async fn config(&self) -> Result<NetworkConfig, Error>;

    /// Reads all leases from the store.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    async fn list(&self) -> Result<Listing, Reason>;

    /// Returns the time since a holder's last heartbeat, and the time until its lease expires.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    async fn liveness(&self, entry: &Entry) -> Result<Liveness, Reason>;

    /// Releases a lease, unless the lease has changed since the listing. The function returns whether the store released the lease.
    ///
    /// # Errors
    /// Returns an error if the store does not respond.
    async fn release(&self, entry: &Entry) -> Result<bool, Reason>;

    /// Writes a lease that never expires: a new lease, or a replacement of `present`, unless `present` has changed
    /// since the listing. The function returns whether the store wrote the lease.
    ///
    /// # Errors
    /// Returns an error if the store does not respond, or does not support reservations.
    async fn reserve(
        &self,
        subnets: &Subnets,
        value: String,
        present: Option<&Entry>,
    ) -> Result<bool, Reason>;
}

/// Counters of calls, and the problems of the store and its keys, for metrics and the status API.
#[derive(Debug, Default)]
pub struct Counters {
    calls: Mutex<BTreeMap<&'static str, u64>>,
    unreadable: Mutex<BTreeMap<String, Problem>>,
    unavailable: Mutex<Option<(Problem, bool)>>,
    unfollowed: Mutex<Option<Problem>>,
    /// Time of the last response on the boot-time clock, in milliseconds; 0 before the first response.
    heard: AtomicU64,
    durations: Histogram,
    failures: AtomicU64,
}

impl Counters {
    /// Counts one call of the given kind to the store.
    pub fn call(&self, kind: &'static str) {
        *self.calls.lock().entry(kind).or_default() += 1;
    }

    /// Returns the number of calls to the store since the start, by kind.
    pub fn calls(&self) -> Vec<(&'static str, u64)> {
        self.calls.lock().iter().map(|(kind, count)| (*kind, *count)).collect()
    }

    /// Awaits a request to the store. The function records the duration of the request, and whether the request failed.
    pub async fn timed<T, E>(&self, request: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let began = std::time::Instant::now();
        let outcome = request.await;
        self.durations.record(began.elapsed());
        if outcome.is_err() {
            self.failed();
        }
        outcome
    }

    /// Counts a request that failed before it reached the store.
    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the durations of requests to the store, including failed requests.
    pub fn durations(&self) -> Durations {
        self.durations.snapshot()
    }

    /// Returns the number of requests that failed since the start.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Records that the store has responded or sent data.
    pub fn heard(&self) {
        self.heard
            .store(u64::try_from(boot_time().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the time at which the store last responded (boot-time clock).
    pub fn last_heard(&self) -> Option<Duration> {
        Some(self.heard.load(Ordering::Relaxed))
            .filter(|heard| *heard > 0)
            .map(Duration::from_millis)
    }

    /// Records that the store is unavailable, and the reason. `is_unready` states whether the node is not ready therefore.
    pub fn set_unavailable(&self, why: Problem, is_unready: bool) {
        *self.unavailable.lock() = Some((why, is_unready));
    }

    /// Records that the store is available: `why_unavailable` returns `None`.
    pub fn set_available(&self) {
        *self.unavailable.lock() = None;
    }

    /// Returns the reason why the store is unavailable, and whether the node is not ready therefore; `None` while the store is available or
    /// its state is unknown.
    pub fn why_unavailable(&self) -> Option<(Problem, bool)> {
        self.unavailable.lock().clone()
    }

    /// Records why the daemon cannot follow the leases; `None` if the daemon can follow the leases.
    pub fn following(&self, trouble: Option<Problem>) {
        *self.unfollowed.lock() = trouble;
    }

    /// Returns the reason why the daemon cannot follow the leases, if known. The store itself may be available while
    /// the daemon cannot follow the leases.
    pub fn why_not_followed(&self) -> Option<Problem> {
        self.unfollowed.lock().clone()
    }

    /// Records an unreadable key of the store, with the reason. The function returns true if the key or its reason is new.
    pub fn unreadable(&self, key: &str, reason: Problem) -> bool {
        const KEPT: usize = 1000;
        let mut known = self.unreadable.lock();
        if known.get(key).is_some_and(|known| *known == reason)
            || (known.len() >= KEPT && !known.contains_key(key))
        {
            return false;
        }
        known.insert(key.to_owned(), reason);
        true
    }

    /// Forgets a key that is readable again or no longer exists.
    pub fn readable(&self, key: &str) {
        self.unreadable.lock().remove(key);
    }

    /// Forgets all unreadable keys that are not in the given set.
    pub fn only(&self, keys: &BTreeSet<String>) {
        self.unreadable.lock().retain(|key, _| keys.contains(key));
    }

    /// Returns the unreadable keys, with the reasons.
    pub fn unreadable_keys(&self) -> Vec<(String, Problem)> {
        self.unreadable.lock().iter().map(|(key, why)| (key.clone(), why.clone())).collect()
    }
}

/// Returns the time of the boot-time clock, which also runs while the machine sleeps and ignores changes of the wall clock.
pub fn boot_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .unwrap_or_default()
}
