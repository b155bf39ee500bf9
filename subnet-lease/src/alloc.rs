//! Computes the sequence in which a node tries the free subnets. It differs per node, so nodes that start together rarely choose the same subnet.

use crate::config::{NetworkConfig, Pool};
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use types::{Dual, Subnets, nets_overlap};

/// Maximum number of subnets that a node examines in one pool. If none of them is free, it treats the pool as exhausted.
const LOOKED_AT: u128 = 1 << 22;

/// The free subnets in the order in which the node tries them.
///
/// The node's id determines the sequence of the IPv4 subnets (of the IPv6 subnets in an IPv6-only network). In a dual-stack network, each IPv6 subnet
/// has the same index as its IPv4 subnet, or otherwise the next free index.
///
/// ```
/// use subnet_lease::NetworkConfig;
/// use subnet_lease::alloc::candidates;
/// use types::Subnets;
///
/// let config = NetworkConfig::parse(r#"{"Network": "10.244.0.0/22"}"#)?;
/// let taken = [Subnets::V4("10.244.2.0/24".parse()?)];
/// let free = candidates(&config, &taken, "node-1");
/// let mut free: Vec<String> = free.map(|subnets| subnets.to_string()).collect();
/// free.sort();
/// assert_eq!(free, ["10.244.1.0/24", "10.244.3.0/24"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn candidates<'a>(
    config: &'a NetworkConfig,
    taken: &'a [Subnets],
    node: &str,
) -> impl Iterator<Item = Subnets> + 'a {
    let (first, second) = match &config.pools {
        Dual::V4(pool) => (*pool, None),
        Dual::V6(pool) => (*pool, None),
        Dual::Both(v4, v6) => (*v4, Some(*v6)),
    };
    let first_taken = TakenNets::of(taken, first.network);
    let second_taken = second.map(|pool| TakenNets::of(taken, pool.network));
    let (start, stride) = sequence(node, first.size());
    let size = first.size();
    (0..size.min(LOOKED_AT)).filter_map(move |step| {
        let index = walk(start, stride, step, size);
        let net = first.subnet(index).filter(|net| first_taken.is_free(net))?;
        let other = match (second, &second_taken) {
            (Some(pool), Some(taken)) => Some(free_near(&pool, taken, index)?),
            _ => None,
        };
        match (net, other) {
            (IpNet::V4(v4), None) => Some(Dual::V4(v4)),
            (IpNet::V6(v6), None) => Some(Dual::V6(v6)),
            (IpNet::V4(v4), Some(IpNet::V6(v6))) => Some(Dual::Both(v4, v6)),
            _ => None,
        }
    })
}

/// Adds a free IPv6 subnet to a node's IPv4 subnet; `None` if none is free.
#[cfg(feature = "protocol")]
pub(crate) fn free_v6(
    config: &NetworkConfig,
    taken: &[Subnets],
    keep: &Subnets,
) -> Option<Subnets> {
    let (v4, v6) = (keep.v4()?, config.pools.v6()?);
    let index = config.pools.v4().and_then(|pool| pool.index(&IpNet::V4(*v4))).unwrap_or(0);
    match free_near(v6, &TakenNets::of(taken, v6.network), index)? {
        IpNet::V6(net) => Some(Dual::Both(*v4, net)),
        IpNet::V4(_) => None,
    }
}

fn free_near(pool: &Pool, taken: &TakenNets, index: u128) -> Option<IpNet> {
    let size = pool.size();
    (0..size.min(LOOKED_AT)).find_map(|step| {
        pool.subnet(walk(index % size, 1, step, size)).filter(|net| taken.is_free(net))
    })
}

/// The start and the stride of a full cycle through `size` indexes, derived from the node's id.
fn sequence(node: &str, size: u128) -> (u128, u128) {
    let digest = Sha256::digest(node.as_bytes());
    let word = |range: std::ops::Range<usize>| {
        digest
            .get(range)
            .unwrap_or_default()
            .iter()
            .fold(0u128, |sum, byte| sum << 8 | u128::from(*byte))
    };
    let start = word(0..8) % size;
    let mut stride = word(8..16) % size;
    while gcd(stride, size) != 1 {
        stride = (stride + 1) % size;
        if size == 1 {
            return (0, 1);
        }
    }
    (start, stride)
}

fn walk(start: u128, stride: u128, step: u128, size: u128) -> u128 {
    // Start and stride have at most 64 bits and `step` is below LOOKED_AT, so the product fits into a u128.
    (start % size + (stride % size).wrapping_mul(step) % size) % size
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Those of one family, sorted for fast overlap checks.
struct TakenNets(Vec<IpNet>);

impl TakenNets {
    fn of(taken: &[Subnets], network: IpNet) -> Self {
        let mut nets: Vec<IpNet> = taken
            .iter()
            .flat_map(Subnets::nets)
            .filter(|net| nets_overlap(net, &network))
            .collect();
        nets.sort_by_key(|net| (net.network(), net.prefix_len()));
        // Drop networks inside an earlier, wider one, so that checking the two neighbours is sufficient.
        nets.dedup_by(|later, earlier| earlier.contains(&*later));
        Self(nets)
    }

    fn is_free(&self, net: &IpNet) -> bool {
        let at = self.0.partition_point(|taken| taken.network() <= net.network());
        let before = at.checked_sub(1).and_then(|at| self.0.get(at));
        !before.into_iter().chain(self.0.get(at)).any(|taken| nets_overlap(taken, net))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(text: &str) -> NetworkConfig {
        NetworkConfig::parse(text).unwrap()
    }

    #[test]
    fn every_free_subnet_once() {
        let config = config(r#"{"Network":"10.5.0.0/20"}"#);
        let taken: Vec<Subnets> = ["10.5.3.0/24", "10.5.8.0/22"]
            .iter()
            .map(|net| Dual::V4(net.parse().unwrap()))
            .collect();
        let mut seen: Vec<_> =
            candidates(&config, &taken, "n").map(|subnets| subnets.to_string()).collect();
        seen.sort();
        let mut want: Vec<_> =
            [1, 2, 4, 5, 6, 7, 12, 13, 14, 15].iter().map(|i| format!("10.5.{i}.0/24")).collect();
        want.sort();
        assert_eq!(seen, want);
    }

    #[test]
    fn dual_stack_halves_share_their_index() {
        let config =
            config(r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#);
        for subnets in candidates(&config, &[], "n").take(20) {
            let (v4, v6) = (config.pools.v4().unwrap(), config.pools.v6().unwrap());
            let nets: Vec<_> = subnets.nets().collect();
            assert_eq!(v4.index(&nets[0]), v6.index(&nets[1]));
        }
    }

    proptest! {
        #[test]
        fn allocation_is_lawful(third in 0u8..=255, len in 18u8..=28, node in "[a-z]{1,8}", holes in proptest::collection::vec((0u8..=255, 16u8..=30), 0..12)) {
            let text = format!(r#"{{"Network":"10.5.0.0/16","SubnetLen":{len},"SubnetMin":"10.5.0.0"}}"#);
            let config = config(&text);
            let taken: Vec<Subnets> = holes.iter().map(|(byte, len)| Dual::V4(ipnet::Ipv4Net::new([10, 5, *byte, third].into(), *len).unwrap().trunc())).collect();
            for subnets in candidates(&config, &taken, &node).take(8) {
                prop_assert!(config.fits(&subnets));
                prop_assert!(taken.iter().all(|other| !other.overlaps(&subnets)));
            }
        }
    }
}
