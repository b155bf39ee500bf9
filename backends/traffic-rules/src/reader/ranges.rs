//! Sets of addresses, ports or protocol numbers, stored as ranges of numbers.

use super::fits::Fits;
use ipnet::IpNet;
use std::net::IpAddr;
use types::Family;

/// The ranges ascend, with a gap between each two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// All 128-bit numbers.
    #[must_use]
    pub fn all() -> Self {
        Self(vec![(0, u128::MAX)])
    }

    pub fn one(number: impl Into<u128>) -> Self {
        let number = number.into();
        Self(vec![(number, number)])
    }

    /// Both ends belong to the set.
    pub fn span(first: impl Into<u128>, last: impl Into<u128>) -> Self {
        [(first.into(), last.into())].into_iter().collect()
    }

    #[must_use]
    pub fn every_address(family: Family) -> Self {
        Self::span(0_u32, family.pick(u128::from(u32::MAX), u128::MAX))
    }

    #[must_use]
    pub fn net(net: &IpNet) -> Self {
        Self::nets([*net])
    }

    /// There may be thousands of them.
    pub fn nets(nets: impl IntoIterator<Item = IpNet>) -> Self {
        let ends = |net: IpNet| (number(net.network()), number(net.broadcast()));
        nets.into_iter().map(ends).collect()
    }

    /// Both ends belong to the set.
    #[must_use]
    pub fn addresses(first: IpAddr, last: IpAddr) -> Self {
        Self::span(number(first), number(last))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `None` unless the set contains exactly one number.
    #[must_use]
    pub fn single(&self) -> Option<u128> {
        match self.0.as_slice() {
            [(first, last)] if first == last => Some(*first),
            _ => None,
        }
    }

    /// The numbers that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let pairs = self
            .0
            .iter()
            .flat_map(|one| other.0.iter().map(move |two| (one.0.max(two.0), one.1.min(two.1))));
        pairs.collect()
    }

    /// The numbers that are in at least one of the sets.
    #[must_use]
    pub fn union(all: &[Self]) -> Self {
        all.iter().flat_map(|ranges| &ranges.0).copied().collect()
    }

    /// The numbers that are not in the set.
    #[must_use]
    pub fn inverted(&self) -> Self {
        let mut rest = Vec::new();
        let mut next = Some(0);
        for (first, last) in &self.0 {
            if let Some(begin) = next.filter(|begin| begin < first) {
                rest.push((begin, first - 1));
            }
            next = last.checked_add(1);
        }
        rest.extend(next.map(|begin| (begin, u128::MAX)));
        Self(rest)
    }

    /// Whether all, some or none of this set's numbers are in the other.
    #[must_use]
    pub fn within(&self, others: &Self) -> Fits {
        let both = self.and(others);
        match both.is_empty() {
            true => Fits::No,
            false if both == *self => Fits::Yes,
            false => Fits::Perhaps,
        }
    }
}

/// The ranges may be in any order. One whose end is smaller than its start is ignored.
impl FromIterator<(u128, u128)> for Ranges {
    fn from_iter<I: IntoIterator<Item = (u128, u128)>>(ranges: I) -> Self {
        let mut all: Vec<(u128, u128)> =
            ranges.into_iter().filter(|(first, last)| first <= last).collect();
        all.sort_unstable();
        all.dedup_by(|(first, last), before| {
            let joins = *first <= before.1.saturating_add(1);
            if joins {
                before.1 = before.1.max(*last);
            }
            joins
        });
        Self(all)
    }
}

/// The numbers of IPv4 and IPv6 addresses are not comparable.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}
