//! Probes on the path of pods' packets: from an address of this node's subnet, through the pods' bridge and what forwards packets there, to other nodes.
//! What is asked, and what follows from the answers. Pure.
//!
//! A pod question gets two answers: one as any question, and a call, the first packet of a new connection to the address that asked. So packets of a pod's
//! own connections are told apart from those of connections to it.

use crate::wire::{Echo, Header, MessageKind, POD_QUESTION, echo};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use types::Family;

/// How many peers are asked in one round.
pub const ASKED: usize = 8;
/// How many of the peers that do not answer are asked by the host too, in one round.
pub const CONFIRMED: usize = 2;
/// A peer is lost after so many rounds.
const ROUNDS: u8 = 2;
/// A subnet needs so many bits for hosts: of a smaller one, no address is taken from pods.
const MIN_HOST_BITS: u8 = 4;

/// Returns the address of a subnet from which pod probes are sent: the last one of a host. None if the subnet is too small.
pub fn address(subnet: &IpNet) -> Option<IpAddr> {
    if subnet.max_prefix_len() - subnet.prefix_len() < MIN_HOST_BITS {
        return None;
    }
    Some(match subnet.broadcast() {
        IpAddr::V4(last) => Ipv4Addr::from_bits(last.to_bits() & !1).into(),
        IpAddr::V6(last) => last.into(),
    })
}

/// Returns the last address of a subnet that pods may have where pod probes are sent.
pub fn last_of_pods(subnet: &IpNet) -> Option<IpAddr> {
    Some(match address(subnet)? {
        IpAddr::V4(ours) => Ipv4Addr::from_bits(ours.to_bits() - 1).into(),
        IpAddr::V6(ours) => Ipv6Addr::from_bits(ours.to_bits() - 1).into(),
    })
}

/// Returns what [`address`] has in the bits of hosts, where `hosts` are the last 32 of them at most. Where subnets are too small, a number that none has.
#[cfg(any(test, feature = "prober"))]
pub(crate) fn host_part(hosts: u32, family: Family) -> u32 {
    if hosts.count_ones() < MIN_HOST_BITS.into() {
        u32::MAX
    } else {
        family.pick(hosts & !1, hosts)
    }
}

/// Returns the UDP port from which a question is sent, and to which its answer comes: another one each time, so that no earlier connection lets it pass.
pub fn port(nonce: u64) -> u16 {
    const DYNAMIC: u16 = 0xc000;
    let [.., high, low] = nonce.to_be_bytes();
    u16::from_be_bytes([high, low]) | DYNAMIC
}

/// Returns the UDP port to which the call for a question comes: not the one of the question, whose connection would let it pass.
pub fn call_port(nonce: u64) -> u16 {
    port(nonce) ^ 1
}

/// Writes a question. `from` is the number of this node, as [`crate::who::who`] makes it.
pub fn question(nonce: u64, from: u64) -> Vec<u8> {
    let header = Header {
        kind: MessageKind::PodQuestion,
        length: u16::try_from(POD_QUESTION).unwrap_or(u16::MAX),
        nonce,
        from,
        to: 0,
    };
    echo(&header, &Echo::default(), POD_QUESTION)
}

/// What is lost on the path of pods' packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lost {
    /// Nothing: packets of pods arrive with another address, and so calls do not come.
    Address,
    /// Questions get no answer, and no call comes.
    Everything,
    /// Calls come, answers do not.
    Answers,
    /// Answers come, calls do not: packets of connections to pods are lost.
    Calls,
}

/// What is known of the path of pods' packets in one address family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodPath {
    /// The address that asks.
    pub address: Option<IpAddr>,
    /// Why nobody is asked.
    pub obstacle: Option<Obstacle>,
    /// How many peers were asked in the last round, and answer the host; 0 if nobody was.
    pub asked: usize,
    /// How many of them answered and called.
    pub answered: usize,
    /// The subnets of the peers to which or from which packets of pods are lost, while the host's own pass.
    pub lost: BTreeMap<IpNet, Lost>,
}

/// The state of the path of pods' packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodState {
    /// Nobody is asked, or nobody was until now.
    Unknown,
    /// Packets of pods pass, both ways.
    Well,
    /// Packets from or to some peers are lost.
    Some,
    /// Packets from or to all peers that were asked are lost.
    All,
}

