//! Document of `GET /api/v1/probe?peer=…`: the path to a peer or a pod, step by step.

use crate::query::parameter;
use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use types::reachability::State;

/// Name and version of the JSON format of [`Probe`].
pub const PROBE: &str = "flannel.probe/1";
/// Request path of the document. Only the Unix socket serves the document.
pub const PROBE_PATH: &str = "/api/v1/probe";

/// Result of probing a peer or a pod on request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Always [`PROBE`]; identifies the format of the document.
    pub schema: String,
    /// Time of the probe, by this node's clock.
    pub at: Timestamp,
    /// Name of the node that probed: on Kubernetes the Node's name, otherwise the hostname.
    pub node: String,
    /// Peer or pod that this node probed.
    pub target: Target,
    /// Verdict on the peer, as in [`crate::Probed`]; absent for an address of this node.
    #[serde(default)]
    pub state: Option<State>,
    /// Steps of the path, in the order in which a packet passes them.
    pub steps: Vec<Step>,
    /// First step that failed; absent if no step failed.
    pub ends_at: Option<StepName>,
    /// Conclusion about where the path ends, in one sentence.
    pub sentence: String,
    /// Commands that narrow down the fault, and the node for each command.
    pub next: Vec<Next>,
}

/// Target of a probe: a peer or a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Name of the target's node; absent for Go flannel, which writes no name into the store.
    pub node: Option<String>,
    /// Subnet of the target's node.
    pub subnet: Option<IpNet>,
    /// Address at which nodes reach the target's node; absent for this node.
    pub address: Option<IpAddr>,
    /// Address of the pod, if the target is a pod.
    pub pod: Option<IpAddr>,
    /// Whether the target is on this node.
    pub here: bool,
}

/// Name of a step of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepName {
    /// The route by which the kernel sends packets.
    Route,
    /// The neighbour entry with the hardware address of the next hop.
    Neighbour,
    /// The FDB entry that maps the hardware address of the next hop to a node.
    Fdb,
    /// The WireGuard peer that receives the packets, and the session with the peer.
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
    /// All steps, in order.
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

    /// Returns the name that flannelctl prints.
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

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Packets pass.
    Ok,
    /// Loss of packets at this step.
    Failed,
    /// A step that flanneld did not probe, or whose missing reply proves nothing. The text of the step states the reason.
    NotAsked,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Outcome; 3] = [Outcome::Ok, Outcome::Failed, Outcome::NotAsked];

    /// Returns the name that flannelctl prints.
    pub const fn words(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed => "failed",
            Outcome::NotAsked => "not asked",
        }
    }
}

/// A step of a packet's path, with its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Part of the path that the step covers.
    pub name: StepName,
    /// Whether packets pass the step, if known.
    pub outcome: Outcome,
    /// Result as text.
    pub text: String,
    /// Probes that this node sent for the step, and the number of replies.
    pub questions: Vec<Questions>,
}

/// Number of probes of one kind, and number of replies to these probes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Questions {
    /// Kind of the probes.
    pub kind: QuestionKind,
    /// Number of probes.
    pub asked: u8,
    /// Number of replies.
    pub answered: u8,
    /// Median round-trip time in microseconds.
    pub rtt_us: Option<u32>,
}

/// Kind of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuestionKind {
    /// A small probe to the probe port.
    Question,
    /// A probe of the size of the MTU to the probe port.
    LongQuestion,
    /// A small ping.
    Ping,
    /// A ping of the size of the MTU.
    LongPing,
}

impl QuestionKind {
    /// All kinds.
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
    /// Command line.
    pub command: String,
}

/// Returns the request target that probes a peer or pod. Percent-encodes the user's text, which may contain any characters.
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

/// Parses the peer or pod from the query of a request. Returns `None` if the parameter is absent, empty or not valid percent-encoded UTF-8.
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
