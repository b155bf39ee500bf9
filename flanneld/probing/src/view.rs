//! Data model of the status API for the results of a node's probes. Names come from the store and may be hostile, so programs that print names must escape them.
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mesh {
    /// In milliseconds since 1970 by this node's clock.
    pub at_ms: u64,
    /// Time since the prober started, in milliseconds. Until the first probe cycle ends, some states are unknown.
    pub running_ms: u64,
    /// The UDP port of probes and replies.
    pub port: u16,
    /// Interval in milliseconds at which this node probes each peer.
    pub cycle_ms: u64,
    pub traffic: Traffic,
    pub problems: Vec<UnusableSocket>,
    #[serde(default)]
    pub faults: Vec<CommonOutage>,
    /// In the last five minutes, among the probes over the overlay to peers without a fault.
    #[serde(default)]
    pub losses: Losses,
    /// One entry per address family, in the order of their subnets.
    pub peers: Vec<PeerView>,
    /// The reports of other nodes, in the order of their subnets. Empty unless a client requested them or a peer
    /// failed in the last minutes.
    pub rows: Vec<Row>,
}

/// Counters of the prober since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Probes and report requests, without pings and replies.
    pub sent: u64,
    /// ICMP echo requests.
    pub pings: u64,
    /// Probes, report requests and pings that got a reply from the right node.
    pub answered: u64,
    /// Probes, report requests and pings that got no reply in time.
    #[serde(default)]
    pub lost: u64,
    /// Probes that a host refused with an ICMP error.
    #[serde(default)]
    pub refused: u64,
    /// Probes and report requests to which this node replied.
    pub questions: u64,
    /// Dropped packets: malformed packets, and replies that match no outstanding probe.
    pub junk: u64,
    /// Probes from addresses without a lease.
    pub strangers: u64,
    /// Probes to which this node did not reply because of a rate limit.
    pub limited: u64,
}

/// Whether a peer replies over one path: the overlay or the underlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathState {
    Replies,
    /// The peer does not reply, or another node replies in its place.
    Silent,
    /// This node has not probed the peer over this path yet, or cannot probe it.
    Unknown,
}

/// A fault that all peers of an address family have in common, except those that reply. flanneld infers it from the
/// probed peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommonOutage {
    pub family: Family,
    pub state: State,
    /// Since the first peer failed, in milliseconds.
    pub age_ms: u64,
    /// Number of peers probed since the first peer failed.
    pub asked: usize,
    /// Number of probed peers with the fault.
    pub failed: usize,
    /// Number of peers in the address family.
    pub peers: usize,
}

/// Probes over the overlay in the last five minutes, to peers without a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    pub asked: u32,
    pub lost: u32,
    /// Number of peers that did not reply to at least one probe.
    pub losers: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusableSocket {
    /// `None` for ping.
    pub address: Option<SocketAddr>,
    /// Whether another program uses the port.
    pub taken: bool,
    /// The error: the failed operation, the socket and the cause.
    pub what: String,
}

/// One peer in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerView {
    /// Go flannel publishes no id.
    pub id: Option<Arc<str>>,
    /// The hostname in the peer's lease, or the name of its Node on Kubernetes. Without Kubernetes, Go flannel
    /// publishes no name.
    pub name: Option<Arc<str>>,
    pub subnet: IpNet,
    pub address: IpAddr,
    /// The overlay address that this node probes. `None` while the peer has none (host-gw before the peer's first
    /// pod).
    pub overlay: Option<IpAddr>,
    /// Several rounds of probes agreed on it.
    pub state: State,
    /// Since the peer entered this state, in milliseconds.
    pub state_age_ms: u64,
    /// Whether the peer replies only to ping, because it runs Go flannel, a filter blocks the probe port, or its daemon is silent.
    pub ping_only: bool,
    /// Whether flanneld inferred the state from other peers with the same fault. This node has not probed the peer since the other peers failed.
    #[serde(default)]
    pub inferred: bool,
    /// Whether the peer's host refuses probes, because the daemon does not listen or a firewall rejects them.
    #[serde(default)]
    pub refuses: bool,
    /// Round trip in microseconds: the median of the last replies over the overlay.
    pub rtt_us: Option<u32>,
    /// Number of the last [`Self::asked`] probes over the overlay that got no reply.
    pub lost: u8,
    /// Number of recent probes over the overlay that [`Self::lost`] covers, at most 16.
    pub asked: u8,
    /// The number of lost probes and of all probes on which the verdict about losses rests.
    #[serde(skip)]
    pub losses: (u16, u16),
    /// The size in bytes of the largest packet that reaches the peer; `None` while unknown.
    pub carries: Option<u16>,
    /// The size in bytes of the largest packet that should reach the peer: the MTU of the overlay.
    pub mtu: u16,
    #[serde(flatten)]
    pub ages: Ages,
    /// Offset in milliseconds by which the peer's clock is ahead of this node's clock.
    pub clock_offset_ms: Option<i64>,
    /// The node that replied in place of the peer: its name, or its number if the name is unknown.
    pub answered_by: Option<String>,
    /// At most 16.
    pub others: Vec<PeerOpinion>,
}

