//! The other nodes, by their leases.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Another node whose lease is in force here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its name; Go flannel writes none into the store.
    pub node: Option<String>,
    /// Its subnets, one a family.
    pub subnets: Vec<IpNet>,
    /// Its addresses, one a family.
    pub addresses: Vec<IpAddr>,
}

impl Peer {
    /// Returns its name, or its address if it has none.
    pub fn title(&self) -> String {
        let name = self.node.clone().filter(|name| !name.is_empty());
        name.or_else(|| self.addresses.first().map(IpAddr::to_string))
            .unwrap_or_default()
    }
}

/// A lease in the store that this node does not use: it has no route to its holder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unused {
    /// The subnets, or the key if it names none.
    pub lease: String,
    /// The reason, as in the metrics.
    pub reason: String,
    /// Why it is not used, and the remedy.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_without_a_name_is_titled_by_its_address() {
        let go = Peer {
            node: None,
            addresses: vec!["192.0.2.2".parse().unwrap()],
            ..Peer::default()
        };
        assert_eq!(go.title(), "192.0.2.2");
        assert_eq!(
            Peer {
                node: Some(String::new()),
                ..go.clone()
            }
            .title(),
            "192.0.2.2"
        );
        assert_eq!(
            Peer {
                node: Some("node-2".to_owned()),
                ..go
            }
            .title(),
            "node-2"
        );
    }
}
