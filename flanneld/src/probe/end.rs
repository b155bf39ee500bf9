//! Describes in one sentence where a path breaks, and suggests commands to run next. The result depends only on the
//! facts, the verdicts and the steps.

use super::seen::{Judged, Seen, named};
use super::target::title;
use doctor::encapsulation::capture;
use netstate::host::lookup::Fate;
use node_api::probe::{Next, Outcome, Step, StepName};
use std::net::IpAddr;
use types::Encapsulation;
use types::reachability::State;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The first step that failed, if any.
    pub at: Option<StepName>,
    /// Where the path breaks.
    pub sentence: String,
    /// Commands that the user should run next.
    pub next: Vec<Next>,
}

/// The path breaks at the first step that failed.
pub(super) fn end(seen: &Seen, judged: &Judged, steps: &[Step]) -> End {
    let at = steps.iter().find(|step| step.outcome == Outcome::Failed).map(|step| step.name);
    let peer = title(&seen.target);
    let (sentence, next) = match at {
        None => (well(seen, steps), Vec::new()),
        Some(StepName::Route) => (
            format!("The path breaks here: packets to {} do not use flannel's route.", seen.to),
            vec![here(format!("ip route get {}", seen.to)), here(doctor())],
        ),
        Some(StepName::Neighbour | StepName::Fdb) => at_neighbour(seen, &peer),
        Some(StepName::Peer) => at_tunnel_peer(seen, &peer),
        Some(StepName::Underlay) => at_underlay(seen, judged.underlay.state, &peer),
        Some(StepName::Rules) => (
            "The path breaks here: this node's own rules drop packets of pods.".to_owned(),
            vec![here(doctor())],
        ),
        Some(StepName::Overlay) => at_overlay(seen, judged.overlay.state, &peer),
        Some(
            StepName::Bridge
            | StepName::Pod
            | StepName::Name
            | StepName::Connection
            | StepName::PodConnection,
        ) => ("The path breaks at the pod.".to_owned(), vec![there(&peer, doctor())]),
    };
    End { at, sentence, next }
}

fn at_neighbour(seen: &Seen, peer: &str) -> (String, Vec<Next>) {
    let dev = seen.wanted.neighbour.map(|(dev, ..)| dev.to_string()).unwrap_or_default();
    (
        wrong_entries(peer),
        vec![
            here(format!("ip neighbour show dev {dev}")),
            here(format!("bridge fdb show dev {dev}")),
            here(doctor()),
        ],
    )
}

fn at_tunnel_peer(seen: &Seen, peer: &str) -> (String, Vec<Next>) {
    let dev = seen.wanted.tunnelled.map(|(dev, ..)| dev.to_string()).unwrap_or_default();
    let is_right = matches!((&seen.tunnelled, seen.wanted.tunnelled), (Some(Ok(Some(found))), Some((.., key))) if found.key == key);
    match is_right {
        true => (
            format!("The path breaks at the tunnel: {peer} completes no handshake."),
            vec![
                here(format!("wg show {dev}")),
                here(doctor()),
                there(peer, doctor()),
                here(tcpdump(&device(seen), seen.own.tunnel, seen.target.address)),
            ],
        ),
        false => {
            (wrong_entries(peer), vec![here(format!("wg show {dev} allowed-ips")), here(doctor())])
        }
    }
}

fn at_underlay(seen: &Seen, state: State, peer: &str) -> (String, Vec<Next>) {
    let address = seen.target.address;
    (
        underlay_sentence(seen, state, peer),
        vec![
            here(format!("ip route get {address}")),
            here(tcpdump(&device(seen), None, address)),
            here(doctor()),
            there(peer, doctor()),
        ],
    )
}

fn at_overlay(seen: &Seen, state: State, peer: &str) -> (String, Vec<Next>) {
    let capture = match state {
        // Captures on this node: packets that come back from the peer.
        State::OneWay => seen
            .own
            .tunnel
            .map(|tunnel| here(tcpdump(&device(seen), Some(tunnel), seen.target.address))),
        // Captures on the peer: packets that this node sends.
        _ => source(seen).map(|source| there(peer, tcpdump("any", seen.own.tunnel, source))),
    };
    (
        overlay_sentence(seen, state, peer),
        [there(peer, doctor())].into_iter().chain(capture).collect(),
    )
}

fn wrong_entries(peer: &str) -> String {
    format!("The path breaks here: the kernel's entries for {peer} differ from its lease.")
}

