//! Since when the holders of leases have been silent: the store is asked about peers that answer no probe, and only about them.

use ipnet::IpNet;
use probing::view::PeerView;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::manager::{SubnetManager, boot_time};
use subnet_lease::{Kinds, Lease, LeaseTable};
use tokio::sync::watch;
use types::Subnets;
use types::reachability::State;

/// How often the silent peers are collected.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// A peer that has been unreachable for less may just be restarting.
const MIN_CUT: Duration = Duration::from_secs(15);
/// Age from which silence is reported.
const MIN_SILENCE: Duration = Duration::from_secs(600);
/// How often the store is asked about a silent peer: all nodes ask about one that is gone, and it may come back.
const REPEAT_INTERVAL: Duration = Duration::from_secs(600);
/// Delay after a request that the store did not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Longest extra delay of a node: without it, all nodes would ask at the same moment, because they know the same last renewal.
const MAX_SPREAD: Duration = Duration::from_secs(60);
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit on the peers that are asked about at once.
const PEERS: usize = 16;

/// When the holders last renewed their leases (boot-time clock), by subnet.
pub type Heard = BTreeMap<Subnets, Duration>;

/// The peers to ask about, and the answers. Pure.
#[derive(Debug, Default)]
struct Book {
    /// When to ask next, and when the holder last renewed its lease, if that is known.
    entries: BTreeMap<Subnets, (Duration, Option<Duration>)>,
    /// This node's extra delay.
    spread: Duration,
}

impl Book {
    /// Enters the unreachable peers, and forgets the others. Returns those to ask about in this round.
    fn due(&mut self, cut: &BTreeMap<Subnets, Duration>, now: Duration) -> Vec<Subnets> {
        self.entries.retain(|subnets, _| cut.contains_key(subnets));
        for subnets in cut
            .iter()
            .filter(|(_, age)| **age >= MIN_CUT)
            .map(|(subnets, _)| subnets)
            .take(PEERS)
        {
            self.entries.entry(*subnets).or_insert((now, None));
        }
        self.entries
            .iter()
            .filter(|(_, (next, _))| *next <= now)
            .map(|(subnets, _)| *subnets)
            .take(PEERS)
            .collect()
    }

    /// Enters an answer: how long ago the holder renewed its lease.
    fn answered(&mut self, subnets: Subnets, ago: Option<Duration>, now: Duration) {
        // Until then it cannot have been silent for long.
        let wait = match ago {
            Some(ago) if ago < MIN_SILENCE => (MIN_SILENCE - ago).max(POLL_INTERVAL),
            Some(_) => REPEAT_INTERVAL,
            None => RETRY_INTERVAL,
        };
        // A store that does not answer changes nothing.
        let before = self.entries.get(&subnets).and_then(|(_, heard)| *heard);
        let heard = ago.map(|ago| now.saturating_sub(ago)).or(before);
        self.entries
            .insert(subnets, (now + wait + self.spread, heard));
    }

    fn heard(&self) -> Heard {
        self.entries
            .iter()
            .filter_map(|(subnets, (_, heard))| Some((*subnets, (*heard)?)))
            .collect()
    }
}

/// The subnet of each peer that is asked, and for how many milliseconds the peer has been cut off, if it is.
pub type Asked = Vec<(IpNet, Option<u64>)>;

/// The part of a peer in [`Asked`].
pub fn asked(peer: &PeerView) -> (IpNet, Option<u64>) {
    (
        peer.subnet,
        (peer.state == State::CutOff).then_some(peer.state_age_ms),
    )
}

/// The peers that are unreachable in every family in which they are probed, with the duration.
fn cut(asked: Asked, leases: &LeaseTable, own: &Subnets) -> BTreeMap<Subnets, Duration> {
    let asked: BTreeMap<IpNet, Option<u64>> = asked.into_iter().collect();
    let age = |lease: &Lease| {
        let durations = lease.subnets.nets().filter_map(|net| asked.get(&net));
        durations
            .copied()
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .min()
    };
    leases
        .others(own, Kinds::Any)
        .filter_map(|lease| Some((lease.subnets, Duration::from_millis(age(lease)?))))
        .collect()
}

/// Asks until it is dropped. `asked` returns nothing while all peers are reachable.
pub async fn ask(
    manager: Arc<dyn SubnetManager>,
    asked: impl Fn() -> Option<Asked> + Send,
    leases: watch::Receiver<Arc<LeaseTable>>,
    own: Subnets,
    heard: watch::Sender<Heard>,
) {
    let mut book = Book {
        spread: rand::random_range(Duration::ZERO..MAX_SPREAD),
        ..Book::default()
    };
    loop {
        let table = leases.borrow().clone();
        let cut = asked()
            .map(|asked| cut(asked, &table, &own))
            .unwrap_or_default();
        let due = book.due(&cut, boot_time());
        for subnets in due {
            let ago = tokio::time::timeout(TIMEOUT, manager.last_heard(&subnets))
                .await
                .unwrap_or_default();
            book.answered(subnets, ago, boot_time());
        }
        let now = book.heard();
        heard.send_if_modified(|known| {
            let news = *known != now;
            *known = now;
            news
        });
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnets(number: u8) -> Subnets {
        Subnets::V4(format!("10.5.{number}.0/24").parse().unwrap())
    }

    const fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn store_is_asked_rarely_and_only_about_unreachable_peers() {
        let mut book = Book::default();
        let cut = |age: u64| BTreeMap::from([(subnets(1), seconds(age)), (subnets(2), seconds(1))]);
        assert_eq!(book.due(&cut(14), seconds(1000)), []);
        assert_eq!(book.due(&cut(15), seconds(1001)), [subnets(1)]);
        book.answered(subnets(1), Some(seconds(100)), seconds(1001));
        assert_eq!(book.heard(), BTreeMap::from([(subnets(1), seconds(901))]));
        assert_eq!(
            book.due(&cut(500), seconds(1500)),
            [],
            "it was heard of lately"
        );
        assert_eq!(book.due(&cut(501), seconds(1501)), [subnets(1)]);
        book.answered(subnets(1), Some(seconds(600)), seconds(1501));
        assert_eq!(
            (
                book.due(&cut(600), seconds(2100)),
                book.due(&cut(600), seconds(2101))
            ),
            (vec![], vec![subnets(1)])
        );
        // The store does not answer.
        book.answered(subnets(1), None, seconds(2101));
        assert_eq!(
            book.heard(),
            BTreeMap::from([(subnets(1), seconds(901))]),
            "what is known stays"
        );
        assert_eq!(
            (
                book.due(&cut(600), seconds(2160)),
                book.due(&cut(600), seconds(2161))
            ),
            (vec![], vec![subnets(1)])
        );
        book.answered(subnets(1), Some(seconds(700)), seconds(2161));
        assert_eq!(book.due(&BTreeMap::new(), seconds(2162)), []);
        assert_eq!(book.heard(), Heard::new(), "it answers again");
    }

    #[test]
    fn many_unreachable_peers_are_asked_about_in_batches_of_16() {
        let all: BTreeMap<Subnets, Duration> = (0..=255)
            .map(|number| (subnets(number), seconds(60)))
            .collect();
        let mut book = Book::default();
        assert_eq!(
            (
                book.due(&all, seconds(1)).len(),
                book.due(&all, seconds(2)).len()
            ),
            (16, 16)
        );
    }
}
