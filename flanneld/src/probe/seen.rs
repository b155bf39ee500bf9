//! The facts about a path, and the prober's verdict on the path.

use super::refusal::Unasked;
use doctor::finding::Unknown;
use doctor::{Finding, Report, Severity};
use ipnet::IpNet;
use netstate::kernel::KernelError;
use netstate::names::{LinkName, Mac};
use netstate::netlink::lookup::{Fate, Neighbour, PeerStatus};
use netstate::object::{Key, Value};
use netstate::route::{RouteKind, RouteSpec};
use netstate::wireguard::PublicKey;
use probing::target::Target;
use probing::verdict::{self, Evidence, judge_rounds};
use probing::view::Tally;
use std::net::IpAddr;
use types::reachability::Verdict;
use types::{Encapsulation, Family};

/// Facts about the path to a peer, and to one of its pods.
#[derive(Debug)]
pub(super) struct Seen {
    pub target: Target,
    /// Address of the pod, if the target is a pod.
    pub pod: Option<IpAddr>,
    /// Address in the peer's subnet for the route lookup.
    pub to: IpAddr,
    /// Kernel objects that the lease requires.
    pub wanted: Wanted,
    /// Result of the kernel's route lookup for the address in the peer's subnet.
    pub fate: Result<Fate, KernelError>,
    /// The next hop's hardware address, if the lease requires a neighbour entry.
    pub neighbour: Option<Result<Neighbour, KernelError>>,
    /// The node to which the device sends its frames, if the lease requires an FDB entry.
    pub fdb: Option<Result<Option<IpAddr>, KernelError>>,
    /// The WireGuard peer that receives packets for the subnet, if the lease requires a WireGuard peer.
    pub tunnelled: Option<Result<Option<PeerStatus>, KernelError>>,
    /// Result of the kernel's route lookup for the peer itself.
    pub underlay: Result<Fate, KernelError>,
    /// Replies to the probes.
    pub replies: ProbeReplies,
    /// Rules of this node that drop packets.
    pub rules: Rules,
    /// Replies of the pod to pings, if this node sent pings.
    pub pinged: Option<Result<Tally, Unasked>>,
    pub own: Own,
}

/// This node's end of the path.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// The cluster's network of the target's family.
    pub network: IpNet,
    /// Name of the backend, if it is known.
    pub backend: Option<&'static str>,
    /// Encapsulation of pod packets between nodes, with one port; `None` without encapsulation.
    pub tunnel: Option<Encapsulation>,
    /// The UDP port of probes.
    pub probes: u16,
    /// Name of the underlay interface.
    pub interface: String,
    /// Address from which this node sends packets to other nodes.
    pub address: Option<IpAddr>,
    /// Address from which this node sends probes over the overlay.
    pub overlay: Option<IpAddr>,
}

/// Kernel objects that a lease requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The route to the subnet.
    pub route: Option<(IpNet, RouteSpec)>,
    /// The hardware address of the next hop.
    pub neighbour: Option<(LinkName, IpAddr, Mac)>,
    /// The node behind the next hop's hardware address.
    pub fdb: Option<(LinkName, Mac, IpAddr)>,
    /// The WireGuard peer that receives the subnet's packets.
    pub tunnelled: Option<(LinkName, IpNet, PublicKey)>,
}

impl Wanted {
    /// Selects the objects that a lease requires from all objects that the backend needs.
    pub(super) fn of(objects: &[(Key, Value)]) -> Self {
        let mut wanted = Self::default();
        for object in objects {
            match object {
                (Key::Route(net, _), Value::Route(route)) => {
                    wanted.route = wanted.route.or(Some((*net, *route)));
                }
                (Key::Neighbor(dev, ip), Value::Neighbor(mac)) => {
                    wanted.neighbour = Some((*dev, *ip, *mac));
                }
                (Key::Fdb(dev, mac), Value::Fdb(ip)) => wanted.fdb = Some((*dev, *mac, *ip)),
                (Key::AllowedIp(dev, net), Value::AllowedIp(key)) => {
                    wanted.tunnelled = Some((*dev, *net, *key));
                }
                _ => {}
            }
        }
        wanted
    }

    /// Adds the route of WireGuard: one route for the whole network leads to all peers.
    #[must_use]
    pub(super) fn in_network(mut self, network: IpNet) -> Self {
        if let (None, Some((dev, ..))) = (&self.route, self.tunnelled) {
            let route = RouteSpec {
                via: None,
                dev,
                onlink: false,
                kind: RouteKind::Unicast,
                scope: 0,
                protocol: 0,
            };
            self.route = Some((network, route));
        }
        self
    }
}

/// Sent probes and their replies.
#[derive(Debug, Default)]
pub(super) struct ProbeReplies {
    /// Whether this node sends probes over the overlay.
    pub overlay: bool,
    /// Reason why this node never sends probes; `None` if it sends probes.
    pub silenced: Option<Unasked>,
    /// Length of long probes, in bytes.
    pub mtu: u16,
    /// Small probes over the overlay.
    pub small: Tally,
    /// Long probes over the overlay.
    pub full: Tally,
    /// Probes over the underlay.
    pub underlay: Tally,
    /// Small pings over the overlay.
    pub ping: Tally,
    /// Long pings over the overlay.
    pub full_ping: Tally,
    /// Pings over the underlay.
    pub underlay_ping: Tally,
    /// Milliseconds since the peer received a probe of this node over the overlay, as the peer reports.
    pub hears_us: Option<u64>,
    /// Milliseconds since the peer received a probe of this node over the underlay, as the peer reports.
    pub hears_us_on_underlay: Option<u64>,
    /// Name of the node that replied in the peer's place.
    pub answered_by: Option<String>,
}

