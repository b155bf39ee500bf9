//! After a write: whether another node has a claim to the same, and which of the two gives way.

use super::ask::{list, revoke, seen_within, txn};
use super::coroutine::Io;
use super::decide::SILENCE;
use super::problem::LeaseProblem;
use super::registry::{Compare, Write};
use super::tenure::Tenure;
use super::view::{Item, View};
use crate::config::NetworkConfig;
use crate::manager::Claim;

pub(super) enum Settled {
    Ours(View),
    Yielded,
    Refused(Box<LeaseProblem>),
}

/// Lists once more after a write. An overlapping lease that is older wins, a new lease that contains an older node's address is given up, and of
/// two new nodes with one address the later one is refused.
pub(super) async fn settle(
    io: &Io,
    claim: &Claim,
    config: &NetworkConfig,
    tenure: &mut Tenure,
    new: bool,
) -> Settled {
    let view = list(io).await;
    let Some(own) = view
        .items
        .iter()
        .find(|item| item.entry.key == tenure.key && item.entry.modified == tenure.modified)
    else {
        // Gone or rewritten already: `hold`, or the next round, deals with it.
        return if new {
            Settled::Yielded
        } else {
            Settled::Ours(view)
        };
    };
    tenure.created = own.entry.created;
    let earlier =
        |item: &&Item| item.entry.key != tenure.key && item.entry.created < tenure.created;
    let overlap = view
        .items
        .iter()
        .filter(earlier)
        .any(|item| config.contains(&item.subnets) && item.subnets.overlaps(&tenure.subnets));
    // Of a subnet and a node inside it the older lease wins too. A lease that has carried pods stays: the others decide by age.
    let holds = |item: &Item| {
        item.addresses()
            .any(|address| tenure.subnets.nets().any(|net| net.contains(&address)))
    };
    let holds_node = new
        && view
            .items
            .iter()
            .filter(earlier)
            .any(|item| config.contains(&item.subnets) && holds(item));
    if (overlap || holds_node) && tenure.lease != 0 {
        give_up(io, tenure).await;
        return Settled::Yielded;
    }
    if new && !claim.host.shared_address {
        let others = view
            .items
            .iter()
            .filter(earlier)
            .filter(|item| item.publishes(&claim.public));
        for item in others.filter(|item| item.node().is_some_and(|node| node.id != claim.node.id)) {
            if seen_within(io, item, SILENCE).await {
                give_up(io, tenure).await;
                return Settled::Refused(Box::new(LeaseProblem::address_in_use(claim, item)));
            }
        }
    }
    Settled::Ours(view)
}

/// Deletes unused keys with our address: those of this host, and those whose holder is gone; never a reservation.
pub(super) async fn sweep(io: &Io, claim: &Claim, tenure: &Tenure, view: &View) {
    for item in view
        .items
        .iter()
        .filter(|item| item.entry.key != tenure.key && !item.reserved())
    {
        let ours = item.node().is_some_and(|node| node.id == claim.node.id);
        // Where nodes share an address, it tells nothing of a key.
        if !(item.publishes(&claim.public) && !claim.host.shared_address || ours) {
            continue;
        }
        let gone = ours && item.publishes(&claim.public) || !seen_within(io, item, SILENCE).await;
        if gone {
            let compare = vec![Compare::Unchanged {
                key: item.entry.key.clone(),
                modified: item.entry.modified,
            }];
            let _ = txn(
                io,
                compare,
                vec![Write::Delete {
                    key: item.entry.key.clone(),
                }],
                &item.entry.key,
            )
            .await;
        }
    }
}

async fn give_up(io: &Io, tenure: &Tenure) {
    let gone = txn(
        io,
        tenure.unchanged(),
        vec![Write::Delete {
            key: tenure.key.clone(),
        }],
        &tenure.key,
    )
    .await;
    // If another wrote the key meanwhile, it may hang on this lease.
    if matches!(gone, Ok((true, ..))) {
        revoke(io, tenure.keepalive).await;
    }
}
