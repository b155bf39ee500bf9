//! flannel's pods have enough rights on a node for every backend, and no unnecessary ones.

use anyhow::{Context, Result, ensure};
use lab::{Cluster, ClusterOptions, Lab, Member};

use crate::kube::installed::{
    apply_echo_pods_and_service, apply_echo_pods_and_wait_connected, install_and_wait_ready,
    manifest_changed_by, render_chart, require_no_failed_sandbox,
    wait_pod_service_host_port_traffic, with_frequent_probes, with_images,
};

/// kubespray's user kube.
const KUBE: &str = "997";

/// `/proc/PID/status` of a node's daemon.
fn daemon_process_status(node: &Member) -> Result<String> {
    let is_daemon = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim() == "flanneld")
    };
    let pid = node.host().netns().pids().into_iter().find(is_daemon).context("no daemon")?;
    Ok(std::fs::read_to_string(format!("/proc/{pid}/status"))?)
}

#[test]
fn plugin_and_configuration_are_installed_in_folders_of_another_user() -> Result<()> {
    Lab::run("cluster: folders of kube", |lab| {
        let cluster =
            Cluster::start_with_registered_nodes(lab, &with_images(ClusterOptions::new(1))?)?;
        let node = cluster.nodes.first().context("a node")?;
        for folder in ["/etc/cni/net.d", "/opt/cni/bin"] {
            node.command(&["chown", KUBE, folder])?;
            node.command(&["chmod", "0755", folder])?;
        }
        install_and_wait_ready(
            &cluster,
            &manifest_changed_by(|text| with_frequent_probes(&text))?,
        )?;
        let owner = node.command(&["stat", "--format=%u", "/etc/cni/net.d", "/opt/cni/bin"])?;
        ensure!(owner.split_whitespace().eq([KUBE, KUBE]), "the folders belong to {owner}");
        node.command(&[
            "test",
            "-s",
            "/etc/cni/net.d/10-flannel.conflist",
            "-a",
            "-x",
            "/opt/cni/bin/flannel",
        ])?;
        let status = daemon_process_status(node)?;
        let line = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
                .unwrap_or_default()
        };
        // The capabilities are NET_ADMIN, NET_RAW and DAC_OVERRIDE. The seccomp filter is the runtime's.
        ensure!(
            line("CapEff:") == "0000000000003002"
                && line("Seccomp:") == "2"
                && line("NoNewPrivs:") == "1",
            "{status}"
        );
        apply_echo_pods_and_wait_connected(&cluster)?;
        require_no_failed_sandbox(&cluster)
    })
}

#[test]
fn userspace_vxlan_from_chart_carries_packets() -> Result<()> {
    Lab::run("cluster: vxlan in user space", |lab| {
        let cluster =
            Cluster::start_with_registered_nodes(lab, &with_images(ClusterOptions::new(2))?)?;
        apply_echo_pods_and_service(&cluster)?;
        install_and_wait_ready(
            &cluster,
            &render_chart(&["--set", "flannel.backendExtra.Mode=userspace"])?,
        )?;
        let device = cluster
            .nodes
            .first()
            .context("a node")?
            .host()
            .netns()
            .exec("ip", &["-details", "link", "show", "flannel.1"])?;
        ensure!(device.contains("tun type tun"), "{device}");
        wait_pod_service_host_port_traffic(&cluster)?;
        require_no_failed_sandbox(&cluster)
    })
}
