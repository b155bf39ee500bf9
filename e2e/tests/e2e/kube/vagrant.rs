//! Tests clusters of VirtualBox machines: every node has its own NAT on the default route, with equal or with different addresses.

use anyhow::{Result, ensure};
use lab::{ANNOTATIONS, Cluster, ClusterOptions, Lab, Member, ProxyMode, until_ok};

use crate::kube::installed::{impatient, install, manifest, require_traffic, with_images};

/// Order in which the nodes start.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    Together,
    OneByOne,
    /// Start of all nodes together, and a second start after a power-off of all nodes.
    OffAndOn,
}

fn vagrant(options: ClusterOptions, order: Order) -> Result<()> {
    Lab::run(&format!("cluster: Vagrant, {order:?}"), |lab| {
        let mut cluster = Cluster::prepare(lab, &with_images(options)?)?;
        let all = cluster.nodes.len();
        let text = manifest(|text| impatient(&text))?;
        if order == Order::OneByOne {
            for node in 0..all {
                cluster.start_nodes(node..node + 1)?;
                install(&cluster, &text)?;
            }
        } else {
            cluster.start_nodes(0..all)?;
            install(&cluster, &text)?;
        }
        require_right(&cluster)?;
        require_traffic(&cluster)?;
        if order == Order::OffAndOn {
            // After a power cut the API reports the old state of pods for a while, so new pods are created.
            for number in 1..=all {
                cluster.api.admin().delete(&format!(
                    "/api/v1/namespaces/default/pods/p{number}?gracePeriodSeconds=0"
                ))?;
            }
            cluster.nodes.iter_mut().try_for_each(Member::power_off)?;
            cluster.start_nodes(0..all)?;
            cluster.wait_ready()?;
            cluster.wait_daemon_set("kube-flannel", "kube-flannel-ds")?;
            require_right(&cluster)?;
            require_traffic(&cluster)?;
        }
        Ok(())
    })
}

/// Checks that every node publishes its address in the nodes' shared network, although kubelet may report a different address.
fn require_right(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        let right = node.host().v4_of("enp0s8")?.to_string();
        until_ok("the node publishes what joins it with the others", || {
            let public = cluster
                .api
                .admin()
                .flannel_annotation(node.name(), "public-ip")?;
            ensure!(
                public.as_deref() == Some(right.as_str()),
                "{}: {ANNOTATIONS}public-ip is {public:?} instead of {right}",
                node.name()
            );
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn equal_nat_addresses_are_skipped_when_kubelets_report_others() -> Result<()> {
    vagrant(
        ClusterOptions::new(2).vagrant().proxy(ProxyMode::Nftables),
        Order::Together,
    )
}

#[test]
fn equal_nat_addresses_are_skipped_when_kubelets_report_them() -> Result<()> {
    vagrant(
        ClusterOptions::new(2).vagrant().without_node_ip(),
        Order::OffAndOn,
    )
}

#[test]
fn equal_nat_addresses_are_skipped_when_nodes_join_one_by_one() -> Result<()> {
    vagrant(
        ClusterOptions::new(3)
            .vagrant()
            .node_ip(&[false, true, false]),
        Order::OneByOne,
    )
}

#[test]
fn distinct_nat_addresses_are_skipped_when_nodes_join_one_by_one() -> Result<()> {
    vagrant(
        ClusterOptions::new(3).vagrant_apart().without_node_ip(),
        Order::OneByOne,
    )
}