impl PodState {
    /// All states.
    pub const ALL: [PodState; 4] = [
        PodState::Unknown,
        PodState::Well,
        PodState::Some,
        PodState::All,
    ];

    /// Its name, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            PodState::Unknown => "unknown",
            PodState::Well => "well",
            PodState::Some => "some",
            PodState::All => "all",
        }
    }
}

impl PodPath {
    /// Returns its state.
    pub fn state(&self) -> PodState {
        match (self.asked, self.lost.is_empty()) {
            (0, _) => PodState::Unknown,
            (_, true) => PodState::Well,
            (_, false) if self.answered > 0 => PodState::Some,
            (_, false) => PodState::All,
        }
    }
}

/// Why no pod questions are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No bridge has an address of this node's subnet: it comes with the first pod.
    NoBridge,
    /// The subnet has too few addresses.
    SmallSubnet,
    /// Somebody on the bridge has the address, with this hardware address.
    Taken(String),
    /// The kernel refuses the device or the socket, with this error.
    Refused(String),
    /// No peer answers through the overlay network.
    NobodyAnswers,
    /// Peers answer the host, and let no packets to the probe port in that are the first of a connection.
    Filtered,
    /// So much else comes to the address of the probe that answers may have been displaced.
    Flooded,
}

/// A question of the present round.
#[derive(Clone, Copy, Debug)]
struct Asked {
    subnet: IpNet,
    to: IpAddr,
    answered: bool,
    called: bool,
    /// Whether the peer saw another address than that of the probe.
    changed: bool,
}

/// Judges the answers in one address family.
#[derive(Debug, Default)]
pub struct PodProbes {
    asked: BTreeMap<u64, Asked>,
    /// Peers that were lost in the last rounds in which they were asked, and in how many.
    doubted: BTreeMap<IpNet, (u8, Lost)>,
    last: Option<IpNet>,
    counts: (usize, usize),
}

impl PodProbes {
    /// Returns the peer after which the next round begins.
    pub fn after(&self) -> Option<IpNet> {
        self.last
    }

    /// Begins a round with peers that answer the host: those that are doubted first. Returns a nonce for each peer's address; `random` makes them.
    pub fn begin(
        &mut self,
        peers: &[(IpNet, IpAddr)],
        mut random: impl FnMut() -> u64,
    ) -> Vec<(u64, IpAddr)> {
        self.asked.clear();
        self.last = peers.last().map(|(subnet, _)| *subnet);
        let mut questions = Vec::new();
        for (subnet, to) in peers {
            let nonce = random();
            let asked = Asked {
                subnet: *subnet,
                to: *to,
                answered: false,
                called: false,
                changed: false,
            };
            self.asked.insert(nonce, asked);
            questions.push((nonce, *to));
        }
        questions
    }

    /// Asks those again whose answer or call has not come: single packets are lost on any network. Returns the new nonces.
    pub fn again(&mut self, mut random: impl FnMut() -> u64) -> Vec<(u64, IpAddr)> {
        let round = std::mem::take(&mut self.asked);
        let mut questions = Vec::new();
        for (old, asked) in round {
            let nonce = if asked.answered && asked.called {
                old
            } else {
                let nonce = random();
                questions.push((nonce, asked.to));
                nonce
            };
            self.asked.insert(nonce, asked);
        }
        questions
    }

    /// Returns the peers that are doubted, to be asked again in the next round.
    pub fn doubted(&self) -> Vec<IpNet> {
        self.doubted.keys().copied().take(ASKED).collect()
    }

    /// Takes the answer of a peer. `changed`: it saw another address than that of the probe.
    pub fn answer(&mut self, nonce: u64, from: IpAddr, changed: bool) {
        if let Some(asked) = self.asked.get_mut(&nonce).filter(|asked| asked.to == from) {
            asked.answered = true;
            asked.changed = changed;
        }
    }

    /// Takes the call of a peer.
    pub fn call(&mut self, nonce: u64, from: IpAddr) {
        if let Some(asked) = self.asked.get_mut(&nonce).filter(|asked| asked.to == from) {
            asked.called = true;
        }
    }

