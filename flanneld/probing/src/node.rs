//! A node that asks its peers and answers them, as a pure state machine: datagrams and the time go in, datagrams and verdicts come out. The
//! prober moves them over sockets, the simulation between nodes.

mod answers;
mod asks;
mod hears;
mod hunt;
mod peer;
mod rounds;
mod session;
mod show;
mod viewer;

use crate::limits::{ANSWERS, ANSWERS_AN_ADDRESS, Bucket, Buckets, RETRIES, ROW_QUESTIONS, ROWS_AN_ADDRESS};
use crate::schedule::{FullSize, Walk};
use crate::state::State;
use crate::target::{Target, Way};
use crate::view::{Own, Traffic};
use ipnet::IpNet;
use peer::Peer;
use session::Session;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;
use viewer::Viewer;

/// How long an answer is waited for.
pub const WAIT: Duration = Duration::from_secs(1);
/// How long a late answer still shows that nothing was lost.
const LATE: Duration = Duration::from_secs(3);

/// The time: a clock that only goes forward, and the wall's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Since any point.
    pub at: Duration,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
}

/// What a node knows of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Itself {
    /// Its number as a peer of IPv4.
    pub who_v4: Option<u64>,
    /// Its number as a peer of IPv6.
    pub who_v6: Option<u64>,
    /// Its IPv4 address in the overlay network, if it has one now.
    pub overlay_v4: Option<IpAddr>,
    /// Its IPv6 address there.
    pub overlay_v6: Option<IpAddr>,
    /// Whether each node has an overlay device with the first address of its subnet. Without one the pods' bridge is asked, once it is there.
    pub device: bool,
    /// Whether questions may be sent beside the overlay network, in the clear.
    pub clear: bool,
    /// The MTU of the overlay network, for each family.
    pub mtu_v4: u16,
    /// The same for IPv6.
    pub mtu_v6: u16,
}

impl Itself {
    fn who(&self, ipv6: bool) -> Option<u64> {
        if ipv6 { self.who_v6 } else { self.who_v4 }
    }

    fn overlay(&self, ipv6: bool) -> Option<IpAddr> {
        if ipv6 { self.overlay_v6 } else { self.overlay_v4 }
    }

    fn mtu(&self, ipv6: bool) -> u16 {
        if ipv6 { self.mtu_v6 } else { self.mtu_v4 }
    }
}

/// Something to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Send {
    /// A datagram from and to the probe port.
    Datagram {
        /// The socket.
        way: Way,
        /// To whom.
        to: IpAddr,
        /// What.
        bytes: Vec<u8>,
    },
    /// A ping, not to be fragmented.
    Ping {
        /// The socket.
        way: Way,
        /// To whom.
        to: IpAddr,
        /// Stands in the ping, and in its answer.
        nonce: u64,
        /// The length of the whole packet.
        length: u16,
    },
}

/// A datagram that came in.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// By which socket.
    pub way: Way,
    /// From whom.
    pub from: IpAddr,
    /// When it came, as the kernel says.
    pub at: Duration,
    /// What.
    pub bytes: &'a [u8],
}

/// A verdict that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// On whom.
    pub target: Target,
    /// What it was.
    pub was: State,
    /// What it is.
    pub is: State,
}

/// What a question was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Full,
    Small,
    Ping,
    BridgePing,
    FullPing,
    Beside,
    BesidePing,
    Size(u16),
    SizePing(u16),
    Session(u64, session::Kind),
    Row,
}

/// A question whose answer is awaited.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    key: IpNet,
    what: What,
    way: Way,
    to: IpAddr,
    at: Duration,
    /// The round of which it is part.
    round: u64,
}

/// A node.
pub struct Node {
    itself: Itself,
    random: Box<dyn FnMut() -> u64 + std::marker::Send>,
    began: Duration,
    own: Own,
    peers: BTreeMap<IpNet, Peer>,
    addresses: HashMap<(Way, IpAddr), Vec<IpNet>>,
    waiting: HashMap<u64, Waiting>,
    forget: VecDeque<(Duration, u64)>,
    closes: BTreeSet<(Duration, IpNet)>,
    again: BTreeSet<(Duration, IpNet)>,
    hunts: BTreeSet<(Duration, IpNet)>,
    walk: Walk<IpNet>,
    full: FullSize,
    retries: Bucket,
    rounds: u64,
    typical_us: (Duration, Option<u32>),
    answers: (Bucket, Buckets<IpAddr>),
    rows_to: Buckets<IpAddr>,
    viewer: Viewer,
    sessions: BTreeMap<u64, Session>,
    traffic: Traffic,
    out: Vec<Send>,
    notices: Vec<Notice>,
}

