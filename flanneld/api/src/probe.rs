//! `GET /api/v1/probe?peer=…`: the path to a peer or a pod, step by step.

use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use types::reachability::State;

/// Name and version of the format of [`Probe`].
pub const PROBE: &str = "flannel.probe/1";
/// The path of the document. Only the socket serves it.
pub const PROBE_PATH: &str = "/api/v1/probe";

/// The result of probing a peer or a pod on request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Always [`PROBE`], by which readers recognise the format.
    pub schema: String,
    /// When it was asked, by this node's clock.
    pub at: Timestamp,
    /// The name of the node that probed: on Kubernetes the Node's, else the hostname.
    pub node: String,
    /// The peer or pod that was probed.
    pub target: Target,
    /// The verdict, as [`crate::Probed`] has it; absent for an address of this node.
    #[serde(default)]
    pub state: Option<State>,
    /// The steps, in the order in which a packet takes them.
    pub steps: Vec<Step>,
    /// The first step that failed; absent if none did.
    pub ends_at: Option<StepName>,
    /// Where it ends, in one sentence.
    pub sentence: String,
    /// Commands that locate the fault further, and where to run each.
    pub next: Vec<Next>,
}

/// The peer or pod that a probe is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The peer's name; Go flannel writes none into the store.
    pub node: Option<String>,
    /// The subnet of its node.
    pub subnet: Option<IpNet>,
    /// The address at which nodes reach the peer; absent for this node.
    pub address: Option<IpAddr>,
    /// The pod, if one was meant.
    pub pod: Option<IpAddr>,
    /// Whether it is on this node.
    pub here: bool,
}

/// A part of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepName {
    /// Where the kernel sends packets.
    Route,
    /// The hardware address of the next hop.
    Neighbour,
    /// The node behind that hardware address.
    Fdb,
    /// The peer of WireGuard to which packets go, and its session.
    Peer,
    /// The peer's address over the underlay.
    Underlay,
    /// The firewalls and sysctls of this node.
    Rules,
    /// The peer's address over the overlay.
    Overlay,
    /// The pods' bridge, for pods of this node.
    Bridge,
    /// The pod, by pings.
    Pod,
    /// The name of a host, for a TCP port.
    Name,
    /// A TCP connection from this node.
    Connection,
    /// A TCP connection with the address of the pods' bridge.
    PodConnection,
}

impl StepName {
    /// All values, in order.
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

    /// Returns the words for output.
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

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Packets pass.
    Ok,
    /// Packets do not get further.
    Failed,
    /// It was not asked, or its silence proves nothing; the text gives the reason.
    NotAsked,
}

impl Outcome {
    /// All values, in order.
    pub const ALL: [Outcome; 3] = [Outcome::Ok, Outcome::Failed, Outcome::NotAsked];

    /// Returns the words for output.
    pub const fn words(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed => "failed",
            Outcome::NotAsked => "not asked",
        }
    }
}

/// One step of a packet's path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The part of the path.
    pub name: StepName,
    /// Whether packets pass it, or why that is not known.
    pub outcome: Outcome,
    /// What was found, as text.
    pub text: String,
    /// What was asked, and how often it was answered.
    pub questions: Vec<Questions>,
}

/// The number of questions of one kind, and of their answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Questions {
    /// The kind of the questions.
    pub kind: QuestionKind,
    /// How often it was asked.
    pub asked: u8,
    /// How often it was answered.
    pub answered: u8,
    /// Median round trip in microseconds.
    pub rtt_us: Option<u32>,
}

/// A kind of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuestionKind {
    /// A small question on the probes' port.
    Question,
    /// One as long as the MTU.
    LongQuestion,
    /// A small ping.
    Ping,
    /// One as long as the MTU.
    LongPing,
}

impl QuestionKind {
    /// All values, in order.
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
    /// The node on which it is typed; absent for this one.
    pub on: Option<String>,
    /// The command, as it is typed.
    pub command: String,
}

/// The target of a request that asks for this peer or pod, whatever was typed.
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

/// Which peer or pod a request asks for, from its query.
pub fn asked(query: Option<&str>) -> Option<String> {
    let encoded = query?
        .split('&')
        .find_map(|part| part.strip_prefix("peer="))?;
    let mut bytes = encoded.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(out).ok().filter(|peer| !peer.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_names_its_target() {
        assert_eq!(
            request("fd00:10:2::/64"),
            "/api/v1/probe?peer=fd00:10:2::/64"
        );
        assert_eq!(
            request("node 2&x=\u{e9}"),
            "/api/v1/probe?peer=node%202%26x%3D%C3%A9"
        );
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