    /// Whether every answer and call of the round has come.
    pub fn is_complete(&self) -> bool {
        self.asked
            .values()
            .all(|asked| asked.answered && asked.called)
    }

    /// Ends a round. Returns the peers that do not answer a pod: whether they answer the host decides what it means.
    pub fn end(&mut self) -> Vec<(IpNet, Lost)> {
        let round = std::mem::take(&mut self.asked);
        let mut lost = Vec::new();
        self.counts = (0, 0);
        for asked in round.values() {
            let what = match (asked.answered, asked.called) {
                (true, _) if asked.changed => Lost::Address,
                (true, true) => {
                    self.doubted.remove(&asked.subnet);
                    self.counts.0 += 1;
                    self.counts.1 += 1;
                    continue;
                }
                (false, false) => Lost::Everything,
                (false, true) => Lost::Answers,
                (true, false) => Lost::Calls,
            };
            lost.push((asked.subnet, what));
        }
        // Those that are doubted already are first.
        lost.sort_by_key(|(subnet, _)| !self.doubted.contains_key(subnet));
        lost
    }

    /// Takes whether a peer answered the same question of the host while it did not answer a pod.
    pub fn confirm(&mut self, subnet: IpNet, lost: Lost, answers_host: bool) {
        if !answers_host {
            self.doubted.remove(&subnet);
            return;
        }
        self.counts.0 += 1;
        let (rounds, what) = self.doubted.entry(subnet).or_insert((0, lost));
        *rounds = rounds.saturating_add(1);
        *what = lost;
    }

    /// Forgets peers that are not among these.
    pub fn retain(&mut self, is_peer: impl Fn(&IpNet) -> bool) {
        self.doubted.retain(|subnet, _| is_peer(subnet));
    }

    /// Forgets everything: nobody is asked any more.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns what is known.
    pub fn path(&self, address: IpAddr) -> PodPath {
        PodPath {
            address: Some(address),
            obstacle: None,
            asked: self.counts.0,
            answered: self.counts.1,
            lost: self
                .doubted
                .iter()
                .filter(|(_, (rounds, _))| *rounds >= ROUNDS)
                .map(|(subnet, (_, lost))| (*subnet, *lost))
                .collect(),
        }
    }
}

