//! Writing questions.

use super::machine::Node;
use super::message::{LATE, Now, Send, WAIT, Waiting, What};
use crate::target::Path;
use crate::wire::{ECHO, Echo, Header, MessageKind, ROW, echo, row_question};
use ipnet::IpNet;
use std::net::IpAddr;
use types::Family;

/// The bytes of IPv4 and UDP headers, and of IPv6 and UDP headers.
const HEADERS: (u16, u16) = (28, 48);

impl Node {
    /// The address from which it asks through the overlay network.
    pub fn source(&self, family: Family) -> Option<IpAddr> {
        self.local.overlay(family)
    }

    /// Whether a peer can be asked through the overlay network, and where.
    pub(super) fn overlay_of(&self, key: &IpNet) -> Option<IpAddr> {
        self.local.overlay(key.into())?;
        let peer = self.peers.get(key)?;
        if self.local.device {
            peer.target.overlay_addresses().first().copied()
        } else {
            peer.answers_at
        }
    }

    /// Asks; false where that is not possible.
    pub(super) fn ask(&mut self, now: Now, key: IpNet, what: What, round: u64) -> bool {
        let Some((way, to)) = self.way_of(&key, what) else {
            return false;
        };
        let family = Family::from(key);
        if !(self.can)(way, to.into(), what.is_ping()) {
            return false;
        }
        let (Some(own), Some(peer)) = (self.local.who(family), self.peers.get_mut(&key)) else {
            return false;
        };
        if what != What::Row {
            peer.asked_at = Some(now.at.into());
        }
        let (meant, mtu, tokens) = (peer.who, self.local.mtu(family), peer.tokens);
        let nonce = (self.random)();
        let headers = family.pick(HEADERS.0, HEADERS.1);
        let datagram = |length: u16| {
            let length = length
                .saturating_sub(headers)
                .max(u16::try_from(ECHO).unwrap_or(u16::MAX));
            let header = Header {
                kind: MessageKind::EchoQuestion,
                length,
                nonce,
                from: own,
                to: meant,
            };
            let up_ms =
                u32::try_from(now.at.saturating_sub(self.began).as_millis()).unwrap_or(u32::MAX);
            let (token, repeats) = (Some(tokens.own), tokens.repeated(nonce));
            let body = Echo {
                token,
                repeats,
                wall_ms: now.wall_ms,
                answers_at: self.local.overlay(family),
                up_ms,
                ..Echo::default()
            };
            Send::Datagram {
                way,
                to,
                bytes: echo(&header, &body, length.into()),
            }
        };
        let ping = |length: u16| Send::Ping {
            way,
            to,
            nonce,
            length,
        };
        let send = match what {
            What::Full => datagram(mtu),
            What::Size(length) => datagram(length),
            What::Small | What::Underlay => datagram(0),
            What::Session(_, kind) if !kind.is_ping() => {
                datagram(if kind.is_full() { mtu } else { 0 })
            }
            What::Session(_, kind) => ping(if kind.is_full() { mtu } else { 0 }),
            What::FullPing => ping(mtu),
            What::SizePing(length) => ping(length),
            What::Ping | What::BridgePing | What::UnderlayPing => ping(0),
            What::Row => {
                let length = u16::try_from(ROW).unwrap_or(u16::MAX);
                let header = Header {
                    kind: MessageKind::RowQuestion,
                    length,
                    nonce,
                    from: own,
                    to: meant,
                };
                Send::Datagram {
                    way,
                    to,
                    bytes: row_question(&header),
                }
            }
        };
        match &send {
            Send::Datagram { .. } => self.traffic.sent += 1,
            Send::Ping { .. } => self.traffic.pings += 1,
        }
        self.out.push(send);
        self.waiting.insert(
            nonce,
            Waiting {
                key,
                what,
                way,
                to,
                at: now.at,
                round,
            },
        );
        self.forget.push_back((now.at + LATE.max(WAIT), nonce));
        true
    }

    /// By which way a question goes, and where to.
    fn way_of(&self, key: &IpNet, what: What) -> Option<(Path, IpAddr)> {
        let underlay = || {
            self.peers
                .get(key)
                .map(|peer| (Path::Underlay, peer.target.address))
        };
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
                peer.target
                    .overlay_addresses()
                    .get(1)
                    .map(|to| (Path::Overlay, *to))
            }
            What::Underlay => underlay().filter(|_| self.local.clear),
            What::UnderlayPing => underlay(),
            What::Session(_, kind) if kind.is_overlay() => overlay(),
            What::Session(_, kind) => underlay().filter(|_| self.local.clear || kind.is_ping()),
            // Through the overlay network at every other attempt: one of the ways may be broken.
            What::Row if self.local.clear && self.viewer.goes_over_underlay(key) => underlay(),
            What::Row => overlay(),
        }
    }
}
