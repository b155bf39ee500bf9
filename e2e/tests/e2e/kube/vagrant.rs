//! A cluster of VirtualBox machines: every node has its own NAT on the default route, with equal addresses, and kubelets report them.

use anyhow::{Result, ensure};
use lab::{Cluster, ClusterOptions, Lab, Member, until_ok};

use crate::kube::installed::{
    install_and_wait_ready, manifest_changed_by, require_traffic, with_frequent_probes, with_images,
};

/// Every node publishes its address in the nodes' shared network.
fn require_right(cluster: &Cluster) -> Result<()> {
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
    require_traffic(cluster)
}

#[test]
fn equal_nat_addresses_are_skipped_when_kubelets_report_them() -> Result<()> {
    Lab::run("cluster: Vagrant", |lab| {
        let options = with_images(ClusterOptions::new(2).vagrant().without_node_ip())?;
        let mut cluster = Cluster::prepare(lab, &options)?;
        cluster.start_nodes(0..2)?;
        install_and_wait_ready(
            &cluster,
            &manifest_changed_by(|text| with_frequent_probes(&text))?,
        )?;
        require_right(&cluster)?;
        // After a power cut the API reports the old state of pods for a while, so new pods are created.
        for number in 1..=2 {
            let pod = format!("/api/v1/namespaces/default/pods/p{number}?gracePeriodSeconds=0");
            cluster.api.admin().delete(&pod)?;
        }
        cluster.nodes.iter_mut().try_for_each(Member::power_off)?;
        cluster.start_nodes(0..2)?;
        cluster.wait_ready()?;
        cluster.wait_daemon_set("kube-flannel", "kube-flannel-ds")?;
        require_right(&cluster)
    })
}
