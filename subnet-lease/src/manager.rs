//! The traits that every store implements, and the types in their signatures.

pub use crate::claim::{Choice, Claim, HostEvidence, HostQueries};
use crate::config::NetworkConfig;
use crate::entry::{Entry, Listing};
use crate::lease::{Lease, LeaseAttrs};
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
use types::{Addresses, DaemonPod, Durations, Histogram, Problem, Subnets};

/// The manager publishes it after each change.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Held {
    /// When the lease expires without a renewal (boot-time clock); `None` for a reservation.
    pub until: Option<Duration>,
    /// On the boot-time clock; `None` if the store's leases have no renewals.
    pub renewed: Option<Duration>,
    /// `None` if the lease has no problem.
    pub trouble: Option<Problem>,
    /// The problem makes the node unready at once, even if it is short.
    pub grave: bool,
    /// Set once the node has acquired it.
    pub lease: Option<Lease>,
    pub unpublished: Option<Unpublished>,
}

/// Changed attributes that are not in the store yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpublished {
    /// When they changed (boot-time clock).
    pub since: Duration,
    /// Message about what the peers do not know yet.
    pub what: Problem,
}

/// What a node passes to the store while it holds its lease.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// To publish.
    pub attrs: watch::Receiver<LeaseAttrs>,
    /// Whether the node's kernel is in sync with the leases.
    pub programmed: watch::Receiver<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.problem())]
pub enum LeaseLostError {
    /// The subnet belongs to another node or is permanently lost. The daemon must lease another one.
    Taken(Problem),
    /// Another instance of this node holds the lease. The daemon must stop.
    Displaced(Problem),
    /// The store assigned another subnet to this node, or withdrew it. The daemon must restart the network.
    Moved(Problem),
}

impl LeaseLostError {
    #[must_use]
    pub fn problem(&self) -> &Problem {
        match self {
            Self::Taken(problem) | Self::Displaced(problem) | Self::Moved(problem) => problem,
        }
    }
}

/// From [`SubnetManager::hold`] before [`SubnetManager::acquire`].
#[must_use]
pub fn no_lease_acquired() -> LeaseLostError {
    LeaseLostError::Taken(Problem::new("no-lease-acquired", "the node acquired no lease"))
}

/// From [`SubnetManager::hold`] when the daemon no longer tells its attributes.
#[must_use]
pub fn publication_ended() -> LeaseLostError {
    LeaseLostError::Taken(Problem::new("publication-ended", "publication ended"))
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.problem())]
pub enum Error {
    /// A retry may succeed: the store does not respond, or the configuration is missing or unreadable.
    Unavailable(Problem),
    /// A retry cannot succeed.
    Refused(Problem),
}

impl Error {
    #[must_use]
    pub fn problem(&self) -> &Problem {
        match self {
            Error::Unavailable(problem) | Error::Refused(problem) => problem,
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Unavailable(problem) | Error::Refused(problem) => problem,
        }
    }
}

/// From a store that knows nodes before they acquire a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node's name in the store.
    pub id: String,
    /// Those that the store assigned to the node, of the network's address families.
    pub subnets: Option<Subnets>,
    /// Those that an operator chose in the store. They take precedence over the flags.
    pub public: Option<Addresses>,
    /// What this node published last.
    pub published: Vec<IpAddr>,
    /// From other sources (a Node's InternalIPs), the preferred address first.
    pub internal: Vec<IpAddr>,
    /// An operator chose the published address. The node's own address, which it replaces, need not be unique.
    pub overwritten: bool,
    /// Claimed by other nodes.
    pub taken: BTreeMap<IpAddr, Claimant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Name in the store.
    pub node: String,
    /// Flannel runs on the node.
    pub served: bool,
    /// Flannel runs on the node, and it publishes the address to the other nodes.
    pub publishes: bool,
}

/// Manages leases in etcd, in a directory or in the Kubernetes API. Tools use only [`LeaseStore`]. A daemon uses the manager only for its own node.
#[async_trait]
pub trait SubnetManager: LeaseStore {
    /// `Unavailable` while the configuration is missing, unreadable or invalid.
    async fn network_config(&self) -> Result<NetworkConfig, Error>;

    /// The configuration that a restarted daemon would use. The manager's state does not change.
    async fn next_config(&self) -> Result<NetworkConfig, Error> {
        self.config().await
    }

    /// `None` from a store that does not know nodes before they have a lease. `Unavailable` while the store has no subnet for this node.
    async fn node_info(&self, _config: &NetworkConfig) -> Result<Option<NodeInfo>, Error> {
        Ok(None)
    }

    /// Flannel's pods on this node, in the namespace of this daemon's pod; `None` from a store without pods.
    async fn daemon_pods(&self, _namespace: &str) -> Option<Result<Vec<DaemonPod>, Problem>> {
        None
    }

    /// The value changes whenever [`node_info`](Self::node_info) may have changed; `None` from a store without nodes.
    fn node_info_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// The addresses help flanneld to choose the underlay interface. Empty if they are unreadable.
    async fn servers(&self) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Withdraws published addresses that this host no longer has, because another node may be waiting for one of them. An address that an operator
    /// chose stays. After a failure, which is ignored, peers still know the former address.
    async fn withdraw(&self, _local: &[IpAddr]) {}

    /// For a problem of this node's interface, with the remedy.
    async fn tell_operator(&self, _problem: &Problem) {}

    /// What this node last published (MAC, keys), if one of the leases belongs to it. `Refused` if the lease with this node's address belongs to
    /// another live node.
    async fn stored(
        &self,
        claim: &Claim,
        config: &NetworkConfig,
    ) -> Result<Option<LeaseAttrs>, Error>;

