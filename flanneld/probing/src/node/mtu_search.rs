//! The search for the MTU of the path to one peer.

use crate::mtu::{Search, least};
use std::time::Duration;
use types::Family;

#[derive(Debug)]
pub(super) struct MtuSearch {
    pub search: Search,
    /// Whether the search uses ping, because the peer replies only to ping.
    pub by_ping: bool,
    /// Its size in bytes and the deadline of its reply.
    pub asked: Option<(u16, Duration)>,
}

impl MtuSearch {
    pub(super) fn new(family: Family, mtu: u16, by_ping: bool) -> Self {
        Self { search: Search::new(least(family), mtu), by_ping, asked: None }
    }

    pub(super) fn answered(&mut self, size: u16) {
        self.search.answered(size);
        self.asked = None;
    }
}
