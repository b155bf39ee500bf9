//! Common implementation of the watch of all leases, for all key-value stores.

use super::reading;
use super::registry::{Entry, Listing};
use crate::manager::Counters;
use crate::reason::{LogOnce, Reason};
use crate::table::LeaseEvent;
use crate::wire;
use std::collections::VecDeque;
use std::sync::Arc;
use types::Subnets;

/// Queued lease events, and the state of the watch of all leases.
pub(crate) struct Following {
    counters: Arc<Counters>,
    ready: VecDeque<LeaseEvent>,
    /// Whether the watch has queued a complete list of leases.
    listed: bool,
    /// Whether the watch has queued `Interrupted` since the last resumption.
    interrupted: bool,
    /// Whether the last attempt to follow the store failed.
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

    /// Returns the next queued lease event.
    pub(crate) fn next(&mut self) -> Option<LeaseEvent> {
        self.ready.pop_front()
    }

    #[cfg(feature = "dir")]
    /// Returns whether the last attempt to follow the store failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing
    }

    /// Handles a complete list. `unreadable` contains the subnets of keys that are not in the list. The function
    /// reads `unreadable` after the list, because reading the list resets the counts of unreadable keys.
    pub(crate) fn listed(
        &mut self,
        listing: Listing,
        unreadable: impl IntoIterator<Item = Subnets>,
    ) {
        self.listed = true;
        let (leases, mut blank) = reading::list(&self.counters, listing);
        blank.extend(unreadable);
        self.ready.push_back(LeaseEvent::Reset { leases, unreadable: blank });
    }

    /// Handles a written key.
    pub(crate) fn written(&mut self, entry: Entry) {
        match reading::read(&self.counters, entry) {
            Some(Ok(lease)) => self.ready.push_back(LeaseEvent::Put(lease)),
            Some(Err(subnets)) => self.unreadable(subnets),
            None => {}
        }
    }

    /// Queues an event for a key with an unreadable value.
    pub(crate) fn unreadable(&mut self, subnets: Subnets) {
        self.ready.push_back(LeaseEvent::Unreadable(subnets));
    }

    /// Handles a deleted key.
    pub(crate) fn deleted(&mut self, key: &str) {
        self.counters.readable(key);
        self.ready.extend(wire::parse_key(key).map(LeaseEvent::Delete));
    }

    /// Records a failure to follow the store, after which the list of leases becomes stale. The function logs `why` if `why` is present and new.
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
            tracing::warn!(code = %why.problem.code, error = %why, "the watch of the leases is interrupted; keeping the last state");
        }
    }

    /// Records that the watch has started or resumed.
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
