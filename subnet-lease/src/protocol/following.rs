//! The part of a watch of all leases that is the same for every store of keys.

use super::reading;
use super::registry::{Entry, Listing};
use crate::manager::Counters;
use crate::reason::{LogOnce, Reason};
use crate::table::LeaseEvent;
use crate::wire;
use std::collections::VecDeque;
use std::sync::Arc;
use types::Subnets;

/// Events that are ready, and the state of the watch.
pub(crate) struct Following {
    counters: Arc<Counters>,
    ready: VecDeque<LeaseEvent>,
    /// Whether a list was handed out.
    listed: bool,
    /// Whether `Interrupted` was handed out.
    interrupted: bool,
    /// Whether the last attempt failed.
    failing: bool,
    log: LogOnce,
}

impl Following {
    /// Creates the state before the first list.
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self {
            counters,
            ready: VecDeque::new(),
            listed: false,
            interrupted: false,
            failing: false,
            log: LogOnce::default(),
        }
    }

    /// The next event that is ready.
    pub(crate) fn next(&mut self) -> Option<LeaseEvent> {
        self.ready.pop_front()
    }

    #[cfg(feature = "dir")]
    /// Whether the last attempt to follow the store failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing
    }

    /// A complete list was read. `unreadable` are subnets of keys that are not in it; they are read after the list, which resets the counts.
    pub(crate) fn listed(
        &mut self,
        listing: Listing,
        unreadable: impl IntoIterator<Item = Subnets>,
    ) {
        self.listed = true;
        let (leases, mut blank) = reading::list(&self.counters, listing);
        blank.extend(unreadable);
        self.ready.push_back(LeaseEvent::Reset {
            leases,
            unreadable: blank,
        });
    }

    /// A key was written.
    pub(crate) fn written(&mut self, entry: Entry) {
        match reading::read(&self.counters, entry) {
            Some(Ok(lease)) => self.ready.push_back(LeaseEvent::Put(lease)),
            Some(Err(subnets)) => self.unreadable(subnets),
            None => {}
        }
    }

    /// A key exists, but its value cannot be read.
    pub(crate) fn unreadable(&mut self, subnets: Subnets) {
        self.ready.push_back(LeaseEvent::Unreadable(subnets));
    }

    /// A key was deleted.
    pub(crate) fn deleted(&mut self, key: &str) {
        self.counters.readable(key);
        self.ready
            .extend(wire::parse_key(key).map(LeaseEvent::Delete));
    }

    /// The store cannot be followed, or never could be: a list that is not followed gets stale. `why` is logged if it is given and new.
    pub(crate) fn interrupted(&mut self, why: Option<&Reason>) {
        self.failing = true;
        if self.listed && !std::mem::replace(&mut self.interrupted, true) {
            self.ready.push_back(LeaseEvent::Interrupted);
        }
        if let Some(why) = why {
            self.counters.following(Some(why.problem.clone()));
        }
        if let Some(why) = why
            && self.log.news(Some(why))
        {
            tracing::warn!(code = %why.problem.code, error = %why, "the watch of the leases is interrupted, everything stays as it is");
        }
    }

    /// The store is followed.
    pub(crate) fn resumed(&mut self) {
        self.failing = false;
        self.counters.following(None);
        if std::mem::take(&mut self.interrupted) {
            self.ready.push_back(LeaseEvent::Resumed);
        }
        if self.log.news(None) {
            tracing::info!("the watch of the leases has resumed");
        }
    }
}
