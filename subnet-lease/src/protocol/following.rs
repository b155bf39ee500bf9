//! Common implementation of the watch of all leases, for all key-value stores.

use super::reading;
use super::registry::{Entry, Listing};
use crate::manager::Counters;
use crate::reason::LogOnce;
use crate::table::LeaseEvent;
use crate::wire;
use std::collections::VecDeque;
use std::sync::Arc;
use types::{Problem, Subnets};

pub(crate) struct Following {
    counters: Arc<Counters>,
    ready: VecDeque<LeaseEvent>,
    /// A complete list of leases has been queued.
    listed: bool,
    /// `Interrupted` has been queued since the last resumption.
    interrupted: bool,
    /// The last attempt to follow the store failed.
    failing: bool,
    log: LogOnce,
}

impl Following {
    /// Before the first list.
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

    pub(crate) fn next(&mut self) -> Option<LeaseEvent> {
        self.ready.pop_front()
    }

    #[cfg(feature = "dir")]
    pub(crate) fn is_failing(&self) -> bool {
        self.failing
    }

    /// `unreadable` contains the subnets of keys that are not in the list. It is read after the list, because reading the list resets the counts of
    /// unreadable keys.
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

    pub(crate) fn written(&mut self, entry: Entry) {
        match reading::read(&self.counters, entry) {
            Some(Ok(lease)) => self.ready.push_back(LeaseEvent::Put(lease)),
            Some(Err(subnets)) => self.unreadable(subnets),
            None => {}
        }
    }

    pub(crate) fn unreadable(&mut self, subnets: Subnets) {
        self.ready.push_back(LeaseEvent::Unreadable(subnets));
    }

    pub(crate) fn deleted(&mut self, key: &str) {
        self.counters.readable(key);
        self.ready.extend(wire::parse_key(key).map(LeaseEvent::Delete));
    }

    /// After this, the list of leases becomes stale. `why` is logged if it is new.
    pub(crate) fn interrupted(&mut self, why: Option<&Problem>) {
        self.failing = true;
        if self.listed && !std::mem::replace(&mut self.interrupted, true) {
            self.ready.push_back(LeaseEvent::Interrupted);
        }
        let Some(why) = why else { return };
        self.counters.following(Some(why.clone()));
        if self.log.news(Some(why)) {
            tracing::warn!(code = %why.code, error = %why, "the watch of the leases is interrupted; keeping the last state");
        }
    }

    /// The watch has started or resumed.
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
