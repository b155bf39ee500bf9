//! What the daemon tells about itself: conditions, heartbeats, figures; /healthz, /readyz, /metrics and /status.

pub mod condition;
mod datapath;
mod figures;
pub mod server;

use condition::Condition;
pub use figures::Figures;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a heart may be silent unless it says otherwise.
const SILENCE: Duration = Duration::from_secs(60);

/// The daemon's state for those who ask; cheap to clone, all clones are one.
#[derive(Clone, Debug)]
pub struct Health(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    started: Instant,
    conditions: BTreeMap<Condition, String>,
    hearts: BTreeMap<String, Heart>,
    facts: BTreeMap<String, serde_json::Value>,
    unused: Arc<Vec<Unused>>,
    figures: Figures,
}

/// A lease in the store that is not used here: its holder has no route.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unused {
    /// The subnets, or the key where it names none.
    pub lease: String,
    /// The reason as in the metrics.
    pub reason: &'static str,
    /// In words for people.
    pub text: String,
}

#[derive(Clone, Copy, Debug)]
struct Heart {
    last: Instant,
    limit: Duration,
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// A daemon that has just started: alive, and not ready because of the condition [`Condition::Start`], which is to be cleared.
    pub fn new() -> Self {
        let health = Self(Arc::new(Mutex::new(Inner {
            started: Instant::now(),
            conditions: BTreeMap::new(),
            hearts: BTreeMap::new(),
            facts: BTreeMap::new(),
            unused: Arc::default(),
            figures: Figures::default(),
        })));
        health.condition(Condition::Start, Some("starting"));
        health.fact("version", env!("CARGO_PKG_VERSION"));
        health
    }

    // A task that panicked while it held the lock leaves whole values behind: each change is one assignment.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a condition with its reason, or clears it. The daemon is ready when none is set.
    pub fn condition(&self, condition: Condition, reason: Option<&str>) {
        let mut inner = self.inner();
        match reason {
            Some(reason) => inner.conditions.insert(condition, reason.to_owned()),
            None => inner.conditions.remove(&condition),
        };
    }

    /// Notes that a task lives; from its first beat on it must beat once a minute.
    pub fn beat(&self, name: &str) {
        let mut inner = self.inner();
        let limit = inner.hearts.get(name).map_or(SILENCE, |heart| heart.limit);
        inner.hearts.insert(name.to_owned(), Heart { last: Instant::now(), limit });
    }

    /// As [`Health::beat`], with another limit for its silence.
    pub fn beat_within(&self, name: &str, limit: Duration) {
        self.inner().hearts.insert(name.to_owned(), Heart { last: Instant::now(), limit });
    }

    /// A task ended as it should: its silence is none.
    pub fn rest(&self, name: &str) {
        self.inner().hearts.remove(name);
    }

    /// Whether every task that ever beat still does.
    ///
    /// # Errors
    /// Which do not, and since when.
    pub fn alive(&self) -> Result<(), String> {
        let inner = self.inner();
        let silent: Vec<String> = inner
            .hearts
            .iter()
            .filter(|(_, heart)| heart.last.elapsed() > heart.limit)
            .map(|(name, heart)| format!("{name} has not moved for {} s (limit {} s)", heart.last.elapsed().as_secs(), heart.limit.as_secs()))
            .collect();
        if silent.is_empty() { Ok(()) } else { Err(silent.join("\n")) }
    }

    /// Why the daemon is not ready; empty where it is.
    pub fn reasons(&self) -> Vec<(Condition, String)> {
        self.inner().conditions.iter().map(|(condition, reason)| (*condition, reason.clone())).collect()
    }

    /// Whether no condition is set.
    pub fn ready(&self) -> bool {
        self.inner().conditions.is_empty()
    }

    /// Tells which leases are not used: that never makes a node unready, since anybody's lease may be bad.
    pub fn set_unused(&self, unused: Arc<Vec<Unused>>) {
        self.inner().unused = unused;
    }

    /// The leases that are not used.
    pub fn unused(&self) -> Arc<Vec<Unused>> {
        self.inner().unused.clone()
    }

    /// Sets a fact of /status, e.g. `node_id`, `subnet`, `interface`.
    pub fn fact(&self, name: &str, value: impl Into<serde_json::Value>) {
        self.inner().facts.insert(name.to_owned(), value.into());
    }

    /// Changes the figures behind /metrics.
    pub fn figures(&self, change: impl FnOnce(&mut Figures)) {
        change(&mut self.inner().figures);
    }

    /// The text of /metrics.
    pub fn metrics(&self) -> String {
        let inner = self.inner();
        inner.figures.render(inner.conditions.is_empty(), inner.started.elapsed())
    }

    /// The document of /status.
    pub fn status(&self) -> serde_json::Value {
        let alive = self.alive();
        let inner = self.inner();
        let mut status = serde_json::Map::new();
        status.insert("ready".to_owned(), inner.conditions.is_empty().into());
        status.insert("alive".to_owned(), alive.is_ok().into());
        status.insert(
            "reasons".to_owned(),
            inner.conditions.iter().map(|(name, reason)| (name.to_string(), reason.as_str().into())).collect::<serde_json::Map<_, _>>().into(),
        );
        if let Err(silent) = alive {
            status.insert("silent".to_owned(), silent.into());
        }
        status.insert("uptime_seconds".to_owned(), inner.started.elapsed().as_secs().into());
        for (name, value) in &inner.facts {
            status.insert(name.clone(), value.clone());
        }
        status.insert("refused".to_owned(), serde_json::json!(*inner.unused));
        status.insert("figures".to_owned(), inner.figures.json());
        status.into()
    }
}

#[cfg(test)]
mod tests;