/// The prober's verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judged {
    /// Verdict on the peer over the overlay. If this node cannot probe any address over the overlay, this field holds the verdict over the underlay.
    pub whole: Verdict,
    /// Verdict on the overlay; unknown if this node sent no probe over the overlay.
    pub overlay: Verdict,
    /// Verdict on the underlay only.
    pub underlay: Verdict,
}

impl ProbeReplies {
    /// Returns whether any reply arrived over the overlay.
    pub(super) fn through(&self) -> bool {
        self.evidence().through()
    }

    /// Returns whether this node sent any probe over the overlay.
    pub(super) fn asked_through(&self) -> bool {
        self.evidence().asked_through()
    }

    /// Returns whether the peer refused a probe over the overlay and replied to no ping.
    fn is_refused(&self) -> bool {
        self.small.refused + self.full.refused > 0 && self.ping.answered == 0
    }

    /// Converts the replies as the prober does. A refused probe proves as much as a reply to a ping.
    fn evidence(&self) -> Evidence {
        let or_refused = |ping: Tally, question: Tally| {
            if question.refused > 0 {
                verdict::ProbeResult::Answered
            } else {
                ping.result()
            }
        };
        let full_ping = or_refused(self.full_ping, self.full);
        Evidence {
            full: self.full.result(),
            small: self.small.result(),
            ping: or_refused(self.ping, self.small),
            // Kernels limit the rate of their refusals, so a long probe without a refusal proves nothing.
            full_ping: if self.is_refused() && full_ping == verdict::ProbeResult::Lost {
                verdict::ProbeResult::NotAsked
            } else {
                full_ping
            },
            underlay: self.underlay.result(),
            underlay_ping: or_refused(self.underlay_ping, self.underlay),
            // The peer sent both values at the same time.
            hears_us_ms: self.hears_us.zip(self.hears_us_on_underlay).and_then(
                |(through, underlay)| u32::try_from(through.saturating_sub(underlay)).ok(),
            ),
            other: self.answered_by.is_some(),
        }
    }

    /// Computes the prober's verdicts.
    pub(super) fn judged(&self) -> Judged {
        let evidence = self.evidence();
        let lost = if self.small.answered + self.full.answered > 0 {
            self.small.lost() + self.full.lost()
        } else if self.is_refused() {
            0
        } else {
            self.ping.lost()
        };
        let lost_on_underlay = match (
            self.underlay.answered,
            self.underlay_ping.answered,
            self.underlay.refused,
        ) {
            (1.., ..) => self.underlay.lost(),
            (_, 0, 1..) => 0,
            _ => self.underlay_ping.lost(),
        };
        let underlay = judge_rounds(&evidence.only_underlay(), lost_on_underlay.into());
        if evidence.other || evidence.asked_through() {
            let overlay = judge_rounds(&evidence, lost.into());
            Judged {
                whole: overlay,
                overlay,
                underlay,
            }
        } else {
            Judged {
                whole: underlay,
                overlay: Verdict::default(),
                underlay,
            }
        }
    }
}

/// Findings of the doctor about packets that this node drops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    /// Lack of findings about dropped packets.
    Clear,
    /// Findings of the doctor about dropped packets.
    Broken(Vec<Finding>),
    /// A check that could not run.
    Unknown(Unknown),
    /// Lack of a report, because the doctor has not run yet.
    NotLooked,
}

/// Checks about packets that this node forwards or receives, for each family.
const CHECKS: [&str; 5] = [
    "rp-filter",
    "ufw",
    "firewalld",
    "forward-policy",
    "forward-reject",
];

impl Rules {
    /// Selects the findings of this family from the doctor's report.
    pub(super) fn of(report: Option<&Report>, family: Family) -> Self {
        let Some(report) = report else {
            return Rules::NotLooked;
        };
        let forwarding = family.pick("ip-forward", "ipv6-forwarding");
        let is_one = |check: &str| check == forwarding || CHECKS.contains(&check);
        let broken: Vec<Finding> = report
            .findings
            .iter()
            .filter(|finding| {
                finding.severity == Severity::Broken
                    && is_one(&finding.check)
                    && finding.family.is_none_or(|its| its == family)
            })
            .cloned()
            .collect();
        if !broken.is_empty() {
            return Rules::Broken(broken);
        }
        match report.unknown.iter().find(|unknown| is_one(&unknown.check)) {
            Some(unknown) => Rules::Unknown(unknown.clone()),
            None => Rules::Clear,
        }
    }
}

/// Facts about the path to an address in a subnet of this node.
#[derive(Debug)]
pub(super) struct Local {
    /// Address of the pod.
    pub pod: IpAddr,
    /// This node's subnet of the address's family.
    pub subnet: IpNet,
    /// Result of the kernel's route lookup for the address.
    pub fate: Result<Fate, KernelError>,
    /// Replies to pings of the address, if this node sent pings.
    pub pinged: Option<Result<Tally, Unasked>>,
    /// Hardware address of the pod, looked up after the pings.
    pub neighbour: Result<Neighbour, KernelError>,
}

/// Describes an encapsulation within a sentence.
pub(super) fn named(tunnel: Encapsulation) -> String {
    match tunnel.port() {
        Some(port) => format!("UDP port {port}"),
        None => format!("IP protocol {}", tunnel.protocol().unwrap_or_default()),
    }
}