impl Node {
    /// A node without peers. `random` makes nonces: whoever can guess them can forge answers.
    pub fn new(itself: Itself, now: Duration, random: impl FnMut() -> u64 + std::marker::Send + 'static) -> Self {
        let own = itself.who_v4.or(itself.who_v6).unwrap_or(0);
        Self {
            itself,
            random: Box::new(random),
            began: now,
            own: Own::default(),
            peers: BTreeMap::new(),
            addresses: HashMap::new(),
            waiting: HashMap::new(),
            forget: VecDeque::new(),
            closes: BTreeSet::new(),
            again: BTreeSet::new(),
            hunts: BTreeSet::new(),
            walk: Walk::new(own, now),
            full: FullSize::default(),
            retries: Bucket::new(RETRIES, now),
            rounds: 0,
            typical_us: (now, None),
            answers: (Bucket::new(ANSWERS, now), Buckets::new(ANSWERS_AN_ADDRESS)),
            rows_to: Buckets::new(ROWS_AN_ADDRESS),
            viewer: Viewer::new(Bucket::new(ROW_QUESTIONS, now)),
            sessions: BTreeMap::new(),
            traffic: Traffic::default(),
            out: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// What changed of itself: addresses, MTU.
    pub fn set_itself(&mut self, itself: Itself) {
        for (key, peer) in &mut self.peers {
            let ipv6 = key.addr().is_ipv6();
            if itself.mtu(ipv6) != self.itself.mtu(ipv6) {
                peer.carries = None;
            }
        }
        self.itself = itself;
    }

    /// What it says of itself in its row.
    pub fn set_own(&mut self, own: Own) {
        self.own = own;
    }

    /// The peers as the leases say. What is known of those that stay is kept.
    pub fn set_targets(&mut self, targets: Vec<Target>, now: Duration) {
        let mut before = std::mem::take(&mut self.peers);
        let mut new = Vec::new();
        for target in targets {
            let key = target.subnet;
            let known = before.remove(&key).filter(|known| known.is_same_node(&target));
            if known.is_none() {
                new.push((key, target.who().unwrap_or(0)));
            }
            let peer = match known {
                Some(known) => Peer { target, ..known },
                None => Peer::new(target, now),
            };
            self.peers.insert(key, peer);
        }
        let gone = |key: &IpNet| !self.peers.contains_key(key);
        let fresh: BTreeSet<IpNet> = new.iter().map(|(key, _)| *key).collect();
        let stays = |key: &IpNet| !gone(key) && !fresh.contains(key);
        self.closes.retain(|(_, key)| stays(key));
        self.again.retain(|(_, key)| stays(key));
        self.hunts.retain(|(_, key)| stays(key));
        self.waiting.retain(|_, waiting| stays(&waiting.key));
        self.viewer.retain(|key| stays(key));
        self.walk.retain(|key| stays(key));
        for (key, who) in new {
            self.walk.add(key, who);
        }
        self.addresses.clear();
        for (key, peer) in &self.peers {
            self.addresses.entry((Way::Beside, peer.target.address)).or_default().push(*key);
            for address in peer.target.overlay_addresses() {
                self.addresses.entry((Way::Overlay, address)).or_default().push(*key);
            }
        }
    }

    /// Does what is due. Returns when it wants to be called again.
    pub fn wake(&mut self, now: Now) -> Duration {
        while self.forget.front().is_some_and(|(until, _)| *until <= now.at) {
            if let Some((_, nonce)) = self.forget.pop_front() {
                self.waiting.remove(&nonce);
            }
        }
        self.close_rounds(now);
        self.step_hunts(now);
        self.repeat(now);
        self.turns(now);
        self.step_sessions(now);
        self.ask_rows(now);
        self.next_wake(now)
    }

    fn next_wake(&mut self, now: Now) -> Duration {
        let first = |set: &BTreeSet<(Duration, IpNet)>| set.first().map(|(at, _)| *at);
        let retry = |bucket: &mut Bucket, at: Duration| at.max(bucket.ready_at(now.at, rounds::COST));
        let again = first(&self.again).map(|at| retry(&mut self.retries, at));
        let hunt = first(&self.hunts);
        let sessions = self.sessions.values().map(Session::next).min();
        let forget = self.forget.front().map(|(until, _)| *until);
        let due = [again, hunt, first(&self.closes), sessions, forget, self.viewer.next(now.at)];
        due.into_iter().flatten().fold(self.walk.next(), Duration::min)
    }

    /// The program did not run for so long: nothing is lost because nobody looked.
    pub fn stalled(&mut self, by: Duration) {
        let later = |set: &mut BTreeSet<(Duration, IpNet)>| *set = std::mem::take(set).into_iter().map(|(at, key)| (at + by, key)).collect();
        later(&mut self.closes);
        later(&mut self.hunts);
        self.forget.iter_mut().for_each(|(until, _)| *until += by);
        self.sessions.values_mut().for_each(|session| session.delay(by));
        self.walk.delay(by);
    }

    /// What is to be sent.
    pub fn take_sends(&mut self) -> Vec<Send> {
        std::mem::take(&mut self.out)
    }

    /// Which verdicts changed.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// What was sent and heard.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }
}
