//! Replies to pod probes, whose source addresses are in the peers' subnets.

use super::machine::Node;
use super::message::{Datagram, Now, Send};
use crate::pods;
use crate::target::overlay_addresses;
use crate::wire::{ECHO, Echo, Header, Message, MessageKind, POD_QUESTION, echo, parse};
use ipnet::IpNet;
use std::net::IpAddr;
use std::ops::Bound;
use types::Family;
use types::reachability::State;

impl Node {
    /// Handles a datagram from the overlay whose source port is not the probe port. Replies if it is a pod probe of a
    /// peer. The source address has to be the peer's pod-probe address or one of the peer's own addresses. Queues the
    /// pod call, which the node sends with the next packets. The reply and the pod call together are at most as long
    /// as the probe.
    pub fn answer_pod(&mut self, now: Now, datagram: &Datagram<'_>) -> Option<Vec<u8>> {
        let Some(Message::Echo(header, asked)) = parse(datagram.bytes) else {
            self.traffic.junk += 1;
            return None;
        };
        if header.kind != MessageKind::PodQuestion {
            self.traffic.junk += 1;
            return None;
        }
        let (key, peer) = self
            .peers
            .range(..=IpNet::from(datagram.from))
            .next_back()
            .filter(|(key, _)| {
                pods::address(key) == Some(datagram.from)
                    || overlay_addresses(key).contains(&datagram.from)
            })
            .or_else(|| {
                self.traffic.strangers += 1;
                None
            })?;
        let own = self.local.who(Family::from(*key))?;
        // A pod with raw sockets can forge the address, so half of the limit is reserved for probes that repeat the token.
        let spare = !peer.tokens.prove(asked.repeats);
        if !self.limits.take_echo(datagram.from, now.at, spare) {
            self.traffic.limited += 1;
            return None;
        }
        self.traffic.questions += 1;
        let of = |kind, length| Header { kind, length, from: own, to: header.from, ..header };
        let body = Echo {
            wall_ms: now.wall_ms,
            // From this address, the prober finds out whether a device on the path changed the source address.
            answers_at: Some(datagram.from),
            ..Echo::default()
        };
        let short = u16::try_from(ECHO).unwrap_or(u16::MAX);
        self.out.push(Send::ToPod {
            to: datagram.from,
            port: pods::call_port(header.nonce),
            bytes: echo(&of(MessageKind::PodCall, short), &body, ECHO),
        });
        let answer = of(MessageKind::EchoAnswer, header.length);
        Some(echo(&answer, &body, ECHO))
    }

    /// `None` if the node has no subnet in the peer's address family.
    pub fn pod_question(&self, peer: IpNet, nonce: u64) -> Option<Vec<u8>> {
        let tokens = self.peers.get(&peer).map(|peer| peer.tokens);
        let header = Header {
            kind: MessageKind::PodQuestion,
            length: u16::try_from(POD_QUESTION).unwrap_or(u16::MAX),
            nonce,
            from: self.local.who(peer.into())?,
            to: 0,
        };
        let body =
            Echo { repeats: tokens.and_then(|tokens| tokens.repeated(nonce)), ..Echo::default() };
        Some(echo(&header, &body, POD_QUESTION))
    }

    /// At most `most` peers that reply to probes over the overlay, each with the address that replies. The list
    /// begins with the peers in `first`. The peers whose subnets follow `after` are next, then the remaining peers.
    pub fn answering(
        &self,
        family: Family,
        first: &[IpNet],
        after: Option<IpNet>,
        most: usize,
    ) -> Vec<(IpNet, IpAddr)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.peers.range((from, Bound::Unbounded));
        let around = after.into_iter().flat_map(|after| self.peers.range(..=after));
        let again = first.iter().filter_map(|key| self.peers.get_key_value(key));
        let mut found: Vec<(IpNet, IpAddr)> = Vec::new();
        for (key, peer) in again.chain(rest).chain(around) {
            let answers = matches!(
                peer.shown,
                State::Well | State::Slow | State::LosesSome | State::SmallMtu
            );
            let is_asked = found.iter().any(|(known, _)| known == key);
            if Family::from(*key) != family
                || !answers
                || peer.standing.present.ping_only
                || is_asked
            {
                continue;
            }
            let [device, bridge] = overlay_addresses(key);
            let to = if self.local.device { device } else { bridge };
            found.push((*key, to));
            if found.len() == most {
                break;
            }
        }
        found
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::node::LocalNode;
    use crate::target::{Path, Target};
    use crate::who::who;
    use crate::wire::{ROW, row_question};
    use std::time::Duration;

    const NOW: Now = Now { at: Duration::from_secs(1), wall_ms: 7 };

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    /// A node with the subnet 10.5.1.0/24.
    pub(in crate::node) fn alone() -> Node {
        let local = LocalNode {
            who_v4: Some(who("n1", &net("10.5.1.0/24"))),
            who_v6: None,
            subnet_v4: Some(net("10.5.1.0/24")),
            subnet_v6: None,
            overlay_v4: "10.5.1.0".parse().ok(),
            overlay_v6: None,
            device: true,
            clear: true,
            mtu_v4: 1450,
            mtu_v6: 1430,
        };
        Node::new(local, Duration::ZERO, || 1)
    }

    /// A node with one peer, whose subnet is 10.5.2.0/24.
    pub(in crate::node) fn node() -> Node {
        let mut node = alone();
        let peer = Target {
            id: Some("n2".into()),
            name: None,
            subnet: net("10.5.2.0/24"),
            address: "192.0.2.2".parse().unwrap(),
            primary: true,
            on_link: true,
        };
        node.set_targets(vec![peer], NOW.at);
        node
    }

