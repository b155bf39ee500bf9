//! Tests of operations and failures of a cluster's nodes, while streams of packets run between pods.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use lab::{Cluster, Door, Member, stdout_text, until_ok};

use crate::kube::installed::{
    apply_echo_pods_and_service, apply_echo_pods_and_wait_connected, install_and_wait_ready,
    with_frequent_probes,
};
use crate::kube::streams::Streams;

/// A daemon's readiness endpoint.
const READY: &str = "http://127.0.0.1:8081/readyz";

/// A rolling update, a drain, kills and restarts, and a minute without the API. The last node joins at the end.
///
/// The rolling update gives the daemons two addresses of the API server. After the outage, only the second one works.
pub(super) fn disrupt_cluster_and_require_no_loss(cluster: &mut Cluster, text: &str) -> Result<()> {
    let doors =
        [cluster.api.open_redirecting_port(7001)?, cluster.api.open_redirecting_port(7002)?];
    let urls = format!("--kube-api-url={},{}", doors[0].url(), doors[1].url());
    let text = with_frequent_probes(text)
        .replace("- --ip-masq\n", &format!("- --ip-masq\n        - {urls}\n"));
    ensure!(text.contains(&urls), "the manifest has other arguments");
    let streams = Streams::deploy_pods_and_start(cluster)?;
    let start = Instant::now();
    let print_elapsed = |what: &str| {
        println!("{what}: {:.1?} after the start of the streams", start.elapsed());
    };
    install_and_wait_ready(cluster, &text)?;
    print_elapsed("rolling update");
    drain_and_uncordon_second_node(cluster)?;
    print_elapsed("drain and return");
    kill_daemons_and_restart_components(cluster)?;
    install_and_wait_ready(cluster, &text)?;
    print_elapsed("daemons killed; kubelet, containerd and control plane restarted");
    interrupt_api_and_close_first_door(cluster, &doors)?;
    print_elapsed("a minute without the API");
    let newcomer = cluster.nodes.len() - 1;
    cluster.start_and_register_nodes(newcomer..newcomer + 1)?;
    print_elapsed("another node");
    install_and_wait_ready(cluster, &text)?;
    print_elapsed("its daemon");
    apply_echo_pods_and_wait_connected(cluster)?;
    print_elapsed("its pods");
    streams.require_clean()
}

fn drain_and_uncordon_second_node(cluster: &Cluster) -> Result<()> {
    let second = cluster.nodes[1].name();
    cluster.kubectl(&[
        "drain",
        second,
        "--ignore-daemonsets",
        "--force",
        "--grace-period=0",
        "--timeout=120s",
    ])?;
    let pod = cluster.api.admin().get("/api/v1/namespaces/default/pods/p2");
    ensure!(pod.is_err(), "the drained node still has its pod: {pod:?}");
    cluster.kubectl(&["uncordon", second])?;
    apply_echo_pods_and_service(cluster)?;
    cluster.wait_pod("default", "p2").map(drop)
}

fn kill_daemons_and_restart_components(cluster: &mut Cluster) -> Result<()> {
    let mut killed = Vec::new();
    for node in cluster.started() {
        let found = daemon_pids(node);
        ensure!(!found.is_empty(), "no daemon on {}", node.name());
        found
            .iter()
            .try_for_each(|pid| node.command(&["kill", "-9", &pid.to_string()]).map(drop))?;
        killed.extend(found);
    }
    cluster.node(0)?.stop_kubelet()?;
    cluster.node(0)?.start_kubelet()?;
    cluster.node(1)?.restart_containerd()?;
    cluster.kill_api_server_and_controllers()?;
    cluster.restart_killed_control_plane()?;
    // The API may still report the killed daemons as ready, so this compares processes.
    for node in cluster.started() {
        until_ok("a killed daemon is back", || {
            let (now, code) = (daemon_pids(node), request_http_status(node, READY)?);
            ensure!(
                code == "200" && !now.is_empty() && now.iter().all(|pid| !killed.contains(pid)),
                "{}: {now:?}, {code}",
                node.name()
            );
            Ok(())
        })?;
    }
    Ok(())
}

/// The process IDs of a node's daemon.
fn daemon_pids(node: &Member) -> Vec<i32> {
    let is_daemon = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim() == "flanneld")
    };
    node.host().netns().pids().into_iter().filter(is_daemon).collect()
}

/// Stops the API server until every daemon reports the outage. It comes back only at the second address.
fn interrupt_api_and_close_first_door(
    cluster: &mut Cluster,
    [first, second]: &[Door; 2],
) -> Result<()> {
    cluster.kill_api_server_and_controllers()?;
    first.refuse_new_connections()?;
    for node in cluster.started() {
        until_ok("a daemon without the API is not ready", || {
            let code = request_http_status(node, READY)?;
            ensure!(code == "503", "{}: {code}", node.name());
            Ok(())
        })?;
    }
    cluster.restart_killed_control_plane()?;
    for node in cluster.started() {
        let (away, back) = (
            request_http_status(node, first.url().as_str())?,
            request_http_status(node, second.url().as_str())?,
        );
        // Without a token the API server refuses the request. No server responds at the first address.
        ensure!(
            away == "000" && matches!(back.as_str(), "401" | "403"),
            "{}: {away} and {back}",
            node.name()
        );
    }
    Ok(())
}

/// The HTTP status; 000 without a response.
fn request_http_status(node: &Member, url: &str) -> Result<String> {
    let args = [
        "--silent",
        "--insecure",
        "--max-time",
        "10",
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_code}",
        url,
    ];
    let output = node.host().netns().output("curl", &args).context("curl")?;
    Ok(stdout_text(&output))
}
