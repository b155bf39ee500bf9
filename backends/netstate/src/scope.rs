//! Criteria that identify flannel's kernel objects.

use crate::names::LinkName;
use ipnet::IpNet;
use netlink::family_number;
use std::net::IpAddr;
use types::Subnets;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scope {
    pub links: Vec<LinkName>,
    /// Only objects inside `networks` and `former` belong to flannel.
    pub networks: Subnets,
    /// This node's.
    pub own: Subnets,
    /// The networks of the previous run, from subnet.env. The reconciler removes what remains of
    /// their objects.
    pub former: Option<Subnets>,
    /// The number of flannel's routes.
    pub protocol: u8,
    /// Whether flanneld must read the checksum offload of flannel's links.
    pub checksum_offload: bool,
}

impl Scope {
    #[must_use]
    pub fn covers(&self, net: &IpNet) -> bool {
        self.networks.contains(net)
    }

    /// True inside the networks of the previous run but not inside the current ones.
    #[must_use]
    pub fn covered(&self, net: &IpNet) -> bool {
        self.former.is_some_and(|former| former.contains(net)) && !self.covers(net)
    }

    /// AF_*, of the current and the former networks.
    pub(crate) fn family_numbers(&self) -> impl Iterator<Item = u8> + use<> {
        let nets = self.former.map_or(self.networks, |former| self.networks.or(former));
        nets.families().map(family_number)
    }

    #[must_use]
    pub fn covers_ip(&self, ip: &IpAddr) -> bool {
        self.covers(&IpNet::from(*ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_networks_objects_are_distinguished_from_others() {
        let networks = Subnets::V4("10.6.0.0/17".parse().unwrap());
        let former =
            Some(Subnets::Both("10.6.0.0/16".parse().unwrap(), "fd00:5::/48".parse().unwrap()));
        let scope = Scope {
            links: Vec::new(),
            networks,
            own: networks,
            former,
            protocol: 241,
            checksum_offload: false,
        };
        for (net, covers, covered) in [
            ("10.6.1.0/24", true, false),
            ("10.6.200.0/24", false, true),
            ("10.6.0.0/16", false, true),
            ("10.7.0.0/24", false, false),
            ("10.0.0.0/8", false, false),
            ("fd00:5:0:1::/64", false, true),
            ("fd00:6:0:1::/64", false, false),
        ] {
            let net: IpNet = net.parse().unwrap();
            assert_eq!((scope.covers(&net), scope.covered(&net)), (covers, covered), "{net}");
        }
    }
}
