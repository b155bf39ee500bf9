//! Unknown senders: hosts without a lease that probe this node. Such a host is a node of the same network with
//! another store, or a node whose lease no longer exists.

use super::machine::Node;
use super::message::{Datagram, Now};
use super::stranger::Asked;
use crate::target::Path;
use crate::who::is_same_node;
use crate::wire::Header;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Maximum number of unknown senders that this node remembers.
const MOST: usize = 8;
/// A node probes each peer at least once in two minutes, except in the largest clusters.
const MEMORY: Duration = Duration::from_secs(120);
/// Time for which an unknown sender has to probe before this node reports it. A node that joins or leaves the cluster
/// is an unknown sender for a moment.
const LASTING: Duration = Duration::from_secs(30);

impl Node {
    /// Records a sender without a lease if the sender addressed the probe to this node's id, in any subnet.
    pub(super) fn stranger(&mut self, now: Now, datagram: &Datagram<'_>, header: &Header) {
        self.traffic.strangers += 1;
        let own = [self.local.who_v4, self.local.who_v6];
        let means_this = own.iter().flatten().any(|own| is_same_node(*own, header.to));
        if datagram.path != Path::Underlay || !means_this {
            return;
        }
        forget(&mut self.strangers, now.at);
        if self.strangers.len() < MOST || self.strangers.contains_key(&datagram.from) {
            let asked = self.strangers.entry(datagram.from).or_insert(Asked {
                first: now.at,
                last: now.at,
                who: header.from,
            });
            (asked.last, asked.who) = (now.at, header.from);
        }
    }

    /// The addresses without a lease that have probed this node for at least 30 seconds.
    pub fn strangers(&self, now: Now) -> Vec<IpAddr> {
        let lasts = |asked: &Asked| {
            asked.last.saturating_sub(asked.first) >= LASTING
                && now.at.saturating_sub(asked.last) < MEMORY
        };
        let has_lease = |address: &IpAddr| {
            let place = self.addresses.partition_point(|(known, _)| known < address);
            self.addresses.get(place).is_some_and(|(known, _)| known == address)
        };
        // Behind NAT, a peer probes from an address other than its lease's.
        let is_peer = |asked: &Asked| self.peers.values().any(|peer| peer.who == asked.who);
        self.strangers
            .iter()
            .filter(|(address, asked)| lasts(asked) && !has_lease(address) && !is_peer(asked))
            .map(|(address, _)| *address)
            .collect()
    }
}

fn forget(strangers: &mut BTreeMap<IpAddr, Asked>, now: Duration) {
    strangers.retain(|_, asked| now.saturating_sub(asked.last) < MEMORY);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::pods::tests::alone;
    use crate::target::Target;
    use crate::who::who;
    use crate::wire::{ECHO, Echo, MessageKind, echo};
    use ipnet::IpNet;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn now(seconds: u64) -> Now {
        Now { at: Duration::from_secs(seconds), wall_ms: 0 }
    }

    /// Sends a probe to the node id `id`, in a subnet that the node had in another store.
    fn ask(node: &mut Node, seconds: u64, from: &str, id: &str, path: Path) {
        let header = Header {
            kind: MessageKind::EchoQuestion,
            length: u16::try_from(ECHO).unwrap(),
            nonce: 1,
            from: 2,
            to: who(id, &net("10.5.9.0/24")),
        };
        let datagram = Datagram {
            path,
            from: from.parse().unwrap(),
            at: now(seconds).at,
            bytes: &echo(&header, &Echo::default(), ECHO),
        };
        assert_eq!(node.receive(now(seconds), datagram), None);
    }

    #[test]
    fn persistent_sender_without_lease_is_unknown() {
        let mut node = alone();
        let stranger: IpAddr = "192.0.2.7".parse().unwrap();
        for seconds in [10, 20, 30] {
            ask(&mut node, seconds, "192.0.2.7", "n1", Path::Underlay);
            ask(&mut node, seconds, "192.0.2.8", "n2", Path::Underlay);
            ask(&mut node, seconds, "10.5.9.0", "n1", Path::Overlay);
        }
        assert!(node.strangers(now(30)).is_empty(), "the sender may have joined just now");
        ask(&mut node, 40, "192.0.2.7", "n1", Path::Underlay);
        assert_eq!(node.strangers(now(41)), [stranger]);
        assert!(node.strangers(now(200)).is_empty(), "the sender has sent no probes lately");
        // The sender gets a lease.
        let peer = Target {
            id: None,
            name: None,
            subnet: net("10.5.2.0/24"),
            address: stranger,
            primary: true,
            on_link: true,
        };
        node.set_targets(vec![peer], now(42).at);
        assert!(node.strangers(now(42)).is_empty());
    }

    #[test]
    fn peer_behind_nat_is_no_stranger() {
        let mut node = alone();
        let subnet = net("10.5.2.0/24");
        let peer = Target {
            id: Some("n2".into()),
            name: None,
            subnet,
            address: "203.0.113.2".parse().unwrap(),
            primary: true,
            on_link: false,
        };
        node.set_targets(vec![peer], now(1).at);
        for (seconds, strangers) in [(10, 0), (50, 1)] {
            let mut header = Header {
                kind: MessageKind::EchoQuestion,
                length: u16::try_from(ECHO).unwrap(),
                nonce: 1,
                from: who("n2", &subnet),
                to: who("n1", &net("10.5.1.0/24")),
            };
            for (from, number) in [("192.0.2.2", header.from), ("192.0.2.9", 9)] {
                header.from = number;
                let datagram = Datagram {
                    path: Path::Underlay,
                    from: from.parse().unwrap(),
                    at: now(seconds).at,
                    bytes: &echo(&header, &Echo::default(), ECHO),
                };
                node.receive(now(seconds), datagram);
            }
            assert_eq!(node.strangers(now(seconds)).len(), strangers);
        }
    }

    #[test]
    fn few_strangers_are_remembered() {
        let mut node = alone();
        for seconds in [0, 60] {
            for last in 1..=200 {
                ask(&mut node, seconds, &format!("192.0.2.{last}"), "n1", Path::Underlay);
            }
        }
        assert_eq!(node.strangers(now(60)).len(), MOST);
    }
}
