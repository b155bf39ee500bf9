//! A value for IPv4, for IPv6, or one for each family: a `Dual` contains at least one of the two.

use crate::family::Family;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dual<A, B> {
    V4(A),
    V6(B),
    Both(A, B),
}

/// They identify a lease.
///
/// ```
/// use types::{Family, Subnets};
///
/// let subnets = Subnets::Both("10.244.1.0/24".parse()?, "fd00:1::/64".parse()?);
/// assert_eq!(subnets.to_string(), "10.244.1.0/24 and fd00:1::/64");
/// assert!(subnets.contains(&"10.244.1.128/25".parse()?));
/// assert_eq!(subnets.only(Family::is_v4), Some(Subnets::V4("10.244.1.0/24".parse()?)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Subnets = Dual<Ipv4Net, Ipv6Net>;

pub type Addresses = Dual<Ipv4Addr, Ipv6Addr>;

impl<A, B> Dual<A, B> {
    /// `None` if both are missing.
    pub fn from_options(v4: Option<A>, v6: Option<B>) -> Option<Self> {
        match (v4, v6) {
            (Some(a), Some(b)) => Some(Dual::Both(a, b)),
            (Some(a), None) => Some(Dual::V4(a)),
            (None, Some(b)) => Some(Dual::V6(b)),
            (None, None) => None,
        }
    }

    pub fn v4(&self) -> Option<&A> {
        match self {
            Dual::V4(a) | Dual::Both(a, _) => Some(a),
            Dual::V6(_) => None,
        }
    }

    pub fn v6(&self) -> Option<&B> {
        match self {
            Dual::V6(b) | Dual::Both(_, b) => Some(b),
            Dual::V4(_) => None,
        }
    }

    pub fn has(&self, family: Family) -> bool {
        family.pick(self.v4().is_some(), self.v6().is_some())
    }

    /// IPv4 first.
    pub fn families(&self) -> impl Iterator<Item = Family> + use<A, B> {
        let has = Family::ALL.map(|family| self.has(family));
        Family::ALL.into_iter().zip(has).filter(|(_, has)| *has).map(|(family, _)| family)
    }

    pub fn same_families<C, D>(&self, other: &Dual<C, D>) -> bool {
        self.v4().is_some() == other.v4().is_some() && self.v6().is_some() == other.v6().is_some()
    }

    /// The values whose family `keep` selects; `None` if it selects none.
    pub fn only(self, keep: impl Fn(Family) -> bool) -> Option<Self> {
        let (v4, v6) = (keep(Family::V4), keep(Family::V6));
        match self {
            Dual::V4(_) => v4.then_some(self),
            Dual::V6(_) => v6.then_some(self),
            Dual::Both(a, b) => Self::from_options(v4.then_some(a), v6.then_some(b)),
        }
    }

    /// Takes the family's value from the other `Dual` if this one lacks it.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Dual::V4(a), Dual::V6(b) | Dual::Both(_, b))
            | (Dual::V6(b), Dual::V4(a) | Dual::Both(a, _)) => Dual::Both(a, b),
            (own, _) => own,
        }
    }

    pub fn map<C, D>(self, v4: impl FnOnce(A) -> C, v6: impl FnOnce(B) -> D) -> Dual<C, D> {
        match self {
            Dual::V4(a) => Dual::V4(v4(a)),
            Dual::V6(b) => Dual::V6(v6(b)),
            Dual::Both(a, b) => Dual::Both(v4(a), v6(b)),
        }
    }
}

impl<T> Dual<T, T> {
    pub fn of(&self, family: Family) -> Option<&T> {
        family.pick(self.v4(), self.v6())
    }
}

impl From<IpNet> for Subnets {
    fn from(net: IpNet) -> Self {
        match net {
            IpNet::V4(net) => Dual::V4(net),
            IpNet::V6(net) => Dual::V6(net),
        }
    }
}

impl From<IpAddr> for Addresses {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Dual::V4(address),
            IpAddr::V6(address) => Dual::V6(address),
        }
    }
}

