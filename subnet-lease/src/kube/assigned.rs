//! Determines the subnets that a Node assigns to its node. Pure.

use super::node::Node;
use super::nodes::{Nodes, trimmed};
use crate::config::NetworkConfig;
use crate::table;
use std::path::Path;
use types::{Detail, Problem, Subnets};

/// podCIDRs of a Node that belong to the network's families and that no older Node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Assigned {
    pub subnets: Subnets,
}

impl Assigned {
    /// The daemon must not publish its attributes before this succeeds. The error contains the remedy.
    pub(super) fn of(
        node: &Node,
        config: &NetworkConfig,
        others: &Nodes,
        net_conf: &Path,
    ) -> Result<Self, Problem> {
        let (name, networks, net_conf) = (&node.name, config.networks, net_conf.display());
        let all = match &node.subnets {
            Ok(Some(subnets)) => *subnets,
            Ok(None) => {
                let nets: Vec<String> = networks.nets().map(|net| net.to_string()).collect();
                let cluster_cidr = nets.join(",");
                let text = format!(
                    "node \"{name}\" pod cidr not assigned: waiting for the controller manager; start kube-controller-manager with \
                     --allocate-node-cidrs=true and --cluster-cidr={cluster_cidr}, or run kubeadm init with --pod-network-cidr={cluster_cidr}"
                );
                let detail = Detail::PodCidrMissing { cluster_cidr: Some(cluster_cidr) };
                return Err(Problem::new("podcidr-missing", text).with(detail));
            }
            Err(why) => {
                let text = format!("cannot use the podCIDRs of node \"{name}\": {why}");
                return Err(Problem::new("podcidr-unusable", text));
            }
        };
        let Some(subnets) = trimmed(&all, &networks) else {
            let text = format!(
                "node \"{name}\" has podCIDR {all}, which is of another address family than the network {networks} in {net_conf}; change the ConfigMap \
                 kube-flannel-cfg (kubectl -n kube-flannel edit configmap kube-flannel-cfg)"
            );
            return Err(Problem::new("podcidr-other-family", text));
        };
        if !table::inside(&subnets, &networks) || !config.contains(&subnets) {
            let text = format!(
                "node \"{name}\" has podCIDR {subnets}, which is not inside the Network {networks} of {net_conf}. Set Network in the ConfigMap \
                 kube-flannel-cfg to the cluster's pod network (kube-controller-manager's --cluster-cidr; 10.42.0.0/16 in k3s): kubectl -n \
                 kube-flannel edit configmap kube-flannel-cfg. flanneld reads the change within two minutes, without a restart"
            );
            return Err(Problem::new("podcidr-outside-network", text));
        }
        if let Some(other) = others.senior(node) {
            let text = format!(
                "node \"{name}\" has podCIDR {subnets}, which overlaps the podCIDR of the older Node {other}. Delete one of the two Nodes (kubectl delete node {name}), and restart the deleted Node's kubelet, which registers the Node again"
            );
            return Err(Problem::new("podcidr-overlaps", text));
        }
        Ok(Self { subnets })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::annotations::Prefix;
    use std::time::Duration;

    fn node(name: &str, created: i64, cidrs: &str) -> Node {
        let text = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{"podCIDRs":{cidrs}}}}}"#);
        Node { created, ..Node::read(&text, &Prefix::parse("a.b").unwrap()).unwrap() }
    }

    fn assigned(config: &str, node: &Node, others: &Nodes) -> Result<String, String> {
        let config = NetworkConfig::parse_assigned(config).unwrap();
        let assigned =
            Assigned::of(node, &config, others, Path::new("/etc/kube-flannel/net-conf.json"));
        assigned.map(|assigned| assigned.subnets.to_string()).map_err(|why| why.to_string())
    }

    const V4: &str = r#"{"Network":"10.244.0.0/16","SubnetLen":99}"#;
    const DUAL: &str =
        r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd10:244::/48"}"#;
    const V6: &str = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd10:244::/48"}"#;

    #[test]
    fn families_that_a_node_or_the_network_lacks_are_left_out() {
        let nobody = Nodes::new("n1");
        let both = r#"["fd10:244:0:1::/64","10.244.1.0/24"]"#;
        for (config, cidrs, want) in [
            (V4, r#"["10.244.1.0/24"]"#, "10.244.1.0/24"),
            (V4, both, "10.244.1.0/24"),
            (DUAL, both, "10.244.1.0/24 and fd10:244:0:1::/64"),
            (DUAL, r#"["10.244.1.0/24"]"#, "10.244.1.0/24"),
            (DUAL, r#"["fd10:244:0:1::/64"]"#, "fd10:244:0:1::/64"),
            (V6, both, "fd10:244:0:1::/64"),
            // The subnet may fill the network.
            (V4, r#"["10.244.0.0/16"]"#, "10.244.0.0/16"),
        ] {
            assert_eq!(
                assigned(config, &node("n1", 5, cidrs), &nobody).as_deref(),
                Ok(want),
                "{config} {cidrs}"
            );
        }
    }

    #[test]
    fn mismatch_is_named_with_both_values() {
        let nobody = Nodes::new("n1");
        for (config, cidrs, parts) in [
            (
                V4,
                r#"["10.42.0.0/24"]"#,
                &["10.42.0.0/24", "10.244.0.0/16", "kube-flannel-cfg", "kubectl"][..],
            ),
            (V4, r#"["10.0.0.0/8"]"#, &["10.0.0.0/8", "10.244.0.0/16"]),
            (DUAL, r#"["10.244.1.0/24","fd00::/64"]"#, &["fd00::/64", "fd10:244::/48"]),
            (V6, r#"["10.244.1.0/24"]"#, &["address family"]),
            (V4, "[]", &["pod cidr not assigned", "--cluster-cidr=10.244.0.0/16"]),
            (V4, r#"["10.244.1.0/24","10.244.2.0/24"]"#, &["IPv4/IPv6 only or dualstack"]),
        ] {
            let why = assigned(config, &node("n1", 5, cidrs), &nobody).unwrap_err();
            assert!(parts.iter().all(|part| why.contains(part)), "{why}");
        }
    }

    #[test]
    fn older_node_keeps_the_subnet() {
        let mut others = Nodes::new("n2");
        others.put(node("n1", 5, r#"["10.244.1.0/24"]"#), Duration::ZERO);
        let why = |created| assigned(V4, &node("n2", created, r#"["10.244.1.0/25"]"#), &others);
        assert!(why(6).unwrap_err().contains("older Node n1"));
        assert!(why(5).unwrap_err().contains("older Node n1"));
        assert!(why(4).is_ok());
    }
}
