//! Address families.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// IPv4 first.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    #[must_use]
    pub const fn is_v4(self) -> bool {
        matches!(self, Family::V4)
    }

    #[must_use]
    pub const fn is_v6(self) -> bool {
        matches!(self, Family::V6)
    }

    pub fn pick<T>(self, v4: T, v6: T) -> T {
        match self {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }
}

impl From<IpAddr> for Family {
    fn from(ip: IpAddr) -> Self {
        if ip.is_ipv6() { Family::V6 } else { Family::V4 }
    }
}

impl From<&IpAddr> for Family {
    fn from(ip: &IpAddr) -> Self {
        Self::from(*ip)
    }
}

impl From<IpNet> for Family {
    fn from(net: IpNet) -> Self {
        Self::from(net.addr())
    }
}

impl From<&IpNet> for Family {
    fn from(net: &IpNet) -> Self {
        Self::from(net.addr())
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.pick("IPv4", "IPv6"))
    }
}
