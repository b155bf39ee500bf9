//! Facts about a path, and the prober's verdicts on the path.

use super::error::NotSentError;
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

/// Facts about the path to a peer, or to a pod of the peer.
#[derive(Debug)]
pub(super) struct Seen {
    pub target: Target,
    /// Address of the pod, if the target is a pod.
    pub pod: Option<IpAddr>,
    /// Address in the peer's subnet whose route this node looks up.
    pub to: IpAddr,
    /// Kernel objects that the peer's lease requires.
    pub wanted: Wanted,
    /// Result of the kernel's route lookup for the address in the peer's subnet.
    pub fate: Result<Fate, KernelError>,
    /// The next hop's hardware address in the kernel, if the lease requires a neighbour entry.
    pub neighbour: Option<Result<Neighbour, KernelError>>,
    /// The peer's address in the kernel's FDB entry, if the lease requires an FDB entry.
    pub fdb: Option<Result<Option<IpAddr>, KernelError>>,
    /// The WireGuard peer to which the kernel sends the subnet's packets, if the lease requires a WireGuard peer.
    pub tunnelled: Option<Result<Option<PeerStatus>, KernelError>>,
    /// Result of the kernel's route lookup for the peer's underlay address.
    pub underlay: Result<Fate, KernelError>,
    /// Probes and pings that this node sent, and their replies.
    pub replies: ProbeReplies,
    /// The doctor's findings about packets that this node drops.
    pub rules: Rules,
    /// Numbers of pings to the pod and of replies, if this node pinged the pod.
    pub pinged: Option<Result<Tally, NotSentError>>,
    pub own: Own,
}

/// This node's end of the path.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// The cluster's pod network in the address family of the target.
    pub network: IpNet,
    /// Name of the backend, if the name is known.
    pub backend: Option<&'static str>,
    /// Encapsulation of pod packets in the target's address family; `None` without encapsulation.
    pub tunnel: Option<Encapsulation>,
    /// The UDP port of probes between nodes.
    pub probes: u16,
    /// Name of the underlay interface.
    pub interface: String,
    /// Underlay address from which this node sends packets to other nodes.
    pub address: Option<IpAddr>,
    /// Address from which this node sends probes over the overlay.
    pub overlay: Option<IpAddr>,
}

/// Kernel objects that a peer's lease requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The route to the subnet.
    pub route: Option<(IpNet, RouteSpec)>,
    /// The neighbour entry of the next hop: device, IP address and hardware address.
    pub neighbour: Option<(LinkName, IpAddr, Mac)>,
    /// The FDB entry of the next hop: device, hardware address and the peer's address.
    pub fdb: Option<(LinkName, Mac, IpAddr)>,
    /// The WireGuard peer for the subnet: device, allowed IP and public key.
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

    /// Adds the route of the WireGuard backend, which uses one route of the whole network for all peers.
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

/// Numbers of probes and pings that this node sent to a peer, and of the replies.
#[derive(Debug, Default)]
pub(super) struct ProbeReplies {
    /// Whether this node sends probes over the overlay.
    pub overlay: bool,
    /// Reason why this node sends no probes; `None` if this node sends probes.
    pub silenced: Option<NotSentError>,
    /// Length of long probes, in bytes.
    pub mtu: u16,
    /// Number of small probes over the overlay, and of replies.
    pub small: Tally,
    /// Number of long probes over the overlay, and of replies.
    pub full: Tally,
    /// Number of probes over the underlay, and of replies.
    pub underlay: Tally,
    /// Number of small pings over the overlay, and of replies.
    pub ping: Tally,
    /// Number of long pings over the overlay, and of replies.
    pub full_ping: Tally,
    /// Number of pings over the underlay, and of replies.
    pub underlay_ping: Tally,
    /// Milliseconds since the peer last received a probe of this node over the overlay, according to the peer.
    pub hears_us: Option<u64>,
    /// Milliseconds since the peer last received a probe of this node over the underlay, according to the peer.
    pub hears_us_on_underlay: Option<u64>,
    /// Name of the node that replied in the peer's place.
    pub answered_by: Option<String>,
}

/// The prober's verdicts on a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judged {
    /// Verdict on the peer: the overlay's verdict if this node probed over the overlay, otherwise the underlay's
    /// verdict.
    pub whole: Verdict,
    /// Verdict on the path over the overlay; unknown if this node sent no probe over the overlay.
    pub overlay: Verdict,
    /// Verdict on the path over the underlay.
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

    /// Returns whether the peer refused a probe over the overlay and replied to no small ping over the overlay.
    fn is_refused(&self) -> bool {
        self.small.refused + self.full.refused > 0 && self.ping.answered == 0
    }

    /// Converts the replies into evidence for a verdict. A peer that refuses a probe has received the probe, so the
    /// refusal is equivalent to a reply to a ping.
    fn evidence(&self) -> Evidence {
        let or_refused = |ping: Tally, question: Tally| {
            if question.refused > 0 { verdict::ProbeResult::Answered } else { ping.result() }
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

    /// Computes the verdicts from the replies, with the prober's rules.
    pub(super) fn judged(&self) -> Judged {
        let evidence = self.evidence();
        let lost = if self.small.answered + self.full.answered > 0 {
            self.small.lost() + self.full.lost()
        } else if self.is_refused() {
            0
        } else {
            self.ping.lost()
        };
        let lost_on_underlay =
            match (self.underlay.answered, self.underlay_ping.answered, self.underlay.refused) {
                (1.., ..) => self.underlay.lost(),
                (_, 0, 1..) => 0,
                _ => self.underlay_ping.lost(),
            };
        let underlay = judge_rounds(&evidence.only_underlay(), lost_on_underlay.into());
        if evidence.other || evidence.asked_through() {
            let overlay = judge_rounds(&evidence, lost.into());
            Judged { whole: overlay, overlay, underlay }
        } else {
            Judged { whole: underlay, overlay: Verdict::default(), underlay }
        }
    }
}

/// Findings of the doctor about packets that this node drops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    /// A report of the doctor without findings about dropped packets.
    Clear,
    /// The doctor's findings about dropped packets.
    Broken(Vec<Finding>),
    /// A check of dropped packets that the doctor could not run.
    Unknown(Unknown),
    /// Lack of a report of the doctor, because no check has run yet.
    NotLooked,
}

/// Doctor checks about packets that this node forwards or receives. Unlike the forwarding checks, these checks have one
/// name for both address families.
const CHECKS: [&str; 5] = ["rp-filter", "ufw", "firewalld", "forward-policy", "forward-reject"];

impl Rules {
    /// Selects the findings about dropped packets in the address family `family` from the doctor's report.
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

/// Facts about the path from this node to an address in a subnet of this node.
#[derive(Debug)]
pub(super) struct Local {
    /// Address of the pod.
    pub pod: IpAddr,
    /// This node's subnet that contains the pod's address.
    pub subnet: IpNet,
    /// Result of the kernel's route lookup for the pod's address.
    pub fate: Result<Fate, KernelError>,
    /// Numbers of pings to the pod and of replies, if this node pinged the pod.
    pub pinged: Option<Result<Tally, NotSentError>>,
    /// Hardware address of the pod, looked up after the pings.
    pub neighbour: Result<Neighbour, KernelError>,
}

/// Describes an encapsulation as a phrase: its UDP port or its IP protocol.
pub(super) fn named(tunnel: Encapsulation) -> String {
    match tunnel.port() {
        Some(port) => format!("UDP port {port}"),
        None => format!("IP protocol {}", tunnel.protocol().unwrap_or_default()),
    }
}
