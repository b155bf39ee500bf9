//! A cluster of VirtualBox machines: every node has its own NAT on the default route, with equal addresses, and kubelets report them.

use anyhow::{Result, ensure};
use lab::{Cluster, ClusterOptions, Lab, Member, until_ok};

use crate::kube::installed::{
    install_and_wait_ready, manifest_changed_by, wait_pod_service_host_port_traffic,
    with_frequent_probes, with_images,
};

/// Every node publishes its address in the nodes' shared network.
fn wait_public_ips_and_traffic(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        let right = node.host().v4_of("enp0s8")?.to_string();
        until_ok("the node publishes what joins it with the others", || {
            let admin = cluster.api.admin();
            let public = admin.flannel_annotation(node.name(), "public-ip")?;
            ensure!(
                public.as_ref() == Some(&right),
                "{}: {public:?} instead of {right}",
                node.name()
            );
            Ok(())
        })?;
    }
    wait_pod_service_host_port_traffic(cluster)
}

#[test]
fn equal_nat_addresses_are_skipped_when_kubelets_report_them() -> Result<()> {
    Lab::run("cluster: Vagrant", |lab| {
        let options =
            with_images(ClusterOptions::new(2).nat_with_equal_addresses().without_node_ip())?;
        let mut cluster = Cluster::start_control_plane_only(lab, &options)?;
        cluster.start_and_register_nodes(0..2)?;
        install_and_wait_ready(
            &cluster,
            &manifest_changed_by(|text| with_frequent_probes(&text))?,
        )?;
        wait_public_ips_and_traffic(&cluster)?;
        // After a power cut the API reports the old state of pods for a while, so new pods are created.
        for number in 1..=2 {
            let pod = format!("/api/v1/namespaces/default/pods/p{number}?gracePeriodSeconds=0");
            cluster.api.admin().delete(&pod)?;
        }
        cluster.nodes.iter_mut().try_for_each(Member::power_off)?;
        cluster.start_and_register_nodes(0..2)?;
        cluster.wait_nodes_ready()?;
        cluster.wait_daemon_set("kube-flannel", "kube-flannel-ds")?;
        wait_public_ips_and_traffic(&cluster)
    })
}
