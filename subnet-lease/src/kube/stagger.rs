//! Spreads API requests over time without coordination between nodes. It only computes delays, and sends no requests.

use super::node::Node;
use super::nodes::trimmed;
use ipnet::IpNet;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;
use types::Subnets;

/// Number of nodes per second that reconnect to the API server after an interruption. All nodes of a cluster do so within [`SPREAD`].
const A_SECOND: f64 = 40.0;
/// Maximum delay before a node reconnects to the API server.
pub(super) const SPREAD: Duration = Duration::from_secs(12);
/// Number of nodes per second that list Nodes after their hosts have booted. It may exceed [`A_SECOND`], because each node has its own delay.
const TURNS_A_SECOND: u32 = 45;
/// Number of different delays after a boot. In clusters with more nodes, several nodes have the same one.
const TURNS: u32 = 12 * TURNS_A_SECOND;
/// Up to this uptime, the daemon assumes that many other hosts booted at the same time.
const BOOTED: Duration = Duration::from_secs(300);

/// A node lists Nodes in pages for this time after the API server did not stream a list. The server reads each page from etcd.
const PAGES: Duration = Duration::from_secs(3600);

/// What determines the delays of this node's requests.
#[derive(Debug, Default)]
pub(super) struct RequestStagger {
    nodes: AtomicUsize,
    /// Index of this node's subnet among the network's, from 0. Unset until the daemon knows this node's Node.
    place: OnceLock<u128>,
    /// When the server last failed to stream a list.
    pages: Mutex<Option<Instant>>,
}

impl RequestStagger {
    /// Number of Nodes in the cluster.
    pub(super) fn set(&self, nodes: usize) {
        self.nodes.store(nodes, Relaxed);
    }

    /// Records the index of this node's subnet. Until the Nodes are counted, it also gives an estimate of their number, because Kubernetes assigns
    /// podCIDRs in ascending order.
    pub(super) fn guess(&self, own: &Node, networks: &Subnets) {
        let place = place(own, networks);
        if let Some(place) = place {
            let _ = self.place.set(place);
        }
        let nodes =
            place.map_or(1, |place| usize::try_from(place).unwrap_or(usize::MAX).saturating_add(1));
        let _ = self.nodes.compare_exchange(0, nodes, Relaxed, Relaxed);
    }

    /// The API server did not stream a list, because it is too old or was busy.
    pub(super) fn set_pages(&self) {
        *self.pages.lock() = Some(Instant::now());
    }

    /// The API server streamed a list.
    pub(super) fn set_streams(&self) {
        *self.pages.lock() = None;
    }

    /// True if this node lists Nodes in pages.
    pub(super) fn pages(&self) -> bool {
        self.pages.lock().is_some_and(|since| since.elapsed() < PAGES)
    }

    /// Delay before this node reconnects to the API server. Delays in the order of the podCIDRs spread the nodes more evenly than random ones.
    #[expect(clippy::cast_precision_loss, reason = "a number of Nodes")]
    pub(super) fn share(&self) -> Duration {
        let nodes = self.nodes.load(Relaxed);
        let all =
            Duration::try_from_secs_f64(nodes as f64 / A_SECOND).unwrap_or(SPREAD).min(SPREAD);
        let part = match self.place.get() {
            Some(place) if nodes > 0 => {
                ((place % nodes as u128) as f64 + rand::random::<f64>()) / nodes as f64
            }
            _ => rand::random(),
        };
        all.mul_f64(part.min(1.0))
    }
}

/// Delay before a node lists all Nodes in pages for the first time. Zero if the host booted longer than [`BOOTED`] ago.
///
/// A Node that was created after its host's boot is new in the cluster, so its daemon does not wait.
pub(super) fn boot_delay(own: &Node, networks: &Subnets, up: Duration, now: i64) -> Duration {
    let booted = now.saturating_sub(i64::try_from(up.as_secs()).unwrap_or(i64::MAX));
    if up > BOOTED || own.created >= booted {
        return Duration::ZERO;
    }
    let place = place(own, networks)
        .and_then(|place| u32::try_from(place % u128::from(TURNS)).ok())
        .unwrap_or(0);
    Duration::from_secs(1) * place / TURNS_A_SECOND
}

