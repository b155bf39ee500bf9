//! What a node knows of the mesh, as the API carries it. Names come from the store and are hostile: a program that prints them escapes them.
//!
//! Ages are milliseconds before [`Mesh::at_ms`].

use crate::verdict::ProbeResult;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use types::Family;
use types::reachability::{State, Verdict};

/// What this node knows of its peers, and what other nodes report of theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mesh {
    /// When this was taken: milliseconds since 1970, by this node's clock.
    pub at_ms: u64,
    /// How long the prober has run, in milliseconds: before the first cycle is over, states are still unknown.
    pub running_ms: u64,
    /// The UDP port of questions and answers.
    pub port: u16,
    /// How often each peer is asked, in milliseconds.
    pub cycle_ms: u64,
    /// What was sent and received since the prober started.
    pub traffic: Traffic,
    /// Sockets that this node cannot use.
    pub problems: Vec<Problem>,
    /// Faults that all peers of a family have in common.
    #[serde(default)]
    pub faults: Vec<CommonFault>,
    /// What was lost of the questions to all peers in the last minutes.
    #[serde(default)]
    pub losses: Losses,
    /// This node's peers, one for each address family, in order of their subnets.
    pub peers: Vec<PeerView>,
    /// The rows of other nodes, in order of their subnets. Empty unless they were viewed in the last minutes.
    pub rows: Vec<Row>,
}

/// Counters of the prober since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Probes and row questions that were sent, without pings and answers.
    pub sent: u64,
    /// ICMP echo requests that were sent.
    pub pings: u64,
    /// Questions and pings that the right node answered.
    pub answered: u64,
    /// Questions of others that were answered.
    pub questions: u64,
    /// Packets that were dropped: not in the format, or an answer to no outstanding question.
    pub junk: u64,
    /// Questions from addresses of no lease.
    pub strangers: u64,
    /// Questions that were not answered because there were too many.
    pub limited: u64,
}

/// A fault that all peers of a family have in common, but for those that answer. It was found from the peers that were asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommonFault {
    /// The family.
    pub family: Family,
    /// The state of the peers that fail.
    pub state: State,
    /// How long ago the first of them failed, in milliseconds.
    pub age_ms: u64,
    /// How many peers were asked since then,
    pub asked: usize,
    /// and how many of these fail.
    pub failed: usize,
    /// How many peers of the family there are.
    pub peers: usize,
}

/// Questions through the overlay network to peers that are not broken, in the last five minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// How many were asked.
    pub asked: u32,
    /// How many got no answer.
    pub lost: u32,
    /// How many peers did not answer at least one.
    pub losers: u32,
}

/// A socket that this node cannot use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The address and port of the socket; none for ping.
    pub address: Option<SocketAddr>,
    /// Whether another program has the port.
    pub taken: bool,
    /// What failed, on what, and why.
    pub what: String,
}

/// One peer in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerView {
    /// The peer's node id; Go flannel publishes none.
    pub id: Option<Arc<str>>,
    /// The hostname in its lease, or the name of its Node; Go flannel publishes none elsewhere.
    pub name: Option<Arc<str>>,
    /// Its subnet of this family.
    pub subnet: IpNet,
    /// The address at which nodes reach it.
    pub address: IpAddr,
    /// The address that is asked through the overlay network; none where there is none yet (host-gw before the first pod).
    pub overlay: Option<IpAddr>,
    /// What this node's probes of it show, after several rounds agreed.
    pub state: State,
    /// How long that has been the verdict, in milliseconds.
    pub state_age_ms: u64,
    /// Whether it answers ping and nothing else: Go flannel, or the probe port is filtered, or its daemon is silent.
    pub ping_only: bool,
    /// Whether it is judged by other peers that fail alike, and was not asked since then.
    #[serde(default)]
    pub inferred: bool,
    /// Whether its host refuses questions: its daemon does not listen, or a firewall rejects them.
    #[serde(default)]
    pub refuses: bool,
    /// Round trip in microseconds: the median of the last answers through the overlay network.
    pub rtt_us: Option<u32>,
    /// How many of the last [`Self::asked`] questions through the overlay network got no answer.
    pub lost: u8,
    /// How many were asked lately: at most 16.
    pub asked: u8,
    /// The largest packet that arrives there, in bytes; none before it is known.
    pub carries: Option<u16>,
    /// The largest packet that should: the MTU of the overlay network.
    pub mtu: u16,
    /// When packets were exchanged with it.
    #[serde(flatten)]
    pub ages: Ages,
    /// How far its clock is ahead of ours, in milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// Who answered in its place: a node's name if it is known, else its number.
    pub answered_by: Option<String>,
    /// The opinions of other nodes on it, at most 16.
    pub others: Vec<PeerOpinion>,
}

