//! The kernel's IPIP interfaces.

use crate::fit::Fit;
use std::net::Ipv4Addr;

/// The kernel's name for IPIP interfaces (IFLA_INFO_KIND) and for their module.
pub const KIND: &str = "ipip";

/// INVARIANT: a desired interface has no remote address, so that routes choose the remote address
/// for each packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpipSpec {
    /// The outer source address. Without one, `tunl0`, which the `ipip` module creates in each
    /// network namespace, receives the packets.
    pub local: Option<Ipv4Addr>,
    /// The outer destination, if all packets have the same one.
    pub remote: Option<Ipv4Addr>,
    /// Of the outer packets; 0 copies the TTL of the inner packet.
    pub ttl: u8,
    /// The outer packets have the DF bit, regardless of the inner packets.
    pub pmtudisc: bool,
}

impl IpipSpec {
    /// The kernel allows one interface for each pair of local and remote address.
    pub(crate) fn has_ends_of(&self, other: &IpipSpec) -> bool {
        (self.local, self.remote) == (other.local, other.remote)
    }

    /// `self` is desired.
    pub(super) fn fit(&self, found: &IpipSpec) -> Fit {
        // The kernel cannot turn an interface with a remote address into one without (ip_tunnel_changelink).
        if self.remote != found.remote {
            return Fit::Rebuild;
        }
        if self == found { Fit::Same } else { Fit::Change }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipip_changes_are_in_place_or_need_a_rebuild() {
        let want = IpipSpec {
            local: Some(Ipv4Addr::new(192, 0, 2, 1)),
            remote: None,
            ttl: 0,
            pmtudisc: false,
        };
        for (found, fit) in [
            (want, Fit::Same),
            (IpipSpec { local: None, ..want }, Fit::Change),
            (IpipSpec { ttl: 64, pmtudisc: true, ..want }, Fit::Change),
            (IpipSpec { remote: Some(Ipv4Addr::new(192, 0, 2, 2)), ..want }, Fit::Rebuild),
        ] {
            assert_eq!(want.fit(&found), fit, "{found:?}");
        }
    }
}
