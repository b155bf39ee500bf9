//! Simulates nodes and the network between the nodes.

#![allow(dead_code, reason = "each test has its own part of it")]

use probing::node::{Client, Datagram, LocalNode, Node, Notice, Now, Send};
use probing::target::{Path, Target};
use probing::view::{CommonOutage, Mesh, Own, Probe};
use probing::who::{mix, who};
use probing::wire::{
    ECHO, Echo, Header, Message, MessageKind, POD_QUESTION, ROW, echo, parse, row_answer,
    row_question,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::net::IpAddr;
use std::time::Duration;
use types::reachability::State;

/// Those of the numbers of nodes that are simulated: up to 100, or up to the number in `SIMULATION_NODES`.
pub(crate) fn sizes(all: &[usize]) -> impl Iterator<Item = usize> {
    let limit = variable("SIMULATION_NODES", 100);
    all.iter().copied().filter(move |size| *size <= limit)
}

/// 3, or the number in `SIMULATION_SEEDS`.
pub(crate) fn seeds() -> u64 {
    variable("SIMULATION_SEEDS", 3)
}

fn variable<T: std::str::FromStr>(name: &str, default: T) -> T {
    let value = std::env::var(name).ok();
    value.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// In each pair of values, the first value applies to packets from the node with the lower number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub overlay: [bool; 2],
    pub underlay: [bool; 2],
    pub mtu: [u16; 2],
    /// Losses per thousand packets, in both directions.
    pub lost: u64,
    pub delay: Duration,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            overlay: [true; 2],
            underlay: [true; 2],
            mtu: [9000; 2],
            lost: 0,
            delay: Duration::from_micros(500),
        }
    }
}

impl Link {
    /// Whether packets pass over the overlay from the node with the lower number, and to it.
    pub(crate) fn overlay(overlay: [bool; 2]) -> Self {
        Self { overlay, ..Self::default() }
    }

    /// No packet passes it.
    pub(crate) fn dead() -> Self {
        Self { underlay: [false; 2], ..Self::overlay([false; 2]) }
    }

    pub(crate) fn mtu(mtu: [u16; 2]) -> Self {
        Self { mtu, ..Self::default() }
    }
}

/// The most events in one second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    pub most: u32,
    second: u64,
    count: u32,
}

