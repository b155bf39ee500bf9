//! Checks after a write whether another node claims the same subnet or address, and decides which node yields.

use super::ask::{list, revoke, seen_within, txn};
use super::coroutine::Io;
use super::decide::SILENCE;
use super::error::address_in_use;
use super::registry::{Compare, Write};
use super::tenure::Tenure;
use super::view::{Item, View};
use crate::config::NetworkConfig;
use crate::manager::Claim;
use types::Problem;

pub(super) enum Settled {
    Ours(View),
    Yielded,
    Refused(Problem),
}

/// Lists the keys once more after a write, and resolves conflicts with other leases. If leases overlap, the older one takes precedence. A node
/// releases a new lease if its subnet contains the address of a node with an older lease. If two new nodes have the same address, the later one
/// releases its lease.
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
        // The key is already gone or rewritten. `hold`, or the next round, handles that.
        return if new { Settled::Yielded } else { Settled::Ours(view) };
    };
    tenure.created = own.entry.created;
    let earlier =
        |item: &&Item| item.entry.key != tenure.key && item.entry.created < tenure.created;
    let overlap = view
        .items
        .iter()
        .filter(earlier)
        .any(|item| config.contains(&item.subnets) && item.subnets.overlaps(&tenure.subnets));
    // If a subnet contains a node's address, the older lease also wins. A lease that has carried pods stays: the other nodes decide by age.
    let holds = |item: &Item| {
        item.addresses().any(|address| tenure.subnets.nets().any(|net| net.contains(&address)))
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
    if new && !claim.host.shared_address && !claim.host.alone_at_address {
        let others = view.items.iter().filter(earlier).filter(|item| item.publishes(&claim.public));
        for item in others.filter(|item| item.node().is_some_and(|node| node.id != claim.node.id)) {
            if seen_within(io, item, SILENCE).await {
                give_up(io, tenure).await;
                return Settled::Refused(address_in_use(claim, item));
            }
        }
    }
    Settled::Ours(view)
}

/// Deletes unused keys with this node's address or id: this host's, and those whose holder is gone. Never deletes a reservation.
pub(super) async fn sweep(io: &Io, claim: &Claim, tenure: &Tenure, view: &View) {
    for item in view.items.iter().filter(|item| item.entry.key != tenure.key && !item.reserved()) {
        let ours = item.node().is_some_and(|node| node.id == claim.node.id);
        // Where nodes share an address, the address does not identify the owner of a key.
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
                vec![Write::Delete { key: item.entry.key.clone() }],
                &item.entry.key,
            )
            .await;
        }
    }
}

async fn give_up(io: &Io, tenure: &Tenure) {
    let gone =
        txn(io, tenure.unchanged(), vec![Write::Delete { key: tenure.key.clone() }], &tenure.key)
            .await;
    // If another writer wrote the key meanwhile, the key may be attached to this lease.
    if matches!(gone, Ok((true, ..))) {
        revoke(io, tenure.keepalive).await;
    }
}
