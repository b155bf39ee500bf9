//! Target of a trace: a peer by its name, subnet or address, or a pod by its address. Without side effects.

use crate::error::joined;
use ipnet::IpNet;
use probing::target::Target;
use std::net::IpAddr;
use types::{Problem, Subnets, printable};

/// Peers that the error about an unknown target lists.
const LISTED: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeTarget {
    /// Another node, or a pod of it.
    Peer {
        target: Target,
        /// If the target is a pod.
        pod: Option<IpAddr>,
    },
    /// An address in a subnet of this node.
    Here {
        pod: IpAddr,
        /// This node's subnet with the pod's address.
        subnet: IpNet,
    },
}

/// The nodes and addresses among which [`find`] looks up a target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
    /// A dual-stack peer has one entry per address family.
    pub targets: &'a [Target],
    pub own: &'a Subnets,
    pub names: &'a [String],
    pub local: &'a [IpAddr],
    /// Leases that this node does not use: subnets or key, and the reason.
    pub unused: &'a [(String, String)],
}

/// Accepts a name, a subnet or an address.
pub(super) fn find(asked: &str, around: &Around<'_>) -> Result<ProbeTarget, Problem> {
    if let Ok(ip) = asked.parse::<IpAddr>() {
        return by_address(asked, ip, around);
    }
    if let Ok(net) = asked.parse::<IpNet>() {
        return by_subnet(asked, net, around);
    }
    let named: Vec<&Target> =
        around.targets.iter().filter(|target| target.name.as_deref() == Some(asked)).collect();
    // A node has one target per family, and exactly one of them is primary.
    let nodes: Vec<&&Target> = named.iter().filter(|target| target.primary).collect();
    match (nodes.as_slice(), named.first()) {
        ([_, _, ..], _) => {
            let text = format!(
                "{} nodes are named {}; name the subnet of one of them, {}",
                nodes.len(),
                printable::value(asked),
                joined(nodes.iter().map(|target| target.subnet), " or ")
            );
            Err(Problem::new("probe-target-ambiguous", text))
        }
        (_, Some(first)) => Ok(ProbeTarget::Peer {
            target: Target::clone(nodes.first().unwrap_or(&first)),
            pod: None,
        }),
        (_, None) if around.names.iter().any(|name| name == asked) => Err(this_node(asked)),
        (_, None) => Err(nobody(asked, None, around)),
    }
}

fn by_address(asked: &str, ip: IpAddr, around: &Around<'_>) -> Result<ProbeTarget, Problem> {
    if let Some(target) = around.targets.iter().find(|target| target.address == ip) {
        return Ok(ProbeTarget::Peer { target: target.clone(), pod: None });
    }
    if let Some(target) = around.targets.iter().find(|target| target.subnet.contains(&ip)) {
        // The addresses of the device and the bridge belong to the node itself, not to a pod.
        let pod = Some(ip).filter(|ip| !target.overlay_addresses().contains(ip));
        return Ok(ProbeTarget::Peer { target: target.clone(), pod });
    }
    if let Some(subnet) = around.own.nets().find(|subnet| subnet.contains(&ip)) {
        return Ok(ProbeTarget::Here { pod: ip, subnet });
    }
    if around.local.contains(&ip) {
        return Err(this_node(asked));
    }
    Err(nobody(asked, Some(IpNet::from(ip)), around))
}

fn by_subnet(asked: &str, net: IpNet, around: &Around<'_>) -> Result<ProbeTarget, Problem> {
    if let Some(target) = around.targets.iter().find(|target| target.subnet == net.trunc()) {
        return Ok(ProbeTarget::Peer { target: target.clone(), pod: None });
    }
    if around.own.nets().any(|own| own == net.trunc()) {
        return Err(this_node(asked));
    }
    if net.prefix_len() == net.max_prefix_len() {
        return by_address(asked, net.addr(), around);
    }
    Err(nobody(asked, Some(net), around))
}

fn this_node(asked: &str) -> Problem {
    let asked = printable::value(asked);
    let text = format!("{asked} is this node; name a peer, or the address of a pod");
    Problem::new("probe-target-is-this-node", text)
}

fn nobody(asked: &str, net: Option<IpNet>, around: &Around<'_>) -> Problem {
    let asked = printable::value(asked);
    let holds = |lease: &str| {
        lease
            .split([',', ' '])
            .filter_map(|part| part.parse::<IpNet>().ok())
            .any(|part| net.is_some_and(|net| part.contains(&net)))
    };
    if let Some((lease, why)) = around.unused.iter().find(|(lease, _)| holds(lease)) {
        let (lease, why) = (printable::value(lease), printable::line(why));
        let text = format!("{asked} is in a lease that this node does not use, {lease}: {why}");
        return Problem::new("probe-target-unused", text);
    }
    let nodes: Vec<&Target> = around.targets.iter().filter(|target| target.primary).collect();
    if nodes.is_empty() {
        let text = format!(
            "{asked} belongs to no peer: no other node has a lease that is active on this node"
        );
        return Problem::new("probe-no-peers", text);
    }
    let described =
        |target: &&Target| format!("{} ({}, {})", title(target), target.subnet, target.address);
    let peers = joined(nodes.iter().take(LISTED).map(described), ", ");
    let more = match nodes.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(" and {more} more; flannelctl peers lists them"),
    };
    let text =
        format!("{asked} is neither a peer nor in a peer's subnet: the peers are {peers}{more}");
    Problem::new("probe-target-unknown", text)
}

