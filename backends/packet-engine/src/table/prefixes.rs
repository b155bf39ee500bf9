//! Longest prefix match, which maps an address to the index of a peer.

use ipnet::IpNet;
use num_traits::PrimInt;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Maximum number of entries of a flat array, which then takes 4 MiB.
const SLOTS: usize = 1 << 20;
/// Index for "no peer".
const NONE: u32 = u32::MAX;

/// Peers by prefix length and network, short prefixes first.
pub(crate) type ByLength<B> = BTreeMap<(u8, B), u32>;

/// For one address family; `B` is an address as a number.
#[derive(Clone, Debug)]
pub(crate) enum Prefixes<B> {
    /// From the first to the last subnet, with one entry for each subnet of the smallest size. The normal
    /// case: subnets of a cluster are usually of one size and close together.
    Flat { first: B, shift: usize, slots: Vec<u32> },
    /// For each prefix length, longest first, if the array would be too large.
    Sorted(Vec<(B, Vec<(B, u32)>)>),
}

impl<B: PrimInt> Prefixes<B> {
    pub(crate) fn build(nets: &ByLength<B>) -> Self {
        let longest = nets.keys().next_back().map_or(0, |(prefix, _)| *prefix);
        // A shift by all bits is not allowed, so a default route takes two slots.
        let shift = B::zero().count_zeros() as usize - usize::from(longest).max(1);
        let range =
            |(prefix, net): &(u8, B)| (*net >> shift, (*net | !prefix_mask::<B>(*prefix)) >> shift);
        let first = nets.keys().map(|key| range(key).0).min().unwrap_or(B::zero());
        let last = nets.keys().map(|key| range(key).1).max().unwrap_or(B::zero());
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

    fn build_sorted(nets: &ByLength<B>) -> Self {
        let mut lists: BTreeMap<u8, Vec<(B, u32)>> = BTreeMap::new();
        for ((prefix, net), index) in nets {
            lists.entry(*prefix).or_default().push((*net, *index));
        }
        Self::Sorted(
            lists.into_iter().rev().map(|(prefix, list)| (prefix_mask(prefix), list)).collect(),
        )
    }

    #[inline]
    fn find_peer_index(&self, ip: B) -> Option<u32> {
        match self {
            Self::Flat { first, shift, slots } => distance_above(*first, ip >> *shift)
                .and_then(|slot| slots.get(slot))
                .copied()
                .filter(|index| *index != NONE),
            Self::Sorted(lists) => lists
                .iter()
                .find_map(|(mask, list)| {
                    let at = list.binary_search_by_key(&(ip & *mask), |(net, _)| *net).ok()?;
                    list.get(at)
                })
                .map(|(_, index)| *index),
        }
    }
}

/// The mask of a prefix length.
fn prefix_mask<B: PrimInt>(prefix: u8) -> B {
    let host = B::zero().count_zeros() as usize - usize::from(prefix);
    if prefix == 0 { B::zero() } else { B::max_value() << host }
}

/// `None` if `to` is below `from`, or too far above.
#[inline]
fn distance_above<B: PrimInt>(from: B, to: B) -> Option<usize> {
    to.checked_sub(&from)?.to_usize()
}

/// For both address families.
#[derive(Clone, Debug)]
pub struct DualPrefixes {
    pub(super) v4: Prefixes<u32>,
    pub(super) v6: Prefixes<u128>,
}

impl DualPrefixes {
    /// The index of a peer for each network. If two are the same, the last one applies.
    pub fn build(nets: impl IntoIterator<Item = (IpNet, u32)>) -> Self {
        let (mut v4, mut v6) = (ByLength::new(), ByLength::new());
        for (net, index) in nets {
            match net {
                IpNet::V4(net) => v4.insert((net.prefix_len(), net.network().to_bits()), index),
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
            IpAddr::V4(ip) => self.v4.find_peer_index(ip.to_bits()),
            IpAddr::V6(ip) => self.v6.find_peer_index(ip.to_bits()),
        }
    }
}
