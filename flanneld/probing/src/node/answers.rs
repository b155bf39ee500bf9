//! Replies to the probes of other nodes. A reply is at most as long as the probe, goes only to addresses of leases in force, and has a rate limit.

use super::machine::Node;
use super::message::{Datagram, Now};
use super::peer::PathTimes;
use crate::rows;
use crate::wire::{ECHO, Echo, Header, MessageKind, echo, row_answer, row_asks};
use std::time::Duration;
use types::Family;

/// Time during which the node reuses an encoded report. It saves processor time, because a report covers every peer.
const ROW_MAX_AGE: Duration = Duration::from_secs(1);

impl Node {
    pub(super) fn answer_echo(
        &mut self,
        now: Now,
        datagram: &Datagram<'_>,
        header: &Header,
        body: &Echo,
    ) -> Option<Vec<u8>> {
        let Some((key, who, known)) = self
            .asker(datagram, header.from)
            .map(|peer| (peer.target.subnet, peer.who, peer.target.id.is_some()))
        else {
            self.stranger(now, datagram, header);
            return None;
        };
        let peer = self.peers.get_mut(&key)?;
        // Another node at that address gets a reply, but it is not the peer.
        let is_peer = !known || header.from == who;
        // A flood that forges the peer's address leaves replies for the peer itself.
        let sure = is_peer && peer.tokens.take(body);
        let spare = !sure;
        if !self.limits.take_echo(datagram.from, now.at, spare) {
            self.traffic.limited += 1;
            return None;
        }
        let family = Family::from(key);
        let own = self.local.who(family)?;
        self.traffic.questions += 1;
        // A pod with raw sockets can forge a peer's address and compute its number. Peers of older versions have no tokens.
        let counts = !is_peer || sure || !peer.tokens.is_sure();
        let mut received = if is_peer { peer.times.received } else { PathTimes::default() };
        if counts {
            received.note(datagram.path, datagram.at);
        }
        if is_peer && counts {
            peer.times.received = received;
            if peer.answers_at.is_none() {
                peer.answers_at =
                    body.answers_at.filter(|ip| peer.target.overlay_addresses().contains(ip));
            }
        }
        if is_peer {
            // The peer learns this node's token from the probes that this causes.
            self.reconsider(now, key, datagram.path);
        }
        let age = |at: Option<Duration>| {
            at.map(|at| {
                u32::try_from(now.at.saturating_sub(at).as_millis()).unwrap_or(u32::MAX - 1)
            })
        };
        let answer = Echo {
            heard_overlay_ms: age(received.overlay.map(Duration::from)),
            heard_underlay_ms: age(received.underlay.map(Duration::from)),
            held_us: u32::try_from(now.at.saturating_sub(datagram.at).as_micros())
                .unwrap_or(u32::MAX),
            wall_ms: now.wall_ms,
            answers_at: self.local.overlay(family),
            up_ms: age(Some(self.began)).unwrap_or(u32::MAX),
            ..Echo::default()
        };
        let header =
            Header { kind: MessageKind::EchoAnswer, from: own, to: header.from, ..*header };
        (datagram.bytes.len() >= ECHO).then(|| echo(&header, &answer, ECHO))
    }

    pub(super) fn answer_row(
        &mut self,
        now: Now,
        datagram: &Datagram<'_>,
        header: &Header,
        rest: &[u8],
    ) -> Option<Vec<u8>> {
        let [about, repeats] = row_asks(rest);
        let Some((key, sure)) = self
            .asker(datagram, header.from)
            .map(|peer| (peer.target.subnet, peer.tokens.prove(repeats)))
        else {
            self.traffic.strangers += 1;
            return None;
        };
        if !self.limits.take_row(datagram.from, now.at, !sure) {
            self.traffic.limited += 1;
            return None;
        }
        let own = self.local.who(key.into())?;
        self.traffic.questions += 1;
        if let Some(about) = about {
            self.hinted(now, about);
        }
        let header = Header { kind: MessageKind::RowAnswer, from: own, to: header.from, ..*header };
        if self.row.as_ref().is_none_or(|(at, _)| now.at.saturating_sub(*at) >= ROW_MAX_AGE) {
            self.row = Some((now.at, rows::write(&self.body(now))));
        }
        self.row.as_ref().and_then(|(_, row)| row_answer(&header, row))
    }
}
