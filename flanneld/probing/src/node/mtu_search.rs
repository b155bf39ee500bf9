//! The search for the size that the way to a peer carries.

use crate::mtu::{Search, least};
use std::time::Duration;
use types::Family;

/// A search in progress.
#[derive(Debug)]
pub(super) struct MtuSearch {
    pub search: Search,
    /// By ping, where questions are not answered.
    pub by_ping: bool,
    /// The size that was asked, and until when its answer is awaited.
    pub asked: Option<(u16, Duration)>,
}

impl MtuSearch {
    pub(super) fn new(family: Family, mtu: u16, by_ping: bool) -> Self {
        Self {
            search: Search::new(least(family), mtu),
            by_ping,
            asked: None,
        }
    }

    pub(super) fn answered(&mut self, size: u16) {
        self.search.answered(size);
        self.asked = None;
    }
}
