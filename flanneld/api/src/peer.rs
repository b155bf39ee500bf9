//! Other nodes, as their leases describe them.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Another node whose lease is valid on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Absent for Go flannel, which writes no name into the store.
    pub node: Option<String>,
    /// One per address family.
    pub subnets: Vec<IpNet>,
    /// Addresses that the node publishes, one per address family.
    pub addresses: Vec<IpAddr>,
}

impl Peer {
    /// The first address stands in for a missing name.
    pub fn title(&self) -> String {
        let name = self.node.clone().filter(|name| !name.is_empty());
        name.or_else(|| self.addresses.first().map(IpAddr::to_string)).unwrap_or_default()
    }
}

/// A stored lease that this node does not use. This node has no route to its holder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unused {
    /// Subnets of the lease, or its key without subnets.
    pub lease: String,
    /// As in the metrics.
    pub reason: String,
    /// Why this node does not use the lease, with the remedy.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_without_a_name_is_titled_by_its_address() {
        let go =
            Peer { node: None, addresses: vec!["192.0.2.2".parse().unwrap()], ..Peer::default() };
        assert_eq!(go.title(), "192.0.2.2");
        assert_eq!(Peer { node: Some(String::new()), ..go.clone() }.title(), "192.0.2.2");
        assert_eq!(Peer { node: Some("node-2".to_owned()), ..go }.title(), "node-2");
    }
}
