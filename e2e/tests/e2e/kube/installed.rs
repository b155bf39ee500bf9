//! Installs flannel in whole clusters as an operator does, and runs the checks that must pass afterwards.

use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use lab::{Cluster, ClusterOptions, Host, binaries, require_success, until_ok};
use serde_json::Value;

use crate::kube::testbed::{echo_pod, echo_service};

pub(super) fn repository_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The first call in a test builds them.
pub(super) fn build_image_archives_once() -> Result<Vec<PathBuf>> {
    // The test has a /tmp of its own.
    let folder = std::env::temp_dir().join("images");
    if !folder.exists() {
        let flanneld = binaries::flannel_binary("flanneld")?;
        let mut build = Command::new(repository_path("conf/image/build.sh"));
        build
            .env("PROFILE", "dev")
            .env("PROGRAMS", flanneld.parent().context("a folder")?)
            .env("CNI_PLUGIN", binaries::flannel_binary("flannel")?)
            .env("IMAGES", &folder);
        let output = build.output()?;
        require_success(&format!("{build:?}"), &output)?;
    }
    Ok(["flannel.tar", "flannel-cni-plugin.tar"].iter().map(|name| folder.join(name)).collect())
}

pub(super) fn manifest_changed_by(change: impl Fn(String) -> String) -> Result<String> {
    Ok(change(std::fs::read_to_string(repository_path("conf/kube-flannel.yml"))?))
}

/// What `helm install` with `args` applies, with its namespace and with more frequent probes.
pub(super) fn render_chart(args: &[&str]) -> Result<String> {
    let mut command = Command::new(binaries::helm_program()?);
    command.arg("template").arg("flannel").arg(repository_path("conf/chart")).args([
        "--namespace",
        "kube-flannel",
        "--kube-version",
        "1.37.0",
    ]);
    let output = command.args(args).output()?;
    let text = require_success(&format!("{command:?}"), &output)?;
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: kube-flannel, labels: {pod-security.kubernetes.io/enforce: privileged}}}\n";
    Ok(namespace.to_owned() + &with_frequent_probes(&text))
}

pub(super) fn with_images(options: ClusterOptions) -> Result<ClusterOptions> {
    Ok(build_image_archives_once()?.into_iter().fold(options, ClusterOptions::image))
}

pub(super) fn with_backend_type(text: &str, backend: &str) -> String {
    text.replace("\"Type\": \"vxlan\"", &format!("\"Type\": \"{backend}\""))
}

/// kubelet's probes run every second instead of every ten, so that an update of several nodes takes only seconds.
pub(super) fn with_frequent_probes(text: &str) -> String {
    text.replace("initialDelaySeconds: 5", "initialDelaySeconds: 1")
        .replace("periodSeconds: 10", "periodSeconds: 1")
}

/// The cluster may have another installation. Waits until every node is Ready and every daemon is ready.
pub(super) fn install_and_wait_ready(cluster: &Cluster, manifest: &str) -> Result<()> {
    cluster.apply(manifest)?;
    cluster.wait_nodes_ready()?;
    cluster.wait_daemon_set("kube-flannel", "kube-flannel-ds")
}

/// Creates one on each started node that has none yet, and their Service.
pub(super) fn apply_echo_pods_and_service(cluster: &Cluster) -> Result<()> {
    let pods = cluster
        .started()
        .enumerate()
        .map(|(number, node)| echo_pod(&format!("p{}", number + 1), node.name()));
    cluster.apply(&pods.chain([echo_service()]).collect::<Vec<_>>().join("---")).map(drop)
}

/// Pods on all nodes reach each other.
pub(super) fn apply_echo_pods_and_wait_connected(cluster: &Cluster) -> Result<()> {
    apply_echo_pods_and_service(cluster)?;
    for number in 1..=cluster.started().count() {
        cluster.wait_pod("default", &format!("p{number}"))?;
    }
    let addresses = cluster.pod_addresses("default")?;
    for (from, _) in &addresses {
        for (to, list) in addresses.iter().filter(|(to, _)| to != from) {
            ensure!(!list.is_empty(), "{to} has no address");
            for address in list {
                let ping = if address.is_ipv6() { "ping6" } else { "ping" };
                until_ok("pods reach each other", || {
                    cluster.exec(
                        "default",
                        from,
                        &[ping, "-c", "1", "-W", "1", &address.to_string()],
                    )
                })
                .with_context(|| format!("{from} to {to} at {address}"))?;
            }
        }
    }
    Ok(())
}

