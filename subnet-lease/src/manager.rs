//! What every keeper of leases offers: a few methods, each implemented whole by every manager.

pub use crate::claim::{Claim, HostFacts};
use crate::config::NetworkConfig;
use crate::lease::{Lease, LeaseAttrs};
use crate::reason::Reason;
use crate::table::LeaseEvent;
use async_trait::async_trait;
use futures_util::stream::BoxStream;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How a held lease stands, published whenever it changes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Held {
    /// On the boot-time clock: when the lease ends unless it is renewed; none for a reservation.
    pub until: Option<Duration>,
    /// What is wrong, in words for people; none while all is well.
    pub trouble: Option<Reason>,
    /// Whether the trouble is such that the node must not be trusted, however short it lasts.
    pub grave: bool,
    /// The lease as it stands, once there is one.
    pub lease: Option<Lease>,
    /// What this node wants to tell its peers and they do not know yet.
    pub untold: Option<Untold>,
}

/// Changed attributes that are not in the store yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untold {
    /// On the boot-time clock: since when.
    pub since: Duration,
    /// What the peers do not know, in words for people.
    pub what: String,
}

/// Why holding a lease ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The subnet belongs to somebody else now, or is gone for good: start anew.
    #[error("{0}")]
    Taken(String),
    /// Another instance of this very node holds the lease: this one has no business here.
    #[error("{0}")]
    Displaced(String),
}

/// Why a manager cannot do what is asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Waiting may mend it: the store does not answer, the configuration is missing or unreadable.
    #[error("{0}")]
    Unavailable(Reason),
    /// Waiting does not mend it.
    #[error("{0}")]
    Refused(String),
}

/// Keeps leases: in etcd, in a directory, in the Kubernetes API.
#[async_trait]
pub trait SubnetManager: Send + Sync {
    /// The network configuration as it is now.
    ///
    /// # Errors
    /// `Unavailable` while it is missing, unreadable or invalid.
    async fn network_config(&self) -> Result<NetworkConfig, Error>;

    /// What this node published last time (MAC, keys), when a lease is found to be its own.
    ///
    /// # Errors
    /// `Refused` when the lease of this node's address is another live node's.
    async fn stored(&self, claim: &Claim, config: &NetworkConfig) -> Result<Option<LeaseAttrs>, Error>;

    /// Waits for a lease of this node: its own, or a new one.
    ///
    /// # Errors
    /// `Refused` when another live node uses this node's address or identity.
    async fn acquire(&self, claim: &Claim, config: &NetworkConfig, attrs: &LeaseAttrs, state: &watch::Sender<Held>) -> Result<Lease, Error>;

    /// All leases as they change. Never ends; begins with `Reset`, reconnects and resumes by itself.
    fn watch(&self) -> BoxStream<'_, LeaseEvent>;

    /// Sole owner of the lease's key: renews it, republishes changed attributes, reports, returns when it is lost for good.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the key as it is.
    async fn hold(&self, claim: &Claim, config: &NetworkConfig, attrs: watch::Receiver<LeaseAttrs>, state: watch::Sender<Held>) -> Lost;

    /// This host has these addresses now: a connection that goes out from another one gets no answer and is made again.
    fn readdressed(&self, _local: &[IpAddr]) {}

    /// Counters of calls to the store by kind, and of what was met while reading.
    fn counters(&self) -> Arc<Counters>;

    /// Connects to the store anew, with the files (TLS) as they are now; false where there is no connection.
    fn renew(&self) -> bool {
        false
    }
}

/// What a manager counts.
#[derive(Debug, Default)]
pub struct Counters {
    calls: std::sync::Mutex<std::collections::BTreeMap<&'static str, u64>>,
    unreadable: std::sync::Mutex<std::collections::BTreeMap<String, String>>,
    away: std::sync::Mutex<Option<String>>,
}

impl Counters {
    /// Counts one call to the store.
    pub fn call(&self, kind: &'static str) {
        if let Ok(mut calls) = self.calls.lock() {
            *calls.entry(kind).or_default() += 1;
        }
    }

    /// Calls so far, by kind.
    pub fn calls(&self) -> Vec<(&'static str, u64)> {
        self.calls.lock().map(|calls| calls.iter().map(|(kind, count)| (*kind, *count)).collect()).unwrap_or_default()
    }

    /// Notes that the store is known to be away, and why: no lost answer, of which there may be one now and then.
    pub fn away(&self, why: &str) {
        if let Ok(mut away) = self.away.lock() {
            *away = Some(why.to_owned());
        }
    }

    /// Notes that the store is there.
    pub fn reached(&self) {
        if let Ok(mut away) = self.away.lock() {
            *away = None;
        }
    }

    /// Why the store is away; none while it is there, or nobody knows.
    pub fn why_away(&self) -> Option<String> {
        self.away.lock().ok().and_then(|away| away.clone())
    }

    /// Notes that a key cannot be read; true when that (with that reason) is news.
    pub fn unreadable(&self, key: &str, reason: &str) -> bool {
        const KEPT: usize = 1000;
        let Ok(mut known) = self.unreadable.lock() else { return false };
        if known.get(key).is_some_and(|known| known == reason) || (known.len() >= KEPT && !known.contains_key(key)) {
            return false;
        }
        known.insert(key.to_owned(), reason.to_owned()).is_none_or(|old| old != reason)
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
    pub fn unreadable_keys(&self) -> Vec<(String, String)> {
        self.unreadable.lock().map(|known| known.iter().map(|(key, why)| (key.clone(), why.clone())).collect()).unwrap_or_default()
    }
}

/// The boot-time clock: goes on while the machine sleeps, knows no time of day.
pub fn boot_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}
