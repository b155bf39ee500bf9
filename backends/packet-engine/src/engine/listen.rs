//! The addresses that an engine's sockets are bound to: one, or with WireGuard one of each family.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// At most one address of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listen {
    /// IPv4.
    pub v4: Option<Ipv4Addr>,
    /// IPv6.
    pub v6: Option<Ipv6Addr>,
}

impl Listen {
    /// All addresses of the host.
    pub const ANY: Self = Self { v4: Some(Ipv4Addr::UNSPECIFIED), v6: Some(Ipv6Addr::UNSPECIFIED) };

    /// The addresses, IPv4 first.
    pub(super) fn addresses(self) -> impl Iterator<Item = IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

impl From<IpAddr> for Listen {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self { v4: Some(address), v6: None },
            IpAddr::V6(address) => Self { v4: None, v6: Some(address) },
        }
    }
}