/// In milliseconds before [`Mesh::at_ms`]. A field is `None` before the first packet that it describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ages {
    /// The last probe that this node sent to the peer.
    pub asked_age_ms: Option<u64>,
    /// The peer's last reply over the overlay: a probe reply, a ping reply or a refusal.
    pub answered_age_ms: Option<u64>,
    /// The peer's last reply over the underlay: a probe reply, a ping reply or a refusal.
    #[serde(rename = "beside_age_ms")]
    pub underlay_age_ms: Option<u64>,
    /// This node's last probe that the peer received over the overlay, as the peer reports.
    pub hears_us_age_ms: Option<u64>,
    /// This node's last probe that the peer received over the underlay, as the peer reports.
    #[serde(rename = "hears_us_beside_age_ms")]
    pub hears_us_underlay_age_ms: Option<u64>,
    /// The peer's last probe that this node received over the overlay.
    pub heard_age_ms: Option<u64>,
    /// The peer's last probe that this node received over the underlay.
    #[serde(rename = "heard_beside_age_ms")]
    pub heard_underlay_age_ms: Option<u64>,
}

impl PeerView {
    /// The state, and whether the peer replies only to ping.
    pub fn verdict(&self) -> Verdict {
        Verdict { state: self.state, ping_only: self.ping_only }
    }

    /// The hostname, or the address without one.
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
    /// The hostname of the reporting node, or its subnet without one.
    pub by: String,
    /// As in the last report of that node.
    pub state: State,
    /// Since the report with this verdict arrived, in milliseconds.
    pub age_ms: u64,
}

/// The report of another node about itself and its peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub id: Option<Arc<str>>,
    /// From the node's lease; Go flannel publishes no hostname.
    pub name: Option<Arc<str>>,
    /// In the address family of the report request.
    pub subnet: IpNet,
    /// Of the last request for the node's report, in milliseconds.
    pub asked_age_ms: u64,
    /// Of the node's last report, in milliseconds. `None` without a reply.
    #[serde(rename = "said_age_ms")]
    pub answered_age_ms: Option<u64>,
    /// The node's report about itself.
    #[serde(rename = "said")]
    pub own: Option<Own>,
    /// Includes peers that the report omits.
    pub counts: BTreeMap<State, u32>,
    /// Median of the node's round trips in microseconds.
    pub rtt_us: Option<u32>,
    /// The worst first. If the reply has no room for all peers, it contains only the worst.
    pub peers: Vec<Cell>,
}

/// A node's report about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// Whether pods on the node have a network.
    pub ready: bool,
    /// Findings of severity `broken`.
    pub broken: u16,
    /// Findings of severity `degraded`.
    pub degraded: u16,
    /// Findings of severity `risk`.
    pub risks: u16,
    /// The check of the node's most severe finding.
    pub gravest: Option<String>,
    /// The node's checks, at most 16, with findings that no other finding explains. Checks with findings of severity
    /// `broken` come first, then `degraded`, then `risk`. Older versions of flanneld report no checks.
    #[serde(default)]
    pub checks: Vec<String>,
}

/// A peer in the report of another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// From the leases that this node knows.
    pub subnet: IpNet,
    /// The node's verdict on the peer.
    pub state: State,
    pub ping_only: bool,
    /// Approximate round trip in microseconds.
    pub rtt_us: Option<u32>,
    /// Number of the node's last 16 probes to the peer that got no reply.
    pub lost: u8,
    /// Approximate age of the node's last probe to the peer, in milliseconds.
    pub asked_age_ms: Option<u64>,
}

/// Result of an on-demand probe of one peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    pub peer: PeerView,
    /// Short probes over the overlay.
    pub small: Tally,
    /// Probes of the MTU's length, over the overlay.
    pub full: Tally,
    /// Short probes. If the backend encrypts, this node sends none over the underlay.
    pub underlay: Tally,
    /// Short pings over the overlay.
    pub ping: Tally,
    /// Pings of the MTU's length, over the overlay.
    pub full_ping: Tally,
    /// Short pings over the underlay.
    pub underlay_ping: Tally,
    /// The node that replied in place of the peer: its name, or its number if the name is unknown.
    pub answered_by: Option<String>,
}

/// Counts of one kind of probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub asked: u8,
    pub answered: u8,
    /// Probes that the host refused. A refused probe reaches the host, but the port is closed or the firewall rejects
    /// it.
    pub refused: u8,
    /// Median round trip in microseconds.
    pub rtt_us: Option<u32>,
}

impl Tally {
    /// As evidence for a verdict.
    pub const fn result(&self) -> ProbeResult {
        match (self.asked, self.answered) {
            (0, _) => ProbeResult::NotAsked,
            (_, 0) => ProbeResult::Lost,
            _ => ProbeResult::Answered,
        }
    }

    pub const fn lost(&self) -> u8 {
        self.asked.saturating_sub(self.answered)
    }
}

impl Mesh {
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
            losses: (0, 0),
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
            others: vec![PeerOpinion { by: "node-3".into(), state: State::CutOff, age_ms: 7 }],
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
        let problem = UnusableSocket {
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
        assert!(text.contains(r#""counts":{"well":2,"small-mtu":1}"#), "{text}");
        assert!(
            text.contains(
                r#""mtu":1450,"asked_age_ms":1000,"answered_age_ms":999,"beside_age_ms":null,"hears_us_age_ms":1000,"#
            ),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Mesh>(&text).unwrap(), mesh);
        assert_eq!(mesh.counts(), BTreeMap::from([(State::Well, 1), (State::OneWay, 1)]));
    }
}