/// When packets were exchanged with a peer, in milliseconds before [`Mesh::at_ms`]; none if never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ages {
    /// When it was asked last.
    pub asked_age_ms: Option<u64>,
    /// When it last answered over the overlay: a probe, a ping or a refusal.
    pub answered_age_ms: Option<u64>,
    /// When it last answered over the underlay: a probe, a ping or a refusal.
    #[serde(rename = "beside_age_ms")]
    pub underlay_age_ms: Option<u64>,
    /// When it last received a question of ours over the overlay, as it reports.
    pub hears_us_age_ms: Option<u64>,
    /// When it last received a question of ours over the underlay, as it reports.
    #[serde(rename = "hears_us_beside_age_ms")]
    pub hears_us_underlay_age_ms: Option<u64>,
    /// When this node last received a question of its over the overlay.
    pub heard_age_ms: Option<u64>,
    /// When this node last received a question of its over the underlay.
    #[serde(rename = "heard_beside_age_ms")]
    pub heard_underlay_age_ms: Option<u64>,
}

impl PeerView {
    /// Returns the verdict with its limitation to ping.
    pub fn verdict(&self) -> Verdict {
        Verdict {
            state: self.state,
            ping_only: self.ping_only,
        }
    }

    /// Returns the hostname, or the address if it has none.
    pub fn title(&self) -> String {
        self.name
            .as_deref()
            .filter(|name| !name.is_empty())
            .map_or_else(|| self.address.to_string(), str::to_owned)
    }
}

/// Another node's verdict on a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerOpinion {
    /// Its hostname, else its address.
    pub by: String,
    /// The verdict in the row that the node sent last.
    pub state: State,
    /// How many milliseconds ago that row arrived.
    pub age_ms: u64,
}

/// What another node reported of itself and of its peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The node's id, if it publishes one.
    pub id: Option<Arc<str>>,
    /// The hostname in its lease; Go flannel publishes none.
    pub name: Option<Arc<str>>,
    /// Its subnet of the family in which it was asked.
    pub subnet: IpNet,
    /// When it was asked last.
    pub asked_age_ms: u64,
    /// When it answered last; none if it cannot be asked.
    #[serde(rename = "said_age_ms")]
    pub answered_age_ms: Option<u64>,
    /// What it reported of itself.
    #[serde(rename = "said")]
    pub own: Option<Own>,
    /// Its peers by state, all of them.
    pub counts: BTreeMap<State, u32>,
    /// Median of its round trips in microseconds.
    pub rtt_us: Option<u32>,
    /// Its peers, where the answer had room for them: the worst first.
    pub peers: Vec<Cell>,
}

/// What a node reports of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// Whether pods on it have a network.
    pub ready: bool,
    /// How many findings have the severity `broken`.
    pub broken: u16,
    /// How many findings have the severity `degraded`.
    pub degraded: u16,
    /// How many findings have the severity `risk`.
    pub risks: u16,
    /// The check of the most severe finding.
    pub gravest: Option<String>,
    /// The checks of its findings that no other one explains, the most severe first, at most 16: first those that are broken, then degraded, then
    /// risks. Versions before this field send none.
    #[serde(default)]
    pub checks: Vec<String>,
}

/// A peer in the row of another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// The peer's subnet, where this node knows it.
    pub subnet: IpNet,
    /// The node's verdict on it.
    pub state: State,
    /// Whether it answers only ping.
    pub ping_only: bool,
    /// Round trip in microseconds, roughly.
    pub rtt_us: Option<u32>,
    /// How many of the node's last 16 questions to it were not answered.
    pub lost: u8,
    /// When it was asked last.
    pub asked_age_ms: Option<u64>,
}

