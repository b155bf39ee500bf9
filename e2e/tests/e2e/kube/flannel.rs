//! Tests of flannel in whole clusters, which the test installs only with the manifest, as an operator does.

use std::net::IpAddr;
use std::time::Instant;

use anyhow::{Result, ensure};
use lab::{Cluster, ClusterOptions, Lab, ProxyMode, until, until_ok};
use serde_json::Value;

use crate::kube::installed::{
    apply_echo_pods_and_service, apply_echo_pods_and_wait_connected, first_pod,
    install_and_wait_ready, manifest_changed_by, measure_first_pod_source_inside,
    measure_first_pod_source_outside, require_no_failed_sandbox,
    wait_pod_service_host_port_traffic, with_backend_type, with_frequent_probes, with_images,
};
use crate::kube::operations::disrupt_cluster_and_require_no_loss;

/// Each Node has the annotations and the condition that Go flannel writes.
fn require_node_annotations_and_condition(cluster: &Cluster, backend: &str) -> Result<()> {
    for node in cluster.started() {
        let annotation = |name: &str| cluster.api.admin().flannel_annotation(node.name(), name);
        ensure!(
            annotation("public-ip")? == Some(node.host().v4_of("enp0s8")?.to_string()),
            "{:?}",
            annotation("public-ip")?
        );
        ensure!(
            annotation("backend-type")?.as_deref() == Some(backend),
            "{:?}",
            annotation("backend-type")?
        );
        ensure!(annotation("kube-subnet-manager")?.as_deref() == Some("true"), "no mark");
        let condition = cluster.api.admin().condition(node.name(), "NetworkUnavailable")?;
        ensure!(
            condition["status"] == "False" && condition["reason"] == "FlannelIsUp",
            "{condition}"
        );
    }
    Ok(())
}

/// The effect of `--ip-masq`: pods' packets have the node's source address outside the pod network, and the pod's own inside it.
fn require_masquerade_only_outside(cluster: &Cluster) -> Result<()> {
    let (node, pod) = (IpAddr::V4(cluster.nodes[0].host().v4_of("enp0s8")?), first_pod(cluster)?);
    let (outside, inside) =
        (measure_first_pod_source_outside(cluster)?, measure_first_pod_source_inside(cluster)?);
    ensure!(
        outside == node && inside == pod,
        "{pod} on {node} is seen outside as {outside}, inside as {inside}"
    );
    Ok(())
}

/// Changes the backend in the ConfigMap, and restarts the DaemonSet as documented. The first node with the new backend has no usable peer until other
/// nodes restart.
fn apply_host_gw_manifest_and_wait(cluster: &Cluster, text: &str) -> Result<()> {
    cluster.apply(&with_frequent_probes(text))?;
    // A kubelet may mount the version of the ConfigMap from before the API was away.
    until_ok("every node has the other backend", || {
        cluster.kubectl(&[
            "--namespace=kube-flannel",
            "rollout",
            "restart",
            "daemonset/kube-flannel-ds",
        ])?;
        cluster.wait_daemon_set("kube-flannel", "kube-flannel-ds")?;
        require_node_annotations_and_condition(cluster, "host-gw")
    })?;
    apply_echo_pods_and_wait_connected(cluster)
}

#[test]
fn vxlan_cluster_loses_no_packet_through_node_changes() -> Result<()> {
    Lab::run("cluster: vxlan", |lab| {
        // The fourth node joins later.
        let mut cluster =
            Cluster::start_control_plane_only(lab, &with_images(ClusterOptions::new(4))?)?;
        cluster.start_and_register_nodes(0..3)?;
        // Every new cluster has pods that wait for the network, such as CoreDNS.
        apply_echo_pods_and_service(&cluster)?;
        let text = manifest_changed_by(|text| text)?;
        install_and_wait_ready(&cluster, &text)?;
        require_node_annotations_and_condition(&cluster, "vxlan")?;
        wait_pod_service_host_port_traffic(&cluster)?;
        require_masquerade_only_outside(&cluster)?;
        require_no_failed_sandbox(&cluster)?;
        disrupt_cluster_and_require_no_loss(&mut cluster, &text)?;

        let start = Instant::now();
        let print_elapsed = |what: &str| {
            println!("{what}: {:.1?} after what happened to the nodes", start.elapsed());
        };
        // A reboot empties /run. No pod fails because subnet.env is missing.
        let restarts = |cluster: &Cluster| -> Result<Value> {
            Ok(cluster.api.admin().get("/api/v1/namespaces/default/pods/p3")?["status"]["containerStatuses"][0]["restartCount"].clone())
        };
        let before = restarts(&cluster)?;
        cluster.node(2)?.reboot()?;
        let back = || {
            restarts(&cluster).is_ok_and(|now| now != before)
                && cluster.exec("default", "p3", &["echo"]).is_ok()
        };
        until("the pod of the node runs again", back)?;
        apply_echo_pods_and_wait_connected(&cluster)?;
        require_no_failed_sandbox(&cluster)?;
        print_elapsed("a reboot");

        apply_host_gw_manifest_and_wait(&cluster, &with_backend_type(&text, "host-gw"))?;
        print_elapsed("another backend");
        Ok(())
    })
}

#[test]
fn host_gw_cluster_with_nftables_proxy_loses_no_packet() -> Result<()> {
    Lab::run("cluster: host-gw", |lab| {
        // The third node joins later.
        let mut cluster = Cluster::start_control_plane_only(
            lab,
            &with_images(ClusterOptions::new(3).proxy(ProxyMode::Nftables))?,
        )?;
        cluster.start_and_register_nodes(0..2)?;
        let text = manifest_changed_by(|text| {
            with_frequent_probes(&with_backend_type(&text, "host-gw"))
                .replace("\"EnableNFTables\": false", "\"EnableNFTables\": true")
        })?;
        install_and_wait_ready(&cluster, &text)?;
        require_node_annotations_and_condition(&cluster, "host-gw")?;
        wait_pod_service_host_port_traffic(&cluster)?;
        ensure!(cluster.nodes[0].host().netns().link("flannel.1")?.is_none(), "a tunnel");
        require_masquerade_only_outside(&cluster)?;
        disrupt_cluster_and_require_no_loss(&mut cluster, &text)?;
        require_no_failed_sandbox(&cluster)
    })
}
