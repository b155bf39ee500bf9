//! Hosts without a lease that ask for this node: nodes of the same network with another store, or nodes whose lease is gone.

use super::machine::Node;
use super::message::{Datagram, Now};
use crate::target::Path;
use crate::who::is_same_node;
use crate::wire::Header;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// So many are remembered.
const MOST: usize = 8;
/// How long one is remembered. A node asks each peer more often, in all but the largest clusters.
const MEMORY: Duration = Duration::from_secs(120);
/// How long one has to ask: a node that joins or leaves is one for a moment.
const LASTING: Duration = Duration::from_secs(30);

/// When a stranger asked first, and last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    first: Duration,
    last: Duration,
}

impl Node {
    /// Notes who asks without a lease, if it means this node: by its id, in whatever subnet.
    pub(super) fn stranger(&mut self, now: Now, datagram: &Datagram<'_>, header: &Header) {
        self.traffic.strangers += 1;
        let own = [self.local.who_v4, self.local.who_v6];
        let means_this = own
            .iter()
            .flatten()
            .any(|own| is_same_node(*own, header.to));
        if datagram.path != Path::Underlay || !means_this {
            return;
        }
        forget(&mut self.strangers, now.at);
        if self.strangers.len() < MOST || self.strangers.contains_key(&datagram.from) {
            let asked = self.strangers.entry(datagram.from).or_insert(Asked {
                first: now.at,
                last: now.at,
            });
            asked.last = now.at;
        }
    }

    /// Returns the addresses that have asked for this node for a while, and have no lease.
    pub fn strangers(&self, now: Now) -> Vec<IpAddr> {
        let lasts = |asked: &Asked| {
            asked.last.saturating_sub(asked.first) >= LASTING
                && now.at.saturating_sub(asked.last) < MEMORY
        };
        let has_lease = |address: &IpAddr| {
            let place = self.addresses.partition_point(|(known, _)| known < address);
            self.addresses
                .get(place)
                .is_some_and(|(known, _)| known == address)
        };
        self.strangers
            .iter()
            .filter(|(address, asked)| lasts(asked) && !has_lease(address))
            .map(|(address, _)| *address)
            .collect()
    }
}

fn forget(strangers: &mut BTreeMap<IpAddr, Asked>, now: Duration) {
    strangers.retain(|_, asked| now.saturating_sub(asked.last) < MEMORY);
}
