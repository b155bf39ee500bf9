//! Determines since when the holders of leases have been silent. flanneld queries the store only about peers that do not reply to probes.

use ipnet::IpNet;
use probing::view::PeerView;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use subnet_lease::manager::{LastHeard, NodeHealth, SubnetManager, boot_time};
use subnet_lease::{Kinds, Lease, LeaseTable};
use tokio::sync::watch;
use types::Subnets;
use types::reachability::State;

/// Interval at which flanneld collects the unreachable peers.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum time for which a peer is unreachable before flanneld queries the store about it. Until then, it may only
/// be restarting.
const MIN_CUT: Duration = Duration::from_secs(15);
/// Minimum time for which a lease holder is silent before flanneld reports the silence.
const MIN_SILENCE: Duration = Duration::from_secs(600);
/// Interval at which flanneld queries the store about a silent peer. It is long, because all nodes query the store
/// about a missing peer.
const REPEAT_INTERVAL: Duration = Duration::from_secs(600);
/// Delay before flanneld repeats a query without a response.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum random delay that a node adds to its queries. Without it, all nodes would query the store at the same
/// moment, because all know the same last renewal.
const MAX_SPREAD: Duration = Duration::from_secs(60);
/// Timeout of a query.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of peers about which one round queries the store, and of silent peers that flanneld records.
const PEERS: usize = 16;
const MANY: usize = 1024;
/// Number of peers about which one round queries the store while queries about many peers remain.
const EACH_ROUND: usize = 4;

/// Interval at which flanneld reads the Node of a silent peer. flanneld watches Nodes, so a read sends no request.
const NOT_READY_INTERVAL: Duration = Duration::from_secs(30);

/// By subnet, for lease holders that do not reply to probes.
pub type Heard = BTreeMap<Subnets, Holder>;

/// What the store reports about the holder of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Time at which Kubernetes or the store last received a message from the holder (boot-time clock).
    pub at: Duration,
    /// `None` with other stores than Kubernetes.
    pub node: Option<NodeHealth>,
}

/// Peers about which flanneld queries the store, and the results. Without side effects.
#[derive(Debug, Default)]
struct Book {
    /// Time of the next query, and the last report of the store about the holder.
    entries: BTreeMap<Subnets, (Duration, Option<Holder>)>,
    /// Random delay that this node adds to its queries.
    spread: Duration,
}

impl Book {
    /// Adds the unreachable peers to the entries, and removes all others. Returns the peers about which this round
    /// queries the store.
    fn due(&mut self, cut: &BTreeMap<Subnets, Duration>, now: Duration) -> Vec<Subnets> {
        self.entries.retain(|subnets, _| cut.contains_key(subnets));
        for subnets in
            cut.iter().filter(|(_, age)| **age >= MIN_CUT).map(|(subnets, _)| subnets).take(MANY)
        {
            self.entries.entry(*subnets).or_insert((now, None));
        }
        let unasked = self.entries.values().filter(|(_, heard)| heard.is_none()).count();
        // If a whole rack is gone, all nodes query the store about its peers.
        let limit =
            if unasked > PEERS && unasked < self.entries.len() { EACH_ROUND } else { PEERS };
        self.entries
            .iter()
            .filter(|(_, (next, _))| *next <= now)
            .map(|(subnets, _)| *subnets)
            .take(limit)
            .collect()
    }

    fn answered(&mut self, subnets: Subnets, answer: Option<LastHeard>, now: Duration) {
        let wait = match answer {
            // The Node may come back, or become Ready, without a renewed lease.
            Some(LastHeard { node: Some(_), .. }) => NOT_READY_INTERVAL,
            // Until then, the holder cannot have been silent for long.
            Some(LastHeard { ago, .. }) if ago < MIN_SILENCE => {
                (MIN_SILENCE - ago).max(POLL_INTERVAL)
            }
            Some(_) => REPEAT_INTERVAL,
            None => RETRY_INTERVAL,
        };
        // The rate of queries stays the same, however many peers there are.
        let batches = u32::try_from(self.entries.len().div_ceil(PEERS)).unwrap_or(u32::MAX);
        let wait = wait.saturating_mul(batches.max(1));
        // If the store does not respond, the last report stays.
        let before = self.entries.get(&subnets).and_then(|(_, heard)| *heard);
        let heard =
            answer.map(|answer| Holder { at: now.saturating_sub(answer.ago), node: answer.node });
        self.entries.insert(subnets, (now + wait + self.spread, heard.or(before)));
    }

    fn heard(&self) -> Heard {
        self.entries
            .iter()
            .filter_map(|(subnets, (_, heard))| Some((*subnets, (*heard)?)))
            .collect()
    }
}

/// The subnet of each probed peer, with the duration of the state `cut-off` in milliseconds, if the peer is in it.
pub type Asked = Vec<(IpNet, Option<u64>)>;

