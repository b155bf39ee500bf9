//! Checks for WireGuard peers that complete no handshake.

use super::leases::gone;
use crate::check::Check;
use crate::facts::Facts;
use crate::facts::mesh::{Path, State};
use crate::facts::wireguard::{Silent, Wireguard};
use crate::finding::{Finding, HERE, Severity};
use crate::need::Need;
use crate::shell::word;

/// The most peers with separate findings.
const MAX_LISTED: usize = 16;
/// Subject of the finding about all other peers.
const MORE: &str = "more";

pub const SILENT: Check = Check::new(
    "wireguard-silent",
    Severity::Broken,
    "A WireGuard peer completes no handshake",
    &[Need::Wireguard],
    &["isolated", "peer-cut", "overlay-cut", "one-way"],
    silent,
)
.waiting();

/// Peers that complete no handshake, except those whose machines are gone.
fn present<'a>(facts: &'a Facts, known: &'a Wireguard) -> Vec<&'a Silent> {
    let gone: Vec<_> = gone(facts).map(|peer| peer.subnets).collect();
    known
        .silent
        .iter()
        .filter(|peer| peer.holder.as_ref().is_none_or(|holder| !gone.contains(&holder.subnets)))
        .collect()
}

fn silent(facts: &Facts) -> Vec<Finding> {
    let Some(known) = facts.wireguard.known() else {
        return Vec::new();
    };
    let listed = present(facts, known);
    let mut findings: Vec<Finding> =
        listed.iter().take(MAX_LISTED).map(|peer| one(facts, known, peer)).collect();
    if let Some(rest @ 1..) = listed.len().checked_sub(MAX_LISTED) {
        let what = format!("{rest} more peers complete no WireGuard handshake with this node");
        let why = "if many peers are silent at once, this node's own key, preshared key, port or clock is the likelier cause";
        let seen = format!("{} of {} peers complete no handshake", listed.len(), known.peers);
        findings.push(
            Finding::new(SILENT.id, SILENT.severity, MORE, what, why)
                .seen(seen, "WireGuard")
                .run("flannelctl peers --all"),
        );
    }
    findings
}

fn one(facts: &Facts, known: &Wireguard, peer: &Silent) -> Finding {
    let Silent { key, device, .. } = peer;
    let (name, about) = match &peer.holder {
        Some(holder) => (holder.name.clone(), format!("{} {}", holder.name, holder.subnets)),
        None => (format!("the peer {key}"), format!("{key} on {device}")),
    };
    let mut finding = Finding::new(
        SILENT.id,
        SILENT.severity,
        about,
        format!("{name} completes no WireGuard handshake with this node"),
        why(peer, answers_nothing(facts, peer)),
    )
    .within(peer.subnets());
    let from = format!("wg show {device}");
    let to = peer.endpoint.map(|endpoint| format!(" to {endpoint}")).unwrap_or_default();
    let port = peer.port.map(|port| format!(" (UDP port {port})")).unwrap_or_default();
    finding = finding.seen(
        format!(
            "{device}{port} has sent packets{to} for {} without a completed handshake",
            span(peer.silence)
        ),
        &from,
    );
    finding = match peer.handshake {
        Some(ago) => {
            finding.seen(format!("the last handshake was completed {} ago", span(ago)), &from)
        }
        None => finding.seen("this node and the peer have never completed a handshake", &from),
    };
    if peer.initiates {
        finding = finding.seen(
            "the peer's own handshakes arrive, so both nodes have each other's public key",
            &from,
        );
    }
    let finding = match &peer.holder {
        Some(holder) => finding.seen(
            format!("the peer's public key is {key}"),
            format!("the lease of {}", holder.subnets),
        ),
        None => finding.seen("no active lease has this key", "flannelctl leases"),
    };
    let finding = finding.run_all(commands(facts, known, peer));
    match &peer.holder {
        Some(holder) => finding.run("flannelctl doctor").on(format!("{HERE} and {}", holder.name)),
        None => finding,
    }
}

/// No reply to probes and none to ping.
fn answers_nothing(facts: &Facts, peer: &Silent) -> bool {
    let is_cut = |path: &Path| {
        path.verdict.state == State::CutOff && peer.subnets().any(|net| net == path.subnet)
    };
    facts.paths().iter().any(is_cut)
}

/// The likely causes of missing handshakes, the most likely first.
fn why(peer: &Silent, answers_nothing: bool) -> String {
    const PRESHARED: &str =
        "preshared keys differ (PSK or PSKFile in the Backend, WIREGUARD_PSK_FILE)";
    let port = peer.endpoint.map_or_else(
        || "the peer's port".to_owned(),
        |endpoint| format!("UDP port {}", endpoint.port()),
    );
    if peer.initiates {
        return format!("the {PRESHARED}, or this node's replies get lost on the path");
    }
    if answers_nothing {
        return super::leases::SILENCE.to_owned();
    }
    format!(
        "a firewall filters {port}, the {PRESHARED}, the peer does not have this node's current key, or this node's clock was set back"
    )
}

fn commands(facts: &Facts, known: &Wireguard, peer: &Silent) -> Vec<String> {
    let device = word(&peer.device);
    let mut commands = Vec::new();
    if known.has_tool {
        commands.push(format!("wg show {device}"));
        // The command prints the same hash on both nodes if their keys are the same. It does not reveal the keys.
        commands.push(format!("wg show {device} preshared-keys | cut -f2 | sort -u | sha256sum"));
    }
    if let Some(port) = peer.port {
        commands.push(format!("ss -uln sport = :{port}"));
    }
    if let Some(endpoint) = peer.endpoint {
        let interface = facts.daemon.choice.known().map_or("any", |choice| &choice.interface);
        commands.push(format!(
            "tcpdump -c 5 -ni {} udp port {} and host {}",
            word(interface),
            endpoint.port(),
            endpoint.ip()
        ));
    }
    commands.push("timedatectl".to_owned());
    commands
}

fn span(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}
