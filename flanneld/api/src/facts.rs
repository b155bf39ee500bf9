//! Short texts about a node, for `flannelctl status` and the status page.

use crate::{FailedPeer, FileState, Node, Peer, PodPath, Wireguard};
use jiff::Timestamp;
use probing::pods::{LostPackets, PodState};
use std::fmt::Display;
use std::time::Duration;
use types::reachability::Impact;

/// Each text has a name. They are about the subnet, the store, the kernel, the rules, the peers and other details.
pub fn facts(node: &Node) -> Vec<(&'static str, String)> {
    let unused = (!node.unused.is_empty()).then(|| {
        format!("{} of the leases in the store: flannelctl leases shows why", node.unused.len())
    });
    [
        ("subnet", subnet(node)),
        ("address", address(node)),
        ("pods", pods(node)),
        ("store", store(node)),
        ("kernel", kernel(node)),
        ("failed", failed_peers(node)),
        ("silent", silent_peers(node)),
        ("rules", rules(node)),
        ("peers", Some(peers(node))),
        ("probes", pod_paths(node)),
        ("unused", unused),
    ]
    .into_iter()
    .filter_map(|(name, text)| Some((name, text?)))
    .collect()
}

fn subnet(node: &Node) -> Option<String> {
    if node.network.subnets.is_empty() {
        return None;
    }
    let mut text = joined(&node.network.subnets);
    if let Some(lease) = &node.network.lease {
        match lease.until {
            Some(until) => match since(node.at, until) {
                Some(left) => text.push_str(&format!(", leased for {} more", span(left))),
                None => text.push_str(", whose lease has ended"),
            },
            None => text.push_str(", which does not expire"),
        }
        if let Some(renewed) = lease.renewed.and_then(|renewed| since(renewed, node.at)) {
            text.push_str(&format!(", renewed {} ago", span(renewed)));
        }
        if let Some(trouble) = &lease.trouble {
            text.push_str(&format!("; {trouble}"));
        }
    }
    Some(text)
}

fn address(node: &Node) -> Option<String> {
    let underlay = node.network.underlay.as_ref()?;
    let public = if underlay.public == underlay.addresses {
        String::new()
    } else {
        format!(", published as {}", joined(&underlay.public))
    };
    Some(format!(
        "{} on {} (MTU {}){public}: {}",
        joined(&underlay.addresses),
        underlay.interface,
        underlay.mtu,
        underlay.why
    ))
}

fn pods(node: &Node) -> Option<String> {
    let mtu = node.network.mtu?;
    let file = node.network.subnet_env.as_ref().map(|file| {
        let path = file.path.display();
        match file.state {
            FileState::Right => format!("; {path} is correct"),
            FileState::Missing => format!("; {path} is missing: no pod can start"),
            FileState::Different => {
                format!("; the values in {path} differ from this node's values")
            }
        }
    });
    Some(format!("MTU {mtu}{}", file.unwrap_or_default()))
}

fn store(node: &Node) -> Option<String> {
    let store = node.store.as_ref()?;
    let heard = store
        .heard
        .and_then(|heard| since(heard, node.at))
        .map(|ago| format!(", last heard {} ago", span(ago)));
    let trouble = store.trouble.as_ref().map(|trouble| format!("; {trouble}"));
    Some(format!(
        "{}{}{}",
        store.what,
        heard.unwrap_or_else(|| ", not heard yet".to_owned()),
        trouble.unwrap_or_default()
    ))
}

fn kernel(node: &Node) -> Option<String> {
    let kernel = node.kernel.as_ref()?;
    let counts = [
        (kernel.routes, "route", "routes"),
        (kernel.neighbours, "neighbour", "neighbours"),
        (kernel.fdb, "FDB entry", "FDB entries"),
        (
            kernel.wireguard.map_or(0, |wireguard| wireguard.peers),
            "WireGuard peer",
            "WireGuard peers",
        ),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, one, many)| format!("{count} {}", if *count == 1 { one } else { many }))
        .collect();
    let objects = if counts.is_empty() { "no objects".to_owned() } else { counts.join(", ") };
    let state = if kernel.in_sync {
        "all in sync".to_owned()
    } else {
        format!("not in sync: {}", kernel.trouble)
    };
    let back = if kernel.put_back > 0 {
        format!("; {} restored in the last hour", kernel.put_back)
    } else {
        String::new()
    };
    Some(format!("{objects}, {state}{back}"))
}

