//! Messages about a lease that cannot be acquired or kept: what happened to which key, why, and what to do.

use super::view::Item;
use crate::config::NetworkConfig;
use crate::dual::nets_overlap;
use crate::lease::LeaseAttrs;
use crate::manager::Claim;

fn holder(item: &Item) -> String {
    match item.node() {
        Some(node) => format!("node {} (id {})", node.name, node.id),
        None => "another node (written by Go flannel or by hand)".to_owned(),
    }
}

/// The Vagrant trap: the address of this node is another live node's.
pub fn trap(claim: &Claim, item: &Item) -> String {
    format!(
        "the public address {} of this node ({}, id {}) is already the address of {}, which holds {} and is alive. Nodes that \
         share an address cannot be reached separately. This is usual where every machine has the same address on its NAT interface \
         (Vagrant's 10.0.2.15): name the interface that connects the nodes. {} If the other node is gone for good, its lease can be taken over \
         3 minutes after its last keepalive (or after a change of etcd's leader); `flannelctl release {}` frees it at once.",
        claim.public,
        claim.node.name,
        claim.node.id,
        holder(item),
        item.subnets,
        claim.host.advice,
        item.entry.key,
    )
}

/// A clone: another machine runs under this node's identity.
pub fn clone(claim: &Claim, item: &Item) -> String {
    let address = item.attrs.as_ref().map(|attrs| attrs.public_text()).unwrap_or_default();
    format!(
        "another machine uses this node's identity {}: it is named {}, has the address {address}, holds {} and was seen within the last \
         3 minutes; this machine is named {} and has the address {}. Cloned machines share an identity: give this one its own \
         /etc/machine-id (`rm /etc/machine-id; systemd-machine-id-setup`), or start flanneld with --node-id=NAME.",
        claim.node.id,
        item.node().map(|node| node.name.as_str()).unwrap_or_default(),
        item.subnets,
        claim.node.name,
        claim.public,
    )
}

/// Another instance of this node keeps the contested lease alive.
pub fn contested(claim: &Claim, item: &Item) -> String {
    format!(
        "the lease {} of this node (id {}, address {}) is kept alive by another running flanneld with the same identity and address, named {}. \
         Stop one of the two, or give each its own --node-id and address.",
        item.subnets,
        claim.node.id,
        claim.public,
        item.node().map(|node| node.name.as_str()).unwrap_or_default(),
    )
}

/// A reservation outside the configured network.
pub fn reservation_outside(config: &NetworkConfig, item: &Item) -> String {
    format!(
        "the subnet {} is reserved for this node (key subnets/{}, without a lease), but lies outside the configured network {}. \
         flanneld never removes a reservation: delete the key, or correct Network in the configuration.",
        item.subnets, item.entry.key, config.networks
    )
}

/// Another node has our key.
pub fn taken(key: &str, item: Option<&Item>) -> String {
    match item {
        Some(item) => format!(
            "this node's lease subnets/{key} now belongs to {} at {}; this node starts over and takes another subnet",
            holder(item),
            item.attrs.as_ref().map(|attrs| attrs.public_text()).unwrap_or_default()
        ),
        None => {
            format!("this node's lease subnets/{key} was deleted and its subnet is no longer free; this node starts over and takes another subnet")
        }
    }
}

/// Another instance of this node holds the key with precedence.
pub fn displaced(key: &str, item: &Item) -> String {
    format!(
        "the lease subnets/{key} is held by an earlier running flanneld with this node's identity or address: {} at {}. Two daemons on one lease \
         would overwrite each other for ever, so this one stops. Give each node its own address (--iface) and identity (--node-id).",
        holder(item),
        item.attrs.as_ref().map(|attrs| attrs.public_text()).unwrap_or_default()
    )
}

/// An operator wrote the key again without a lease, which reserves it.
pub fn reserved(key: &str) -> String {
    format!(
        "the lease subnets/{key} was written without an etcd lease: it is a reservation of this node from now on, which does not expire and which \
         flanneld never deletes; to undo it, stop flanneld here, run `flannelctl release --force '{key}'` and start it again"
    )
}

/// The key was deleted, or its lease ran out while this machine was not running.
pub fn put_back(key: &str, expired: bool) -> String {
    let how = if expired { "had expired" } else { "was deleted from the store" };
    format!("the lease subnets/{key} {how}: it was put back with the same subnet")
}

/// Somebody edited the key, and the edit was undone.
pub fn undone(key: &str, item: &Item, claim: &Claim, told: &LeaseAttrs) -> String {
    match &item.attrs {
        None => format!("the lease subnets/{key} was overwritten with a value that cannot be read: it was put back as it was"),
        Some(attrs) if !item.publishes(&claim.public) && !told.same_public(attrs) => format!(
            "the lease subnets/{key} was edited to publish the address {}, which is not this node's: it was put back as it was; for another address \
             start flanneld with --public-ip",
            attrs.public_text()
        ),
        Some(_) => format!("the lease subnets/{key} was edited: it was put back as it was; only flanneld writes it while flanneld runs"),
    }
}

/// Another instance wrote over the key, and this one has precedence.
pub fn contested_key(key: &str, item: &Item) -> String {
    format!(
        "the lease subnets/{key} was overwritten by another flanneld with this node's identity or address, {} at {}: it was put back. Stop one of \
         the two, or give each its own --node-id and address.",
        holder(item),
        item.attrs.as_ref().map(LeaseAttrs::public_text).unwrap_or_default()
    )
}

/// A change that is not published yet.
pub fn untold(told: &LeaseAttrs, wanted: &LeaseAttrs) -> String {
    if told.same_public(wanted) {
        return "the peers do not know yet that this node's lease has changed".to_owned();
    }
    format!("the peers do not know yet that this node is at {} and no longer at {}", wanted.public_text(), told.public_text())
}

/// A new address is published.
pub fn readdressed(key: &str, before: &LeaseAttrs, now: &LeaseAttrs) -> String {
    format!("the lease subnets/{key} publishes {} instead of {}", now.public_text(), before.public_text())
}

/// A Go flannel writes to our key.
pub fn overwritten(key: &str) -> String {
    format!(
        "the lease subnets/{key} of this node was rewritten by a Go flannel (or by hand) with this node's address: another machine may have the \
         same address. The data plane is left alone, and the lease is written back once a minute; look for a second machine with this address."
    )
}

/// The pool is exhausted.
pub fn exhausted(claim: &Claim, config: &NetworkConfig) -> String {
    let sizes: Vec<String> =
        config.pools.v4().iter().chain(config.pools.v6().iter()).map(|pool| format!("{} in {}", pool.size(), pool.network)).collect();
    let pools = || config.pools.v4().into_iter().chain(config.pools.v6());
    let closed: Vec<String> =
        claim.host.underlay.iter().filter(|net| pools().any(|pool| nets_overlap(&pool.network, net))).map(ToString::to_string).collect();
    let closed = if closed.is_empty() { String::new() } else { format!(", or overlaps {}, the network of the nodes", closed.join(" and ")) };
    format!(
        "out of subnets: every subnet of the pool ({}) is taken{closed}. This node waits for a free one; widen Network or SubnetMax, choose a longer \
         SubnetLen for new clusters, or free leases of nodes that are gone with `flannelctl release`.",
        sizes.join(", ")
    )
}
