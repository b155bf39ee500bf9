//! Longest prefix match, which maps an address to the index of a peer.

use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::{BitAnd, BitOr, Not, Shr};

/// Maximum number of entries of a flat array, which then takes 4 MiB.
const SLOTS: usize = 1 << 20;
/// Index for "no peer".
pub(crate) const NONE: u32 = u32::MAX;

/// An address as a number.
pub(crate) trait Bits:
    Copy
    + Ord
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + Not<Output = Self>
    + Shr<u32, Output = Self>
{
    const BITS: u32;
    const ZERO: Self;
    /// The mask of a prefix length.
    fn mask(prefix: u8) -> Self;
    /// The distance above `from`; `None` if below or too far above.
    fn above(self, from: Self) -> Option<usize>;
}

macro_rules! bits {
    ($($number:ty),*) => {$(
        impl Bits for $number {
            const BITS: u32 = <$number>::BITS;
            const ZERO: Self = 0;
            fn mask(prefix: u8) -> Self {
                <$number>::MAX.checked_shl(Self::BITS - u32::from(prefix)).unwrap_or(0)
            }
            #[inline]
            fn above(self, from: Self) -> Option<usize> {
                self.checked_sub(from).and_then(|distance| usize::try_from(distance).ok())
            }
        }
    )*};
}
bits!(u32, u128);

/// Peers by prefix length and network, short prefixes first.
pub(crate) type ByLength<B> = BTreeMap<(u8, B), u32>;

/// For one address family.
#[derive(Clone, Debug)]
pub(crate) enum Prefixes<B> {
    /// From the first to the last subnet, with one entry for each subnet of the smallest size. The normal
    /// case: subnets of a cluster are usually of one size and close together.
    Flat { first: B, shift: u32, slots: Vec<u32> },
    /// For each prefix length, longest first, if the array would be too large.
    Sorted(Vec<(B, Vec<(B, u32)>)>),
}

impl<B: Bits> Prefixes<B> {
    pub(crate) fn build(nets: &ByLength<B>) -> Self {
        let longest = nets.keys().next_back().map_or(0, |(prefix, _)| *prefix);
        // A shift by all bits is not allowed, so a default route takes two slots.
        let shift = B::BITS - u32::from(longest).max(1);
        let range = |(prefix, net): &(u8, B)| (*net >> shift, (*net | !B::mask(*prefix)) >> shift);
        let first = nets.keys().map(|key| range(key).0).min().unwrap_or(B::ZERO);
        let last = nets.keys().map(|key| range(key).1).max().unwrap_or(B::ZERO);
        let count = match last.above(first) {
            _ if nets.is_empty() => 0,
            Some(last) if last < SLOTS => last + 1,
            _ => return Self::build_sorted(nets),
        };
        let mut slots = vec![NONE; count];
        // Smaller subnets come later in the map and overwrite the larger ones that contain them.
        for (key, index) in nets {
            let (from, to) = range(key);
            if let (Some(from), Some(to)) = (from.above(first), to.above(first))
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
            lists.into_iter().rev().map(|(prefix, list)| (B::mask(prefix), list)).collect(),
        )
    }

    /// [`NONE`] without a peer.
    #[inline]
    pub(crate) fn find_peer_index(&self, ip: B) -> u32 {
        match self {
            Self::Flat { first, shift, slots } => (ip >> *shift)
                .above(*first)
                .and_then(|slot| slots.get(slot))
                .copied()
                .unwrap_or(NONE),
            Self::Sorted(lists) => Self::search(lists, ip),
        }
    }

    fn search(lists: &[(B, Vec<(B, u32)>)], ip: B) -> u32 {
        let found = lists.iter().find_map(|(mask, list)| {
            let net = ip & *mask;
            let at = list.binary_search_by(|(known, _)| known.cmp(&net)).ok()?;
            list.get(at)
        });
        found.map_or(NONE, |(_, index)| *index)
    }
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
        let index = match ip {
            IpAddr::V4(ip) => self.v4.find_peer_index(ip.to_bits()),
            IpAddr::V6(ip) => self.v6.find_peer_index(ip.to_bits()),
        };
        (index != NONE).then_some(index)
    }
}