/// The peers whose objects the kernel refuses, with the reason for the first.
fn failed_peers(node: &Node) -> Option<String> {
    let failed = &node.kernel.as_ref()?.failed_peers;
    let FailedPeer { node, subnet, text, .. } = failed.first()?;
    let name = node.as_ref().map_or(String::new(), |node| format!(" ({node})"));
    let count =
        if failed.len() == 1 { "1 peer".to_owned() } else { format!("{} peers", failed.len()) };
    Some(format!("flanneld cannot program {count}: {subnet}{name}: {text}"))
}

/// The WireGuard peers that complete no handshake.
fn silent_peers(node: &Node) -> Option<String> {
    let Wireguard { peers, silent } =
        node.kernel.as_ref()?.wireguard.filter(|wireguard| wireguard.silent > 0)?;
    Some(format!("{silent} of {peers} WireGuard peers complete no handshake"))
}

fn rules(node: &Node) -> Option<String> {
    let rules = node.rules.as_ref()?;
    let what = if rules.what.is_empty() { "none wanted".to_owned() } else { rules.what.join(", ") };
    let state = if rules.in_place { "in place".to_owned() } else { rules.trouble.clone() };
    Some(format!("{}: {what}; {state}", rules.with))
}

/// The results of the probes on the path of pod packets.
fn pod_paths(node: &Node) -> Option<String> {
    let shown = |path: &PodPath| {
        let changed = path.lost.iter().any(|lost| lost.what == LostPackets::Address);
        let Some(address) = path.address else {
            return format!("{}: subnet too small for probes of pods", path.family);
        };
        let text = match (path.state, path.obstacle.as_deref()) {
            (PodState::Well, _) => "pass".to_owned(),
            (PodState::All | PodState::Some, _) if changed => {
                "arrive with another address".to_owned()
            }
            (PodState::All, _) => "are lost on this node".to_owned(),
            (PodState::Some, _) => {
                format!("are lost from or to {} of {} peers", path.lost.len(), path.asked)
            }
            (PodState::Unknown, Some("no-bridge")) => "not sent before the first pod".to_owned(),
            (PodState::Unknown, Some("taken")) => "not sent: a pod has the address".to_owned(),
            (PodState::Unknown, Some("refused")) => {
                "not sent: the kernel refuses the probes' device or socket".to_owned()
            }
            (PodState::Unknown, Some("flooded")) => "unknown: the address is flooded".to_owned(),
            (PodState::Unknown, Some("filtered")) => {
                "unknown: every peer filters new packets to the probe port".to_owned()
            }
            (PodState::Unknown, Some("nobody-answers")) => {
                "not sent: no peer replies to this node".to_owned()
            }
            (PodState::Unknown, _) => "not sent yet".to_owned(),
        };
        format!("pods' packets, from {address}: {text}")
    };
    let all: Vec<String> = node.pod_paths.as_ref()?.iter().map(shown).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn peers(node: &Node) -> String {
    let all = node.peers.len();
    match &node.mesh {
        Some(mesh) if !mesh.peers.is_empty() => {
            // A node with both families has two verdicts.
            let verdicts = |peer: &Peer| -> Vec<bool> {
                mesh.peers
                    .iter()
                    .filter(|verdict| peer.subnets.contains(&verdict.subnet))
                    .map(|verdict| verdict.state.impact() == Impact::None)
                    .collect()
            };
            let probed: Vec<Vec<bool>> =
                node.peers.iter().map(verdicts).filter(|verdicts| !verdicts.is_empty()).collect();
            let well = probed.iter().filter(|verdicts| verdicts.iter().all(|well| *well));
            format!("{} of {} well", well.count(), probed.len())
        }
        _ if all == 1 => "1, not probed".to_owned(),
        _ => format!("{all}, not probed"),
    }
}

fn joined<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

/// In its one or two largest units.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, _) => format!("{minutes} min"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

/// `None` if `then` is later than `now`.
pub fn since(then: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(now.duration_since(then)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        for (seconds, want) in
            [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3_661, "1 h 1 min"), (90_000, "1 d 1 h")]
        {
            assert_eq!(span(Duration::from_secs(seconds)), want);
        }
    }
}
