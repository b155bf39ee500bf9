//! Received packets: replies, and probes of other nodes.

use super::machine::Node;
use super::message::{Datagram, Now, Waiting, What};
use super::peer::{PeerClaim, PeerState};
use super::rounds::part;
use crate::target::{Path, overlay_addresses};
use crate::verdict::ProbeResult;
use crate::who::is_same_node;
use crate::wire::{Echo, Header, Message, MessageKind, parse};
use ipnet::IpNet;
use std::net::IpAddr;
use std::time::Duration;

impl Node {
    /// The result is the reply, if the datagram is a probe to which this node has to reply.
    pub fn receive(&mut self, now: Now, datagram: Datagram<'_>) -> Option<Vec<u8>> {
        match parse(datagram.bytes) {
            Some(Message::Echo(header, body)) if header.kind == MessageKind::EchoQuestion => {
                self.answer_echo(now, &datagram, &header, &body)
            }
            Some(Message::Row(header, rest)) if header.kind == MessageKind::RowQuestion => {
                self.answer_row(now, &datagram, &header, rest)
            }
            Some(Message::Echo(header, body)) if header.kind == MessageKind::EchoAnswer => {
                match self.awaited(header.nonce, datagram.path, datagram.from, &header) {
                    Some(waiting) => self.take_echo(now, waiting, datagram.at, &header, &body),
                    None => self.traffic.junk += 1,
                }
                None
            }
            Some(Message::Row(header, rest)) => {
                match self.awaited(header.nonce, datagram.path, datagram.from, &header) {
                    Some(waiting) => self.take_row(now, waiting, &header, rest),
                    None => self.traffic.junk += 1,
                }
                None
            }
            Some(Message::Echo(..)) | None => {
                self.traffic.junk += 1;
                None
            }
        }
    }

    /// The outstanding probe to which this message replies. This node must have sent it over `path` to the address
    /// `from`, and the reply must name this node.
    fn awaited(
        &mut self,
        nonce: u64,
        path: Path,
        from: IpAddr,
        header: &Header,
    ) -> Option<Waiting> {
        let waiting = self.outstanding.get(nonce)?;
        let is_row = header.kind == MessageKind::RowAnswer;
        let asked =
            waiting.path == path && waiting.to == from && (waiting.what == What::Row) == is_row;
        if !asked || Some(header.to) != self.local.who(waiting.key.into()) {
            return None;
        }
        self.outstanding.remove(nonce);
        Some(waiting)
    }

    fn take_echo(
        &mut self,
        now: Now,
        waiting: Waiting,
        at: Duration,
        header: &Header,
        body: &Echo,
    ) {
        let Some(peer) = self.peers.get_mut(&waiting.key) else {
            return;
        };
        if peer.target.id.is_some() && header.from != peer.who {
            if is_same_node(header.from, peer.who) {
                // The reply is from the daemon of another network on that host.
                self.traffic.junk += 1;
                return;
            }
            peer.answered_by = Some(header.from);
            if let What::Session(number, _) = waiting.what
                && let Some(session) = self.sessions.open.get_mut(&number)
            {
                session.other = Some(header.from);
            }
            if let Some(round) = peer.round.as_mut().filter(|round| round.number == waiting.round) {
                round.evidence.other = true;
            }
            return;
        }
        self.traffic.answered += 1;
        peer.refuses = false;
        let there_and_back = at.saturating_sub(waiting.at);
        let rtt = there_and_back.saturating_sub(Duration::from_micros(body.held_us.into()));
        peer.claim = Some(PeerClaim {
            at: at.into(),
            overlay_ms: body.heard_overlay_ms,
            underlay_ms: body.heard_underlay_ms,
        });
        peer.history.began(at.saturating_sub(Duration::from_millis(body.up_ms.into())));
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let then = i64::try_from(now.wall_ms)
            .unwrap_or(i64::MAX)
            .saturating_sub(ms(now.at.saturating_sub(at)))
            .saturating_sub(ms(rtt / 2));
        peer.clock_offset_ms =
            Some(i64::try_from(body.wall_ms).unwrap_or(i64::MAX).saturating_sub(then));
        // Only addresses of the peer's own subnet are probed.
        peer.answers_at = body.answers_at.filter(|ip| overlay_addresses(&waiting.key).contains(ip));
        if waiting.path == Path::Overlay {
            peer.history.round_trip(rtt);
            self.rtts.record(rtt);
        }
        self.answered(now, waiting, at, rtt, body.heard_overlay_ms);
    }

