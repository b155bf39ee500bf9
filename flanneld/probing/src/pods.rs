//! Pod probes: probes on the path of pods' packets. They start at an address of this node's subnet and pass the pods'
//! bridge and the host's forwarding to other nodes. This module encodes them and evaluates the replies, without I/O.
//!
//! A peer responds to a pod probe twice: with a reply, as to any probe, and with a pod call. The pod call is the
//! first packet of a new connection to the address that sent the probe. A missing reply shows losses on connections
//! from pods; a missing pod call shows losses on connections to pods.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use types::Family;

/// Maximum number of peers in one round of pod probes.
pub const ASKED: usize = 8;
/// Maximum number of peers with a loss that this node also probes from the host's address in one round.
pub const CONFIRMED: usize = 2;
/// Number of consecutive failed rounds after which the report lists a peer as lost.
const ROUNDS: u8 = 2;
/// Pod probes use no address of a subnet with fewer host bits.
const MIN_HOST_BITS: u8 = 4;

/// The source address of pod probes in a subnet, which is the last host address; `None` if the subnet is too small.
pub fn address(subnet: &IpNet) -> Option<IpAddr> {
    if subnet.max_prefix_len() - subnet.prefix_len() < MIN_HOST_BITS {
        return None;
    }
    Some(match subnet.broadcast() {
        IpAddr::V4(last) => Ipv4Addr::from_bits(last.to_bits() & !1).into(),
        IpAddr::V6(last) => last.into(),
    })
}

/// `None` if the subnet is too small for pod probes.
pub fn last_of_pods(subnet: &IpNet) -> Option<IpAddr> {
    Some(match address(subnet)? {
        IpAddr::V4(ours) => Ipv4Addr::from_bits(ours.to_bits() - 1).into(),
        IpAddr::V6(ours) => Ipv6Addr::from_bits(ours.to_bits() - 1).into(),
    })
}

/// The host bits of [`address`]. `hosts` is the mask of the host bits, at most the last 32 bits. `u32::MAX`, which
/// matches no address, if the subnets are too small for pod probes.
#[cfg(any(test, feature = "prober"))]
pub(crate) fn host_part(hosts: u32, family: Family) -> u32 {
    if hosts.count_ones() < MIN_HOST_BITS.into() {
        u32::MAX
    } else {
        family.pick(hosts & !1, hosts)
    }
}

/// The source UDP port of a pod probe, which also receives the reply. Each probe has a different one, so that no
/// earlier tracked connection lets the probe pass.
pub fn port(nonce: u64) -> u16 {
    const DYNAMIC: u16 = 0xc000;
    let [.., high, low] = nonce.to_be_bytes();
    u16::from_be_bytes([high, low]) | DYNAMIC
}

/// The UDP port that receives the pod call. It differs from the probe's port, because the probe's tracked connection
/// would let the pod call pass.
pub fn call_port(nonce: u64) -> u16 {
    port(nonce) ^ 1
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LostPackets {
    /// Packets of pods arrive with another source address, so pod calls do not arrive.
    Address,
    /// Both replies and pod calls are lost.
    Everything,
    /// Replies are lost, while pod calls arrive.
    Answers,
    /// Pod calls are lost, while replies arrive: packets of connections to pods get lost.
    Calls,
}

/// Results of the pod probes in one address family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodPath {
    /// The source address of the probes.
    pub address: Option<IpAddr>,
    /// `None` if results exist.
    pub obstacle: Option<IdleError>,
    /// Number of peers that the last round probed and that reply to the host.
    pub asked: usize,
    /// Number of peers in `asked` that sent a reply and a pod call.
    pub answered: usize,
    /// Packets of pods to or from these peers get lost, but the host's own packets pass.
    pub lost: BTreeMap<IpNet, LostPackets>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodState {
    /// This node has not probed a peer yet, or cannot probe.
    Unknown,
    /// Packets of pods pass in both directions.
    Well,
    /// Packets from or to some peers are lost.
    Some,
    /// Packets from or to all probed peers are lost.
    All,
}

impl PodState {
    pub const ALL: [PodState; 4] =
        [PodState::Unknown, PodState::Well, PodState::Some, PodState::All];

    /// As in JSON.
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
    pub fn state(&self) -> PodState {
        match (self.asked, self.lost.is_empty()) {
            (0, _) => PodState::Unknown,
            (_, true) => PodState::Well,
            (_, false) if self.answered > 0 => PodState::Some,
            (_, false) => PodState::All,
        }
    }
}

/// Reason why pod probes have no results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdleError {
    /// No bridge has an address of this node's subnet. The bridge appears with the first pod.
    NoBridge,
    /// The subnet has too few addresses.
    SmallSubnet,
    /// Another device on the bridge uses the source address. The text is its hardware address.
    Taken(String),
    /// The error with which the kernel refuses the device or the socket.
    Refused(String),
    /// No peer replies over the overlay.
    NobodyAnswers,
    /// Peers reply to the host, but drop the first packet of a connection to the probe port.
    Filtered,
    /// A flood of other packets reaches the source address, so that the kernel may drop replies.
    Flooded,
}

