//! What comes in: answers, and the questions of others.

use super::machine::Node;
use super::message::{Datagram, Now, Waiting, What};
use super::peer::{Peer, PeerClaim};
use super::rounds::part;
use crate::target::{Path, overlay_addresses};
use crate::verdict::ProbeResult;
use crate::who::is_same_node;
use crate::wire::{Echo, Header, Message, MessageKind, parse};
use ipnet::IpNet;
use std::net::IpAddr;
use std::time::Duration;

impl Node {
    /// Takes a datagram. Returns the answer to it, if it is a question that gets one.
    pub fn hear(&mut self, now: Now, datagram: Datagram<'_>) -> Option<Vec<u8>> {
        match parse(datagram.bytes) {
            Some(Message::Echo(header, body)) if header.kind == MessageKind::EchoQuestion => {
                self.answer_echo(now, &datagram, &header, &body)
            }
            Some(Message::Row(header, _)) if header.kind == MessageKind::RowQuestion => {
                self.answer_row(now, &datagram, &header)
            }
            Some(Message::Echo(header, body)) => {
                match self.awaited(header.nonce, datagram.way, datagram.from, &header) {
                    Some(waiting) => self.heard_echo(now, waiting, datagram.at, &header, &body),
                    None => self.traffic.junk += 1,
                }
                None
            }
            Some(Message::Row(header, rest)) => {
                match self.awaited(header.nonce, datagram.way, datagram.from, &header) {
                    Some(waiting) => self.heard_row(now, waiting, &header, rest),
                    None => self.traffic.junk += 1,
                }
                None
            }
            None => {
                self.traffic.junk += 1;
                None
            }
        }
    }

    /// The question to which this is the answer: outstanding, asked of this address by this way, and for us.
    fn awaited(&mut self, nonce: u64, way: Path, from: IpAddr, header: &Header) -> Option<Waiting> {
        let waiting = *self.waiting.get(&nonce)?;
        let is_row = header.kind == MessageKind::RowAnswer;
        let asked =
            waiting.way == way && waiting.to == from && (waiting.what == What::Row) == is_row;
        if !asked || Some(header.to) != self.local.who(waiting.key.into()) {
            return None;
        }
        self.waiting.remove(&nonce);
        Some(waiting)
    }

