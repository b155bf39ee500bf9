//! What firewalld's rules do to flannel's packets: its table in, facts out.
//!
//! Its chains are walked as a packet does, because what lets a packet in may be a zone, a range of ports or a source. Where a condition cannot
//! be judged, the packet gets the benefit of the doubt.

use crate::encapsulation::is_protocol;
use crate::facts::Network;
use crate::firewalls::Firewalld;
use crate::fits::Fits;
use crate::surroundings::Surroundings;
use ipnet::IpNet;
use serde_json::Value;
use std::net::IpAddr;
use types::{Encapsulation, Family};

/// Maximum depth to which jumps are followed.
const DEPTH: usize = 16;
/// The pods' bridge.
const BRIDGE: &str = "cni0";

/// Judges the output of `nft -j list table inet firewalld`.
pub fn firewalld(listing: &Value, network: &Network, around: &Surroundings) -> Firewalld {
    let underlay = around.underlay.as_deref();
    let forwarded = |net: &IpNet| {
        let device = network.device(net.into());
        let outside = device.as_deref().or(underlay);
        let packet = |incoming, outgoing| Packet { incoming, outgoing, from: Sender::Pods(*net), tunnel: None };
        [packet(Some(BRIDGE), outside), packet(outside, Some(BRIDGE))].iter().all(|packet| passes(listing, "forward", packet))
    };
    let from = Sender::Nodes(&around.peers, network);
    let tunnel = |kind| Packet { incoming: underlay, outgoing: None, from, tunnel: Some(kind) };
    let mut packets = network.tunnel().into_iter().flat_map(|tunnel| tunnel.each(Family::V4)).map(tunnel);
    Firewalld { networks: network.networks.nets().filter(forwarded).collect(), tunnel: packets.all(|packet| passes(listing, "input", &packet)) }
}

/// Whose a packet is.
#[derive(Clone, Copy)]
enum Sender<'a> {
    /// A pod's, to another pod.
    Pods(IpNet),
    /// Another node's: one of these addresses, or, if there are none, any that is no pod's.
    Nodes(&'a [IpAddr], &'a Network),
}

/// The first packet of a connection.
struct Packet<'a> {
    /// The interface by which it comes.
    incoming: Option<&'a str>,
    /// The one by which it leaves.
    outgoing: Option<&'a str>,
    from: Sender<'a>,
    /// Which packets of the tunnel it is one of; without one it may be any packet.
    tunnel: Option<Encapsulation>,
}

/// What the rules decide.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Accepted,
    Refused,
    /// The chain has been left without a decision.
    Left,
}

/// Whether all chains of a hook let a packet pass.
fn passes(listing: &Value, hook: &str, packet: &Packet<'_>) -> bool {
    let mut bases = items(listing, "chain").filter(|chain| text(chain, "hook") == hook && text(chain, "type") == "filter");
    bases.all(|base| match walk(listing, text(base, "name"), packet, DEPTH) {
        Fate::Accepted => true,
        Fate::Refused => false,
        Fate::Left => text(base, "policy") != "drop",
    })
}

fn walk(listing: &Value, chain: &str, packet: &Packet<'_>, depth: usize) -> Fate {
    for rule in items(listing, "rule").filter(|rule| text(rule, "chain") == chain) {
        let mut fits = Fits::Yes;
        for expression in rule.get("expr").and_then(Value::as_array).into_iter().flatten() {
            if let Some(condition) = expression.get("match") {
                fits = fits.min(condition_of(condition, packet));
            } else if expression.get("vmap").is_some() {
                fits = fits.min(Fits::Perhaps);
                if fits == Fits::Perhaps {
                    return Fate::Accepted;
                }
            }
            if fits == Fits::No {
                break;
            }
            let has = |verdict: &str| expression.get(verdict).is_some();
            if has("accept") {
                return Fate::Accepted;
            }
            if has("drop") || has("reject") {
                if fits == Fits::Yes {
                    return Fate::Refused;
                }
                break;
            }
            if has("return") && fits == Fits::Yes {
                return Fate::Left;
            }
            let Some((verb, target)) = ["jump", "goto"].iter().find_map(|verb| Some((*verb, text(expression.get(verb)?, "target")))) else {
                continue;
            };
            let fate = if depth > 0 { walk(listing, target, packet, depth - 1) } else { Fate::Accepted };
            match (fate, fits) {
                (Fate::Accepted, _) => return fate,
                (Fate::Refused, Fits::Yes) => return fate,
                (Fate::Left, Fits::Yes) if verb == "goto" => return fate,
                _ => {}
            }
        }
    }
    Fate::Left
}

fn condition_of(condition: &Value, packet: &Packet<'_>) -> Fits {
    let (Some(left), Some(right)) = (condition.get("left"), condition.get("right")) else { return Fits::Perhaps };
    let fits = field(left, right, packet);
    match (text(condition, "op"), fits) {
        ("==" | "in", fits) => fits,
        ("!=", Fits::Yes) => Fits::No,
        ("!=", Fits::No) => Fits::Yes,
        _ => Fits::Perhaps,
    }
}