/// A pod probe of the current round.
#[derive(Clone, Copy, Debug)]
struct Asked {
    subnet: IpNet,
    to: IpAddr,
    answered: bool,
    called: bool,
    /// Whether the peer received the probe with another source address.
    changed: bool,
}

/// Evaluates the pod probes of one address family.
#[derive(Debug, Default)]
pub struct PodProbes {
    asked: BTreeMap<u64, Asked>,
    /// Peers with losses in consecutive rounds, each with the number of these rounds.
    doubted: BTreeMap<IpNet, (u8, LostPackets)>,
    last: Option<IpNet>,
    counts: (usize, usize),
}

impl PodProbes {
    /// The peer after which the next round starts.
    pub fn after(&self) -> Option<IpNet> {
        self.last
    }

    /// Starts a round with peers that reply to probes from the host's address. The result has each peer with the
    /// nonce of its probe, which `random` generates.
    pub fn begin(
        &mut self,
        peers: &[(IpNet, IpAddr)],
        mut random: impl FnMut() -> u64,
    ) -> Vec<(u64, IpNet, IpAddr)> {
        self.asked.clear();
        self.last = peers.last().map(|(subnet, _)| *subnet);
        let mut questions = Vec::new();
        for (subnet, to) in peers {
            let nonce = random();
            let asked =
                Asked { subnet: *subnet, to: *to, answered: false, called: false, changed: false };
            self.asked.insert(nonce, asked);
            questions.push((nonce, *subnet, *to));
        }
        questions
    }

    /// Repeats the probes that still lack a reply or a pod call, because any network loses single packets. The nonces
    /// are new.
    pub fn again(&mut self, mut random: impl FnMut() -> u64) -> Vec<(u64, IpNet, IpAddr)> {
        let round = std::mem::take(&mut self.asked);
        let mut questions = Vec::new();
        for (old, asked) in round {
            let nonce = if asked.answered && asked.called {
                old
            } else {
                let nonce = random();
                questions.push((nonce, asked.subnet, asked.to));
                nonce
            };
            self.asked.insert(nonce, asked);
        }
        questions
    }

    /// Up to [`ASKED`] peers that failed in their last round. The next round probes them again.
    pub fn doubted(&self) -> Vec<IpNet> {
        self.doubted.keys().copied().take(ASKED).collect()
    }

    /// `changed` is true if the peer received the probe with another source address.
    pub fn answer(&mut self, nonce: u64, from: IpAddr, changed: bool) {
        if let Some(asked) = self.asked.get_mut(&nonce).filter(|asked| asked.to == from) {
            asked.answered = true;
            asked.changed = changed;
        }
    }

    pub fn call(&mut self, nonce: u64, from: IpAddr) {
        if let Some(asked) = self.asked.get_mut(&nonce).filter(|asked| asked.to == from) {
            asked.called = true;
        }
    }