/// What is known of the path of pods' packets, for each address family of the network.
pub type PodPaths = BTreeMap<Family, PodPath>;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn probe_takes_the_last_address_of_a_subnet() {
        for (subnet, ours, last) in [
            ("10.5.1.0/24", "10.5.1.254", "10.5.1.253"),
            ("10.5.1.16/28", "10.5.1.30", "10.5.1.29"),
            (
                "fd00:1::/64",
                "fd00:1::ffff:ffff:ffff:ffff",
                "fd00:1::ffff:ffff:ffff:fffe",
            ),
        ] {
            assert_eq!(address(&net(subnet)), Some(ours.parse().unwrap()));
            assert_eq!(last_of_pods(&net(subnet)), Some(last.parse().unwrap()));
        }
        for small in ["10.5.1.0/29", "10.5.1.0/32", "fd00::/126"] {
            assert_eq!(address(&net(small)), None, "{small}");
        }
    }

    #[test]
    fn host_part_is_that_of_the_address() {
        for (subnet, hosts) in [("10.5.1.0/24", 0xff), ("10.5.1.16/28", 0xf)] {
            let Some(IpAddr::V4(ours)) = address(&net(subnet)) else {
                panic!("{subnet}");
            };
            assert_eq!(ours.to_bits() & hosts, host_part(hosts, Family::V4));
        }
        assert_eq!(host_part(u32::MAX, Family::V6), u32::MAX);
        assert_eq!(host_part(0x7, Family::V4), u32::MAX);
    }

    /// A round with one peer: what of its two answers comes, and whether it answers the host.
    fn round(probes: &mut PodProbes, answers: bool, calls: bool, host: bool) {
        let peer = (net("10.5.2.0/24"), "10.5.2.0".parse().unwrap());
        let questions = probes.begin(&[peer], || 7);
        assert_eq!(questions, [(7, peer.1)]);
        if answers {
            probes.answer(7, peer.1, false);
        }
        if calls {
            probes.call(7, peer.1);
        }
        // Another address, and another question, count for nothing.
        probes.answer(7, "10.5.3.0".parse().unwrap(), true);
        probes.call(8, peer.1);
        for (subnet, lost) in probes.end() {
            probes.confirm(subnet, lost, host);
        }
    }

    fn state(probes: &PodProbes) -> (PodState, Vec<Lost>) {
        let path = probes.path("10.5.1.254".parse().unwrap());
        (path.state(), path.lost.values().copied().collect())
    }

    #[test]
    fn path_is_lost_after_two_rounds_and_well_after_one() {
        for (answers, calls, lost) in [
            (false, false, Lost::Everything),
            (false, true, Lost::Answers),
            (true, false, Lost::Calls),
        ] {
            let mut probes = PodProbes::default();
            assert_eq!(state(&probes), (PodState::Unknown, vec![]));
            round(&mut probes, true, true, true);
            assert_eq!(state(&probes), (PodState::Well, vec![]));
            round(&mut probes, answers, calls, true);
            assert_eq!(state(&probes), (PodState::Well, vec![]), "once is chance");
            round(&mut probes, answers, calls, true);
            assert_eq!(state(&probes), (PodState::All, vec![lost]));
            round(&mut probes, true, true, true);
            assert_eq!(state(&probes), (PodState::Well, vec![]));
        }
    }

    #[test]
    fn what_comes_at_the_second_try_counts() {
        let mut probes = PodProbes::default();
        let peer = (net("10.5.2.0/24"), "10.5.2.0".parse().unwrap());
        probes.begin(&[peer], || 1);
        probes.call(1, peer.1);
        assert_eq!(probes.again(|| 2), [(2, peer.1)]);
        probes.answer(2, peer.1, false);
        assert!(probes.is_complete() && probes.again(|| 3).is_empty());
        assert_eq!(probes.end(), []);
    }

    #[test]
    fn peer_that_does_not_answer_the_host_says_nothing_of_pods() {
        let mut probes = PodProbes::default();
        for _ in 0..5 {
            round(&mut probes, false, false, false);
        }
        assert_eq!(state(&probes), (PodState::Unknown, vec![]));
    }

    #[test]
    fn another_address_is_told_from_loss() {
        let mut probes = PodProbes::default();
        let peer = (net("10.5.2.0/24"), "10.5.2.0".parse().unwrap());
        for _ in 0..2 {
            probes.begin(&[peer], || 1);
            probes.answer(1, peer.1, true);
            for (subnet, lost) in probes.end() {
                probes.confirm(subnet, lost, true);
            }
        }
        assert_eq!(state(&probes), (PodState::All, vec![Lost::Address]));
    }

    #[test]
    fn some_peers_are_told_apart_from_all() {
        let mut probes = PodProbes::default();
        let peers = [
            (net("10.5.2.0/24"), "10.5.2.0".parse().unwrap()),
            (net("10.5.3.0/24"), "10.5.3.0".parse().unwrap()),
        ];
        for _ in 0..2 {
            let mut nonce = 0;
            probes.begin(&peers, || {
                nonce += 1;
                nonce
            });
            probes.answer(1, peers[0].1, false);
            probes.call(1, peers[0].1);
            for (subnet, lost) in probes.end() {
                probes.confirm(subnet, lost, true);
            }
        }
        let path = probes.path("10.5.1.254".parse().unwrap());
        assert_eq!(path.state(), PodState::Some);
        assert_eq!(path.lost, [(peers[1].0, Lost::Everything)].into());
        assert_eq!(probes.doubted(), [peers[1].0]);
        // It does not answer the host any more.
        probes.retain(|subnet| *subnet == peers[0].0);
        assert!(probes.doubted().is_empty());
        assert!(probes.path("10.5.1.254".parse().unwrap()).lost.is_empty());
    }

    proptest! {
        #[test]
        fn port_is_a_dynamic_one(nonce in any::<u64>()) {
            prop_assert!(port(nonce) >= 49_152 && call_port(nonce) >= 49_152);
            prop_assert_ne!(port(nonce), call_port(nonce));
        }
    }
}
