//! Where a path ends, in one sentence, and what to type next: a pure function of what was seen, of the verdict on it and of the steps.

use super::seen::{Judged, Seen, named};
use super::target::title;
use doctor::encapsulation::capture;
use netstate::netlink::lookup::Fate;
use node_api::probe::{Next, Outcome, Step, StepName};
use std::net::IpAddr;
use types::Encapsulation;
use types::reachability::State;

/// The end of a way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The step at which it ends, if it does.
    pub at: Option<StepName>,
    /// One sentence.
    pub sentence: String,
    /// What to type next.
    pub next: Vec<Next>,
}

/// Where the way to a peer ends.
pub(super) fn end(seen: &Seen, judged: &Judged, steps: &[Step]) -> End {
    let at = steps
        .iter()
        .find(|step| step.outcome == Outcome::Failed)
        .map(|step| step.name);
    let peer = title(&seen.target);
    let here = |command: String| Next { on: None, command };
    let there = |command: String| Next {
        on: Some(peer.clone()),
        command,
    };
    let doctor = || "flannelctl doctor".to_owned();
    let address = seen.target.address;
    let (sentence, next) = match at {
        None => (well(seen, steps), Vec::new()),
        Some(StepName::Route) => {
            let next = vec![here(format!("ip route get {}", seen.to)), here(doctor())];
            (
                format!(
                    "It ends here: packets to {} do not take flannel's way.",
                    seen.to
                ),
                next,
            )
        }
        Some(StepName::Neighbour | StepName::Fdb) => {
            let dev = seen
                .wanted
                .neighbour
                .map(|(dev, ..)| dev.to_string())
                .unwrap_or_default();
            let next = vec![
                here(format!("ip neighbour show dev {dev}")),
                here(format!("bridge fdb show dev {dev}")),
                here(doctor()),
            ];
            (
                format!(
                    "It ends here: the kernel's entries for {peer} are not what its lease says."
                ),
                next,
            )
        }
        Some(StepName::Peer) => {
            let dev = seen
                .wanted
                .tunnelled
                .map(|(dev, ..)| dev.to_string())
                .unwrap_or_default();
            let is_right = matches!((&seen.tunnelled, seen.wanted.tunnelled), (Some(Ok(Some(found))), Some((.., key))) if found.key == key);
            match is_right {
                true => (
                    format!("It ends at the tunnel: no handshake with {peer} is completed."),
                    vec![
                        here(format!("wg show {dev}")),
                        here(doctor()),
                        there(doctor()),
                        here(tcpdump(&device(seen), seen.own.tunnel, address)),
                    ],
                ),
                false => (
                    format!(
                        "It ends here: the kernel's entries for {peer} are not what its lease says."
                    ),
                    vec![here(format!("wg show {dev} allowed-ips")), here(doctor())],
                ),
            }
        }
        Some(StepName::Underlay) => {
            let next = vec![
                here(format!("ip route get {address}")),
                here(tcpdump(&device(seen), None, address)),
                here(doctor()),
                there(doctor()),
            ];
            (underlay(seen, judged.underlay.state, &peer), next)
        }
        Some(StepName::Rules) => (
            "It ends here: this node's own rules drop packets of pods.".to_owned(),
            vec![here(doctor())],
        ),
        Some(StepName::Overlay) => {
            let look = match judged.overlay.state {
                // What comes back from the peer, on this node.
                State::OneWay => seen
                    .own
                    .tunnel
                    .map(|tunnel| here(tcpdump(&device(seen), Some(tunnel), address))),
                // What this node sends, on the peer.
                _ => source(seen).map(|source| there(tcpdump("any", seen.own.tunnel, source))),
            };
            (
                over(seen, judged.overlay.state, &peer),
                [there(doctor())].into_iter().chain(look).collect(),
            )
        }
        Some(StepName::Bridge | StepName::Pod) => {
            ("It ends at the pod.".to_owned(), vec![there(doctor())])
        }
    };
    End { at, sentence, next }
}