impl Subnets {
    /// IPv4 first.
    pub fn nets(&self) -> impl Iterator<Item = IpNet> + use<> {
        Family::ALL.map(|family| self.of(family)).into_iter().flatten()
    }

    pub fn of(&self, family: Family) -> Option<IpNet> {
        family.pick(self.v4().copied().map(IpNet::V4), self.v6().copied().map(IpNet::V6))
    }

    /// True if the network lies inside one of the subnets.
    #[must_use]
    pub fn contains(&self, net: &IpNet) -> bool {
        self.of(Family::from(net)).is_some_and(|own| own.contains(net))
    }

    #[must_use]
    pub fn network_addresses(&self) -> Addresses {
        self.map(|net| net.network(), |net| net.network())
    }

    /// True if a subnet in `self` and one in `other` have an address in common.
    #[must_use]
    pub fn overlaps(&self, other: &Subnets) -> bool {
        self.nets().any(|ours| {
            other.of(Family::from(ours)).is_some_and(|theirs| nets_overlap(&ours, &theirs))
        })
    }
}

impl Addresses {
    /// A socket bound to these receives packets at all addresses of the host.
    pub const UNSPECIFIED: Self = Dual::Both(Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);

    /// IPv4 first.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> + use<> {
        Family::ALL.map(|family| self.of(family)).into_iter().flatten()
    }

    pub fn of(&self, family: Family) -> Option<IpAddr> {
        family.pick(self.v4().copied().map(IpAddr::V4), self.v6().copied().map(IpAddr::V6))
    }
}

/// True if the networks have an address in common.
#[must_use]
pub fn nets_overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

/// What no subnet of a pod network may overlap of a host's network. If the host's network begins inside the pod network, all of it counts. Otherwise
/// only the host's address does, because the pod network may be inside a wide network of a company.
#[must_use]
pub fn barred_by(host: &IpNet, pods: &Subnets) -> IpNet {
    match pods.contains(&host.trunc()) {
        true => host.trunc(),
        false => IpNet::from(host.addr()),
    }
}

impl fmt::Display for Subnets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dual::V4(a) => write!(f, "{a}"),
            Dual::V6(b) => write!(f, "{b}"),
            Dual::Both(a, b) => write!(f, "{a} and {b}"),
        }
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dual::V4(a) => write!(f, "{a}"),
            Dual::V6(b) => write!(f, "{b}"),
            Dual::Both(a, b) => write!(f, "{a} and {b}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keeps_the_named_families() {
        let both = Dual::Both(4, 6);
        assert_eq!(both.only(|_| true), Some(both));
        assert_eq!(both.only(Family::is_v4), Some(Dual::V4(4)));
        assert_eq!(both.only(Family::is_v6), Some(Dual::V6(6)));
        assert_eq!(both.only(|_| false), None);
        assert_eq!(Dual::<i32, i32>::V4(4).only(Family::is_v6), None);
    }

    #[test]
    fn or_takes_only_what_is_missing() {
        let (v4, v6, both) = (Dual::V4(4), Dual::V6(6), Dual::Both(44, 66));
        assert_eq!((v4.or(v6), v6.or(v4)), (Dual::Both(4, 6), Dual::Both(4, 6)));
        assert_eq!((v4.or(both), v6.or(both)), (Dual::Both(4, 66), Dual::Both(44, 6)));
        assert_eq!((both.or(v4), both.or(Dual::Both(1, 2))), (both, both));
        assert_eq!(v4.or(Dual::V4(5)), v4);
    }

    #[test]
    fn contains_asks_the_family_of_the_network() {
        let nets = Subnets::V4("10.6.0.0/16".parse().unwrap());
        let inside = |text: &str| nets.contains(&text.parse().unwrap());
        assert_eq!(
            (inside("10.6.1.0/24"), inside("10.0.0.0/8"), inside("fd00::/64")),
            (true, false, false)
        );
    }
}
