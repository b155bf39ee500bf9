//! Conflicts with another program about the MAC of flannel's link, because repeated rewrites of the
//! MAC would only disrupt the peers.

use netstate::object::link::Fit;
use netstate::{KernelState, LinkName, Mac};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct MacConflicts {
    seen: BTreeMap<LinkName, VecDeque<Instant>>,
    /// The MAC of another program that the reconciler has accepted.
    pub accepted_macs: BTreeMap<LinkName, Mac>,
}

impl MacConflicts {
    /// Records links whose MAC differs from the desired one. True if another program rewrote a MAC
    /// more than three times in ten seconds; the rewritten MAC is then accepted.
    pub(super) fn accept_rewritten(&mut self, want: &KernelState, have: &KernelState) -> bool {
        let now = Instant::now();
        let mut accepted = false;
        for (name, spec) in want.links() {
            // A link of another kind under our name is not ours.
            let ours = have.link(name).filter(|link| spec.fit(link) != Fit::Refused);
            let (Some(wanted), Some(found)) = (spec.mac, ours.and_then(|link| link.mac)) else {
                continue;
            };
            if wanted == found {
                continue;
            }
            let rewrites = self.seen.entry(name).or_default();
            rewrites.retain(|at| now.duration_since(*at) < Duration::from_secs(10));
            rewrites.push_back(now);
            if rewrites.len() > 3 && found.is_station() {
                tracing::warn!(
                    device = %name,
                    from = %wanted,
                    to = %found,
                    remedy = "check MACAddressPolicy of systemd-udevd",
                    "another program keeps changing the MAC of the device; announcing the new MAC"
                );
                rewrites.clear();
                self.accepted_macs.insert(name, found);
                accepted = true;
            }
        }
        accepted
    }
}
