//! Document of `GET /api/v1/probe?peer=…`: the path to a peer or a pod, step by step.

use crate::query::parameter;
use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use types::reachability::State;

/// Name and version of the JSON format of [`Probe`].
pub const PROBE: &str = "flannel.probe/1";
/// Only the Unix socket serves it.
pub const PROBE_PATH: &str = "/api/v1/probe";

/// Result of probing a peer or a pod on request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Always [`PROBE`].
    pub schema: String,
    /// By this node's clock.
    pub at: Timestamp,
    /// The node that probed: on Kubernetes the Node's name, otherwise the hostname.
    pub node: String,
    pub target: Target,
    /// As in [`crate::Probed`]; absent for an address of this node.
    #[serde(default)]
    pub state: Option<State>,
    /// In the order in which a packet passes them.
    pub steps: Vec<Step>,
    /// First step that failed; absent if none did.
    pub ends_at: Option<StepName>,
    /// Where the path ends.
    pub sentence: String,
    /// Commands that narrow down the fault, and the node for each.
    pub next: Vec<Next>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Name of the target's node; absent for Go flannel, which writes no name into the store.
    pub node: Option<String>,
    /// Subnet of the target's node.
    pub subnet: Option<IpNet>,
    /// Address at which nodes reach the target's node; absent for this node.
    pub address: Option<IpAddr>,
    /// Absent if the target is a peer.
    pub pod: Option<IpAddr>,
    /// Whether the target is on this node.
    pub here: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepName {
    /// The route by which the kernel sends packets.
    Route,
    /// The neighbour entry with the hardware address of the next hop.
    Neighbour,
    /// The FDB entry that maps the hardware address of the next hop to a node.
    Fdb,
    /// The WireGuard peer that receives the packets, and its session.
    Peer,
    /// Probes of the peer's address over the underlay.
    Underlay,
    /// The firewalls and sysctls of this node.
    Rules,
    /// Probes of the peer's address over the overlay.
    Overlay,
    /// The pods' bridge, for pods of this node.
    Bridge,
    /// The pod, pinged.
    Pod,
    /// The resolution of a host name, for a TCP port.
    Name,
    /// A TCP connection from this node.
    Connection,
    /// A TCP connection from the address of the pods' bridge.
    PodConnection,
}

impl StepName {
    /// In the order of the path.
    pub const ALL: [StepName; 12] = [
        StepName::Route,
        StepName::Neighbour,
        StepName::Fdb,
        StepName::Peer,
        StepName::Underlay,
        StepName::Rules,
        StepName::Overlay,
        StepName::Bridge,
        StepName::Pod,
        StepName::Name,
        StepName::Connection,
        StepName::PodConnection,
    ];

    /// As flannelctl prints it.
    pub const fn words(self) -> &'static str {
        match self {
            StepName::Route => "route",
            StepName::Neighbour => "neighbour",
            StepName::Fdb => "FDB",
            StepName::Peer => "peer",
            StepName::Underlay => "underlay",
            StepName::Rules => "rules here",
            StepName::Overlay => "overlay",
            StepName::Bridge => "bridge",
            StepName::Pod => "pod",
            StepName::Name => "name",
            StepName::Connection => "TCP",
            StepName::PodConnection => "TCP as pod",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Packets pass.
    Ok,
    /// Packets get lost here.
    Failed,
    /// flanneld did not probe the step, or its missing reply proves nothing. The text of the step states the reason.
    NotAsked,
}

impl Outcome {
    pub const ALL: [Outcome; 3] = [Outcome::Ok, Outcome::Failed, Outcome::NotAsked];

    /// As flannelctl prints it.
    pub const fn words(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed => "failed",
            Outcome::NotAsked => "not asked",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub name: StepName,
    pub outcome: Outcome,
    pub text: String,
    /// Probes that this node sent for the step.
    pub questions: Vec<Questions>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Questions {
    pub kind: QuestionKind,
    /// Number of probes.
    pub asked: u8,
    /// Number of replies.
    pub answered: u8,
    /// Median, in microseconds.
    pub rtt_us: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuestionKind {
    /// A small one, to the probe port.
    Question,
    /// Of the size of the MTU, to the probe port.
    LongQuestion,
    /// A small one.
    Ping,
    /// Of the size of the MTU.
    LongPing,
}

impl QuestionKind {
    pub const ALL: [QuestionKind; 4] = [
        QuestionKind::Question,
        QuestionKind::LongQuestion,
        QuestionKind::Ping,
        QuestionKind::LongPing,
    ];
}

/// A command for an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Next {
    /// Node on which the operator runs the command; absent for this node.
    pub on: Option<String>,
    pub command: String,
}

/// The request target. Percent-encodes the user's text, which may contain any characters.
pub fn request(peer: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte);
    let mut out = format!("{PROBE_PATH}?peer=");
    for byte in peer.bytes() {
        if plain(byte) {
            out.push(byte.into());
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Parses the peer or pod from the query of a request. `None` if the parameter is absent, empty or not valid
/// percent-encoded UTF-8.
pub fn asked(query: Option<&str>) -> Option<String> {
    parameter(query, "peer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_names_its_target() {
        assert_eq!(request("fd00:10:2::/64"), "/api/v1/probe?peer=fd00:10:2::/64");
        assert_eq!(request("node 2&x=\u{e9}"), "/api/v1/probe?peer=node%202%26x%3D%C3%A9");
        for (query, peer) in [
            (None, None),
            (Some(""), None),
            (Some("peer="), None),
            (Some("rows"), None),
            (Some("peer=node-2"), Some("node-2")),
            (Some("x=1&peer=10.244.2.0%2F24"), Some("10.244.2.0/24")),
            (Some("peer=%"), None),
            (Some("peer=%4"), None),
            (Some("peer=%zz"), None),
            (Some("peer=%ff"), None),
        ] {
            assert_eq!(asked(query).as_deref(), peer, "{query:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

        #[test]
        fn request_survives_percent_encoding(peer in "\\PC{1,40}|[ -~]{1,40}") {
            let request = request(&peer);
            prop_assert!(request.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(asked(request.split_once('?').map(|(_, query)| query)), Some(peer));
        }
    }
}