/// Index of a Node's subnet among the network's subnets of the same size, from 0.
fn place(own: &Node, networks: &Subnets) -> Option<u128> {
    let subnet = trimmed(&own.subnets.clone().ok().flatten()?, networks)?.nets().next()?;
    let network = networks.nets().find(|network| network.contains(&subnet))?;
    let number = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let bits = u32::from(subnet.max_prefix_len() - subnet.prefix_len());
    number(subnet.network()).checked_sub(number(IpNet::network(&network)))?.checked_shr(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NetworkConfig;
    use crate::kube::annotations::Prefix;

    const NOW: i64 = 1_000_000;

    fn networks(text: &str) -> Subnets {
        NetworkConfig::parse_assigned(text).unwrap().networks
    }

    fn node(created: i64, cidr: &str) -> Node {
        let text = format!(r#"{{"metadata":{{"name":"n"}},"spec":{{"podCIDR":"{cidr}"}}}}"#);
        Node { created, ..Node::read(&text, &Prefix::parse("a.b").unwrap()).unwrap() }
    }

    #[test]
    fn shares_spread_over_the_time_of_all_nodes() {
        let stagger = RequestStagger::default();
        assert_eq!(stagger.share(), Duration::ZERO);
        stagger.set(3);
        assert!((0..100).all(|_| stagger.share() <= Duration::from_millis(75)));
        stagger.set(500);
        let late = (0..200).filter(|_| stagger.share() > Duration::from_secs(5)).count();
        assert!((40..160).contains(&late), "{late} of 200 wait for more than half of the time");
        for nodes in [50_000, usize::MAX] {
            stagger.set(nodes);
            assert!((0..100).all(|_| stagger.share() <= SPREAD));
        }
    }

    #[test]
    fn nodes_that_know_their_place_come_back_at_an_even_rate() {
        let networks = networks(r#"{"Network":"10.244.0.0/14"}"#);
        let shares: Vec<Duration> = (0..500)
            .map(|at: u16| {
                let stagger = RequestStagger::default();
                stagger.guess(
                    &node(0, &format!("10.{}.{}.0/24", 244 + at / 256, at % 256)),
                    &networks,
                );
                stagger.set(500);
                stagger.share()
            })
            .collect();
        let within = |from: &Duration| {
            shares.iter().filter(|at| *at >= from && **at < *from + Duration::from_secs(1)).count()
        };
        let most = shares.iter().map(within).max().unwrap();
        assert!(most <= 45, "{most} of 500 within a second");
        assert!(shares.iter().all(|share| *share <= SPREAD));
    }

    #[test]
    fn hosts_that_boot_together_take_turns() {
        let up = Duration::from_secs(20);
        for (config, cidr) in [
            (
                r#"{"Network":"10.244.0.0/14"}"#,
                (|at: u16| format!("10.{}.{}.0/24", 244 + at / 256, at % 256)) as fn(u16) -> String,
            ),
            (r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10:244::/48"}"#, |at| {
                format!("fd10:244:0:{at:x}::/64")
            }),
        ] {
            let networks = networks(config);
            let turns: Vec<Duration> = (0..500)
                .map(|at| boot_delay(&node(NOW - 100, &cidr(at)), &networks, up, NOW))
                .collect();
            let second = Duration::from_secs(1);
            let within = |from: &Duration| {
                turns.iter().filter(|at| *at >= from && **at < *from + second).count()
            };
            let most = turns.iter().map(within).max().unwrap();
            assert!(most <= 60, "{most} of 500 within a second");
            assert!(
                turns.iter().all(|turn| *turn <= SPREAD)
                    && turns[0] == Duration::ZERO
                    && turns[2] < Duration::from_millis(50)
            );
        }
    }

    #[test]
    fn single_node_starts_without_delay() {
        let networks = networks(r#"{"Network":"10.244.0.0/14"}"#);
        let wait = |created, up| {
            boot_delay(&node(created, "10.245.0.0/24"), &networks, Duration::from_secs(up), NOW)
        };
        assert!(wait(NOW - 1000, 20) > Duration::from_secs(1), "a host that has just booted");
        assert_eq!(wait(NOW - 5, 20), Duration::ZERO, "a Node that was created after the boot");
        assert_eq!(
            wait(NOW - 1000, 301),
            Duration::ZERO,
            "a daemon that restarts long after the boot"
        );
        assert_eq!(wait(NOW + 1000, 20), Duration::ZERO, "a host whose clock is wrong");
        for cidr in ["10.42.1.0/24", "10.0.0.0/8", "fd00::/64", "x", "0.0.0.0/0"] {
            assert_eq!(
                boot_delay(&node(0, cidr), &networks, Duration::ZERO, NOW),
                Duration::ZERO,
                "{cidr}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pages_are_forgotten_after_an_hour_and_after_a_streamed_list() {
        let stagger = RequestStagger::default();
        assert!(!stagger.pages());
        stagger.set_pages();
        tokio::time::advance(Duration::from_secs(3599)).await;
        assert!(stagger.pages());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(!stagger.pages());
        stagger.set_pages();
        assert!(stagger.pages());
        stagger.set_streams();
        assert!(!stagger.pages());
    }

    #[test]
    fn cluster_size_is_guessed_until_nodes_are_counted() {
        let stagger = RequestStagger::default();
        stagger.guess(&node(0, "10.244.199.0/24"), &networks(r#"{"Network":"10.244.0.0/16"}"#));
        assert_eq!(stagger.nodes.load(Relaxed), 200);
        stagger.set(7);
        stagger.guess(&node(0, "10.244.199.0/24"), &networks(r#"{"Network":"10.244.0.0/16"}"#));
        assert_eq!(stagger.nodes.load(Relaxed), 7);
    }
}