impl Rate {
    fn add(&mut self, now: Duration) {
        self.count *= u32::from(self.second == now.as_secs());
        (self.second, self.count) = (now.as_secs(), self.count + 1);
        self.most = self.most.max(self.count);
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Count {
    pub questions: u32,
    pub bytes: u64,
    pub asked: BTreeSet<usize>,
    pub sent: Rate,
    pub received: Rate,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake,
    Arrives { from: usize, path: Path, bytes: Vec<u8> },
    Pong { from: usize, path: Path, address: IpAddr, nonce: u64 },
}

pub(crate) struct World {
    pub now: Now,
    pub notices: Vec<(usize, Notice)>,
    /// Nodes whose daemon does not run.
    pub deaf: BTreeSet<usize>,
    /// Whether firewalls drop the probe port on all nodes.
    pub filtered: bool,
    /// The node whose reports are false.
    pub liar: Option<usize>,
    pub sent_rows: usize,
    pub underlay: usize,
    pub counts: Vec<Count>,
    /// Nodes may send no unencrypted probes except pings.
    encrypted: bool,
    /// Nodes that are off or disconnected from the underlay.
    pub off: BTreeSet<usize>,
    /// Nodes whose packets do not leave over the overlay. `cut_in`: nodes that no packets reach over the overlay.
    pub cut_out: BTreeSet<usize>,
    pub cut_in: BTreeSet<usize>,
    /// Losses per thousand packets on all links.
    pub lost: u64,
    /// In milliseconds.
    pub clocks: BTreeMap<usize, i64>,
    /// The nodes that run the state machine. A stub replies in place of each node that is `None`.
    nodes: Vec<Option<Node>>,
    /// Time at which a stub last received a probe of a node. The flag in the key is true for a probe over the overlay.
    heard: HashMap<(usize, usize, bool), Duration>,
    links: HashMap<(usize, usize), Link>,
    /// The node that receives the packets for another node's address, by the number of the other node.
    holders: BTreeMap<usize, usize>,
    stalled: BTreeMap<usize, Duration>,
    /// Time at which each node next wakes up. Wake events at other times are stale.
    wakes: Vec<Duration>,
    events: BinaryHeap<Reverse<(Duration, u64, usize, Event)>>,
    number: u64,
    seed: u64,
}

pub(crate) fn subnet(node: usize) -> ipnet::IpNet {
    format!("10.{}.{}.0/24", 5 + node / 250, node % 250).parse().unwrap()
}

fn address(node: usize) -> IpAddr {
    IpAddr::from([192, 0, u8::try_from(node / 250).unwrap(), u8::try_from(node % 250).unwrap() + 1])
}

fn node_at(ip: IpAddr) -> usize {
    let IpAddr::V4(v4) = ip else { panic!("{ip}") };
    let [first, second, third, fourth] = v4.octets();
    if first == 192 {
        usize::from(third) * 250 + usize::from(fourth) - 1
    } else {
        (usize::from(second) - 5) * 250 + usize::from(third)
    }
}

fn target(node: usize) -> Target {
    Target {
        id: Some(format!("id-{node}").into()),
        name: Some(format!("node-{node}").into()),
        subnet: subnet(node),
        address: address(node),
        primary: true,
        on_link: true,
    }
}

impl World {
    pub(crate) fn new(count: usize) -> Self {
        Self::with_seed(count, 1)
    }

    /// Creates nodes that may send each other no unencrypted probes except pings.
    pub(crate) fn encrypted(count: usize) -> Self {
        let mut world = Self::new(count);
        world.encrypted = true;
        world.nodes = (0..count).map(|node| Some(world.start(node, count))).collect();
        world
    }

    /// Only `real` nodes run the state machine. The others are stubs, which reply as nodes do.
    pub(crate) fn with_stubs(count: usize, real: &BTreeSet<usize>) -> Self {
        let mut world = Self::with_seed(0, 1);
        world.nodes = (0..count).map(|_| None).collect();
        world.wakes = vec![world.now.at; count];
        world.counts = vec![Count::default(); count];
        for node in real {
            world.nodes[*node] = Some(world.start(*node, count));
            world.push(world.now.at, *node, Event::Wake);
        }
        world
    }

    /// The nodes that run the state machine.
    pub(crate) fn real(&self) -> Vec<usize> {
        let all = self.nodes.iter().enumerate();
        all.filter_map(|(node, state)| state.as_ref().map(|_| node)).collect()
    }

    fn node(&self, node: usize) -> &Node {
        self.nodes[node].as_ref().expect("a node that asks")
    }

    fn node_mut(&mut self, node: usize) -> &mut Node {
        self.nodes[node].as_mut().expect("a node that asks")
    }

    pub(crate) fn with_seed(count: usize, seed: u64) -> Self {
        let now = Now { at: Duration::from_secs(1000), wall_ms: 1_700_000_000_000 };
        let mut world = Self {
            now,
            notices: Vec::new(),
            deaf: BTreeSet::new(),
            filtered: false,
            liar: None,
            sent_rows: 0,
            underlay: 0,
            counts: vec![Count::default(); count],
            encrypted: false,
            off: BTreeSet::new(),
            cut_out: BTreeSet::new(),
            cut_in: BTreeSet::new(),
            lost: 0,
            clocks: BTreeMap::new(),
            nodes: Vec::new(),
            heard: HashMap::new(),
            links: HashMap::new(),
            holders: BTreeMap::new(),
            stalled: BTreeMap::new(),
            wakes: vec![now.at; count],
            events: BinaryHeap::new(),
            number: 0,
            seed,
        };
        for node in 0..count {
            let started = world.start(node, count);
            world.nodes.push(Some(started));
            world.push(now.at, node, Event::Wake);
        }
        world
    }

    fn start(&self, node: usize, count: usize) -> Node {
        let local = LocalNode {
            who_v4: Some(self.who(node)),
            who_v6: None,
            subnet_v4: Some(subnet(node)),
            subnet_v6: None,
            overlay_v4: Some(subnet(node).network()),
            overlay_v6: None,
            device: true,
            clear: !self.encrypted,
            mtu_v4: 1450,
            mtu_v6: 1430,
        };
        let mut state = mix([self.seed, u64::try_from(node).unwrap(), self.now.wall_ms]);
        let random = move || {
            state = mix([state, 1, 2]);
            state
        };
        let mut started = Node::new(local, self.now.at, random);
        started.set_own(Own { ready: true, ..Own::default() });
        started.set_targets(
            (0..count).filter(|other| *other != node).map(target).collect(),
            self.now.at,
        );
        started
    }

    pub(crate) fn who(&self, node: usize) -> u64 {
        who(&format!("id-{node}"), &subnet(node))
    }

    pub(crate) fn address(&self, node: usize) -> IpAddr {
        address(node)
    }

    pub(crate) fn overlay(&self, node: usize) -> IpAddr {
        subnet(node).network()
    }

    pub(crate) fn set(&mut self, a: usize, b: usize, link: Link) {
        assert!(a < b);
        self.links.insert((a, b), link);
    }

    /// Stops the daemon of the node `whose`, and delivers its packets to the node `by`.
    pub(crate) fn takes_over(&mut self, whose: usize, by: usize) {
        self.deaf.insert(whose);
        self.holders.insert(whose, by);
    }

    pub(crate) fn restart(&mut self, node: usize) {
        self.nodes[node] = Some(self.start(node, self.nodes.len()));
        self.wake(node);
    }

    /// After the pause, the daemon reads the packets that arrived meanwhile.
    pub(crate) fn stall(&mut self, node: usize, time: Duration) {
        self.stalled.insert(node, self.now.at + time);
        self.run(time);
        self.stalled.remove(&node);
        self.node_mut(node).stalled(time);
        self.wake(node);
    }

    /// Makes a node request the reports of other nodes.
    pub(crate) fn look(&mut self, node: usize) {
        let now = self.now_at(node);
        self.node_mut(node).request_rows(Client::Command, now);
        self.wake(node);
    }

    /// Makes `node` probe the node `of` on demand.
    pub(crate) fn ask(&mut self, node: usize, of: usize) -> Option<Probe> {
        let now = self.now_at(node);
        let number = self.node_mut(node).begin_session(now, subnet(of))?;
        self.wake(node);
        for _ in 0..50 {
            self.run(Duration::from_millis(50));
            let now = self.now_at(node);
            if let Some(probe) = self.node_mut(node).end_session(now, number) {
                return Some(probe);
            }
        }
        panic!("it does not end")
    }

    pub(crate) fn view(&self, node: usize) -> Mesh {
        self.node(node).show(self.now_at(node), 8473, Vec::new())
    }

    /// The verdict of a node on another node.
    pub(crate) fn state(&self, node: usize, on: usize) -> State {
        self.node(node).state(&subnet(on)).unwrap()
    }

    pub(crate) fn faults(&self, node: usize) -> Vec<CommonOutage> {
        self.node(node).show_faults(self.now)
    }

    pub(crate) fn tally(&self, node: usize) -> BTreeMap<State, u32> {
        self.node(node).counts()
    }

    /// The number of reports that nodes request in half a minute because of peers with faults.
    pub(crate) fn rows_of_trouble(&self) -> usize {
        16 * (0..self.nodes.len())
            .filter(|node| self.view(*node).peers.iter().any(|peer| peer.state != State::Well))
            .count()
    }

    /// Resets the counters.
    pub(crate) fn count(&mut self) {
        self.counts = vec![Count::default(); self.nodes.len()];
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now.at + time;
        while let Some(Reverse((at, _, node, _))) =
            self.events.peek().filter(|Reverse((at, ..))| *at <= end)
        {
            let (at, node) = (*at, *node);
            self.set_time(at);
            let Some(Reverse((.., event))) = self.events.pop() else {
                return;
            };
            self.happens(node, event);
        }
        self.set_time(end);
    }

    /// Runs the cluster until the condition holds, and returns the elapsed time. Panics if it does not hold within
    /// the limit of simulated time.
    #[track_caller]
    pub(crate) fn until(&mut self, limit: Duration, holds: impl Fn(&World) -> bool) -> Duration {
        let start = self.now.at;
        while !holds(self) {
            assert!(
                self.now.at - start < limit,
                "{:?}",
                self.real().iter().map(|node| self.tally(*node)).collect::<Vec<_>>()
            );
            self.run(Duration::from_millis(100));
        }
        self.now.at - start
    }

    /// The verdicts of the nodes 0 and 1 on each other.
    pub(crate) fn pair(&self) -> [State; 2] {
        [self.state(0, 1), self.state(1, 0)]
    }

    /// Considers all peers of all nodes that run the state machine.
    pub(crate) fn all(&self, state: State) -> bool {
        self.real().iter().all(|node| self.tally(*node).keys().eq([&state]))
    }

    /// A datagram that an attacker forges with the address of the node `from`, for the node `to`.
    pub(crate) fn forge(
        &self,
        kind: MessageKind,
        nonce: u64,
        from: usize,
        to: usize,
        token: Option<u32>,
    ) -> Vec<u8> {
        let (length, ends) =
            (|length| u16::try_from(length).unwrap(), (self.who(from), self.who(to)));
        let header = |length| Header { kind, length, nonce, from: ends.0, to: ends.1 };
        match kind {
            MessageKind::RowQuestion => row_question(&header(length(ROW)), token, token),
            _ => {
                let bytes = if kind == MessageKind::PodQuestion { POD_QUESTION } else { ECHO };
                let body = Echo { token, repeats: token, ..Echo::default() };
                echo(&header(length(bytes)), &body, bytes)
            }
        }
    }

    /// Delivers bytes to the node `to` as a datagram from the address of the node `from`.
    pub(crate) fn inject(
        &mut self,
        path: Path,
        from: usize,
        to: usize,
        bytes: &[u8],
    ) -> Option<Vec<u8>> {
        let from = match path {
            Path::Overlay => self.overlay(from),
            Path::Underlay => self.address(from),
        };
        let answer = self.deliver(to, Datagram { path, from, at: self.now.at, bytes });
        assert!(answer.as_ref().is_none_or(|answer| answer.len() <= bytes.len()));
        answer
    }

    pub(crate) fn deliver(&mut self, node: usize, datagram: Datagram<'_>) -> Option<Vec<u8>> {
        let now = self.now_at(node);
        let answer = self.node_mut(node).receive(now, datagram);
        self.wake(node);
        answer
    }

    /// By the node's own clock.
    fn now_at(&self, node: usize) -> Now {
        let wrong = self.clocks.get(&node).copied().unwrap_or(0);
        Now { at: self.now.at, wall_ms: self.now.wall_ms.saturating_add_signed(wrong) }
    }

    fn set_time(&mut self, at: Duration) {
        self.now.at = at;
        // The wall clock has a resolution of milliseconds.
        self.now.wall_ms = 1_700_000_000_000
            + u64::try_from((at - Duration::from_secs(1000)).as_millis()).unwrap();
    }

    fn push(&mut self, at: Duration, node: usize, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, node, event)));
    }

    fn happens(&mut self, node: usize, event: Event) {
        if let Some(until) = self.stalled.get(&node).copied().filter(|until| self.now.at < *until) {
            // The kernel keeps received packets with their timestamps; the daemon reads them later.
            if !matches!(event, Event::Wake) {
                self.push(until, node, event);
            }
            return;
        }
        match event {
            Event::Wake if self.wakes[node] != self.now.at => {}
            Event::Wake => self.wake(node),
            Event::Arrives { from, path, bytes } => self.arrives(node, from, path, &bytes),
            Event::Pong { path, address, nonce, .. } => {
                let now = self.now_at(node);
                self.node_mut(node).pong(now, path, address, nonce, now.at);
                self.wake(node);
            }
        }
    }

    fn arrives(&mut self, node: usize, from: usize, path: Path, bytes: &[u8]) {
        if self.deaf.contains(&node) {
            return;
        }
        let address = match path {
            Path::Overlay => subnet(from).network(),
            Path::Underlay => address(from),
        };
        if matches!(parse(bytes), Some(Message::Echo(header, _)) if header.kind == MessageKind::EchoQuestion)
        {
            self.counts[node].received.add(self.now.at);
        }
        let datagram = Datagram { path, from: address, at: self.now.at, bytes };
        let now = self.now_at(node);
        let Some(real) = &mut self.nodes[node] else {
            if let Some(answer) = self.stub(node, from, path, bytes) {
                self.transmit(node, from, path, answer);
            }
            return;
        };
        let mut answer = real.receive(now, datagram);
        if let (Some(written), true) = (&answer, self.liar == Some(node))
            && let Some(Message::Row(header, _)) = parse(written)
        {
            answer = row_answer(&Header { ..header }, &lies());
        }
        if let Some(answer) = answer {
            assert!(answer.len() <= bytes.len(), "an answer is never longer than its question");
            // A node that has taken another one's address replies from that address.
            let as_whom = self
                .holders
                .iter()
                .find(|(whose, by)| **by == node && self.meant(bytes) == Some(self.who(**whose)))
                .map_or(node, |(whose, _)| *whose);
            self.counts[node].bytes += u64::try_from(answer.len()).unwrap() + 28;
            self.transmit(as_whom, from, path, answer);
        }
        self.wake(node);
    }

    fn stub(&mut self, node: usize, from: usize, path: Path, bytes: &[u8]) -> Option<Vec<u8>> {
        let Some(Message::Echo(header, _)) = parse(bytes) else {
            return None;
        };
        if header.kind != MessageKind::EchoQuestion {
            return None;
        }
        let is_overlay = path == Path::Overlay;
        self.heard.insert((node, from, is_overlay), self.now.at);
        let age = |is_overlay| {
            let at = self.heard.get(&(node, from, is_overlay))?;
            u32::try_from((self.now.at - *at).as_millis()).ok()
        };
        let body = Echo {
            heard_overlay_ms: age(true),
            heard_underlay_ms: age(false),
            wall_ms: self.now.wall_ms,
            answers_at: Some(subnet(node).network()),
            up_ms: u32::MAX - 1,
            ..Echo::default()
        };
        let header = Header {
            kind: MessageKind::EchoAnswer,
            from: self.who(node),
            to: header.from,
            ..header
        };
        Some(echo(&header, &body, ECHO))
    }

    fn meant(&self, bytes: &[u8]) -> Option<u64> {
        match parse(bytes)? {
            Message::Echo(header, _) | Message::Row(header, _) => Some(header.to),
        }
    }

    fn wake(&mut self, node: usize) {
        let now = self.now_at(node);
        let next = self.node_mut(node).wake(now);
        for send in self.node_mut(node).take_sends() {
            match send {
                Send::Datagram { path, to, bytes } => {
                    let to = node_at(to);
                    match parse(&bytes) {
                        Some(Message::Row(..)) => self.sent_rows += 1,
                        _ => {
                            let count = &mut self.counts[node];
                            count.questions += 1;
                            count.asked.insert(to);
                            count.sent.add(self.now.at);
                        }
                    }
                    self.counts[node].bytes += u64::try_from(bytes.len()).unwrap() + 28;
                    self.transmit(node, to, path, bytes);
                }
                Send::Ping { path, to, nonce, length } => self.ping(node, to, path, nonce, length),
                // No node of the simulation sends pod probes.
                Send::ToPod { .. } => {}
            }
        }
        for notice in self.node_mut(node).take_notices() {
            self.notices.push((node, notice));
        }
        let next = next.max(self.now.at + Duration::from_micros(10));
        if self.wakes[node] != next {
            self.wakes[node] = next;
            self.push(next, node, Event::Wake);
        }
    }

    /// The time at which a packet of this length arrives, or `None` if the network drops it.
    fn passes(&mut self, from: usize, to: usize, path: Path, length: usize) -> Option<Duration> {
        let link = self.links.get(&(from.min(to), from.max(to))).copied().unwrap_or_default();
        let place = usize::from(from > to);
        let open = match path {
            Path::Overlay => link.overlay[place],
            Path::Underlay => link.underlay[place],
        };
        let dead = self.off.contains(&from) || self.off.contains(&to);
        let cut =
            path == Path::Overlay && (self.cut_out.contains(&from) || self.cut_in.contains(&to));
        let open = open && !dead && !cut;
        self.number += 1;
        let unlucky = mix([self.seed, self.number, 7]) % 1000 < link.lost.max(self.lost);
        (open && !unlucky && length <= usize::from(link.mtu[place]))
            .then(|| self.now.at + link.delay)
    }

    fn transmit(&mut self, from: usize, to: usize, path: Path, bytes: Vec<u8>) {
        self.underlay += usize::from(path == Path::Underlay);
        if self.filtered {
            return;
        }
        let holder = self.holders.get(&to).copied().unwrap_or(to);
        if let Some(at) = self.passes(from, to, path, bytes.len() + 28) {
            self.push(at, holder, Event::Arrives { from, path, bytes });
        }
    }

    /// The target's kernel replies even if no daemon runs.
    fn ping(&mut self, node: usize, address: IpAddr, path: Path, nonce: u64, length: u16) {
        let to = node_at(address);
        let length = usize::from(length.max(36));
        if self.passes(node, to, path, length).is_none() {
            return;
        }
        if let Some(at) = self.passes(to, node, path, length) {
            self.push(
                at + (at - self.now.at),
                node,
                Event::Pong { from: to, path, address, nonce },
            );
        }
    }
}

/// A report in which every value is at its maximum.
fn lies() -> Vec<u8> {
    let mut out = vec![0xff; 7 + 24];
    out.push(9);
    out.extend([0xff; 9 * 4 + 4]);
    out.extend(100u16.to_be_bytes());
    for peer in 0..100 {
        out.extend(probing::who::short(&subnet(peer)).to_be_bytes());
        out.extend([7, 0, 255, 0]);
    }
    out
}
