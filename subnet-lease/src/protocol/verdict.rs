//! What a change of our own key means.

use super::tenure::Tenure;
use super::view::{Item, publishes};
use crate::manager::Claim;
use crate::wire;

/// What a changed key means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Our own write, whose answer was lost.
    OwnWrite,
    /// An operator detached the key from its lease, which makes it a reservation of ours.
    Reserve,
    /// Ours, but overwritten: write it back, at once and then rarely.
    WriteBack {
        /// Another instance of this node did it.
        contested: bool,
    },
    /// Overwritten by a Go flannel (or by hand) with our address: write it back rarely, and warn.
    Overwritten,
    /// Another instance has precedence.
    Displaced,
    /// Another node's.
    Taken,
    /// Unknown until the writer was looked for.
    AskLastSeen,
}

/// Judges the present value of our key. `alive`: whether the writer was seen lately, if that is known.
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
        // Until a new address is published, the published one is ours too.
        let ours = published
            || item
                .attrs
                .as_ref()
                .is_some_and(|attrs| tenure.attrs.same_public(attrs));
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
        // A live instance keeps a keepalive beside a reservation; an operator's copy of an old value has none.
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