fn field(left: &Value, right: &Value, packet: &Packet<'_>) -> Fits {
    if let Some(meta) = left.get("meta") {
        let named = |name: Option<&str>| name.map_or(Fits::Perhaps, |name| any(right, &|value| is_name(value, name)));
        return match text(meta, "key") {
            "iifname" | "iif" => named(packet.incoming),
            // What comes in for this host leaves by no interface.
            "oifname" | "oif" => named(packet.outgoing),
            "l4proto" => protocol(right, packet),
            "nfproto" => match packet.from {
                Sender::Pods(net) => any(right, &|value| Fits::of(value == if net.addr().is_ipv6() { "ipv6" } else { "ipv4" })),
                Sender::Nodes(..) => Fits::Perhaps,
            },
            _ => Fits::Perhaps,
        };
    }
    if let Some(tracked) = left.get("ct") {
        return match text(tracked, "key") {
            "state" => any(right, &|value| Fits::of(value == "new")),
            // Nobody rewrote its addresses.
            "status" => Fits::No,
            _ => Fits::Perhaps,
        };
    }
    let Some(payload) = left.get("payload") else { return Fits::Perhaps };
    match (text(payload, "protocol"), text(payload, "field")) {
        ("udp" | "th", "dport") => match packet.tunnel.and_then(|tunnel| tunnel.port()) {
            Some(port) => any(right, &|value| is_port(value, port)),
            None => Fits::No,
        },
        // Not all of what pods send, and not the tunnel's.
        ("tcp" | "udp" | "sctp" | "dccp" | "icmp" | "icmpv6" | "th", _) => Fits::No,
        ("ip", "protocol") | ("ip6", "nexthdr") => protocol(right, packet),
        (family @ ("ip" | "ip6"), side @ ("saddr" | "daddr")) => match packet.from {
            Sender::Pods(net) if net.addr().is_ipv6() != (family == "ip6") => Fits::No,
            Sender::Pods(net) => any(right, &|value| is_within(value, &net)),
            Sender::Nodes(peers, network) if side == "saddr" => any(right, &|value| names_nodes(value, peers, network)),
            Sender::Nodes(..) => Fits::Perhaps,
        },
        _ => Fits::Perhaps,
    }
}

/// Whether a value names the packet's protocol above IP.
fn protocol(right: &Value, packet: &Packet<'_>) -> Fits {
    let named = |value: &Value| value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|number| number.to_string()));
    match packet.tunnel {
        Some(kind) => any(right, &|value| Fits::of(named(value).is_some_and(|name| is_protocol(kind, &name)))),
        // Not all of what pods send.
        None => Fits::No,
    }
}

/// The best that a value, or an element of a set, makes of it. The elements of a named set are not in sight.
fn any(value: &Value, fits: &dyn Fn(&Value) -> Fits) -> Fits {
    if value.as_str().is_some_and(|text| text.starts_with('@')) {
        return Fits::Perhaps;
    }
    let elements = match value.get("set").unwrap_or(value) {
        Value::Array(elements) => elements.as_slice(),
        one => std::slice::from_ref(one),
    };
    elements.iter().fold(Fits::No, |best, element| match (best, fits(element)) {
        (Fits::Yes, _) | (_, Fits::Yes) => Fits::Yes,
        (Fits::No, Fits::No) => Fits::No,
        _ => Fits::Perhaps,
    })
}

fn is_name(value: &Value, name: &str) -> Fits {
    let Some(wanted) = value.as_str() else { return Fits::Perhaps };
    Fits::of(wanted.strip_suffix('*').map_or(wanted == name, |start| name.starts_with(start)))
}

fn is_port(value: &Value, port: u16) -> Fits {
    let port = u64::from(port);
    match value.get("range").and_then(Value::as_array).map(Vec::as_slice) {
        Some([first, last]) => Fits::of(first.as_u64().is_some_and(|first| first <= port) && last.as_u64().is_some_and(|last| port <= last)),
        // A name of /etc/services is none of the tunnel's ports.
        _ => Fits::of(value.as_u64() == Some(port)),
    }
}

/// Whether the other nodes have the addresses that a value names.
fn names_nodes(value: &Value, peers: &[IpAddr], network: &Network) -> Fits {
    if peers.is_empty() {
        let pods = network.networks.nets().any(|net| is_within(value, &net) != Fits::No);
        return if pods { Fits::No } else { Fits::Perhaps };
    }
    let named = peers.iter().filter(|peer| is_within(value, &IpNet::from(**peer)) == Fits::Yes).count();
    match named {
        0 => Fits::No,
        all if all == peers.len() => Fits::Yes,
        _ => Fits::Perhaps,
    }
}

fn is_within(value: &Value, net: &IpNet) -> Fits {
    let address = |value: &Value| value.as_str()?.parse::<IpAddr>().ok();
    if let Some([first, last]) = value.get("range").and_then(Value::as_array).map(Vec::as_slice) {
        let (Some(first), Some(last)) = (address(first), address(last)) else { return Fits::Perhaps };
        let (begin, end) = (net.network(), net.broadcast());
        return match (first <= begin && end <= last, last < begin || end < first) {
            (true, _) => Fits::Yes,
            (_, true) => Fits::No,
            _ => Fits::Perhaps,
        };
    }
    let known = match value.get("prefix") {
        Some(prefix) => prefix.get("addr").and_then(address).and_then(|addr| {
            let length = prefix.get("len").and_then(Value::as_u64).and_then(|length| u8::try_from(length).ok())?;
            IpNet::new(addr, length).ok()
        }),
        None => address(value).map(IpNet::from),
    };
    match known {
        Some(known) if known.contains(net) => Fits::Yes,
        Some(known) if !subnet_lease::nets_overlap(&known, net) => Fits::No,
        _ => Fits::Perhaps,
    }
}

fn items<'a>(listing: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    listing.get("nftables").and_then(Value::as_array).into_iter().flatten().filter_map(move |item| item.get(kind))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
