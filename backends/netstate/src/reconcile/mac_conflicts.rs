//! Somebody else who insists on another MAC for our link: a fight that nobody wins, and peers lose.

use crate::fit::Fit;
use crate::names::{LinkName, Mac};
use crate::object::{KernelState, Key, Value};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// Who rewrites the MACs of our links, and how often.
#[derive(Default)]
pub(super) struct MacConflicts {
    seen: BTreeMap<LinkName, VecDeque<Instant>>,
    /// The MACs that were accepted.
    pub conceded: BTreeMap<LinkName, Mac>,
}

impl MacConflicts {
    /// Notes links whose MAC is not the wanted one; true when one was rewritten more than three times in ten seconds and its MAC
    /// is accepted from now on.
    pub fn give_in(&mut self, want: &KernelState, have: &KernelState) -> bool {
        let now = Instant::now();
        let mut gave = false;
        for (key, value) in want.0.iter().take_while(|(key, _)| matches!(key, Key::Link(_))) {
            let (Key::Link(name), Value::Link(spec)) = (key, value) else { continue };
            let (Some(wanted), Some(found)) = (spec.mac, have.link(*name).and_then(|link| link.mac)) else { continue };
            // A link of another kind under our name is not ours to quarrel about.
            let ours = have.link(*name).is_some_and(|link| spec.fit(link) != Fit::Refused);
            if wanted == found || !ours {
                continue;
            }
            let times = self.seen.entry(*name).or_default();
            times.retain(|at| now.duration_since(*at) < Duration::from_secs(10));
            times.push_back(now);
            if times.len() > 3 && found.is_station() {
                tracing::warn!(
                    "somebody keeps changing the MAC of {name} from {wanted} to {found} (systemd-udevd's MACAddressPolicy?): {found} is announced instead"
                );
                times.clear();
                self.conceded.insert(*name, found);
                gave = true;
            }
        }
        gave
    }
}
