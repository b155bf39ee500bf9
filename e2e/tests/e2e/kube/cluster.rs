//! Tests of whole clusters before they have a pod network, and of the objects that a removed cluster leaves.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use lab::{Cluster, ClusterOptions, Lab, ProxyMode, until_ok};
use serde_json::{Value, json};

use crate::kube::bed::{echo_pod, echo_service};

/// Creates a pod network without flannel, with the plugins bridge and host-local and with static routes.
fn plain_network(cluster: &Cluster) -> Result<()> {
    let admin = cluster.api.admin();
    for node in &cluster.nodes {
        let cidr = admin.node(node.name())?["spec"]["podCIDR"]
            .as_str()
            .context("a podCIDR")?
            .to_owned();
        let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": cidr }]], "routes": [{ "dst": "0.0.0.0/0" }] });
        let bridge = json!({ "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": ipam });
        let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
        let list = json!({ "cniVersion": "0.3.1", "name": "plain", "plugins": [bridge, portmap] });
        node.write_cni_config("10-plain.conflist", &list.to_string())?;
        let address = node.host().v4_of("enp0s8")?;
        for other in cluster
            .nodes
            .iter()
            .filter(|other| other.name() != node.name())
        {
            other
                .host()
                .netns()
                .ip(&format!("route add {cidr} via {address}"))?;
        }
    }
    Ok(())
}

/// Checks that pods on each node reach the Service of all pods, through the kube-proxy of their node.
fn require_service(cluster: &Cluster) -> Result<()> {
    for (number, node) in cluster.nodes.iter().enumerate() {
        cluster.apply(&echo_pod(&format!("p{}", number + 1), node.name()))?;
    }
    cluster.apply(&echo_service())?;
    for number in 1..=cluster.nodes.len() {
        cluster.wait_pod("default", &format!("p{number}"))?;
    }
    for number in 1..=cluster.nodes.len() {
        let pod = format!("p{number}");
        let asked = || {
            cluster.exec(
                "default",
                &pod,
                &["sh", "-c", "nc 10.96.0.80 80 </dev/null"],
            )
        };
        let mut answered = std::collections::BTreeSet::new();
        until_ok("every pod has answered for the Service", || {
            answered.insert(asked()?.trim().to_owned());
            ensure!(
                answered.len() == cluster.nodes.len(),
                "{pod} was answered by {answered:?} only"
            );
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn cluster_without_flannel_starts_and_leaves_nothing() -> Result<()> {
    let (mut prefix, mut cgroups) = (String::new(), Vec::new());
    Lab::run("cluster without flannel", |lab| {
        prefix = lab.prefix();
        let mut cluster = Cluster::start(lab, &ClusterOptions::new(2).proxy(ProxyMode::Nftables))?;
        let unready = cluster.api.admin().condition("n1", "Ready")?;
        ensure!(
            unready["status"] == "False",
            "a node without a pod network is ready: {unready}"
        );
        plain_network(&cluster)?;
        cluster.wait_ready()?;
        require_service(&cluster)?;

        // A reboot empties /run. The pods come back by themselves.
        let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
        let before = cluster
            .api
            .admin()
            .get("/api/v1/namespaces/default/pods/p1")?;
        cluster.node(0)?.reboot()?;
        let back = until_ok("the pod runs again", || {
            let pod = cluster
                .api
                .admin()
                .get("/api/v1/namespaces/default/pods/p1")?;
            ensure!(
                restarts(&pod) > restarts(&before)
                    && pod["status"]["containerStatuses"][0]["ready"] == true,
                "{}",
                pod["status"]
            );
            Ok(pod)
        })?;
        ensure!(
            back["metadata"]["uid"] == before["metadata"]["uid"],
            "another pod"
        );
        for node in &cluster.nodes {
            cgroups.extend(
                node.command(&[
                    "ctr",
                    "--namespace",
                    "k8s.io",
                    "containers",
                    "list",
                    "--quiet",
                ])?
                .lines()
                .map(str::to_owned),
            );
        }
        Ok(())
    })?;
    require_no_trace(&prefix)?;
    ensure!(cgroups.len() >= 4, "containers: {cgroups:?}");
    require_no_cgroups(&cgroups)
}

fn require_no_trace(prefix: &str) -> Result<()> {
    ensure!(
        !prefix.is_empty() && !Path::new("/tmp/flannel-lab").join(prefix).exists(),
        "the lab's folder is left"
    );
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    ensure!(!mounts.contains(prefix), "mounts are left:\n{mounts}");
    let left = std::fs::read_dir("/proc")?.flatten().filter(|entry| {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(prefix)
            || std::fs::read_to_string(entry.path().join("mountinfo"))
                .is_ok_and(|text| text.contains(prefix))
    });
    let left: Vec<_> = left.map(|entry| entry.path()).collect();
    ensure!(left.is_empty(), "processes are left: {left:?}");
    Ok(())
}

fn require_no_cgroups(containers: &[String]) -> Result<()> {
    let mut folders = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            ensure!(
                !containers.iter().any(|id| name.contains(id.as_str())),
                "a cgroup is left: {}",
                entry.path().display()
            );
            folders.push(entry.path());
        }
    }
    Ok(())
}