    /// The reply to a message from the address `from`, and the packets that the node queues with it.
    fn answered(node: &mut Node, from: &str, bytes: &[u8]) -> (Option<Vec<u8>>, Vec<Send>) {
        let datagram =
            Datagram { path: Path::Overlay, from: from.parse().unwrap(), at: NOW.at, bytes };
        (node.answer_pod(NOW, &datagram), node.take_sends())
    }

    /// A pod probe of the peer that repeats a token.
    fn question(nonce: u64, repeats: Option<u32>) -> Vec<u8> {
        let header = Header {
            kind: MessageKind::PodQuestion,
            length: u16::try_from(POD_QUESTION).unwrap(),
            nonce,
            from: who("n2", &net("10.5.2.0/24")),
            to: 0,
        };
        let body = Echo { repeats, ..Echo::default() };
        echo(&header, &body, POD_QUESTION)
    }

    #[test]
    fn pod_question_of_a_peer_gets_an_answer_and_a_call() {
        let mut node = node();
        let question = question(0x1234, None);
        assert_eq!(question.len(), POD_QUESTION);
        let (answer, sends) = answered(&mut node, "10.5.2.254", &question);
        let answer = answer.unwrap();
        let [Send::ToPod { to, port, bytes }] = &sends[..] else {
            panic!("{sends:?}");
        };
        assert_eq!((to.to_string().as_str(), *port), ("10.5.2.254", pods::call_port(0x1234)));
        assert!(answer.len() + bytes.len() <= question.len());
        for (bytes, kind) in [(&answer, MessageKind::EchoAnswer), (bytes, MessageKind::PodCall)] {
            let Some(Message::Echo(header, body)) = parse(bytes) else {
                panic!("{bytes:?}");
            };
            assert_eq!(body.answers_at, "10.5.2.254".parse().ok());
            assert_eq!((header.kind, header.nonce), (kind, 0x1234));
            // Neither message has an effect among the messages of nodes.
            let datagram = Datagram {
                path: Path::Overlay,
                from: "10.5.2.0".parse().unwrap(),
                at: NOW.at,
                bytes,
            };
            assert_eq!(node.receive(NOW, datagram), None);
        }
    }

    #[test]
    fn others_get_no_answer() {
        let mut node = node();
        let question = question(1, None);
        // The peer's host sends this probe itself, to find out whether it is let in.
        assert!(answered(&mut node, "10.5.2.0", &question).0.is_some());
        for from in ["10.5.2.253", "10.5.3.254", "10.5.1.254", "192.0.2.2"] {
            assert_eq!(answered(&mut node, from, &question), (None, vec![]), "{from}");
        }
        assert_eq!(answered(&mut node, "10.5.2.254", b"flpr"), (None, vec![]));
        // A flood gets only the half that is not reserved for nodes.
        let answers =
            (0..100).filter(|_| answered(&mut node, "10.5.2.254", &question).0.is_some()).count();
        assert_eq!(answers, 10);
    }

    /// A pod with raw sockets sends probes and report requests with the addresses of a peer, as many as it likes.
    #[test]
    fn forged_questions_leave_answers_for_the_peer() {
        let mut node = node();
        let token = node.peers[&net("10.5.2.0/24")].tokens.own;
        let rows = |repeats| {
            let header = Header {
                kind: MessageKind::RowQuestion,
                length: u16::try_from(ROW).unwrap(),
                nonce: 1,
                from: who("n2", &net("10.5.2.0/24")),
                to: 0,
            };
            row_question(&header, None, repeats)
        };
        for step in 0..1000_u64 {
            let now = Now { at: Duration::from_millis(25 * step), ..NOW };
            let mut answer = |from: &str, is_pod, bytes: &[u8]| {
                let datagram = Datagram {
                    path: Path::Overlay,
                    from: from.parse().unwrap(),
                    at: now.at,
                    bytes,
                };
                if is_pod { node.answer_pod(now, &datagram) } else { node.receive(now, datagram) }
            };
            let forged = Some(token ^ 1);
            answer("10.5.2.254", true, &question(step, forged));
            answer("10.5.2.0", true, &question(step, None));
            answer("10.5.2.0", false, &rows(forged));
            if step % 40 == 0 {
                let own = Some(token);
                assert!(answer("10.5.2.254", true, &question(step, own)).is_some());
                assert!(answer("10.5.2.0", true, &question(step, own)).is_some());
                assert!(answer("10.5.2.0", false, &rows(own)).is_some());
            }
        }
        // The probe of a node repeats the token that the peer sent last.
        let peer = node.peers.get_mut(&net("10.5.2.0/24")).unwrap();
        peer.tokens.take(&Echo { token: Some(9), ..Echo::default() });
        let asked = node.pod_question(net("10.5.2.0/24"), 0x1234).unwrap();
        let Some(Message::Echo(_, body)) = parse(&asked) else {
            panic!("{asked:?}");
        };
        assert_eq!(body.repeats, Some(9));
    }

    #[test]
    fn peers_that_do_not_answer_the_host_are_not_asked() {
        let mut node = node();
        let answering = |node: &Node| node.answering(Family::V4, &[], None, 8);
        assert_eq!(answering(&node), []);
        node.peers.get_mut(&net("10.5.2.0/24")).unwrap().shown = State::Well;
        let peer = (net("10.5.2.0/24"), "10.5.2.0".parse().unwrap());
        assert_eq!(answering(&node), [peer]);
        assert_eq!(node.answering(Family::V4, &[peer.0], Some(peer.0), 8), [peer], "once");
        assert_eq!(node.answering(Family::V6, &[], None, 8), []);
    }
}
