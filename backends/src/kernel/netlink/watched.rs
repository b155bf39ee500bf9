//! Which of the kernel's notices concern us.

use super::decode::{link, neighbor, route};
use super::number::*;
use super::wire::{self, Received};
use crate::kernel::names::LinkName;
use crate::kernel::state::Scope;

/// What decides whether a notice concerns us.
pub(super) struct Watched<'a> {
    pub links: &'a [(LinkName, u32)],
    pub underlay: u32,
    pub asking: bool,
    pub scope: &'a Scope,
}

impl Watched<'_> {
    pub(super) fn concerns(&self, message: &Received<'_>) -> bool {
        match message.kind {
            NEWLINK | DELLINK => link(&Received { kind: NEWLINK, ..*message })
                .is_some_and(|link| link.index == self.underlay || self.is_ours(link.index) || self.scope.links.contains(&link.name)),
            NEWADDR | DELADDR => wire::u32_at(message.body, 4).is_some_and(|index| index == self.underlay || self.is_ours(index)),
            // Neighbours of pods are on other links; what is learned from traffic is not permanent and no address of ours.
            NEWNEIGH | DELNEIGH => neighbor(&Received { kind: NEWNEIGH, ..*message }).is_some_and(|seen| {
                self.is_ours(seen.index) && (seen.permanent() || seen.family != BRIDGE && seen.dst.is_some_and(|ip| self.scope.covers_ip(&ip)))
            }),
            NEWROUTE | DELROUTE => route(&Received { kind: NEWROUTE, ..*message }).filter(|seen| seen.plain).is_some_and(|seen| {
                // Routes to single pods come and go with them.
                let pod = seen.net.prefix_len() == seen.net.max_prefix_len();
                let ours = seen.spec.protocol == self.scope.protocol || self.is_ours(seen.oif);
                seen.spec.protocol != PROTOCOL_KERNEL && self.scope.covers(&seen.net) && (ours || !pod)
                    || self.asking && !self.scope.covers(&seen.net)
            }),
            _ => false,
        }
    }

    fn is_ours(&self, index: u32) -> bool {
        self.links.iter().any(|(_, ours)| *ours == index)
    }
}
