//! Why a node cannot acquire or keep a lease: the event, the key, the cause and the remedy.

use super::view::Item;
use crate::config::{NetworkConfig, Pool};
use crate::lease::LeaseAttrs;
use crate::manager::{Choice, Claim};
use ipnet::IpNet;
use types::{Detail, Problem, Subnets, nets_overlap};

/// The id is stable over restarts and address changes.
pub(super) fn holder_name(item: &Item) -> String {
    match item.node() {
        Some(node) => format!("node {} (id {})", node.name, node.id),
        None => "another node (written by Go flannel or manually)".to_owned(),
    }
}

pub(super) fn public_address(item: &Item) -> String {
    item.attrs.as_ref().map(LeaseAttrs::public_text).unwrap_or_default()
}

fn node_name(item: &Item) -> String {
    item.node().map(|node| node.name.to_string()).unwrap_or_default()
}

fn choice_text(choice: Option<&Choice>) -> String {
    choice.map_or_else(String::new, |Choice { interface, why, interfaces }| {
        format!(
            "This node chose {interface}: {why}. Its interfaces:\n{interfaces}Start it with --iface=NAME of the one that reaches the other nodes."
        )
    })
}

/// Another live node also uses this node's address, as on Vagrant machines behind NAT.
pub(super) fn address_in_use(claim: &Claim, item: &Item) -> Problem {
    let holder = holder_name(item);
    let text = format!(
        "the public address {} of this node ({}, id {}) is already the address of {holder}, which holds {} and is alive. Other nodes cannot distinguish nodes that share an address. This conflict is usual where every machine has the same address on its NAT interface (Vagrant's 10.0.2.15): name the interface that connects the nodes. {} If the other node never returns, its lease is available 3 minutes after the last keepalive (or after a change of etcd's leader). `flannelctl release {}` frees the lease at once.",
        claim.public,
        claim.node.name,
        claim.node.id,
        item.subnets,
        choice_text(claim.host.choice.as_ref()),
        item.entry.key
    );
    let address = claim.public.ips().next();
    Problem::new("address-in-use", text).with(Detail::AddressInUse { address, holder })
}

/// Another machine has this node's identity.
pub(super) fn identity_in_use(claim: &Claim, item: &Item) -> Problem {
    let holder = node_name(item);
    let text = format!(
        "another machine uses this node's identity {}: it is named {holder}, has the address {}, holds {} and was seen within the last 3 minutes. This machine is named {} and has the address {}. Cloned machines share an identity: give this machine its own /etc/machine-id (`rm /etc/machine-id; systemd-machine-id-setup`), or start flanneld with --node-id=NAME.",
        claim.node.id,
        public_address(item),
        item.subnets,
        claim.node.name,
        claim.public
    );
    Problem::new("identity-in-use", text).with(Detail::IdentityInUse { holder })
}

/// Another instance of this node keeps the lease alive.
pub(super) fn lease_contested(claim: &Claim, item: &Item) -> Problem {
    let text = format!(
        "another running flanneld, named {}, has this node's identity ({}) and address ({}), and renews this node's lease {}. Stop one of the two daemons, or give each daemon its own --node-id and address.",
        node_name(item),
        claim.node.id,
        claim.public,
        item.subnets
    );
    Problem::new("lease-contested", text)
}

pub(super) fn lease_may_be_contested(subnets: &Subnets) -> Problem {
    let text = format!(
        "another instance has restored the lease of {subnets}: flanneld waits to check whether that instance is still running"
    );
    Problem::new("lease-may-be-contested", text)
}

pub(super) fn reservation_outside_network(config: &NetworkConfig, item: &Item) -> Problem {
    let text = format!(
        "the subnet {} is reserved for this node (key subnets/{}, without a lease), but lies outside the configured network {}. \
         flanneld never removes a reservation; delete the key, or correct Network in the configuration.",
        item.subnets, item.entry.key, config.networks
    );
    Problem::new("reservation-outside-network", text)
}

/// `item` is `None` if the key does not exist.
pub(super) fn lease_taken(key: &str, item: Option<&Item>) -> Problem {
    match item {
        Some(item) => Problem::new(
            "lease-taken",
            format!(
                "this node's lease subnets/{key} now belongs to {} at {}; this node leases another subnet",
                holder_name(item),
                public_address(item)
            ),
        ),
        None => Problem::new(
            "lease-deleted",
            format!(
                "this node's lease subnets/{key} was deleted and its subnet is no longer free; this node leases another subnet"
            ),
        ),
    }
}

/// Another instance of this node holds the key and has precedence.
pub(super) fn lease_displaced(key: &str, item: &Item) -> Problem {
    let text = format!(
        "the lease subnets/{key} is held by an earlier running flanneld with this node's identity or address: {} at {}. Two daemons on one lease would overwrite each other forever, so this daemon stops. Give each node its own address (--iface) and identity (--node-id).",
        holder_name(item),
        public_address(item)
    );
    Problem::new("lease-displaced", text)
}

pub(super) fn lease_overwritten(key: &str) -> Problem {
    let text = format!(
        "Go flannel or an operator overwrote this node's lease subnets/{key} with this node's address: another machine may have the \
         same address. flanneld does not change the data plane, and restores the lease once a minute. Search for a second machine with this address."
    );
    Problem::new("lease-overwritten", text)
}

/// Names the underlay networks that overlap the pools.
pub(super) fn out_of_subnets(claim: &Claim, config: &NetworkConfig) -> Problem {
    let pools: Vec<Pool> =
        config.pools.v4().iter().chain(config.pools.v6().iter()).map(|pool| **pool).collect();
    let overlaps = |net: &&IpNet| pools.iter().any(|pool| nets_overlap(&pool.network, net));
    let closed: Vec<String> =
        claim.host.underlay.iter().filter(overlaps).map(ToString::to_string).collect();
    let closed = match closed.as_slice() {
        [] => String::new(),
        closed => format!(", or overlaps {}, the network of the nodes", closed.join(" and ")),
    };
    let sizes: Vec<String> =
        pools.iter().map(|pool| format!("{} in {}", pool.size(), pool.network)).collect();
    let text = format!(
        "out of subnets: every subnet of the pool ({}) is taken{closed}. This node waits for a free subnet. Widen Network or SubnetMax, choose a longer SubnetLen for new clusters, or use `flannelctl release` to free leases of nodes that are gone.",
        sizes.join(", ")
    );
    Problem::new("out-of-subnets", text).with(Detail::OutOfSubnets)
}

pub(super) fn lease_unpublished(published: &LeaseAttrs, wanted: &LeaseAttrs) -> Problem {
    let text = if published.same_public(wanted) {
        "the peers do not know yet that this node's lease has changed".to_owned()
    } else {
        format!(
            "the peers do not know yet that this node's address is {} and no longer {}",
            wanted.public_text(),
            published.public_text()
        )
    };
    Problem::new("lease-unpublished", text)
}