/// A command to run on this node.
fn here(command: String) -> Next {
    Next { on: None, command }
}

/// A command to run on the peer.
fn there(peer: &str, command: String) -> Next {
    Next { on: Some(peer.to_owned()), command }
}

fn doctor() -> String {
    "flannelctl doctor".to_owned()
}

/// The interface through which packets to the peer leave this node.
fn device(seen: &Seen) -> String {
    match &seen.underlay {
        Ok(Fate::Sent(hop)) if !hop.dev.as_str().is_empty() => hop.dev.to_string(),
        _ => seen.own.interface.clone(),
    }
}

/// The source address of this node's packets when they reach the peer: the tunnel's outer address, or their own
/// without a tunnel.
fn source(seen: &Seen) -> Option<IpAddr> {
    let by_route = match &seen.underlay {
        Ok(Fate::Sent(hop)) => hop.route.source,
        _ => None,
    };
    if seen.own.tunnel.is_some() {
        seen.own.address.or(by_route)
    } else {
        seen.own.overlay.or(seen.own.address)
    }
}

fn tcpdump(device: &str, tunnel: Option<Encapsulation>, host: IpAddr) -> String {
    let tunnel = tunnel.map(|tunnel| format!("{} and ", capture(tunnel))).unwrap_or_default();
    format!("tcpdump -c 5 -ni {} {tunnel}host {host}", doctor::shell::word(device))
}

fn well(seen: &Seen, steps: &[Step]) -> String {
    let peer = title(&seen.target);
    let outcome = |name| steps.iter().find(|step| step.name == name).map(|step| step.outcome);
    match (outcome(StepName::Pod), outcome(StepName::Overlay)) {
        (Some(Outcome::Ok), _) => {
            format!(
                "The path works: packets reach the pod {} on {peer}.",
                seen.pod.map(|pod| pod.to_string()).unwrap_or_default()
            )
        }
        (Some(_), Some(Outcome::Ok)) => {
            format!(
                "The path works up to {peer}; it is unknown whether {} exists.",
                seen.pod.map(|pod| pod.to_string()).unwrap_or_default()
            )
        }
        (_, Some(Outcome::Ok)) => {
            format!("The path works: packets of pods reach {peer}, including large packets.")
        }
        _ => format!("The probe found no fault, as far as it could test the path to {peer}."),
    }
}

fn underlay_sentence(seen: &Seen, state: State, peer: &str) -> String {
    let address = seen.target.address;
    match &seen.underlay {
        Ok(Fate::NoRoute | Fate::Dropped(_)) => {
            format!("The path breaks here: packets to {peer} at {address} do not leave this node.")
        }
        _ if state.passes() => format!("The network between this node and {peer} loses packets."),
        _ => format!(
            "The path breaks at or before {peer} ({address}): nothing replies, not even to ping."
        ),
    }
}

fn overlay_sentence(seen: &Seen, state: State, peer: &str) -> String {
    let tunnel = seen.own.tunnel;
    match (state, tunnel) {
        (State::WrongNode, _) => {
            format!(
                "The path ends at another node: two machines have the address {}, or a lease remains from a machine that is gone.",
                seen.target.address
            )
        }
        (State::SmallMtu, _) => format!(
            "The path to {peer} breaks for large packets: {} bytes do not arrive.",
            seen.replies.mtu
        ),
        (State::LosesSome | State::Slow | State::Well, _) => {
            format!("The path to {peer} through the overlay loses packets.")
        }
        (State::OneWay, _) => {
            let from =
                tunnel.map(|tunnel| format!(" from its {}", named(tunnel))).unwrap_or_default();
            format!(
                "The reverse path{from} breaks: {peer} receives this node's probes, but its replies do not arrive."
            )
        }
        (
            State::OverlayCut | State::CutOff | State::Unknown,
            Some(tunnel @ Encapsulation::Ipip),
        ) => {
            format!(
                "The path to {peer} breaks: {}, in which packets of pods travel, does not reach the peer.",
                named(tunnel)
            )
        }
        (State::OverlayCut | State::CutOff | State::Unknown, Some(tunnel)) => {
            format!(
                "The path to {peer}'s {} breaks: packets of this node do not arrive.",
                named(tunnel)
            )
        }
        (State::OverlayCut | State::CutOff | State::Unknown, None) => {
            format!(
                "The path to {peer} breaks: the network between the nodes drops packets of pods, or {peer} does not accept them."
            )
        }
    }
}
