//! Encodes and queues probes.

use super::machine::Node;
use super::message::{Now, Send, Waiting, What};
use crate::target::Path;
use crate::wire::{ECHO, Echo, Header, MessageKind, ROW, echo, row_question};
use ipnet::IpNet;
use std::net::IpAddr;
use types::Family;

/// Length of the IPv4 and UDP headers, and of the IPv6 and UDP headers, in bytes.
const HEADERS: (u16, u16) = (28, 48);

impl Node {
    /// The address from which this node probes over the overlay; `None` while the node has none.
    pub fn source(&self, family: Family) -> Option<IpAddr> {
        self.local.overlay(family)
    }

    /// `None` if probes over the overlay are impossible.
    pub(super) fn overlay_of(&self, key: &IpNet) -> Option<IpAddr> {
        self.local.overlay(key.into())?;
        let peer = self.peers.get(key)?;
        if self.local.device {
            peer.target.overlay_addresses().first().copied()
        } else {
            peer.answers_at
        }
    }

    /// False if the node cannot send this kind of probe to the peer.
    pub(super) fn ask(&mut self, now: Now, key: IpNet, what: What, round: u64) -> bool {
        let Some((path, to)) = self.path_of(&key, what) else {
            return false;
        };
        if !(self.can)(path, to.into(), what.is_ping()) {
            return false;
        }
        let family = Family::from(key);
        let (Some(own), Some(peer)) = (self.local.who(family), self.peers.get_mut(&key)) else {
            return false;
        };
        if what != What::Row {
            peer.times.asked = Some(now.at.into());
        }
        let (meant, short, tokens) = (peer.who, peer.short, peer.tokens);
        let nonce = (self.random)();
        let length = what.length(self.local.mtu(family));
        let header = |kind, length| Header { kind, length, nonce, from: own, to: meant };
        let send = if what.is_ping() {
            Send::Ping { path, to, nonce, length }
        } else if what == What::Row {
            let length = u16::try_from(ROW).unwrap_or(u16::MAX);
            let head = header(MessageKind::RowQuestion, length);
            let about = self.viewer.about.filter(|about| *about != short);
            let bytes = row_question(&head, about, tokens.repeated(nonce));
            Send::Datagram { path, to, bytes }
        } else {
            let length = echo_length(length, family);
            let body = Echo {
                token: Some(tokens.own),
                repeats: tokens.repeated(nonce),
                ..self.echo_of_self(now, family)
            };
            let bytes = echo(&header(MessageKind::EchoQuestion, length), &body, length.into());
            Send::Datagram { path, to, bytes }
        };
        match &send {
            Send::Datagram { .. } | Send::ToPod { .. } => self.traffic.sent += 1,
            Send::Ping { .. } => self.traffic.pings += 1,
        }
        self.out.push(send);
        self.outstanding.insert(nonce, Waiting { key, what, path, to, at: now.at, round });
        true
    }

    /// The part of an echo probe that is the same for all peers.
    fn echo_of_self(&self, now: Now, family: Family) -> Echo {
        let up = now.at.saturating_sub(self.began);
        Echo {
            wall_ms: now.wall_ms,
            answers_at: self.local.overlay(family),
            up_ms: u32::try_from(up.as_millis()).unwrap_or(u32::MAX),
            ..Echo::default()
        }
    }

    fn path_of(&self, key: &IpNet, what: What) -> Option<(Path, IpAddr)> {
        let underlay = || self.peers.get(key).map(|peer| (Path::Underlay, peer.target.address));
        let overlay = || self.overlay_of(key).map(|to| (Path::Overlay, to));
        match what {
            What::Full
            | What::Small
            | What::Size(_)
            | What::Ping
            | What::FullPing
            | What::SizePing(_) => overlay(),
            What::BridgePing => {
                // On kernels before 5.14 the first address of a bridge's subnet is a broadcast address.
                let peer = self.peers.get(key)?;
                self.overlay_of(key)?;
                peer.target.overlay_addresses().get(1).map(|to| (Path::Overlay, *to))
            }
            What::Underlay => underlay().filter(|_| self.local.clear),
            What::UnderlayPing => underlay(),
            What::Session(_, kind) if kind.is_overlay() => overlay(),
            What::Session(_, kind) => underlay().filter(|_| self.local.clear || kind.is_ping()),
            // Every other attempt goes over the overlay, because one of the paths may be broken.
            What::Row if self.local.clear && self.viewer.goes_over_underlay(key) => underlay(),
            What::Row => overlay(),
        }
    }
}

/// The length in bytes of the UDP payload of an echo probe whose packet has `packet` bytes. It is never shorter than
/// a reply.
fn echo_length(packet: u16, family: Family) -> u16 {
    packet
        .saturating_sub(family.pick(HEADERS.0, HEADERS.1))
        .max(u16::try_from(ECHO).unwrap_or(u16::MAX))
}