/// The address if the peer has no name. Printable on one line.
pub(super) fn title(target: &Target) -> String {
    match target.name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => printable::value(name).into_owned(),
        None => target.address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use types::Dual;

    fn target(name: &str, subnet: &str, address: &str, primary: bool) -> Target {
        let name = Some(Arc::from(name)).filter(|name: &Arc<str>| !name.is_empty());
        Target {
            id: name.clone(),
            name,
            subnet: subnet.parse().unwrap(),
            address: address.parse().unwrap(),
            primary,
            on_link: true,
        }
    }

    /// The subnet and the pod's address of the target.
    fn found(asked: &str) -> Result<(String, String), Problem> {
        let targets = [
            target("node-2", "10.244.2.0/24", "192.0.2.2", true),
            target("node-2", "fd00:2::/64", "2001:db8::2", false),
            target("", "10.244.3.0/24", "192.0.2.3", true),
            target("twin", "10.244.4.0/24", "192.0.2.4", true),
            target("twin", "10.244.5.0/24", "192.0.2.5", true),
            target("n\u{1b}[2J", "10.244.6.0/24", "192.0.2.6", true),
            // This node has only IPv6, with a tunnel over IPv4.
            target("node-7", "fd00:7::/64", "192.0.2.7", true),
        ];
        let around = Around {
            targets: &targets,
            own: &Dual::Both("10.244.1.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()),
            names: &["node-1".to_owned()],
            local: &["192.0.2.1".parse().unwrap()],
            unused: &[("10.244.9.0/24".to_owned(), "it has the address of\nnode-2".to_owned())],
        };
        find(asked, &around).map(|target| match target {
            ProbeTarget::Peer { target, pod } => {
                (target.subnet.to_string(), pod.map(|pod| pod.to_string()).unwrap_or_default())
            }
            ProbeTarget::Here { pod, subnet } => (format!("here {subnet}"), pod.to_string()),
        })
    }

    #[test]
    fn target_is_found_by_name_subnet_or_address() {
        for (asked, subnet, pod) in [
            ("node-2", "10.244.2.0/24", ""),
            ("10.244.2.0/24", "10.244.2.0/24", ""),
            ("10.244.2.9/24", "10.244.2.0/24", ""),
            ("192.0.2.2", "10.244.2.0/24", ""),
            ("10.244.2.0", "10.244.2.0/24", ""),
            ("10.244.2.1", "10.244.2.0/24", ""),
            ("10.244.2.7", "10.244.2.0/24", "10.244.2.7"),
            ("10.244.2.7/32", "10.244.2.0/24", "10.244.2.7"),
            ("fd00:2::/64", "fd00:2::/64", ""),
            ("2001:db8::2", "fd00:2::/64", ""),
            ("fd00:2::7", "fd00:2::/64", "fd00:2::7"),
            ("192.0.2.3", "10.244.3.0/24", ""),
            ("node-7", "fd00:7::/64", ""),
            ("10.244.1.7", "here 10.244.1.0/24", "10.244.1.7"),
            ("fd00:1::7", "here fd00:1::/64", "fd00:1::7"),
        ] {
            assert_eq!(found(asked).unwrap(), (subnet.to_owned(), pod.to_owned()), "{asked}");
        }
    }

    #[test]
    fn unknown_target_error_lists_the_peers() {
        for (asked, text) in [
            ("node-1", "is this node"),
            ("10.244.1.0/24", "is this node"),
            ("192.0.2.1", "is this node"),
            ("twin", "10.244.4.0/24 or 10.244.5.0/24"),
            ("10.244.9.7", "10.244.9.0/24: it has the address of"),
            (
                "node-3",
                "node-2 (10.244.2.0/24, 192.0.2.2), 192.0.2.3 (10.244.3.0/24, 192.0.2.3), twin",
            ),
            ("10.1.2.3", "10.1.2.3 is neither"),
            ("x\u{1b}]0;t\u{7}", r"x\u{1b}]0;t\u{7} is neither"),
        ] {
            let error = found(asked).unwrap_err().to_string();
            assert!(error.contains(text), "{asked}: {error}");
            assert!(!error.contains(['\n', '\u{1b}', '\u{7}']), "{asked}: {error:?}");
        }
        let alone = Around {
            targets: &[],
            own: &Dual::V4("10.244.1.0/24".parse().unwrap()),
            names: &[],
            local: &[],
            unused: &[],
        };
        assert!(
            find("node-2", &alone).unwrap_err().to_string().contains("no other node has a lease")
        );
    }
}
