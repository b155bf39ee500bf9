//! Encapsulation of pod packets between nodes: the protocol, the UDP ports and the family of the outer packets.

use crate::dual::Dual;
use crate::family::Family;
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encapsulation {
    /// Packets travel unchanged.
    #[default]
    None,
    Udp {
        /// For the packets of each family.
        ports: Dual<u16, u16>,
        /// Set if one tunnel carries all families. With `None`, the outer packets have the same family as the inner ones.
        outer: Option<Family>,
    },
    /// IP in IP (RFC 2003), over IPv4.
    Ipip,
}

impl Encapsulation {
    /// With the same port for both families.
    #[must_use]
    pub const fn udp(port: u16) -> Self {
        Encapsulation::Udp { ports: Dual::Both(port, port), outer: None }
    }

    #[must_use]
    pub const fn is_none(&self) -> bool {
        matches!(self, Encapsulation::None)
    }

    /// In the outer IP header.
    #[must_use]
    pub const fn protocol(&self) -> Option<u8> {
        match self {
            Encapsulation::None => None,
            Encapsulation::Udp { .. } => Some(17),
            Encapsulation::Ipip => Some(4),
        }
    }

    /// Empty without UDP.
    #[must_use]
    pub fn ports(&self) -> BTreeSet<u16> {
        match self {
            Encapsulation::Udp { ports, .. } => {
                ports.v4().into_iter().chain(ports.v6()).copied().collect()
            }
            _ => BTreeSet::new(),
        }
    }

    /// `None` unless there is exactly one.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        let ports = self.ports();
        ports.first().copied().filter(|_| ports.len() == 1)
    }

    #[must_use]
    pub fn port_of(&self, family: Family) -> Option<u16> {
        let Encapsulation::Udp { ports, .. } = self else {
            return None;
        };
        family.pick(ports.v4().or(ports.v6()), ports.v6().or(ports.v4())).copied()
    }

    /// Set if one tunnel carries all families.
    #[must_use]
    pub const fn outer(&self) -> Option<Family> {
        match self {
            Encapsulation::None => None,
            Encapsulation::Udp { outer, .. } => *outer,
            Encapsulation::Ipip => Some(Family::V4),
        }
    }

    /// With a single port.
    pub fn of(&self, family: Family) -> Option<Encapsulation> {
        match self {
            Encapsulation::None => None,
            Encapsulation::Udp { .. } => self.port_of(family).map(Self::udp),
            Encapsulation::Ipip => Some(*self),
        }
    }

    /// One for each UDP port or protocol of the outer packets in a family of the underlay. Each has at most one UDP port.
    pub fn each(&self, family: Family) -> Vec<Encapsulation> {
        match self {
            Encapsulation::None => Vec::new(),
            Encapsulation::Udp { .. } => self.ports().into_iter().map(Self::udp).collect(),
            Encapsulation::Ipip if family.is_v6() => Vec::new(),
            Encapsulation::Ipip => vec![*self],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_those_of_the_families() {
        let both = Encapsulation::Udp { ports: Dual::Both(51820, 51821), outer: None };
        assert_eq!((both.ports(), both.port()), ([51820, 51821].into(), None));
        assert_eq!(Family::ALL.map(|family| both.port_of(family)), [Some(51820), Some(51821)]);
        assert_eq!(both.of(Family::V6), Some(Encapsulation::udp(51821)));
        assert_eq!(both.each(Family::V6), [51820, 51821].map(Encapsulation::udp));
        let six = Encapsulation::Udp { ports: Dual::V6(7), outer: Some(Family::V6) };
        assert_eq!(
            (six.port(), six.port_of(Family::V4), six.outer()),
            (Some(7), Some(7), Some(Family::V6))
        );
        assert_eq!(Encapsulation::udp(8472).port(), Some(8472));
    }

    #[test]
    fn ipip_has_no_ports_and_travels_over_ipv4() {
        let ipip = Encapsulation::Ipip;
        assert_eq!(
            (ipip.ports(), ipip.of(Family::V4), ipip.outer()),
            ([].into(), Some(ipip), Some(Family::V4))
        );
        assert_eq!((ipip.each(Family::V4), ipip.each(Family::V6)), (vec![ipip], vec![]));
        let protocols =
            [Encapsulation::None, Encapsulation::udp(7), ipip].map(|one| one.protocol());
        assert_eq!(protocols, [None, Some(17), Some(4)]);
    }
}
