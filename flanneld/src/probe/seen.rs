//! Facts about a path, and the prober's verdicts on the path.

use doctor::finding::Unknown;
use doctor::{Finding, Report, Severity};
use ipnet::IpNet;
use netstate::host::lookup::{Fate, Neighbour};
use netstate::kernel::KernelError;
use netstate::names::{LinkName, Mac};
use netstate::object::route::{RouteKind, RouteSpec};
use netstate::object::wireguard_peer::{PublicKey, SeenPeer};
use netstate::object::{Key, Value};
use probing::target::Target;
use probing::verdict::{self, Evidence, judge_rounds};
use probing::view::Tally;
use std::net::IpAddr;
use types::reachability::Verdict;
use types::{Encapsulation, Family, Problem};

#[derive(Debug)]
pub(super) struct Seen {
    pub target: Target,
    /// If the target is a pod.
    pub pod: Option<IpAddr>,
    /// The address in the peer's subnet whose route this node looks up.
    pub to: IpAddr,
    pub wanted: Wanted,
    /// For the address in the peer's subnet.
    pub fate: Result<Fate, KernelError>,
    /// The next hop's hardware address, if the lease requires a neighbour entry.
    pub neighbour: Option<Result<Neighbour, KernelError>>,
    /// The peer's address in the FDB entry, if the lease requires one.
    pub fdb: Option<Result<Option<IpAddr>, KernelError>>,
    /// The WireGuard peer to which the kernel sends the subnet's packets, if the lease requires one.
    pub tunnelled: Option<Result<Option<SeenPeer>, KernelError>>,
    /// For the peer's underlay address.
    pub underlay: Result<Fate, KernelError>,
    pub replies: ProbeReplies,
    /// The doctor's findings about packets that this node drops.
    pub rules: Rules,
    /// If this node pinged the pod.
    pub pinged: Option<Result<Tally, Problem>>,
    pub own: Own,
}

/// This node's end of the path.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// The cluster's pod network in the address family of the target.
    pub network: IpNet,
    /// If the name is known.
    pub backend: Option<&'static str>,
    /// In the target's address family; `None` without encapsulation.
    pub tunnel: Option<Encapsulation>,
    /// The UDP port of probes.
    pub probes: u16,
    /// Of the underlay.
    pub interface: String,
    /// Source of this node's packets to other nodes in the underlay.
    pub address: Option<IpAddr>,
    /// Source of this node's probes over the overlay.
    pub overlay: Option<IpAddr>,
}

/// Kernel objects that a peer's lease requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// To the subnet.
    pub route: Option<(IpNet, RouteSpec)>,
    /// Of the next hop: device, IP address and hardware address.
    pub neighbour: Option<(LinkName, IpAddr, Mac)>,
    /// Of the next hop: device, hardware address and the peer's address.
    pub fdb: Option<(LinkName, Mac, IpAddr)>,
    /// For the subnet: device, allowed IP and public key.
    pub tunnelled: Option<(LinkName, IpNet, PublicKey)>,
}

impl Wanted {
    /// Selects what a lease requires from all objects that the backend needs.
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

    /// The WireGuard backend uses one route of the whole network for all peers.
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

#[derive(Debug, Default)]
pub(super) struct ProbeReplies {
    /// Whether this node sends probes over the overlay.
    pub overlay: bool,
    /// `None` if this node sends probes.
    pub silenced: Option<Problem>,
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
    /// Milliseconds since the peer last received a probe over the overlay, according to the peer.
    pub hears_us: Option<u64>,
    /// The same over the underlay.
    pub hears_us_on_underlay: Option<u64>,
    /// The node that replied in the peer's place.
    pub answered_by: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judged {
    /// The overlay's verdict if this node probed over the overlay, otherwise the underlay's.
    pub whole: Verdict,
    /// Unknown if this node sent no probe over the overlay.
    pub overlay: Verdict,
    pub underlay: Verdict,
}

impl ProbeReplies {
    /// True if any reply arrived over the overlay.
    pub(super) fn through(&self) -> bool {
        self.evidence().through()
    }

    /// True if this node sent any probe over the overlay.
    pub(super) fn asked_through(&self) -> bool {
        self.evidence().asked_through()
    }

    /// True if the peer refused a probe over the overlay and replied to no small ping over it.
    fn is_refused(&self) -> bool {
        self.small.refused + self.full.refused > 0 && self.ping.answered == 0
    }

    /// A peer that refuses a probe has received it, so the refusal is equivalent to a reply to a ping.
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

    /// By the prober's rules.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    /// The doctor has no findings about dropped packets.
    Clear,
    /// The doctor's findings about dropped packets.
    Broken(Vec<Finding>),
    /// The doctor could not run a check of dropped packets.
    Unknown(Unknown),
    /// No check has run yet.
    NotLooked,
}

/// Doctor checks about packets that this node forwards or receives. Unlike the forwarding checks, they have one name
/// for both address families.
const CHECKS: [&str; 5] = ["rp-filter", "ufw", "firewalld", "forward-policy", "forward-reject"];

impl Rules {
    /// Selects the findings about dropped packets in the address family.
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

/// About the path from this node to an address in a subnet of this node.
#[derive(Debug)]
pub(super) struct Local {
    pub pod: IpAddr,
    /// This node's subnet with the pod's address.
    pub subnet: IpNet,
    /// For the pod's address.
    pub fate: Result<Fate, KernelError>,
    /// If this node pinged the pod.
    pub pinged: Option<Result<Tally, Problem>>,
    /// Looked up after the pings.
    pub neighbour: Result<Neighbour, KernelError>,
}

/// As a phrase: its UDP port or its IP protocol.
pub(super) fn named(tunnel: Encapsulation) -> String {
    match tunnel.port() {
        Some(port) => format!("UDP port {port}"),
        None => format!("IP protocol {}", tunnel.protocol().unwrap_or_default()),
    }
}