/// All pods reach each other and reply to the Service's clients, and each node's hostPort leads to its own pod.
pub(super) fn wait_pod_service_host_port_traffic(cluster: &Cluster) -> Result<()> {
    apply_echo_pods_and_wait_connected(cluster)?;
    let (nodes, addresses) =
        (cluster.started().collect::<Vec<_>>(), cluster.pod_addresses("default")?);
    let ask = |from: &str, to: &str| -> Result<String> {
        Ok(cluster
            .exec("default", from, &["sh", "-c", &format!("nc {to} </dev/null")])?
            .trim()
            .to_owned())
    };
    for (number, (from, _)) in addresses.iter().enumerate() {
        let mut answered = std::collections::BTreeSet::new();
        // After an outage of the API, kube-proxy may try again only a minute later.
        until_ok("every pod has answered for the Service", || {
            answered.insert(ask(from, "10.96.0.80 80")?);
            ensure!(answered.len() == addresses.len(), "{from} was answered by {answered:?} only");
            Ok(())
        })?;
        let other = (number + 1) % nodes.len();
        let host_port = format!("{} 8090", nodes[other].host().v4_of("enp0s8")?);
        until_ok("a hostPort of another node answers", || {
            let answer = ask(from, &host_port)?;
            ensure!(answer == format!("p{}", other + 1), "{host_port}: {answer}");
            Ok(())
        })?;
    }
    Ok(())
}

/// The address of `p1`, which is on the first node.
pub(super) fn first_pod(cluster: &Cluster) -> Result<IpAddr> {
    let mut pods = cluster.pod_addresses("default")?.into_iter();
    pods.find(|(name, _)| name == "p1")
        .and_then(|(_, list)| list.first().copied())
        .context("p1 has no address")
}

/// The source of `p1`'s packets at a host outside the pod network.
pub(super) fn measure_first_pod_source_outside(cluster: &Cluster) -> Result<IpAddr> {
    let (outside, node) = (cluster.api.host(), cluster.nodes[0].host().v4_of("enp0s8")?);
    // The host has routes to the pods, as a router may. Otherwise only masqueraded addresses would get replies.
    let cidr = cluster.api.admin().node(cluster.nodes[0].name())?["spec"]["podCIDR"]
        .as_str()
        .context("a podCIDR")?
        .to_owned();
    outside.netns().run_ip_batch(&format!("route replace {cidr} via {node}"))?;
    measure_first_pod_source(cluster, outside, outside.v4()?.into())
}

/// The source of `p1`'s packets to another node's address in the pod network.
pub(super) fn measure_first_pod_source_inside(cluster: &Cluster) -> Result<IpAddr> {
    let other = cluster.nodes[1].host();
    measure_first_pod_source(cluster, other, of_bridge(other)?)
}

fn measure_first_pod_source(cluster: &Cluster, host: &Host, address: IpAddr) -> Result<IpAddr> {
    let listener = host.netns().run(|| TcpListener::bind((address, 0)))??;
    listener.set_nonblocking(true)?;
    let script = format!("nc -w 60 {address} {} </dev/null", listener.local_addr()?.port());
    std::thread::scope(|scope| {
        let seen = scope
            .spawn(|| until_ok("the pod's connection comes", || Ok(listener.accept()?.1.ip())));
        cluster.exec("default", "p1", &["sh", "-c", &script])?;
        seen.join().unwrap_or_else(|_| bail!("a thread panicked"))
    })
}

/// No pod has ever failed because subnet.env was missing.
pub(super) fn require_no_failed_sandbox(cluster: &Cluster) -> Result<()> {
    let events = cluster.api.admin().get("/api/v1/events")?;
    let all = events["items"].as_array().into_iter().flatten();
    let failed: Vec<&Value> = all
        .filter(|event| event["reason"] == "FailedCreatePodSandBox")
        .map(|event| &event["message"])
        .collect();
    ensure!(failed.is_empty(), "{failed:#?}");
    Ok(())
}

fn of_bridge(host: &Host) -> Result<IpAddr> {
    let text = host.netns().exec("ip", &["-4", "-brief", "address", "show", "dev", "cni0"])?;
    Ok(text
        .split_whitespace()
        .nth(2)
        .and_then(|net| net.split('/').next())
        .context("cni0 has no address")?
        .parse()?)
}