    fn heard_echo(
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
                // The daemon of another network there.
                self.traffic.junk += 1;
                return;
            }
            peer.answered_by = Some(header.from);
            if let What::Session(number, _) = waiting.what
                && let Some(session) = self.sessions.get_mut(&number)
            {
                session.other = Some(header.from);
            }
            if let Some(round) = peer
                .round
                .as_mut()
                .filter(|round| round.number == waiting.round)
            {
                round.evidence.other = true;
            }
            return;
        }
        self.traffic.answered += 1;
        peer.refuses = false;
        let there_and_back = at.saturating_sub(waiting.at);
        let rtt = there_and_back.saturating_sub(Duration::from_micros(body.held_us.into()));
        peer.said = Some(PeerClaim {
            at: at.into(),
            overlay_ms: body.heard_overlay_ms,
            underlay_ms: body.heard_underlay_ms,
        });
        peer.history
            .began(at.saturating_sub(Duration::from_millis(body.up_ms.into())));
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let then = i64::try_from(now.wall_ms)
            .unwrap_or(i64::MAX)
            .saturating_sub(ms(now.at.saturating_sub(at)))
            .saturating_sub(ms(rtt / 2));
        peer.clock_offset_ms = Some(
            i64::try_from(body.wall_ms)
                .unwrap_or(i64::MAX)
                .saturating_sub(then),
        );
        // Only addresses of its own subnet are asked.
        peer.answers_at = body
            .answers_at
            .filter(|ip| overlay_addresses(&waiting.key).contains(ip));
        if waiting.way == Path::Overlay {
            peer.history.round_trip(rtt);
        }
        self.answered(now, waiting, at, rtt, body.heard_overlay_ms);
    }

    /// Takes the answer to a ping.
    pub fn pong(&mut self, now: Now, way: Path, from: IpAddr, nonce: u64, at: Duration) {
        let is_ping = |what: What| match what {
            What::Ping
            | What::BridgePing
            | What::FullPing
            | What::UnderlayPing
            | What::SizePing(_) => true,
            What::Session(_, kind) => kind.is_ping(),
            _ => false,
        };
        let asked =
            self.waiting.get(&nonce).copied().filter(|waiting| {
                waiting.way == way && waiting.to == from && is_ping(waiting.what)
            });
        let Some(waiting) = asked else { return };
        self.waiting.remove(&nonce);
        self.traffic.answered += 1;
        let rtt = at.saturating_sub(waiting.at);
        if let Some(peer) = self
            .peers
            .get_mut(&waiting.key)
            .filter(|peer| peer.standing.present.ping_only && waiting.way == Path::Overlay)
        {
            peer.history.round_trip(rtt);
        }
        self.answered(now, waiting, at, rtt, None);
    }

    /// Takes an error by which the host that was asked refuses a question: as good as an answer to a ping.
    pub fn refused(&mut self, from: IpAddr, nonce: u64, at: Duration) {
        let asked = self
            .waiting
            .get(&nonce)
            .copied()
            .filter(|waiting| waiting.to == from);
        let Some(waiting) = asked else { return };
        let what = match waiting.what {
            What::Full => What::FullPing,
            What::Small => What::Ping,
            What::Underlay => What::UnderlayPing,
            What::Session(number, kind) if !kind.is_ping() => {
                if let Some(session) = self.sessions.get_mut(&number) {
                    session.refused(kind);
                }
                self.waiting.remove(&nonce);
                return;
            }
            _ => return,
        };
        self.waiting.remove(&nonce);
        let Some(peer) = self.peers.get_mut(&waiting.key) else {
            return;
        };
        match waiting.way {
            Path::Overlay => peer.through_at = Some(at.into()),
            Path::Underlay => peer.underlay_at = Some(at.into()),
        }
        // The question itself stays unanswered: the round is not over because of this.
        if let Some(round) = peer
            .round
            .as_mut()
            .filter(|round| round.number == waiting.round)
            && let Some(heard) = part(&mut round.evidence, what)
        {
            *heard = ProbeResult::Answered;
            round.refused = true;
            peer.refuses = true;
        }
    }

    /// An answer from whom it was expected.
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
        match waiting.way {
            Path::Overlay => peer.through_at = Some(at.into()),
            Path::Underlay => peer.underlay_at = Some(at.into()),
        }
        match waiting.what {
            What::Session(number, kind) => {
                if let Some(session) = self.sessions.get_mut(&number) {
                    session.answered(kind, rtt);
                }
            }
            What::Size(size) | What::SizePing(size) => {
                if let Some(mtu_search) = &mut peer.mtu_search {
                    mtu_search.answered(size);
                    self.mtu_searches.insert((now.at, waiting.key));
                }
            }
            what => self.count(now, waiting, what, hears_us_ms),
        }
    }

    fn count(&mut self, now: Now, waiting: Waiting, what: What, hears_us_ms: Option<u32>) {
        let Some(peer) = self.peers.get_mut(&waiting.key) else {
            return;
        };
        let Some(round) = peer
            .round
            .as_mut()
            .filter(|round| round.number == waiting.round)
        else {
            if matches!(what, What::Full | What::Small) {
                peer.history.came_late();
            }
            return;
        };
        if what == What::Underlay {
            round.evidence.hears_us_ms = hears_us_ms;
        }
        if let Some(heard) = part(&mut round.evidence, what) {
            *heard = ProbeResult::Answered;
        }
        round.ponged |= matches!(what, What::Ping | What::BridgePing | What::FullPing);
        round.open = round.open.saturating_sub(1);
        if round.open == 0 {
            // Nothing more to wait for.
            self.closes.remove(&(round.closes, waiting.key));
            round.closes = now.at;
            self.closes.insert((now.at, waiting.key));
        }
    }

    /// Which peer a question comes from: an address of a lease in force, by the way that belongs to it.
    pub(super) fn asker(&self, datagram: &Datagram<'_>, from: u64) -> Option<&Peer> {
        let address = datagram.from;
        match datagram.way {
            Path::Overlay => {
                // Subnets of leases in force do not overlap: the address is of the last one that begins at or before it, or of none.
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
                peers()
                    .find(|peer| peer.who == from)
                    .or_else(|| peers().next())
            }
        }
        .map(Box::as_ref)
    }
}
