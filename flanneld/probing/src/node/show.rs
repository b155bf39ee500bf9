//! Results of a node's probes, for views and reports.

use super::losses::LOSS_WINDOW;
use super::machine::Node;
use super::message::Now;
use super::moment::Moment;
use super::peer::{PeerClaim, PeerState};
use super::viewer::CachedRow;
use crate::rows::{Body, Wire, fit};
use crate::schedule::cycle;
use crate::target::Path;
use crate::view::{self, Cell, Mesh, PathState, PeerOpinion};
use crate::who::short;
use ipnet::IpNet;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use types::reachability::{Impact, State};
use types::{Durations, Family};

/// Maximum number of other nodes' verdicts that a view contains for a peer.
const MAX_OPINIONS: usize = 16;
/// In milliseconds.
const MAX_CLOCK_AGE_MS: u64 = 300_000;

fn age(now: Now, at: impl Into<Duration>) -> u64 {
    u64::try_from(now.at.saturating_sub(at.into()).as_millis()).unwrap_or(u64::MAX)
}

impl Node {
    /// `port` is the probe port, and `problems` lists the unusable sockets.
    pub fn show(&self, now: Now, port: u16, problems: Vec<view::UnusableSocket>) -> Mesh {
        let rows = self.show_rows(now);
        Mesh {
            at_ms: now.wall_ms,
            running_ms: age(now, self.began),
            port,
            cycle_ms: u64::try_from(self.cycle().as_millis()).unwrap_or(u64::MAX),
            traffic: self.traffic,
            problems,
            faults: self.show_faults(now),
            losses: self.show_losses(now),
            peers: self.show_peers(now, &rows, |peer| peer),
            rows,
        }
    }

    /// The period in which this node probes each peer once.
    fn cycle(&self) -> Duration {
        let on_link = self.peers.values().filter(|peer| peer.target.on_link);
        cycle(self.peers.len(), on_link.count())
    }

    pub fn show_faults(&self, now: Now) -> Vec<view::CommonOutage> {
        let show = |family| {
            let fault = self.common.of(family).found()?;
            let of_family = self.peers.iter().filter(|(key, _)| Family::from(**key) == family);
            // All peers of the fault may be gone.
            let (covered, others): (Vec<_>, Vec<_>) =
                of_family.partition(|(_, peer)| peer.is_covered());
            let asked = covered.iter().filter(|(_, peer)| peer.is_asked_since(fault.began));
            let alike = others
                .iter()
                .filter(|(_, peer)| peer.standing.present.state == fault.verdict.state);
            let failed = asked.count() + alike.count();
            if failed == 0 {
                return None;
            }
            Some(view::CommonOutage {
                family,
                state: fault.verdict.state,
                age_ms: age(now, fault.began),
                asked: failed + others.iter().filter(|(_, peer)| peer.exempt).count(),
                failed,
                peers: covered.len() + others.len(),
            })
        };
        Family::ALL.into_iter().filter_map(show).collect()
    }

    /// Over the last five minutes.
    pub fn show_losses(&self, now: Now) -> view::Losses {
        let (asked, lost) = self.pace.losses.sum(now.at);
        let lately = |peer: &&PeerState| {
            peer.shown.passes()
                && peer
                    .history
                    .last_loss()
                    .is_some_and(|at| now.at.saturating_sub(at) < LOSS_WINDOW)
        };
        let losers =
            if lost == 0 { 0 } else { self.peers.values().map(Box::as_ref).filter(lately).count() };
        view::Losses { asked, lost, losers: u32::try_from(losers).unwrap_or(u32::MAX) }
    }

    /// Applies `of` to the view of each peer, which is the same as in [`Node::show`].
    pub fn peers<T>(&self, now: Now, of: impl FnMut(view::PeerView) -> T) -> Vec<T> {
        self.show_peers(now, &self.show_rows(now), of)
    }

