//! Finds gateway addresses that a previous subnet of this node left on bridges of the CNI plugin. Pure.

use crate::host::Interface;
use crate::names::LinkName;
use ipnet::IpNet;
use types::Subnets;

/// A gateway address of a previous subnet that is still on a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleGateway {
    pub bridge: LinkName,
    /// The prefix length is the previous subnet's.
    pub address: IpNet,
    /// A second address of the bridge in the previous subnet, perhaps set by another program. The
    /// kernel may remove it together with the gateway address.
    pub other: Option<IpNet>,
}

/// Because of a stale gateway's connected route, packets of this node do not reach the node that
/// now leases the subnet. The bridge plugin also refuses new pods while a stale gateway exists.
///
/// A subnet is previous only if the node now has a different subnet of the same family.
pub fn stale_gateways(
    interfaces: &[Interface],
    previous: &[IpNet],
    present: &Subnets,
) -> Vec<StaleGateway> {
    let replaced = |was: &&IpNet| {
        let mut same_family =
            present.nets().filter(|net| net.max_prefix_len() == was.max_prefix_len());
        same_family.next().is_some_and(|net| net != was.trunc())
    };
    let gateways = previous.iter().filter(replaced).filter_map(first_host);
    let gone = gateways.filter(|gateway| !present.nets().any(|net| net.contains(&gateway.addr())));
    gone.flat_map(|address| {
        let bridges = interfaces.iter().filter(|interface| interface.kind == "bridge");
        let with_it = bridges.filter(move |bridge| bridge.nets().any(|net| net == address));
        with_it.filter_map(move |bridge| {
            let other =
                bridge.nets().find(|other| *other != address && address.contains(&other.addr()));
            Some(StaleGateway { bridge: LinkName::parse(&bridge.name)?, address, other })
        })
    })
    .collect()
}

/// The first host address, which the CNI plugin assigns to its bridge.
fn first_host(subnet: &IpNet) -> Option<IpNet> {
    let first = subnet.subnets(subnet.max_prefix_len()).ok()?.nth(1)?.addr();
    IpNet::new(first, subnet.prefix_len()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Address;

    /// Each as `bridge address` or `bridge address beside other`.
    fn stale(addresses: &[&str], previous: &[&str], present: &str) -> Vec<String> {
        let net = |text: &&str| text.parse::<IpNet>().unwrap();
        let bridge = |name: &str, nets: Vec<IpNet>| Interface {
            name: name.to_owned(),
            kind: "bridge".to_owned(),
            addresses: nets.into_iter().map(|net| Address { net, ..Address::default() }).collect(),
            ..Interface::default()
        };
        let bridges = [
            bridge("br0", vec![net(&"192.168.1.1/24")]),
            bridge("cni0", addresses.iter().map(net).collect()),
        ];
        let present = present.split(' ').map(|text| net(&text));
        let (v4, v6): (Vec<IpNet>, Vec<IpNet>) = present.partition(|net| net.addr().is_ipv4());
        let present = Subnets::from_options(
            v4.first().and_then(|net| if let IpNet::V4(net) = net { Some(*net) } else { None }),
            v6.first().and_then(|net| if let IpNet::V6(net) = net { Some(*net) } else { None }),
        )
        .unwrap();
        let text = |stale: StaleGateway| match stale.other {
            None => format!("{} {}", stale.bridge, stale.address),
            Some(other) => format!("{} {} beside {other}", stale.bridge, stale.address),
        };
        stale_gateways(&bridges, &previous.iter().map(net).collect::<Vec<_>>(), &present)
            .into_iter()
            .map(text)
            .collect()
    }

    #[test]
    fn gateway_of_a_previous_subnet_is_stale_and_nothing_else() {
        let dual = ["10.244.3.0/24", "fd10:244:0:3::/64"];
        for (addresses, previous, present, want) in [
            // The podCIDR of one family or of both has changed.
            (
                &["10.244.3.1/24", "fe80::1/64"][..],
                &["10.244.3.0/24"][..],
                "10.244.33.0/24",
                &["cni0 10.244.3.1/24"][..],
            ),
            (
                &["10.244.3.1/24", "fd10:244:0:3::1/64"],
                &dual,
                "10.42.3.0/24 fd10:244:0:3::/64",
                &["cni0 10.244.3.1/24"],
            ),
            (
                &["10.244.3.1/24", "fd10:244:0:3::1/64"],
                &dual,
                "10.42.3.0/24 fd10:42:0:3::/64",
                &["cni0 10.244.3.1/24", "cni0 fd10:244:0:3::1/64"],
            ),
            // The gateway of the present subnet is kept.
            (
                &["10.244.3.1/24", "10.244.33.1/24"],
                &["10.244.3.0/24"],
                "10.244.33.0/24",
                &["cni0 10.244.3.1/24"],
            ),
            // No subnet is previous: the node has no other subnet, or only one of the other family.
            (&["10.244.3.1/24"], &["10.244.3.0/24"], "10.244.3.0/24", &[]),
            (&["10.244.3.1/24"], &["10.244.3.0/24"], "fd10:244:0:3::/64", &[]),
            (&["10.244.3.1/24"], &[], "10.244.33.0/24", &[]),
            // No evidence: another address, another prefix length, inside the present subnet, no room for a gateway.
            (&["10.244.3.2/24"], &["10.244.3.0/24"], "10.244.33.0/24", &[]),
            (&["10.244.3.1/16"], &["10.244.3.0/24"], "10.244.33.0/24", &[]),
            (&["10.244.3.1/24"], &["10.244.3.0/24"], "10.244.0.0/20", &[]),
            (&["10.244.3.1/32"], &["10.244.3.1/32"], "10.244.33.0/24", &[]),
            (&["255.255.255.255/32"], &["255.255.255.255/32"], "10.244.33.0/24", &[]),
            // The bridge has a second address in the same subnet.
            (
                &["10.244.3.1/24", "10.244.3.9/24"],
                &["10.244.3.0/24"],
                "10.244.33.0/24",
                &["cni0 10.244.3.1/24 beside 10.244.3.9/24"],
            ),
        ] {
            assert_eq!(
                stale(addresses, previous, present),
                want,
                "{addresses:?}, {previous:?}, now {present}"
            );
        }
    }
}
