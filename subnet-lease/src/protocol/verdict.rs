//! Decides how this node reacts to a change of its own key.

use super::tenure::Tenure;
use super::view::{Item, publishes};
use crate::manager::Claim;
use crate::wire;

/// Meaning of a change of this node's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its reply got lost.
    OwnWrite,
    /// An operator detached the key from the store's lease; it is now this node's reservation.
    Reserve,
    /// Another writer overwrote the key. The node restores it immediately the first time, and with delays afterwards.
    WriteBack {
        /// The writer was another instance of this node.
        contested: bool,
    },
    /// Go flannel or an operator overwrote the key, with this node's address in the value. The node restores it at most once a minute, and reports
    /// the problem.
    Overwritten,
    /// Another instance of this node has precedence.
    Displaced,
    Taken,
    /// The verdict needs the time since the writer's last renewal.
    AskLastSeen,
}

/// `alive` tells whether the writer recently renewed its lease, if known.
#[must_use]
pub fn verdict(claim: &Claim, tenure: &Tenure, item: &Item, alive: Option<bool>) -> Verdict {
    let Some(attrs) = &item.attrs else {
        return Verdict::WriteBack { contested: false };
    };
    let published = publishes(attrs, &claim.public);
    let Some(node) = &attrs.node else {
        return match (published, item.reserved()) {
            (false, _) => Verdict::Taken,
            (true, true) => Verdict::Reserve,
            (true, false) => Verdict::Overwritten,
        };
    };
    if node.id == claim.node.id && node.instance == claim.node.instance {
        let as_written = *item.entry.value == *wire::render_value(&tenure.attrs).as_bytes();
        // Until a new address is published, the published one is also ours.
        let ours =
            published || item.attrs.as_ref().is_some_and(|attrs| tenure.attrs.same_public(attrs));
        return match (item.entry.lease == tenure.lease, item.reserved()) {
            (true, _) if as_written => Verdict::OwnWrite,
            // A value with a foreign address is not meant as a reservation.
            (false, true) if ours => Verdict::Reserve,
            _ => Verdict::WriteBack { contested: false },
        };
    }
    if node.id != claim.node.id && (!published || claim.host.shared_address) {
        return Verdict::Taken;
    }
    if item.reserved() && published {
        // A live instance keeps a lease alive for a reservation. An operator's copy of an old value has none.
        match alive {
            None => return Verdict::AskLastSeen,
            Some(false) => return Verdict::Reserve,
            Some(true) => {}
        }
    }
    let ours = tenure.attrs.node.as_ref().map(|node| node.precedence());
    if ours < Some(node.precedence()) {
        Verdict::WriteBack { contested: true }
    } else {
        Verdict::Displaced
    }
}