/// The entry of a peer in [`Asked`].
pub fn asked(peer: &PeerView) -> (IpNet, Option<u64>) {
    (peer.subnet, (peer.state == State::CutOff).then_some(peer.state_age_ms))
}

/// The peers that are unreachable in every probed address family, with the duration of the fault.
fn cut(asked: Asked, leases: &LeaseTable, own: &Subnets) -> BTreeMap<Subnets, Duration> {
    let asked: BTreeMap<IpNet, Option<u64>> = asked.into_iter().collect();
    let age = |lease: &Lease| {
        let durations = lease.subnets.nets().filter_map(|net| asked.get(&net));
        durations.copied().collect::<Option<Vec<_>>>()?.into_iter().min()
    };
    leases
        .others(own, Kinds::Any)
        .filter_map(|lease| Some((lease.subnets, Duration::from_millis(age(lease)?))))
        .collect()
}

/// Queries the store about silent peers until the caller drops the future. `asked` returns `None` while all peers are reachable.
pub async fn ask(
    manager: Arc<dyn SubnetManager>,
    asked: impl Fn() -> Option<Asked> + Send,
    leases: watch::Receiver<Arc<LeaseTable>>,
    own: Subnets,
    heard: watch::Sender<Heard>,
) {
    let mut book =
        Book { spread: rand::random_range(Duration::ZERO..MAX_SPREAD), ..Book::default() };
    loop {
        let table = leases.borrow().clone();
        let cut = asked().map(|asked| cut(asked, &table, &own)).unwrap_or_default();
        let due = book.due(&cut, boot_time());
        for subnets in due {
            let answer = tokio::time::timeout(TIMEOUT, manager.last_heard(&subnets))
                .await
                .unwrap_or_default();
            book.answered(subnets, answer, boot_time());
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

    /// About a holder that renewed its lease `number` seconds ago.
    fn ago(number: u64) -> Option<LastHeard> {
        Some(LastHeard { ago: seconds(number), node: None })
    }

    /// About a holder that renewed its lease `number` seconds after the boot.
    fn at(number: u64) -> Heard {
        let holder = Holder { at: seconds(number), node: None };
        BTreeMap::from([(subnets(1), holder)])
    }

    #[test]
    fn kubernetes_is_asked_again_while_a_node_is_not_ready() {
        let mut book = Book::default();
        let cut = BTreeMap::from([(subnets(1), seconds(60))]);
        assert_eq!(book.due(&cut, seconds(1000)), [subnets(1)]);
        let not_ready = NodeHealth { ready: false, cordoned: true };
        let answer = LastHeard { ago: seconds(900), node: Some(not_ready) };
        book.answered(subnets(1), Some(answer), seconds(1000));
        assert_eq!(book.heard()[&subnets(1)].node, Some(not_ready));
        assert_eq!(
            (book.due(&cut, seconds(1029)), book.due(&cut, seconds(1030))),
            (vec![], vec![subnets(1)])
        );
    }

    #[test]
    fn store_is_asked_rarely_and_only_about_unreachable_peers() {
        let mut book = Book::default();
        let cut = |age: u64| BTreeMap::from([(subnets(1), seconds(age)), (subnets(2), seconds(1))]);
        assert_eq!(book.due(&cut(14), seconds(1000)), []);
        assert_eq!(book.due(&cut(15), seconds(1001)), [subnets(1)]);
        book.answered(subnets(1), ago(100), seconds(1001));
        assert_eq!(book.heard(), at(901));
        assert_eq!(book.due(&cut(500), seconds(1500)), [], "the holder renewed its lease recently");
        assert_eq!(book.due(&cut(501), seconds(1501)), [subnets(1)]);
        book.answered(subnets(1), ago(600), seconds(1501));
        assert_eq!(
            (book.due(&cut(600), seconds(2100)), book.due(&cut(600), seconds(2101))),
            (vec![], vec![subnets(1)])
        );
        // The store does not respond.
        book.answered(subnets(1), None, seconds(2101));
        assert_eq!(book.heard(), at(901), "the known renewal time stays");
        assert_eq!(
            (book.due(&cut(600), seconds(2160)), book.due(&cut(600), seconds(2161))),
            (vec![], vec![subnets(1)])
        );
        book.answered(subnets(1), ago(700), seconds(2161));
        assert_eq!(book.due(&BTreeMap::new(), seconds(2162)), []);
        assert_eq!(book.heard(), Heard::new(), "it answers again");
    }

    #[test]
    fn many_unreachable_peers_are_asked_about_in_batches_of_16() {
        let all: BTreeMap<Subnets, Duration> =
            (0..=255).map(|number| (subnets(number), seconds(60))).collect();
        let mut book = Book::default();
        assert_eq!((book.due(&all, seconds(1)).len(), book.due(&all, seconds(2)).len()), (16, 16));
    }
}
