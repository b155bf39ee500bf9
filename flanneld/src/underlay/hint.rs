//! Creates a warning that the default route's interface may not reach the other nodes, as with Vagrant.

use super::choice::Chosen;
use super::facts::HostFacts;
use super::request::{Request, StoreAt};
use netstate::host::Interface;
use options::Selector;
use std::net::IpAddr;

/// The interface that reaches the store, and the store's address; `None` if the store is on this host or unreachable.
fn reaching<'a>(store: &StoreAt, facts: &'a HostFacts) -> Option<(&'a Interface, IpAddr)> {
    let StoreAt::There(addresses) = store else {
        return None;
    };
    if addresses.iter().any(IpAddr::is_loopback) {
        return None;
    }
    addresses
        .iter()
        .find_map(|address| {
            facts.towards(*address).ok().map(|(interface, _)| (interface, *address))
        })
        .filter(|(interface, _)| !interface.loopback)
}

/// Warns if flanneld chose the interface only because of the default route, and another interface reaches the store.
pub fn trap_hint(request: &Request, chosen: &Chosen, facts: &HostFacts) -> Option<String> {
    if !chosen.by_default || matches!(request.selectors.first(), Some(Selector::Auto)) {
        return None;
    }
    let (interface, store) = reaching(&request.store, facts)
        .filter(|(interface, _)| interface.index != chosen.underlay.index)?;
    Some(format!(
        "packets between nodes use {} ({}), because this interface holds the default route; but this node reaches the store at {store} through {} ({}). If every node has the same address on {}, as with Vagrant or VirtualBox NAT, no packets reach the other nodes: start flanneld with --iface={} (or --iface=auto on every node)",
        chosen.underlay.name,
        chosen.underlay.addresses,
        interface.name,
        interface.addresses_text(),
        chosen.underlay.name,
        interface.name
    ))
}

/// True for a store on this host.
pub fn store_via_underlay(request: &Request, chosen: &Chosen, facts: &HostFacts) -> bool {
    match &request.store {
        StoreAt::Here => true,
        StoreAt::Unknown(_) => false,
        StoreAt::There(addresses) if addresses.iter().any(IpAddr::is_loopback) => true,
        StoreAt::There(_) => reaching(&request.store, facts)
            .is_some_and(|(interface, _)| interface.index == chosen.underlay.index),
    }
}

/// For error messages: the interfaces with their addresses, one per line. Marks the one that reaches the store.
pub fn interfaces_text(store: &StoreAt, facts: &HostFacts) -> String {
    let reaching = reaching(store, facts);
    let mut out = String::new();
    for interface in facts
        .interfaces
        .iter()
        .filter(|interface| !interface.loopback && !interface.addresses.is_empty())
        .filter(|interface| !facts.serves_pods(interface))
    {
        let mark = match reaching {
            Some((other, address)) if other.index == interface.index => {
                format!("  <- reaches the store at {address}: --iface={}", interface.name)
            }
            _ => String::new(),
        };
        let down = if interface.up { "" } else { " (down)" };
        out.push_str(&format!(
            "  {:<15} {}{down}{mark}\n",
            interface.name,
            interface.addresses_text()
        ));
    }
    out
}