/// The interface by which packets to the peer leave.
fn device(seen: &Seen) -> String {
    match &seen.underlay {
        Ok(Fate::Sent(hop)) if !hop.dev.as_str().is_empty() => hop.dev.to_string(),
        _ => seen.own.interface.clone(),
    }
}

/// The address from which the peer sees what this node sends: the tunnel's, or without a tunnel the packet's own.
fn source(seen: &Seen) -> Option<IpAddr> {
    let by_route = match &seen.underlay {
        Ok(Fate::Sent(hop)) => hop.source,
        _ => None,
    };
    if seen.own.tunnel.is_some() {
        seen.own.address.or(by_route)
    } else {
        seen.own.overlay.or(seen.own.address)
    }
}

fn tcpdump(device: &str, tunnel: Option<Encapsulation>, host: IpAddr) -> String {
    let tunnel = tunnel
        .map(|tunnel| format!("{} and ", capture(tunnel)))
        .unwrap_or_default();
    format!(
        "tcpdump -c 5 -ni {} {tunnel}host {host}",
        doctor::shell::word(device)
    )
}

fn well(seen: &Seen, steps: &[Step]) -> String {
    let peer = title(&seen.target);
    let outcome = |name| {
        steps
            .iter()
            .find(|step| step.name == name)
            .map(|step| step.outcome)
    };
    match (outcome(StepName::Pod), outcome(StepName::Overlay)) {
        (Some(Outcome::Ok), _) => {
            format!(
                "All is well: packets reach the pod {} on {peer}.",
                seen.pod.map(|pod| pod.to_string()).unwrap_or_default()
            )
        }
        (Some(_), Some(Outcome::Ok)) => {
            format!(
                "All is well as far as {peer}; whether {} is there is not known.",
                seen.pod.map(|pod| pod.to_string()).unwrap_or_default()
            )
        }
        (_, Some(Outcome::Ok)) => {
            format!("All is well: packets of pods reach {peer}, large ones too.")
        }
        _ => format!("Nothing is wrong as far as {peer} could be asked."),
    }
}

fn underlay(seen: &Seen, state: State, peer: &str) -> String {
    let address = seen.target.address;
    match &seen.underlay {
        Ok(Fate::NoRoute | Fate::Dropped(_)) => {
            format!("It ends here: packets to {peer} at {address} do not leave this node.")
        }
        _ if state.passes() => format!("The network between this node and {peer} loses packets."),
        _ => format!(
            "It ends on the way to {peer} at {address}, or there: nothing answers, ping neither."
        ),
    }
}

fn over(seen: &Seen, state: State, peer: &str) -> String {
    let tunnel = seen.own.tunnel;
    match (state, tunnel) {
        (State::WrongNode, _) => {
            format!(
                "It ends at another node: two machines have the address {}, or a lease is left of one that is gone.",
                seen.target.address
            )
        }
        (State::SmallMtu, _) => format!(
            "It ends for large packets on the way to {peer}: {} bytes do not arrive.",
            seen.heard.mtu
        ),
        (State::LosesSome | State::Slow | State::Well, _) => {
            format!("The way to {peer} through the overlay loses packets.")
        }
        (State::OneWay, _) => {
            let from = tunnel
                .map(|tunnel| format!(" from its {}", named(tunnel)))
                .unwrap_or_default();
            format!(
                "It ends on the way back{from}: {peer} hears this node, and its answers do not arrive."
            )
        }
        (
            State::OverlayCut | State::CutOff | State::Unknown,
            Some(tunnel @ Encapsulation::Ipip),
        ) => {
            format!(
                "It ends on the way to {peer}: {}, in which packets of pods travel, does not arrive there.",
                named(tunnel)
            )
        }
        (State::OverlayCut | State::CutOff | State::Unknown, Some(tunnel)) => {
            format!(
                "It ends on the way to {peer}'s {}: what this node sends does not arrive.",
                named(tunnel)
            )
        }
        (State::OverlayCut | State::CutOff | State::Unknown, None) => {
            format!(
                "It ends on the way to {peer}: the network between the nodes drops packets of pods, or {peer} does not take them."
            )
        }
    }
}
