//! Longest prefix match, which maps an address to the index of a peer.

use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Maximum number of entries of a flat array, which then takes 4 MiB.
const SLOTS: usize = 1 << 20;
/// Index for "no peer".
const NONE: u32 = u32::MAX;

/// Peers by prefix length and network, short prefixes first.
type ByLength = BTreeMap<(u8, u128), u32>;

/// For one address family. Addresses are numbers, and prefix lengths are those of IPv6.
#[derive(Clone, Debug)]
pub(crate) enum Prefixes {
    /// From the first to the last subnet, with one entry for each subnet of the smallest size. The normal
    /// case: subnets of a cluster are usually of one size and close together.
    Flat { first: u128, shift: u8, slots: Vec<u32> },
    /// For each prefix length, longest first, if the array would be too large.
    Sorted(Vec<(u128, Vec<(u128, u32)>)>),
}

impl Prefixes {
    fn build(nets: &ByLength) -> Self {
        let longest = nets.keys().next_back().map_or(0, |(prefix, _)| *prefix);
        // A shift by all bits is not allowed, so a default route takes two slots.
        let shift = 128 - longest.max(1);
        let range =
            |(prefix, net): &(u8, u128)| (net >> shift, (net | !prefix_mask(*prefix)) >> shift);
        let first = nets.keys().map(|key| range(key).0).min().unwrap_or(0);
        let last = nets.keys().map(|key| range(key).1).max().unwrap_or(0);
        let count = match distance_above(first, last) {
            _ if nets.is_empty() => 0,
            Some(last) if last < SLOTS => last + 1,
            _ => return Self::build_sorted(nets),
        };
        let mut slots = vec![NONE; count];
        // Smaller subnets come later in the map and overwrite the larger ones that contain them.
        for (key, index) in nets {
            let (from, to) = range(key);
            if let (Some(from), Some(to)) = (distance_above(first, from), distance_above(first, to))
                && let Some(slots) = slots.get_mut(from..=to)
            {
                slots.fill(*index);
            }
        }
        Self::Flat { first, shift, slots }
    }

    fn build_sorted(nets: &ByLength) -> Self {
        let mut lists: BTreeMap<u8, Vec<(u128, u32)>> = BTreeMap::new();
        for ((prefix, net), index) in nets {
            lists.entry(*prefix).or_default().push((*net, *index));
        }
        Self::Sorted(
            lists.into_iter().rev().map(|(prefix, list)| (prefix_mask(prefix), list)).collect(),
        )
    }

    #[inline]
    fn find_peer_index(&self, ip: u128) -> Option<u32> {
        match self {
            Self::Flat { first, shift, slots } => distance_above(*first, ip >> shift)
                .and_then(|slot| slots.get(slot))
                .copied()
                .filter(|index| *index != NONE),
            Self::Sorted(lists) => lists
                .iter()
                .find_map(|(mask, list)| {
                    let at = list.binary_search_by_key(&(ip & mask), |(net, _)| *net).ok()?;
                    list.get(at)
                })
                .map(|(_, index)| *index),
        }
    }
}

/// The mask of a prefix length.
fn prefix_mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

/// `None` if `to` is below `from`, or too far above.
#[inline]
fn distance_above(from: u128, to: u128) -> Option<usize> {
    usize::try_from(to.checked_sub(from)?).ok()
}

/// For both address families.
#[derive(Clone, Debug)]
pub struct DualPrefixes {
    pub(super) v4: Prefixes,
    pub(super) v6: Prefixes,
}

impl DualPrefixes {
    /// The index of a peer for each network. If two are the same, the last one applies.
    pub fn build(nets: impl IntoIterator<Item = (IpNet, u32)>) -> Self {
        let (mut v4, mut v6) = (ByLength::new(), ByLength::new());
        for (net, index) in nets {
            match net {
                IpNet::V4(net) => {
                    v4.insert((net.prefix_len() + 96, net.network().to_bits().into()), index)
                }
                IpNet::V6(net) => v6.insert((net.prefix_len(), net.network().to_bits()), index),
            };
        }
        Self { v4: Prefixes::build(&v4), v6: Prefixes::build(&v6) }
    }

    /// The index for the longest network that contains an address.
    #[inline]
    #[must_use]
    pub fn find_peer_index(&self, ip: IpAddr) -> Option<u32> {
        match ip {
            IpAddr::V4(ip) => self.v4.find_peer_index(ip.to_bits().into()),
            IpAddr::V6(ip) => self.v6.find_peer_index(ip.to_bits()),
        }
    }
}
