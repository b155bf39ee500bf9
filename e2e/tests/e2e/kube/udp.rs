//! The udp backend in a cluster, with the chart and a privileged pod. Each update of a node interrupts its tunnel for several seconds.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use lab::{Cluster, ClusterOptions, Lab};

use crate::kube::installed::{
    apply_echo_pods_and_service, first_pod, install_and_wait_ready,
    measure_first_pod_source_outside, render_chart, require_no_failed_sandbox,
    wait_pod_service_host_port_traffic, with_images,
};
use crate::kube::streams::Streams;

const UDP: [&str; 2] = ["--set", "flannel.backend=udp"];

#[test]
fn udp_chart_carries_traffic_through_a_rolling_update() -> Result<()> {
    Lab::run("cluster: udp", |lab| {
        let cluster =
            Cluster::start_with_registered_nodes(lab, &with_images(ClusterOptions::new(2))?)?;
        apply_echo_pods_and_service(&cluster)?;
        install_and_wait_ready(&cluster, &render_chart(&UDP)?)?;
        ensure!(cluster.nodes[0].host().netns().link("flannel0")?.is_some(), "no tunnel device");
        wait_pod_service_host_port_traffic(&cluster)?;
        require_no_failed_sandbox(&cluster)?;
        let node = IpAddr::V4(cluster.nodes[0].host().v4_of("enp0s8")?);
        let seen = measure_first_pod_source_outside(&cluster)?;
        ensure!(seen == node, "with --ip-masq the pod is seen as {seen} instead of {node}");

        // The update removes --ip-masq. It interrupts the tunnel of a node while the node's daemon is replaced.
        let streams = Streams::deploy_pods_and_start(&cluster)?;
        install_and_wait_ready(
            &cluster,
            &render_chart(&[UDP[0], UDP[1], "--set", "flannel.args={--kube-subnet-mgr}"])?,
        )?;
        streams.wait_flowing()?;
        for report in streams.finish()? {
            println!("udp, rolling update of two nodes: {report}");
            ensure!(report.wrong == 0, "{report}");
        }
        wait_pod_service_host_port_traffic(&cluster)?;
        let (seen, pod) = (measure_first_pod_source_outside(&cluster)?, first_pod(&cluster)?);
        ensure!(seen == pod, "without --ip-masq the pod is seen as {seen} instead of {pod}");
        Ok(())
    })
}
