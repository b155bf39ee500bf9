//! Flannel in whole clusters, installed as an operator does it: by the manifest, and nothing else.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::{ANNOTATIONS, Cluster, ClusterOptions, Families, Host, Lab, Probe, ProbeOptions, ProxyMode, binaries, eventually, eventually_ok};
use serde_json::Value;

use crate::kube::bed::{SOON, echo_pod, echo_service, turn};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The images of the programs under test, built once for all tests.
fn images() -> Result<Vec<PathBuf>> {
    static BUILT: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if built.is_none() {
        let programs = binaries::own("flanneld")?.parent().context("a folder")?.to_owned();
        let folder = programs.join("images-of-e2e");
        let mut build = Command::new(repository("conf/image/build.sh"));
        build.env("PROFILE", "dev").env("PROGRAMS", &programs).env("CNI_PLUGIN", binaries::own("flannel")?).env("IMAGES", &folder);
        let output = build.output()?;
        if !output.status.success() {
            bail!("{build:?}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        }
        *built = Some(folder);
    }
    let folder = built.as_ref().context("built")?;
    Ok(["flannel.tar", "flannel-cni-plugin.tar"].iter().map(|name| folder.join(name)).collect())
}

/// The manifest, with another net-conf.json.
fn manifest(change: impl Fn(String) -> String) -> Result<String> {
    Ok(change(std::fs::read_to_string(repository("conf/kube-flannel.yml"))?))
}

fn with_images(options: ClusterOptions) -> Result<ClusterOptions> {
    Ok(images()?.into_iter().fold(options, ClusterOptions::image))
}

fn backend(text: &str, backend: &str) -> String {
    text.replace("\"Type\": \"vxlan\"", &format!("\"Type\": \"{backend}\""))
}

/// Installs flannel and waits until every node is Ready and every daemon too.
fn install(cluster: &Cluster, manifest: &str) -> Result<()> {
    cluster.apply(manifest)?;
    cluster.wait_ready()?;
    cluster.wait_daemon_set("kube-flannel", "kube-flannel-ds")
}

/// A pod on each node; all reach each other, and from every node the Service is answered by all of them.
fn require_traffic(cluster: &Cluster) -> Result<()> {
    for (number, node) in cluster.nodes.iter().enumerate() {
        cluster.apply(&echo_pod(&format!("p{}", number + 1), node.name()))?;
    }
    cluster.apply(&echo_service())?;
    for number in 1..=cluster.nodes.len() {
        cluster.wait_pod("default", &format!("p{number}"))?;
    }
    let addresses = cluster.pod_addresses("default")?;
    for (from, _) in &addresses {
        for (to, list) in addresses.iter().filter(|(to, _)| to != from) {
            ensure!(!list.is_empty(), "{to} has no address");
            for address in list {
                let ping = if address.is_ipv6() { "ping6" } else { "ping" };
                eventually_ok(SOON, "pods reach each other", || cluster.exec("default", from, &[ping, "-c", "1", "-W", "1", &address.to_string()]))
                    .with_context(|| format!("{from} to {to} at {address}"))?;
            }
        }
        let mut answered = std::collections::BTreeSet::new();
        eventually_ok(SOON, "every pod has answered for the Service", || {
            answered.insert(cluster.exec("default", from, &["sh", "-c", "nc 10.96.0.80 80 </dev/null"])?.trim().to_owned());
            ensure!(answered.len() == addresses.len(), "{from} was answered by {answered:?} only");
            Ok(())
        })?;
    }
    Ok(())
}

/// No pod has ever failed for want of subnet.env.
fn require_no_failed_sandbox(cluster: &Cluster) -> Result<()> {
    let events = cluster.api.admin().get("/api/v1/events")?;
    let failed: Vec<&Value> = events["items"].as_array().into_iter().flatten().filter(|event| event["reason"] == "FailedCreatePodSandBox").collect();
    ensure!(failed.is_empty(), "{failed:#?}");
    Ok(())
}

/// Probes between the bridges of two nodes' pods: the way of packets from pod to pod but for the cable.
fn probe(cluster: &Cluster, from: usize, to: usize) -> Result<Probe> {
    let bridge = |host: &Host| -> Result<IpAddr> {
        let text = host.netns().exec("ip", &["-4", "-brief", "address", "show", "dev", "cni0"])?;
        Ok(text.split_whitespace().nth(2).and_then(|net| net.split('/').next()).context("cni0 has no address")?.parse()?)
    };
    let (from, to) = (cluster.nodes[from].host(), cluster.nodes[to].host());
    Probe::between((from.netns(), bridge(from)?), (to.netns(), bridge(to)?), &ProbeOptions::default())
}

#[test]
fn three_nodes_one_manifest_and_whatever_happens_to_them_no_packet_is_lost() -> Result<()> {
    let _turn = turn();
    Lab::run("cluster: vxlan", |lab| {
        let mut cluster = Cluster::start(lab, &with_images(ClusterOptions::new(3))?)?;
        let text = manifest(|text| text)?;
        install(&cluster, &text)?;
        for node in &cluster.nodes {
            let annotation = |name: &str| cluster.api.admin().flannel_annotation(node.name(), name);
            ensure!(annotation("public-ip")? == Some(node.host().v4_of("enp0s8")?.to_string()), "{:?}", annotation("public-ip")?);
            ensure!(
                annotation("backend-type")?.as_deref() == Some("vxlan") && annotation("kube-subnet-manager")?.as_deref() == Some("true"),
                "annotations"
            );
            let condition = cluster.api.admin().condition(node.name(), "NetworkUnavailable")?;
            ensure!(condition["status"] == "False" && condition["reason"] == "FlannelIsUp", "{condition}");
        }
        require_traffic(&cluster)?;
        require_no_failed_sandbox(&cluster)?;
        // hostPort, by portmap, from another node.
        let host_port = format!("{}", cluster.nodes[0].host().v4_of("enp0s8")?);
        eventually_ok(SOON, "a hostPort answers", || {
            let answer = cluster.exec("default", "p2", &["sh", "-c", &format!("nc {host_port} 8090 </dev/null")])?;
            ensure!(answer.trim() == "p1", "{answer}");
            Ok(())
        })?;

        let probe = probe(&cluster, 0, 1)?;
        probe.wait_flowing(SOON)?;
        // A rolling update.
        cluster.apply(&text.replace("- --ip-masq\n", "- --ip-masq\n        - --v=1\n"))?;
        cluster.wait_daemon_set("kube-flannel", "kube-flannel-ds")?;
        // The daemons killed; kubelet starts them anew.
        for node in &cluster.nodes {
            let pids = node.host().netns().pids();
            for pid in pids.into_iter().filter(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "flanneld"))
            {
                node.command(&["kill", "-9", &pid.to_string()])?;
            }
        }
        // Kubelet restarted, containerd restarted, the API server away.
        cluster.node(0)?.stop_kubelet()?;
        cluster.node(0)?.start_kubelet()?;
        cluster.node(1)?.restart_containerd()?;
        cluster.api.stop()?;
        cluster.api.restart()?;
        cluster.wait_ready()?;
        cluster.wait_daemon_set("kube-flannel", "kube-flannel-ds")?;
        require_traffic(&cluster)?;
        probe.finish()?.require_clean()?;

        // A reboot empties /run; no pod fails for want of subnet.env.
        cluster.node(2)?.reboot()?;
        let back = || cluster.exec("default", "p3", &["echo"]).is_ok();
        eventually(Duration::from_secs(120), "the pod of the node runs again", back)?;
        require_traffic(&cluster)?;
        require_no_failed_sandbox(&cluster)
    })
}

#[test]
fn host_gw_with_kube_proxy_by_nftables() -> Result<()> {
    let _turn = turn();
    Lab::run("cluster: host-gw", |lab| {
        let cluster = Cluster::start(lab, &with_images(ClusterOptions::new(2).proxy(ProxyMode::Nftables))?)?;
        install(&cluster, &manifest(|text| backend(&text, "host-gw").replace("\"EnableNFTables\": false", "\"EnableNFTables\": true"))?)?;
        require_traffic(&cluster)?;
        ensure!(cluster.nodes[0].host().netns().link("flannel.1")?.is_none(), "a tunnel");
        require_no_failed_sandbox(&cluster)
    })
}

#[test]
fn dual_stack() -> Result<()> {
    let _turn = turn();
    Lab::run("cluster: dual-stack", |lab| {
        let cluster = Cluster::start(lab, &with_images(ClusterOptions::new(2).families(Families::Dual))?)?;
        let dual = "\"Network\": \"10.244.0.0/16\",\n      \"EnableIPv6\": true,\n      \"IPv6Network\": \"fd10:244::/48\",";
        install(&cluster, &manifest(|text| text.replace("\"Network\": \"10.244.0.0/16\",", dual))?)?;
        require_traffic(&cluster)?;
        let addresses = cluster.pod_addresses("default")?;
        ensure!(addresses.iter().all(|(_, list)| list.len() == 2), "{addresses:?}");
        Ok(())
    })
}

/// Every node is 10.0.2.15 on its default route; the nodes come all at once or one by one.
fn vagrant(node_ip: bool, one_by_one: bool) -> Result<()> {
    let _turn = turn();
    Lab::run(&format!("cluster: Vagrant, --node-ip: {node_ip}, one by one: {one_by_one}"), |lab| {
        let mut options = with_images(ClusterOptions::new(2).vagrant())?;
        if !node_ip {
            options = options.without_node_ip();
        }
        let mut cluster = Cluster::prepare(lab, &options)?;
        let text = manifest(|text| text)?;
        if one_by_one {
            cluster.start_nodes(0..1)?;
            install(&cluster, &text)?;
            cluster.start_nodes(1..2)?;
        } else {
            cluster.start_nodes(0..2)?;
        }
        install(&cluster, &text)?;
        if !node_ip {
            let node = cluster.api.admin().node("h1")?;
            ensure!(node["status"]["addresses"].to_string().contains("10.0.2.15"), "no trap: {}", node["status"]["addresses"]);
        }
        for node in &cluster.nodes {
            let right = node.host().v4_of("enp0s8")?.to_string();
            eventually_ok(SOON, "the node publishes what joins it with the others", || {
                let public = cluster.api.admin().flannel_annotation(node.name(), "public-ip")?;
                ensure!(public.as_deref() == Some(right.as_str()), "{}: {ANNOTATIONS}public-ip is {public:?} instead of {right}", node.name());
                Ok(())
            })?;
        }
        require_traffic(&cluster)
    })
}

#[test]
fn vagrant_with_node_ip() -> Result<()> {
    vagrant(true, false)
}

#[test]
fn vagrant_without_node_ip_all_at_once() -> Result<()> {
    vagrant(false, false)
}

#[test]
fn vagrant_without_node_ip_one_by_one() -> Result<()> {
    vagrant(false, true)
}
