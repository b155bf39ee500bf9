//! Every object that a daemon wants in the kernel beside what the kernel has: the document of `GET /api/v1/routes`.

use crate::kernel::Rules;
use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The schema of [`Routes`].
pub const SCHEMA: &str = "flannel.routes/1";

/// Wanted objects and others', read when it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    /// [`SCHEMA`].
    pub schema: String,
    /// When it was read, by the node's clock.
    pub at: Timestamp,
    /// The node's name.
    pub node: String,
    /// The wanted objects: links, addresses, FDB entries, neighbours, routes.
    pub objects: Vec<Object>,
    /// What others have in this node's networks, on flannel's devices and on their port; and what is left over.
    pub foreign: Vec<Foreign>,
    /// The traffic rules; absent where none are wanted.
    pub rules: Option<Rules>,
}

/// A wanted object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// The object as `ip` and `bridge` print it.
    pub text: String,
    /// The node that it is for; absent where it is this node's own.
    #[serde(rename = "for")]
    pub holder: Option<Holder>,
    /// Whether it is there.
    pub state: State,
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
    /// Its subnet.
    pub subnet: IpNet,
    /// Its address.
    pub address: IpAddr,
}

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An interface.
    Link,
    /// An address on one.
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
pub enum State {
    /// It is.
    AsWanted,
    /// It is not.
    Missing,
    /// Something else is there in its place.
    Different,
    /// The kernel refused it.
    Refused,
}

/// An object of somebody else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// Its kind.
    pub kind: Kind,
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
                .any(|object| object.state != State::AsWanted)
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
    fn what_is_not_as_wanted_or_in_the_way_is_broken() {
        let object = |state| Object {
            kind: Kind::Route,
            text: String::new(),
            holder: None,
            state,
            found: None,
            why: None,
        };
        let foreign = |in_the_way_of| Foreign {
            kind: Kind::Route,
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
            objects: vec![object(State::AsWanted)],
            foreign: vec![foreign(vec![])],
            rules: rules(true),
            ..Routes::default()
        };
        assert!(!well.is_broken() && !Routes::default().is_broken());
        for state in [State::Missing, State::Different, State::Refused] {
            assert!(
                Routes {
                    objects: vec![object(State::AsWanted), object(state)],
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
