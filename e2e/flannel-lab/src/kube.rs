//! `flannelctl lab --kube`: a real Kubernetes cluster in which the lab installs flannel as an operator does, and then calls a Service.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use lab::{Cluster, ClusterOptions, Lab, Member, until_ok};
use serde_json::Value;

use crate::{key, page};
use terminal::screen::{Screen, Style};

/// A pod that replies to each TCP connection with its own name, and the Service in front of all these pods.
const WEB: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: web}}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: localhost/busybox:1
    imagePullPolicy: Never
    command: [nc, -ll, -p, "8080", -e, echo, "NAME on NODE"]
    ports: [{containerPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.80
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
"#;

pub(crate) struct Plan<'a> {
    pub nodes: u8,
    /// All nodes have 10.0.2.15 on their first interface.
    pub vagrant: bool,
    /// Contains flannel's image archives.
    pub images: &'a Path,
    /// Of flannel.
    pub manifest: &'a Path,
    /// The cluster keeps running after the demonstration.
    pub keep: bool,
}

/// Waits for a key at the end if standard input is a terminal.
pub(crate) fn demonstrate_cluster(plan: &Plan, screen: Screen) -> Result<()> {
    let archives = ["flannel.tar", "flannel-cni-plugin.tar"].map(|name| plan.images.join(name));
    for archive in &archives {
        ensure!(
            archive.is_file(),
            "{} does not exist: run `make demo KUBE=1` or `make image`, which build the file",
            archive.display()
        );
    }
    let manifest = std::fs::read_to_string(plan.manifest)
        .with_context(|| format!("reading {}", plan.manifest.display()))?;
    screen.heading(format!(
        "Kubernetes on this machine: {} nodes with containerd, kubelet and kube-proxy",
        plan.nodes
    ));
    let lab = Lab::create("kubernetes")?;
    let mut options = ClusterOptions::new(plan.nodes);
    if plan.vagrant {
        options = options.nat_with_equal_addresses();
    }
    let cluster = screen.step("control plane, then the nodes with their images", || {
        let cluster = Cluster::start_with_registered_nodes(
            &lab,
            &archives.iter().fold(options, |options, archive| options.image(archive.clone())),
        )?;
        Ok((cluster, format!("{} registered, none Ready", plan.nodes)))
    })?;
    screen.step(&format!("kubectl apply -f {}", plan.manifest.display()), || {
        cluster.apply(&manifest).map(|_| ((), String::new()))
    })?;
    screen.step("nodes", || cluster.wait_nodes_ready().map(|_| ((), "all Ready".to_owned())))?;
    screen.step("DaemonSet kube-flannel-ds", || {
        cluster
            .wait_daemon_set("kube-flannel", "kube-flannel-ds")
            .map(|()| ((), "ready".to_owned()))
    })?;
    let pods =
        screen.step("a pod on each node, and a Service", || start_pods_and_service(&cluster))?;
    let matrix =
        screen.step("every pod pings every other", || ping_between_pods(&cluster, &pods))?;
    screen.table(&matrix);
    let answers = screen
        .step("each pod connects to the Service 10.96.0.80 until every pod has replied", || {
            call_service_until_every_pod_replies(&cluster, &pods)
        })?;
    screen.block(&answers);
    screen.heading("kubectl get nodes,pods --all-namespaces --output=wide");
    screen.block(&cluster.kubectl(&["get", "nodes,pods", "--all-namespaces", "--output=wide"])?);
    if let Some(node) = cluster.nodes.first() {
        print_flannel_annotations_and_routes(&cluster, node, screen)?;
    }
    if plan.keep {
        lab.keep()?;
    }
    let first = cluster.nodes.first().context("no nodes")?;
    let page = page::spawn_page_forwarder(first.host().netns())?;
    print_cluster_commands(&cluster, page, screen)?;
    if !plan.keep && std::io::stdin().is_terminal() {
        screen.print(format!(
            "\n  {}",
            screen.styled(Style::Strong, "The cluster stays up until you press a key.")
        ));
        key::wait_for_key(std::io::stdin())?;
        screen.print("  removing the cluster");
    }
    Ok(())
}

fn pod_name(number: usize) -> String {
    format!("web-{}", number + 1)
}

fn start_pods_and_service(cluster: &Cluster) -> Result<(Vec<(String, String)>, String)> {
    for (number, node) in cluster.nodes.iter().enumerate() {
        cluster.apply(&WEB.replace("NAME", &pod_name(number)).replace("NODE", node.name()))?;
    }
    let mut pods = Vec::new();
    for number in 0..cluster.nodes.len() {
        let pod = cluster.wait_pod("default", &pod_name(number))?;
        let address = pod
            .pointer("/status/podIP")
            .and_then(Value::as_str)
            .context("a pod without an address")?;
        pods.push((pod_name(number), address.to_owned()));
    }
    let addresses: Vec<&str> = pods.iter().map(|(_, address)| address.as_str()).collect();
    let addresses = addresses.join(", ");
    Ok((pods, addresses))
}

/// Each row consists of its cells.
type Rows = Vec<Vec<(String, Style)>>;

fn ping_between_pods(cluster: &Cluster, pods: &[(String, String)]) -> Result<(Rows, String)> {
    let heading = std::iter::once("from \\ to").chain(pods.iter().map(|(name, _)| name.as_str()));
    let mut rows = vec![heading.map(|text| (text.to_owned(), Style::Strong)).collect::<Vec<_>>()];
    for (from, _) in pods {
        let mut row = vec![(from.clone(), Style::Strong)];
        for (to, address) in pods {
            if from == to {
                row.push(("-".to_owned(), Style::Faint));
                continue;
            }
            let output = until_ok("a pod answers", || {
                cluster.exec("default", from, &["ping", "-c", "1", "-W", "1", address])
            })?;
            let time = output
                .split("time=")
                .nth(1)
                .and_then(|rest| rest.split_whitespace().next())
                .unwrap_or("?");
            row.push((format!("{time} ms"), Style::Good));
        }
        rows.push(row);
    }
    Ok((rows, "over flannel.1".to_owned()))
}

fn call_service_until_every_pod_replies(
    cluster: &Cluster,
    pods: &[(String, String)],
) -> Result<(String, String)> {
    let mut lines = Vec::new();
    for (from, _) in pods {
        let mut answers = std::collections::BTreeSet::new();
        until_ok("every pod replies through the Service", || {
            answers.insert(
                cluster
                    .exec("default", from, &["sh", "-c", "nc 10.96.0.80 80 </dev/null"])?
                    .trim()
                    .to_owned(),
            );
            ensure!(answers.len() == pods.len(), "{answers:?}");
            Ok(())
        })?;
        lines.push(format!("{from}: {}", answers.into_iter().collect::<Vec<_>>().join(", ")));
    }
    Ok((lines.join("\n"), String::new()))
}

fn print_flannel_annotations_and_routes(
    cluster: &Cluster,
    node: &Member,
    screen: Screen,
) -> Result<()> {
    screen.heading(format!(
        "{}: annotations that flannel published, and routes to other nodes",
        node.name()
    ));
    let found = cluster.api.admin().node(node.name())?;
    let annotations =
        found.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
    for (name, value) in annotations.filter(|(name, _)| name.starts_with(lab::ANNOTATIONS)) {
        screen.block(&format!("{name}: {}", value.as_str().unwrap_or_default()));
    }
    screen.block(&node.host().netns().exec("ip", &["route", "show", "dev", "flannel.1"])?);
    Ok(())
}

fn print_cluster_commands(cluster: &Cluster, page: SocketAddr, screen: Screen) -> Result<()> {
    screen.heading("What to try");
    let kubectl = cluster.kubectl_command()?;
    let inside =
        cluster.nodes.first().map(|node| node.host().netns().name().to_owned()).unwrap_or_default();
    screen.commands(&[
        (format!("{kubectl} get pods --all-namespaces"), "kubectl as the administrator"),
        (
            format!("{kubectl} --namespace=kube-flannel logs daemonset/kube-flannel-ds"),
            "the log of a daemon",
        ),
        (
            format!("ip netns exec {inside} tcpdump -ni enp0s8"),
            "packets on the wire of the first node",
        ),
        (format!("http://{page}/"), "the status page of the first node"),
    ]);
    Ok(())
}