    pub fn pong(&mut self, now: Now, path: Path, from: IpAddr, nonce: u64, at: Duration) {
        let asked = self
            .outstanding
            .get(nonce)
            .filter(|waiting| waiting.path == path && waiting.to == from && waiting.what.is_ping());
        let Some(waiting) = asked else { return };
        self.outstanding.remove(nonce);
        self.traffic.answered += 1;
        let rtt = at.saturating_sub(waiting.at);
        if let Some(peer) = self
            .peers
            .get_mut(&waiting.key)
            .filter(|peer| peer.standing.present.ping_only && waiting.path == Path::Overlay)
        {
            peer.history.round_trip(rtt);
            self.rtts.record(rtt);
        }
        self.answered(now, waiting, at, rtt, None);
    }

    /// Handles an ICMP error by which a host refuses a probe. It proves the same reachability as a reply to a ping.
    pub fn refused(&mut self, from: IpAddr, nonce: u64, at: Duration) {
        let asked = self.outstanding.get(nonce).filter(|waiting| waiting.to == from);
        let Some(waiting) = asked else { return };
        let what = match waiting.what {
            What::Full => What::FullPing,
            What::Small => What::Ping,
            What::Underlay => What::UnderlayPing,
            What::Session(number, kind) if !kind.is_ping() => {
                if let Some(session) = self.sessions.open.get_mut(&number) {
                    session.refused(kind);
                }
                self.outstanding.remove(nonce);
                self.traffic.refused += 1;
                return;
            }
            _ => return,
        };
        self.outstanding.remove(nonce);
        self.traffic.refused += 1;
        let Some(peer) = self.peers.get_mut(&waiting.key) else {
            return;
        };
        peer.times.answered.note(waiting.path, at);
        // The probe itself stays without a reply, so this does not end the round.
        if let Some(round) = peer.round.as_mut().filter(|round| round.number == waiting.round)
            && let Some(result) = part(&mut round.evidence, what)
        {
            *result = ProbeResult::Answered;
            round.refused = true;
            peer.refuses = true;
        }
    }

    fn answered(
        &mut self,
        now: Now,
        waiting: Waiting,
        at: Duration,
        rtt: Duration,
        hears_us_ms: Option<u32>,
    ) {
        let Some(peer) = self.peers.get_mut(&waiting.key) else {
            return;
        };
        peer.times.answered.note(waiting.path, at);
        match waiting.what {
            What::Session(number, kind) => {
                if let Some(session) = self.sessions.open.get_mut(&number) {
                    session.answered(kind, rtt);
                }
            }
            What::Size(size) | What::SizePing(size) => {
                if let Some(mtu_search) = &mut peer.mtu_search {
                    mtu_search.answered(size);
                    self.deadlines.mtu_searches.insert(now.at, waiting.key);
                }
            }
            what => self.count(now, waiting, what, hears_us_ms),
        }
    }

    fn count(&mut self, now: Now, waiting: Waiting, what: What, hears_us_ms: Option<u32>) {
        let Some(peer) = self.peers.get_mut(&waiting.key) else {
            return;
        };
        let Some(round) = peer.round.as_mut().filter(|round| round.number == waiting.round) else {
            if matches!(what, What::Full | What::Small) {
                peer.history.came_late();
            }
            return;
        };
        if what == What::Underlay {
            round.evidence.hears_us_ms = hears_us_ms;
        }
        if let Some(result) = part(&mut round.evidence, what) {
            *result = ProbeResult::Answered;
        }
        round.ponged |= matches!(what, What::Ping | What::BridgePing | What::FullPing);
        round.open = round.open.saturating_sub(1);
        if round.open == 0 {
            // No more replies are outstanding.
            let closes = &mut self.deadlines.closes;
            closes.remove(round.closes, waiting.key);
            round.closes = now.at;
            closes.insert(now.at, waiting.key);
        }
    }

    /// The peer that sent a probe, if the source address belongs to a lease in force on the datagram's path.
    pub(super) fn asker(&self, datagram: &Datagram<'_>, from: u64) -> Option<&PeerState> {
        let address = datagram.from;
        match datagram.path {
            Path::Overlay => {
                // Subnets of leases in force do not overlap. So the address belongs to the last subnet that begins at or before it, or to none.
                let (key, peer) = self.peers.range(..=IpNet::from(address)).next_back()?;
                (key.contains(&address) && overlay_addresses(key).contains(&address))
                    .then_some(peer)
            }
            Path::Underlay => {
                let first = self.addresses.partition_point(|(at, _)| *at < address);
                let peers = || {
                    self.addresses
                        .iter()
                        .skip(first)
                        .take_while(|(at, _)| *at == address)
                        .filter_map(|(_, key)| self.peers.get(key))
                };
                peers().find(|peer| peer.who == from).or_else(|| peers().next())
            }
        }
        .map(Box::as_ref)
    }
}