    /// Waits until this node has a lease, its existing one or a new one. `Refused` if another live node uses this node's address or identity.
    async fn acquire(
        &self,
        claim: &Claim,
        config: &NetworkConfig,
        attrs: &LeaseAttrs,
        state: &watch::Sender<Held>,
    ) -> Result<Lease, Error>;

    /// The changes of all leases. The stream begins with `Reset`, reconnects and resumes on its own, and never ends.
    fn watch(&self) -> BoxStream<'_, LeaseEvent>;

    /// Holds the lease as the only owner: renews it, publishes changed attributes and reports its state. Ends when the node has permanently lost the
    /// lease.
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

    /// Time since the holder's last heartbeat, e.g. a renewal; `None` if unknown. Costs one or two requests to the store.
    async fn last_heard(&self, _lease: &Subnets) -> Option<LastHeard> {
        None
    }

    /// Takes the current addresses of this host. The manager reopens a connection whose local address this host no longer has.
    fn readdressed(&self, _local: &[IpAddr]) {}

    /// Also has the unreadable leases.
    fn counters(&self) -> Arc<Counters>;

    /// Reconnects to the store and reads its TLS files again. False for a store without a connection.
    fn renew(&self) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastHeard {
    /// Time since the holder's last heartbeat, e.g. a renewal of the lease.
    pub ago: Duration,
    /// `None` with other stores than Kubernetes.
    pub node: Option<NodeHealth>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// The Node's condition Ready is True.
    pub ready: bool,
    /// Kubernetes schedules no new pods on the Node.
    pub cordoned: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Liveness {
    /// Time since the holder's last heartbeat, e.g. a renewal of the lease; `None` if unknown.
    pub heard: Option<Duration>,
    /// Time until the lease expires without a renewal; `None` if it does not expire.
    pub left: Option<Duration>,
}

/// Differences between stores that affect an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nature {
    /// A lease disappears with the Node that contains it. So operators cannot reserve subnets.
    pub of_nodes: bool,
    /// Each query about a holder requires a request to a server.
    pub asks_a_server: bool,
}

/// For an operator's tools, which hold no lease.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Where the leases are, for messages, e.g. `the Nodes of Kubernetes`.
    fn place(&self) -> String;

    fn nature(&self) -> Nature {
        Nature::default()
    }

    async fn config(&self) -> Result<NetworkConfig, Error>;

    async fn list(&self) -> Result<Listing, Problem>;

    async fn liveness(&self, entry: &Entry) -> Result<Liveness, Problem>;

    /// Does nothing if the lease has changed since the listing. True if the store released it.
    async fn release(&self, entry: &Entry) -> Result<bool, Problem>;

    /// Writes a lease that never expires: a new one, or a replacement of `present`, unless that has changed since the listing. True if the store
    /// wrote it. Some stores do not support reservations.
    async fn reserve(
        &self,
        subnets: &Subnets,
        value: String,
        present: Option<&Entry>,
    ) -> Result<bool, Problem>;
}

/// For metrics and the status API.
#[derive(Debug, Default)]
pub struct Counters {
    calls: Mutex<BTreeMap<&'static str, u64>>,
    unreadable: Mutex<BTreeMap<String, Problem>>,
    unavailable: Mutex<Option<(Problem, bool)>>,
    unfollowed: Mutex<Option<Problem>>,
    /// On the boot-time clock, in milliseconds; 0 before the first response.
    heard: AtomicU64,
    durations: Histogram,
    failures: AtomicU64,
}

impl Counters {
    pub fn call(&self, kind: &'static str) {
        *self.calls.lock().entry(kind).or_default() += 1;
    }

    /// Since the start, by kind.
    pub fn calls(&self) -> Vec<(&'static str, u64)> {
        self.calls.lock().iter().map(|(kind, count)| (*kind, *count)).collect()
    }

    /// Records how long the request takes, and whether it fails.
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

    /// Including failed requests.
    pub fn durations(&self) -> Durations {
        self.durations.snapshot()
    }

    /// Since the start.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// The store has responded or sent data.
    pub fn heard(&self) {
        self.heard
            .store(u64::try_from(boot_time().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// On the boot-time clock.
    pub fn last_heard(&self) -> Option<Duration> {
        Some(self.heard.load(Ordering::Relaxed))
            .filter(|heard| *heard > 0)
            .map(Duration::from_millis)
    }

    /// `is_unready` states whether the node is not ready therefore.
    pub fn set_unavailable(&self, why: Problem, is_unready: bool) {
        *self.unavailable.lock() = Some((why, is_unready));
    }

    pub fn set_available(&self) {
        *self.unavailable.lock() = None;
    }

    /// With whether the node is not ready therefore. `None` while the store is available or its state is unknown.
    pub fn why_unavailable(&self) -> Option<(Problem, bool)> {
        self.unavailable.lock().clone()
    }

    /// Records why the daemon cannot follow the leases; `None` if it can.
    pub fn following(&self, trouble: Option<Problem>) {
        *self.unfollowed.lock() = trouble;
    }

    /// Why the daemon cannot follow the leases, if known. The store itself may be available meanwhile.
    pub fn why_not_followed(&self) -> Option<Problem> {
        self.unfollowed.lock().clone()
    }

    /// True if the key or its reason is new.
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

    pub fn unreadable_keys(&self) -> Vec<(String, Problem)> {
        self.unreadable.lock().iter().map(|(key, why)| (key.clone(), why.clone())).collect()
    }
}

/// This clock also runs while the machine sleeps, and ignores changes of the wall clock.
pub fn boot_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .unwrap_or_default()
}
