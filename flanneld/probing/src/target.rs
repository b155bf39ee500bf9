//! The peers of a node and the paths to them.

use crate::who::who;
use ipnet::IpNet;
#[cfg(any(test, feature = "prober"))]
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use subnet_lease::{Kinds, Lease, LeaseTable, Peer};
use types::{Family, Subnets};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// The path that packets of pods also take.
    Overlay,
    /// The path directly from node to node.
    Underlay,
}

/// One peer in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Go flannel publishes no id.
    pub id: Option<Arc<str>>,
    pub name: Option<Arc<str>>,
    pub subnet: IpNet,
    /// The address at which other nodes reach the node.
    pub address: IpAddr,
    /// Whether report requests to the node use this family. A node needs report requests in only one family.
    pub primary: bool,
    /// Whether the peer's address is on a link with this host, so that this host needs a neighbour entry to reach the peer.
    pub on_link: bool,
}

impl Target {
    /// The node's number in probe messages, if the node has an id.
    pub fn who(&self) -> Option<u64> {
        self.id.as_ref().map(|id| who(id, &self.subnet))
    }

    /// The addresses of the peer's overlay device and bridge.
    pub fn overlay_addresses(&self) -> [IpAddr; 2] {
        overlay_addresses(&self.subnet)
    }
}

/// The overlay device has the first address of a subnet, and the bridge of pods the second.
pub fn overlay_addresses(subnet: &IpNet) -> [IpAddr; 2] {
    match subnet.network() {
        IpAddr::V4(first) => {
            [first.into(), std::net::Ipv4Addr::from_bits(first.to_bits().saturating_add(1)).into()]
        }
        IpAddr::V6(first) => {
            [first.into(), std::net::Ipv6Addr::from_bits(first.to_bits().saturating_add(1)).into()]
        }
    }
}

/// Masks of the host bits of subnets, for IPv4 and for the last 32 bits of IPv6.
#[cfg(any(test, feature = "prober"))]
pub(crate) type HostMasks = (BTreeSet<u32>, BTreeSet<u32>);

/// The mask of each prefix length that these subnets have. The host bits of a node's overlay address are 0 or 1;
/// those of a pod's address are larger.
#[cfg(any(test, feature = "prober"))]
pub(crate) fn host_masks(subnets: impl Iterator<Item = IpNet>) -> HostMasks {
    let (mut v4, mut v6) = HostMasks::default();
    for subnet in subnets {
        match subnet {
            IpNet::V4(net) => v4.insert(net.hostmask().to_bits()),
            IpNet::V6(net) => {
                let last = net.hostmask().to_bits() & u128::from(u32::MAX);
                v6.insert(u32::try_from(last).unwrap_or(u32::MAX))
            }
        };
    }
    (v4, v6)
}