    fn show_rows(&self, now: Now) -> Vec<view::Row> {
        let looked = !self.viewer.rows.is_empty();
        let own = [self.local.subnet_v4, self.local.subnet_v6].into_iter().flatten();
        let subnets: HashMap<u32, IpNet> = self
            .peers
            .iter()
            .filter(|_| looked)
            .map(|(subnet, peer)| (peer.short, *subnet))
            // Other nodes also report on this node.
            .chain(own.map(|subnet| (short(&subnet), subnet)))
            .collect();
        self.viewer
            .rows
            .iter()
            .filter_map(|(key, row)| self.show_row(now, key, row, &subnets))
            .collect()
    }

    fn show_peers<T>(
        &self,
        now: Now,
        rows: &[view::Row],
        mut of: impl FnMut(view::PeerView) -> T,
    ) -> Vec<T> {
        let mut opinions: HashMap<IpNet, Vec<PeerOpinion>> = HashMap::new();
        for row in rows {
            let by = row.name.as_deref().map_or_else(|| row.subnet.to_string(), str::to_owned);
            for cell in &row.peers {
                let about = opinions.entry(cell.subnet).or_default();
                if about.len() < MAX_OPINIONS && cell.state != State::Unknown {
                    about.push(PeerOpinion {
                        by: by.clone(),
                        state: cell.state,
                        age_ms: row.answered_age_ms.unwrap_or(0),
                    });
                }
            }
        }
        // Reserves exactly one element per peer, because a cluster can have ten thousand peers.
        let mut peers = Vec::with_capacity(self.peers.len());
        for key in self.peers.keys() {
            let Some(mut peer) = self.show_peer(now, key) else {
                continue;
            };
            if peer.state.impact() >= Impact::Some {
                peer.others = opinions.remove(key).unwrap_or_default();
            }
            peers.push(of(peer));
        }
        peers
    }

    /// `None` if no peer has this subnet.
    pub fn state(&self, subnet: &IpNet) -> Option<State> {
        self.peers.get(subnet).map(|peer| peer.shown)
    }

    pub fn counts(&self) -> BTreeMap<State, u32> {
        let mut counts = BTreeMap::new();
        for peer in self.peers.values() {
            *counts.entry(peer.shown).or_default() += 1;
        }
        counts
    }

    /// The numbers of peers that reply and that do not reply, over the overlay and over the underlay.
    pub fn paths(&self) -> BTreeMap<(Path, PathState), u32> {
        let mut counts = BTreeMap::new();
        for peer in self.peers.values() {
            let overlay = match peer.shown.impact() {
                Impact::None | Impact::Some => PathState::Replies,
                Impact::All => PathState::Silent,
                Impact::Unknown => PathState::Unknown,
            };
            let underlay = match peer.shown {
                State::CutOff => PathState::Silent,
                _ if peer.times.answered.underlay.is_some() => PathState::Replies,
                _ => PathState::Unknown,
            };
            for place in [(Path::Overlay, overlay), (Path::Underlay, underlay)] {
                *counts.entry(place).or_default() += 1;
            }
        }
        counts
    }

    /// Over the overlay, since the start.
    pub fn round_trips(&self) -> Durations {
        self.rtts.snapshot()
    }

    /// Over the overlay, in microseconds.
    pub fn median_round_trip(&self) -> Option<u32> {
        self.median_us()
    }