/// What came of asking a peer at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// What is known of the peer.
    pub peer: PeerView,
    /// Short questions over the overlay.
    pub small: Tally,
    /// Questions as long as the MTU, over the overlay.
    pub full: Tally,
    /// Short questions over the underlay; none with a backend that encrypts.
    pub underlay: Tally,
    /// Short pings over the overlay.
    pub ping: Tally,
    /// Pings as long as the MTU, over the overlay.
    pub full_ping: Tally,
    /// Short pings over the underlay.
    pub underlay_ping: Tally,
    /// Who answered in its place: a node's name if it is known, else its number.
    pub answered_by: Option<String>,
}

/// How often one kind of question was asked and answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// How often it was asked.
    pub asked: u8,
    /// How often it was answered.
    pub answered: u8,
    /// How often the host refused: it was reached, and its port is closed or its firewall rejects.
    pub refused: u8,
    /// Median round trip in microseconds.
    pub rtt_us: Option<u32>,
}

impl Tally {
    /// Returns the result as evidence for a verdict.
    pub const fn result(&self) -> ProbeResult {
        match (self.asked, self.answered) {
            (0, _) => ProbeResult::NotAsked,
            (_, 0) => ProbeResult::Lost,
            _ => ProbeResult::Answered,
        }
    }

    /// Returns how many questions were not answered.
    pub const fn lost(&self) -> u8 {
        self.asked.saturating_sub(self.answered)
    }
}

impl Mesh {
    /// How many peers are in each state.
    pub fn counts(&self) -> BTreeMap<State, u32> {
        let mut counts = BTreeMap::new();
        for peer in &self.peers {
            *counts.entry(peer.state).or_default() += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(state: State) -> PeerView {
        PeerView {
            id: Some("b".into()),
            name: Some("node-2".into()),
            subnet: "10.244.2.0/24".parse().unwrap(),
            address: "192.0.2.2".parse().unwrap(),
            overlay: Some("10.244.2.0".parse().unwrap()),
            state,
            state_age_ms: 1,
            ping_only: false,
            inferred: false,
            refuses: false,
            rtt_us: Some(490),
            lost: 0,
            asked: 16,
            carries: Some(1450),
            mtu: 1450,
            ages: Ages {
                asked_age_ms: Some(1000),
                answered_age_ms: Some(999),
                hears_us_age_ms: Some(1000),
                ..Ages::default()
            },
            clock_offset_ms: Some(-3),
            answered_by: None,
            others: vec![PeerOpinion {
                by: "node-3".into(),
                state: State::CutOff,
                age_ms: 7,
            }],
        }
    }

    #[test]
    fn mesh_survives_json() {
        let row = Row {
            id: None,
            name: None,
            subnet: "10.244.3.0/24".parse().unwrap(),
            asked_age_ms: 1,
            answered_age_ms: Some(2),
            own: Some(Own {
                ready: true,
                gravest: Some("mtu".into()),
                checks: vec!["mtu".into()],
                ..Own::default()
            }),
            counts: BTreeMap::from([(State::Well, 2), (State::SmallMtu, 1)]),
            rtt_us: None,
            peers: vec![Cell {
                subnet: "fd00::/64".parse().unwrap(),
                state: State::Slow,
                ping_only: true,
                rtt_us: None,
                lost: 1,
                asked_age_ms: None,
            }],
        };
        let problem = Problem {
            address: "192.0.2.1:8473".parse().ok(),
            taken: true,
            what: "taken".into(),
        };
        let mesh = Mesh {
            peers: vec![peer(State::Well), peer(State::OneWay)],
            rows: vec![row],
            problems: vec![problem],
            ..Mesh::default()
        };
        let text = serde_json::to_string(&mesh).unwrap();
        assert!(
            text.contains(r#""counts":{"well":2,"small-mtu":1}"#),
            "{text}"
        );
        assert!(
            text.contains(
                r#""mtu":1450,"asked_age_ms":1000,"answered_age_ms":999,"beside_age_ms":null,"hears_us_age_ms":1000,"#
            ),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Mesh>(&text).unwrap(), mesh);
        assert_eq!(
            mesh.counts(),
            BTreeMap::from([(State::Well, 1), (State::OneWay, 1)])
        );
    }

    #[test]
    fn peer_without_a_name_is_titled_by_its_address() {
        assert_eq!(peer(State::Well).title(), "node-2");
        assert_eq!(
            PeerView {
                name: Some("".into()),
                ..peer(State::Well)
            }
            .title(),
            "192.0.2.2"
        );
        assert_eq!(
            PeerView {
                name: None,
                ..peer(State::Well)
            }
            .title(),
            "192.0.2.2"
        );
    }
}
