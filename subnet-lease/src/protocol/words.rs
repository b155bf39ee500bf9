//! What people are told when a lease cannot be had or kept: what, on what, why, and what to do.

use super::view::Item;
use crate::config::NetworkConfig;
use crate::dual::nets_overlap;
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
        "the public address {} of this node ({}, id {}) is already the address of {}, which holds {} and is alive. Two nodes with one address \
         cannot be reached apart: this happens where every machine has the same address on its NAT interface (Vagrant's 10.0.2.15). \
         Name the interface that really connects the nodes. {} If that other node is gone for good, its lease counts as silent 3 minutes after \
         its last sign of life (after a change of etcd's leader too); `flannelctl release {}` frees it at once.",
        claim.public,
        claim.node.name,
        claim.node.id,
        holder(item),
        item.subnets,
        claim.advice,
        item.entry.key,
    )
}

/// A clone: another machine runs under this node's identity.
pub fn clone(claim: &Claim, item: &Item) -> String {
    let address = item.attrs.as_ref().map(|attrs| attrs.public_text()).unwrap_or_default();
    format!(
        "another machine runs under this node's identity {}: it calls itself {}, is reached at {address}, holds {} and was heard of within the last \
         3 minutes, while this machine calls itself {} and is reached at {}. Cloned machines share their identity: give this one its own \
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
         Stop one of the two, or give them their own --node-id and addresses.",
        item.subnets,
        claim.node.id,
        claim.public,
        item.node().map(|node| node.name.as_str()).unwrap_or_default(),
    )
}

/// A reservation that the configuration does not cover.
pub fn reservation_outside(config: &NetworkConfig, item: &Item) -> String {
    format!(
        "the subnet {} is reserved for this node (key subnets/{}, without a lease), but lies outside the configured network {}. \
         Reservations are never removed by flanneld: delete the key, or correct Network in the configuration.",
        item.subnets, item.entry.key, config.networks
    )
}

/// Our key is another's now.
pub fn taken(key: &str, item: Option<&Item>) -> String {
    match item {
        Some(item) => format!(
            "this node's lease subnets/{key} now belongs to {} at {}; this node starts anew and takes another subnet",
            holder(item),
            item.attrs.as_ref().map(|attrs| attrs.public_text()).unwrap_or_default()
        ),
        None => {
            format!("this node's lease subnets/{key} was deleted and its subnet is no longer free; this node starts anew and takes another subnet")
        }
    }
}

/// Another instance of this node holds the key with precedence.
pub fn displaced(key: &str, item: &Item) -> String {
    format!(
        "the lease subnets/{key} is held by an earlier running flanneld with this node's identity or address: {} at {}. Two daemons on one lease \
         would take turns for ever, so this one stops. Stop one of them, or give the nodes their own addresses (--iface) and identities (--node-id).",
        holder(item),
        item.attrs.as_ref().map(|attrs| attrs.public_text()).unwrap_or_default()
    )
}

/// A Go flannel keeps writing to our key.
pub fn overwritten(key: &str) -> String {
    format!(
        "the lease subnets/{key} of this node was rewritten by a Go flannel (or by hand) with this node's address: another machine may have the \
         same address. The data plane stays as it is and the lease is written back once a minute; look for a second machine with this address."
    )
}

/// The pool has nothing left.
pub fn exhausted(claim: &Claim, config: &NetworkConfig) -> String {
    let sizes: Vec<String> =
        config.pools.v4().iter().chain(config.pools.v6().iter()).map(|pool| format!("{} in {}", pool.size(), pool.network)).collect();
    let pools = || config.pools.v4().into_iter().chain(config.pools.v6());
    let closed: Vec<String> =
        claim.underlay.iter().filter(|net| pools().any(|pool| nets_overlap(&pool.network, net))).map(ToString::to_string).collect();
    let closed = if closed.is_empty() { String::new() } else { format!(", or overlaps {}, where the nodes themselves are", closed.join(" and ")) };
    format!(
        "out of subnets: every subnet of the pool ({}) is taken{closed}. This node waits until one is free; widen Network or SubnetMax, choose a longer \
         SubnetLen for new clusters, or free leases of nodes that are gone with `flannelctl release`.",
        sizes.join(", ")
    )
}
