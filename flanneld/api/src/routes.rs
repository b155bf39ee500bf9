//! Every object that a daemon wants in the kernel, compared with the kernel: the document of `GET /api/v1/routes`.

use crate::kernel::Rules;
use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The schema of [`Routes`].
pub const SCHEMA: &str = "flannel.routes/1";

/// Wanted objects and those of other programs, read on request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    /// The schema: [`SCHEMA`].
    pub schema: String,
    /// When it was read, by the node's clock.
    pub at: Timestamp,
    /// The name of this node.
    pub node: String,
    /// The wanted objects: links, addresses, FDB entries, neighbours, routes.
    pub objects: Vec<Object>,
    /// What others have in this node's networks, on flannel's devices and on their port; and what is left over.
    pub foreign: Vec<Foreign>,
    /// The traffic rules; absent where none are wanted.
    pub rules: Option<Rules>,
}

/// An object that the daemon wants in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The object as `ip` and `bridge` print it.
    pub text: String,
    /// The node that it is for; absent where it is this node's own.
    #[serde(rename = "for")]
    pub holder: Option<Holder>,
    /// Whether the kernel has it.
    pub state: ObjectState,
    /// What is there in its place.
    pub found: Option<String>,
    /// The kernel's error, and the remedy.
    pub why: Option<String>,
}

/// Another node, in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its name; Go flannel writes none into the store.
    pub node: Option<String>,
    /// The subnet of the peer.
    pub subnet: IpNet,
    /// The address that the peer publishes.
    pub address: IpAddr,
}

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectKind {
    /// A network interface.
    Link,
    /// An address of an interface.
    Address,
    /// The destination of frames to a MAC.
    Fdb,
    /// The MAC of an address.
    Neighbour,
    /// A peer of WireGuard.
    WireguardPeer,
    /// What such a peer may send and receives.
    AllowedIp,
    /// A route that forwards.
    Route,
    /// A route that drops.
    Blackhole,
}

/// Whether a wanted object is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectState {
    /// The kernel has it as wanted.
    AsWanted,
    /// The kernel does not have it.
    Missing,
    /// Something else is there in its place.
    Different,
    /// The kernel refused it.
    Refused,
}

/// An object of another program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// The kind of the object.
    pub kind: ObjectKind,
    /// The object as `ip` and `bridge` print it.
    pub text: String,
    /// Who made it, in words.
    pub by: String,
    /// Whether it is a route inside this node's own subnets, as those to its pods are.
    pub own_subnet: bool,
    /// Subnets whose packets it takes, with their nodes, and devices whose place it has. Most have none.
    pub in_the_way_of: Vec<String>,
}

impl Routes {
    /// Whether something is not as wanted, or takes packets that are not its own.
    pub fn is_broken(&self) -> bool {
        let rules = self.rules.as_ref().is_some_and(|rules| !rules.in_place);
        rules
            || self
                .objects
                .iter()
                .any(|object| object.state != ObjectState::AsWanted)
            || self
                .foreign
                .iter()
                .any(|other| !other.in_the_way_of.is_empty())
    }
}

impl Holder {
    /// Its name, else its subnet.
    pub fn title(&self) -> String {
        self.node
            .clone()
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| self.subnet.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_or_conflicting_object_makes_routes_broken() {
        let object = |state| Object {
            kind: ObjectKind::Route,
            text: String::new(),
            holder: None,
            state,
            found: None,
            why: None,
        };
        let foreign = |in_the_way_of| Foreign {
            kind: ObjectKind::Route,
            text: String::new(),
            by: String::new(),
            own_subnet: false,
            in_the_way_of,
        };
        let rules = |in_place| {
            Some(Rules {
                in_place,
                ..Rules::default()
            })
        };
        let well = Routes {
            objects: vec![object(ObjectState::AsWanted)],
            foreign: vec![foreign(vec![])],
            rules: rules(true),
            ..Routes::default()
        };
        assert!(!well.is_broken() && !Routes::default().is_broken());
        for state in [
            ObjectState::Missing,
            ObjectState::Different,
            ObjectState::Refused,
        ] {
            assert!(
                Routes {
                    objects: vec![object(ObjectState::AsWanted), object(state)],
                    ..well.clone()
                }
                .is_broken()
            );
        }
        assert!(
            Routes {
                foreign: vec![foreign(vec!["10.244.2.0/24".to_owned()])],
                ..well.clone()
            }
            .is_broken()
        );
        assert!(
            Routes {
                rules: rules(false),
                ..well
            }
            .is_broken()
        );
    }
}