    pub(super) fn show_peer(&self, now: Now, key: &IpNet) -> Option<view::PeerView> {
        let peer = self.peers.get(key)?;
        let target = &peer.target;
        let fault = self.fault_of(key);
        let since = |at: Option<Moment>| at.map(|at| age(now, at));
        // Ages that the peer reported have grown since its report.
        let by_it = |ms: fn(&PeerClaim) -> Option<u32>| {
            peer.claim.as_ref().and_then(|claim| Some(u64::from(ms(claim)?) + age(now, claim.at)))
        };
        Some(view::PeerView {
            id: target.id.clone(),
            name: target.name.clone(),
            subnet: target.subnet,
            address: target.address,
            overlay: self.overlay_of(key),
            state: peer.shown,
            state_age_ms: age(now, peer.since),
            ping_only: peer.verdict(fault).ping_only,
            inferred: fault
                .is_some_and(|fault| peer.is_covered() && !peer.is_asked_since(fault.began)),
            refuses: peer.refuses,
            rtt_us: peer.history.rtt_us(),
            lost: u8::try_from(peer.history.lost()).unwrap_or(16),
            asked: peer.history.asked(),
            losses: peer.history.losses(),
            carries: peer.carries,
            mtu: self.local.mtu(key.into()),
            ages: view::Ages {
                asked_age_ms: since(peer.times.asked),
                answered_age_ms: since(peer.times.answered.overlay),
                underlay_age_ms: since(peer.times.answered.underlay),
                hears_us_age_ms: by_it(|claim| claim.overlay_ms),
                hears_us_underlay_age_ms: by_it(|claim| claim.underlay_ms),
                heard_age_ms: since(peer.times.received.overlay),
                heard_underlay_age_ms: since(peer.times.received.underlay),
            },
            // The difference expires, because clocks drift and are set.
            clock_offset_ms: peer
                .clock_offset_ms
                .filter(|_| peer.claim.is_some_and(|claim| age(now, claim.at) <= MAX_CLOCK_AGE_MS)),
            answered_by: peer.answered_by.map(|who| self.name_of(who)),
            others: Vec::new(),
        })
    }

    /// The subnet if the node has no name, and the identifying number if the node is unknown.
    pub(super) fn name_of(&self, who: u64) -> String {
        let known = self.peers.values().find(|peer| peer.target.id.is_some() && peer.who == who);
        match known {
            Some(peer) => peer
                .target
                .name
                .as_deref()
                .map_or_else(|| peer.target.subnet.to_string(), str::to_owned),
            None if [self.local.who_v4, self.local.who_v6].contains(&Some(who)) => {
                "this node".to_owned()
            }
            None => format!("{who:016x}"),
        }
    }

    fn show_row(
        &self,
        now: Now,
        key: &IpNet,
        row: &CachedRow,
        subnets: &HashMap<u32, IpNet>,
    ) -> Option<view::Row> {
        let target = &self.peers.get(key)?.target;
        let body = row.body();
        let (own, body) = match body {
            Some(body) => (Some(body.own.clone()), body),
            None => (None, Body::default()),
        };
        let cell = |wire: &Wire| {
            let subnet = *subnets.get(&wire.subnet)?;
            let Wire { state, ping_only, rtt_us, lost, asked_age_ms, .. } = *wire;
            Some(Cell { subnet, state, ping_only, rtt_us, lost, asked_age_ms })
        };
        Some(view::Row {
            id: target.id.clone(),
            name: target.name.clone(),
            subnet: *key,
            asked_age_ms: age(now, row.asked_at),
            answered_age_ms: row.answered_at.map(|at| age(now, at)),
            own,
            peers: body.cells.iter().filter_map(cell).collect(),
            counts: body.counts,
            rtt_us: body.rtt_us,
        })
    }

    /// This node's report on all peers, for other nodes.
    pub(super) fn body(&self, now: Now) -> Body {
        let cell = |peer: &PeerState| Wire {
            subnet: peer.short,
            state: peer.shown,
            ping_only: peer.verdict(self.common.of(peer.target.subnet.into()).found()).ping_only,
            rtt_us: peer.history.rtt_us(),
            lost: u8::try_from(peer.history.lost()).unwrap_or(16),
            asked_age_ms: peer.times.asked.map(|at| age(now, at)),
        };
        let mut cells: Vec<Wire> = self.peers.values().map(|peer| cell(peer)).collect();
        if !fit(&self.own, cells.len()) {
            cells.sort_by_cached_key(Wire::rank);
        }
        Body { own: self.own.clone(), counts: self.counts(), rtt_us: self.median_us(), cells }
    }
}