/// `local` are the addresses of this host. `outer` is the address family of the tunnels, if tunnels of one family
/// carry packets of both families.
pub fn targets(
    leases: &LeaseTable,
    own: &Subnets,
    kinds: Kinds,
    local: &[IpNet],
    outer: Option<Family>,
) -> Vec<Target> {
    let reached = |peer: &Peer<'_>| match outer {
        Some(family) => peer.lease.attrs.public_for(family),
        None => Some(peer.public_ip),
    };
    let is_local = |ip: &IpAddr| local.iter().any(|net| net.addr() == *ip);
    let of = |lease: &Lease| -> Vec<Target> {
        let node = lease.attrs.node.as_ref();
        // A lease without an id comes from Go flannel or an operator. Any node that replies at its address may be the peer.
        let id = node.filter(|node| !node.by_go && !node.id.is_empty()).map(|node| node.id.clone());
        let name = node.map(|node| node.name.clone()).filter(|name| !name.is_empty());
        let mut primary = true;
        let peers = Peer::of(lease).filter(|peer| own.has(peer.subnet.into()));
        // An address of this host does not lead to another node.
        let found = peers
            .filter_map(|peer| Some((peer.subnet, reached(&peer).filter(|ip| !is_local(ip))?)));
        let target = |(subnet, address)| {
            let primary = std::mem::take(&mut primary);
            Target {
                id: id.clone(),
                name: name.clone(),
                subnet,
                address,
                primary,
                on_link: local.iter().any(|net| net.contains(&address)),
            }
        };
        found.map(target).collect()
    };
    // Reserves exactly one element per lease, because a cluster can have ten thousand leases.
    let mut all = Vec::with_capacity(leases.others(own, kinds).count());
    all.extend(leases.others(own, kinds).flat_map(of));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use subnet_lease::{LeaseAttrs, NodeId, Term};
    use types::Dual;

    fn lease(number: u8, node: Option<&str>, dual: bool) -> Lease {
        let (v4_net, v6_net) = (
            format!("10.5.{number}.0/24").parse().unwrap(),
            format!("fd00:{number}::/64").parse().unwrap(),
        );
        let node = node.map(|id| NodeId {
            id: id.into(),
            name: format!("name-{id}").into(),
            ..NodeId::default()
        });
        let attrs = LeaseAttrs {
            public_ip: Some([192, 0, 2, number].into()),
            public_ipv6: dual.then(|| format!("2001:db8::{number}").parse().unwrap()),
            backend: "vxlan".into(),
            node,
            ..LeaseAttrs::default()
        };
        Lease {
            subnets: if dual { Dual::Both(v4_net, v6_net) } else { Dual::V4(v4_net) },
            attrs,
            term: Term::Leased,
            since: 1,
        }
    }

    #[test]
    fn each_prefix_length_has_its_host_mask() {
        let nets = [
            "10.5.1.0/24",
            "10.5.3.0/24",
            "10.5.2.128/26",
            "10.5.0.7/32",
            "fd00::/64",
            "fd00:0:0:1::/112",
        ];
        let (v4, v6) = host_masks(nets.iter().map(|net| net.parse().unwrap()));
        assert_eq!(v4, [0, 0x3f, 0xff].into());
        assert_eq!(v6, [0xffff, u32::MAX].into());
    }

    #[test]
    fn lease_is_a_target_in_each_family() {
        let own = lease(1, Some("a"), true);
        let table = LeaseTable::of(
            [
                own.clone(),
                lease(2, Some("b"), true),
                lease(3, None, false),
                lease(4, Some(""), false),
            ],
            BTreeSet::new(),
        );
        let mut found = targets(
            &table,
            &own.subnets,
            Kinds::Only("vxlan"),
            &["192.0.2.4/24".parse().unwrap()],
            None,
        );
        found.sort_by_key(|target| target.subnet);
        let short: Vec<_> = found
            .iter()
            .map(|target| (target.subnet.to_string(), target.address.to_string(), target.primary))
            .collect();
        let want =
            |subnet: &str, address: &str, primary| (subnet.to_owned(), address.to_owned(), primary);
        assert_eq!(
            short,
            [
                want("10.5.2.0/24", "192.0.2.2", true),
                want("10.5.3.0/24", "192.0.2.3", true),
                want("fd00:2::/64", "2001:db8::2", false)
            ],
            "192.0.2.4 is ours"
        );
        let on_link: Vec<bool> = found.iter().map(|target| target.on_link).collect();
        assert_eq!(on_link, [true, true, false]);
        assert_eq!(found[0].who(), Some(who("b", &found[0].subnet)));
        assert_eq!((found[1].who(), found[1].name.clone()), (None, None));
        assert_eq!(
            found[2].overlay_addresses().map(|ip| ip.to_string()),
            ["fd00:2::", "fd00:2::1"]
        );
        // udp: the tunnels of both families use IPv4.
        let by_v4 = targets(&table, &own.subnets, Kinds::Any, &[], Some(Family::V4));
        assert!(by_v4.iter().any(|target| target.subnet.addr().is_ipv6()));
        assert!(by_v4.iter().all(|target| target.address.is_ipv4()));
        assert!(targets(&table, &own.subnets, Kinds::Only("host-gw"), &[], None).is_empty());
        // A node without IPv6 does not reach the IPv6 half of others.
        assert!(
            targets(&table, &lease(1, None, false).subnets, Kinds::Any, &[], None)
                .iter()
                .all(|target| target.subnet.addr().is_ipv4())
        );
    }
}
