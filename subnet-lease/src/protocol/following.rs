//! A watch of all leases as a stream of events: what is the same for every store of keys.

use super::reading;
use super::registry::{Entry, Listing};
use crate::dual::Subnets;
use crate::manager::Counters;
use crate::reason::{Reason, Told};
use crate::table::LeaseEvent;
use crate::wire;
use std::collections::VecDeque;
use std::sync::Arc;

/// Events that are ready to be handed out, and what was said of interruptions.
pub(crate) struct Following {
    counters: Arc<Counters>,
    ready: VecDeque<LeaseEvent>,
    /// Whether a list was handed out.
    listed: bool,
    /// Whether the list that was handed out is not followed at present.
    interrupted: bool,
    /// Whether the last attempt failed.
    failing: bool,
    told: Told,
}

impl Following {
    /// Nothing is known yet.
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self { counters, ready: VecDeque::new(), listed: false, interrupted: false, failing: false, told: Told::default() }
    }

    /// The next event that is ready.
    pub(crate) fn next(&mut self) -> Option<LeaseEvent> {
        self.ready.pop_front()
    }

    #[cfg(feature = "dir")]
    /// Whether the store could not be followed when that was tried last.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing
    }

    /// A complete list was read. Of the `unreadable` subnets too it is known that they are leased, and nothing more; asked for after the list was read.
    pub(crate) fn listed(&mut self, listing: Listing, unreadable: impl IntoIterator<Item = Subnets>) {
        self.listed = true;
        let (leases, mut blank) = reading::list(&self.counters, listing);
        blank.extend(unreadable);
        self.ready.push_back(LeaseEvent::Reset { leases, unreadable: blank });
    }

    /// A key was written.
    pub(crate) fn written(&mut self, entry: Entry) {
        match reading::read(&self.counters, entry) {
            Some(Ok(lease)) => self.ready.push_back(LeaseEvent::Put(lease)),
            Some(Err(subnets)) => self.unreadable(subnets),
            None => {}
        }
    }

    /// A key is there, but says nothing that can be read.
    pub(crate) fn unreadable(&mut self, subnets: Subnets) {
        self.ready.push_back(LeaseEvent::Unreadable(subnets));
    }

    /// A key was deleted.
    pub(crate) fn deleted(&mut self, key: &str) {
        self.counters.readable(key);
        self.ready.extend(wire::parse_key(key).map(LeaseEvent::Delete));
    }

    /// The store cannot be followed, also where it never could: a list that nobody follows grows old. The reason, when it is to be logged.
    pub(crate) fn interrupted(&mut self, why: Option<&Reason>) {
        self.failing = true;
        if self.listed && !std::mem::replace(&mut self.interrupted, true) {
            self.ready.push_back(LeaseEvent::Interrupted);
        }
        if let Some(why) = why
            && self.told.news(Some(why))
        {
            tracing::warn!("the watch of the leases is interrupted, everything stays as it is: {why}");
        }
    }

    /// The store is followed.
    pub(crate) fn resumed(&mut self) {
        self.failing = false;
        if std::mem::take(&mut self.interrupted) {
            self.ready.push_back(LeaseEvent::Resumed);
        }
        if self.told.news(None) {
            tracing::info!("the watch of the leases has resumed");
        }
    }
}