    /// True if every reply and every pod call of the round has arrived.
    pub fn is_complete(&self) -> bool {
        self.asked.values().all(|asked| asked.answered && asked.called)
    }

    /// Ends a round. [`Self::confirm`] evaluates each loss, depending on whether the peer replies to the host.
    pub fn end(&mut self) -> Vec<(IpNet, LostPackets)> {
        let round = std::mem::take(&mut self.asked);
        let mut lost = Vec::new();
        self.counts = (0, 0);
        for asked in round.values() {
            let what = match (asked.answered, asked.called) {
                (true, _) if asked.changed => LostPackets::Address,
                (true, true) => {
                    self.doubted.remove(&asked.subnet);
                    self.counts.0 += 1;
                    self.counts.1 += 1;
                    continue;
                }
                (false, false) => LostPackets::Everything,
                (false, true) => LostPackets::Answers,
                (true, false) => LostPackets::Calls,
            };
            lost.push((asked.subnet, what));
        }
        // Peers that are doubted already come first.
        lost.sort_by_key(|(subnet, _)| !self.doubted.contains_key(subnet));
        lost
    }

    /// Records whether a peer with a failed pod probe replied to the same probe from the host's address.
    pub fn confirm(&mut self, subnet: IpNet, lost: LostPackets, answers_host: bool) {
        if !answers_host {
            self.doubted.remove(&subnet);
            return;
        }
        self.counts.0 += 1;
        let (rounds, what) = self.doubted.entry(subnet).or_insert((0, lost));
        *rounds = rounds.saturating_add(1);
        *what = lost;
    }

    pub fn retain(&mut self, is_peer: impl Fn(&IpNet) -> bool) {
        self.doubted.retain(|subnet, _| is_peer(subnet));
    }

    /// Drops all results, because this node no longer probes any peer.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

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
            ("fd00:1::/64", "fd00:1::ffff:ffff:ffff:ffff", "fd00:1::ffff:ffff:ffff:fffe"),
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

    /// The flags state whether the peer's reply and pod call arrive, and whether the peer replies to the host.
    fn round(probes: &mut PodProbes, answers: bool, calls: bool, host: bool) {
        let peer = (net("10.5.2.0/24"), "10.5.2.0".parse().unwrap());
        let questions = probes.begin(&[peer], || 7);
        assert_eq!(questions, [(7, peer.0, peer.1)]);
        if answers {
            probes.answer(7, peer.1, false);
        }
        if calls {
            probes.call(7, peer.1);
        }
        // A reply from another address and a call for another probe have no effect.
        probes.answer(7, "10.5.3.0".parse().unwrap(), true);
        probes.call(8, peer.1);
        for (subnet, lost) in probes.end() {
            probes.confirm(subnet, lost, host);
        }
    }

    fn state(probes: &PodProbes) -> (PodState, Vec<LostPackets>) {
        let path = probes.path("10.5.1.254".parse().unwrap());
        (path.state(), path.lost.values().copied().collect())
    }

    #[test]
    fn path_is_lost_after_two_rounds_and_well_after_one() {
        for (answers, calls, lost) in [
            (false, false, LostPackets::Everything),
            (false, true, LostPackets::Answers),
            (true, false, LostPackets::Calls),
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
    fn reply_to_the_second_try_is_used() {
        let mut probes = PodProbes::default();
        let peer = (net("10.5.2.0/24"), "10.5.2.0".parse().unwrap());
        probes.begin(&[peer], || 1);
        probes.call(1, peer.1);
        assert_eq!(probes.again(|| 2), [(2, peer.0, peer.1)]);
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
        assert_eq!(state(&probes), (PodState::All, vec![LostPackets::Address]));
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
        assert_eq!(path.lost, [(peers[1].0, LostPackets::Everything)].into());
        assert_eq!(probes.doubted(), [peers[1].0]);
        // This peer no longer replies to the host.
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
