//! The commands of the Kubernetes pages: those that can run here are run in a real cluster, and no other is on the pages without a reason.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::{Cluster, ClusterOptions, Lab, binaries, eventually_ok};

use super::{images, read, repository};

/// Pages and the heading after which their commands count; "" is the whole page.
const PAGES: &[(&str, &str)] =
    &[("docs/kubernetes.md", ""), ("docs/kubernetes-k3s.md", ""), ("docs/vagrant.md", ""), ("docs/migrating.md", "## On Kubernetes")];

/// What cannot run here, and why.
const NOT_HERE: &[(&str, &str)] = &[
    ("make image", "the test builds the images of the programs that it runs, by the same script"),
    ("make image ARCH=arm64", "another compiler and minutes: make test-images"),
    ("ctr -n k8s.io images import flannel.tar", "the nodes here import with the snapshotter that works below a test"),
    ("ctr -n k8s.io images import flannel-cni-plugin.tar", "the same"),
    ("curl -sfL https://get.k3s.io | sh -s - --flannel-backend=none --disable-network-policy --cluster-cidr=10.42.0.0/16", "there is no k3s here"),
    ("mkdir -p /opt/cni/bin", "the same"),
    ("for plugin in bridge host-local loopback portmap; do ln -sf /var/lib/rancher/k3s/data/current/bin/$plugin /opt/cni/bin/; done", "the same"),
    ("mkdir -p /var/lib/rancher/k3s/agent/images", "the same"),
    ("cp flannel.tar flannel-cni-plugin.tar /var/lib/rancher/k3s/agent/images/", "the same"),
    ("systemctl restart k3s", "the same"),
    ("echo 'KUBELET_EXTRA_ARGS=--node-ip=192.168.56.11' > /etc/default/kubelet", "kubelet is no service here"),
    ("systemctl restart kubelet", "the same"),
    ("kubeadm init --apiserver-advertise-address=192.168.56.11 --pod-network-cidr=10.244.0.0/16", "there is no kubeadm here"),
    ("helm install flannel conf/chart --namespace kube-flannel --set podCidr=10.42.0.0/16", "the cluster here has another pod network"),
];

/// What runs before the network is removed again, in this order.
const WHILE_THERE: &[&str] = &[
    "kubectl apply -f conf/kube-flannel.yml",
    "kubectl -n kube-flannel rollout status daemonset/kube-flannel-ds",
    "kubectl get nodes",
    "kubectl -n kube-flannel get pods -o wide",
    "kubectl -n kube-flannel logs daemonset/kube-flannel-ds -c kube-flannel --tail=20",
    "kubectl -n kube-flannel logs daemonset/kube-flannel-ds -c kube-flannel | grep 'packets between nodes'",
    "kubectl get nodes -o custom-columns='NAME:.metadata.name,PUBLIC-IP:.metadata.annotations.flannel\\.alpha\\.coreos\\.com/public-ip'",
    "kubectl apply -f conf/kube-flannel-policy.yml",
    "kubectl -n kube-flannel rollout restart daemonset/kube-flannel-ds",
    "kubectl -n kube-flannel get configmap kube-flannel-cfg -o yaml | grep -vE 'resourceVersion:|uid:' > kube-flannel-cfg.yaml",
    "kubectl apply -f conf/kube-flannel.yml --selector component!=net-conf",
    "kubectl apply -f go-flannel.yml",
    "kubectl apply -f kube-flannel-cfg.yaml",
    "kubectl -n default delete role,rolebinding flannel",
    "kubectl delete -f conf/kube-flannel-policy.yml",
];

/// What runs on a node, while the network is there.
const ON_A_NODE: &str = "curl -s http://127.0.0.1:8081/readyz";

/// Removal, and the chart after it.
const REMOVAL: &[&str] = &[
    "kubectl delete -f conf/kube-flannel.yml",
    "kubectl apply -f conf/kube-flannel-cleanup.yml",
    "kubectl -n kube-system rollout status daemonset/kube-flannel-cleanup",
    "kubectl delete -f conf/kube-flannel-cleanup.yml",
];
const CHART: &[&str] = &[
    "kubectl create namespace kube-flannel",
    "kubectl label namespace kube-flannel pod-security.kubernetes.io/enforce=privileged",
    "helm install flannel conf/chart --namespace kube-flannel --set podCidr=10.244.0.0/16",
];

/// The commands in the blocks of shell commands, without their comments.
fn commands(page: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in page.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            inside = kind == "sh";
        } else if inside {
            found.insert(line.split("  #").next().unwrap_or_default().trim().to_owned());
        }
    }
    found.remove("");
    found
}

#[test]
fn every_command_on_the_pages_runs_or_has_a_reason_not_to() -> Result<()> {
    let mut on_pages = BTreeSet::new();
    for (file, heading) in PAGES {
        let page = read(file)?;
        let part = page.split_once(heading).with_context(|| format!("{file} has no {heading}"))?.1;
        let part = if heading.is_empty() { part } else { part.split_once("\n## ").map_or(part, |(part, _)| part) };
        on_pages.extend(commands(part));
    }
    let run = [WHILE_THERE, REMOVAL, CHART, &[ON_A_NODE]].concat();
    let known: BTreeSet<String> = run.into_iter().chain(NOT_HERE.iter().map(|(command, _)| *command)).map(str::to_owned).collect();
    ensure!(on_pages == known, "neither run nor listed: {:?}; not on a page: {:?}", on_pages.difference(&known), known.difference(&on_pages));
    Ok(())
}

/// A shell of an operator: kubectl and helm speak to the cluster.
struct Shell<'a> {
    folder: &'a Path,
    namespace: String,
    kubeconfig: String,
}

impl Shell<'_> {
    fn run(&self, command: &str) -> Result<String> {
        let path = format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH")?);
        let mut shell = Command::new("ip");
        shell.args(["netns", "exec", &self.namespace, "bash", "-o", "pipefail", "-c", command]);
        let output = shell.current_dir(self.folder).env("PATH", path).env("KUBECONFIG", &self.kubeconfig).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            bail!("{command}: {text}");
        }
        Ok(text)
    }

    fn all(&self, commands: &[&str]) -> Result<()> {
        commands.iter().try_for_each(|command| self.run(command).map(drop))
    }
}

/// What the daemon leaves on a node.
fn left(cluster: &Cluster, number: usize) -> Result<(bool, bool)> {
    let node = cluster.nodes.get(number).context("a node")?;
    let device = node.host().netns().output("ip", &["link", "show", "flannel.1"])?.status.success();
    let conf = node.command(&["ls", "/etc/cni/net.d"])?.contains("10-flannel.conflist");
    Ok((device, conf))
}

#[test]
fn the_commands_of_the_pages_work_in_a_real_cluster() -> Result<()> {
    Lab::run("commands of the pages", |lab| {
        let folder = lab.folder("shell")?;
        let archives = folder.join("images");
        images::build(&archives)?;
        let mut options = ClusterOptions::new(2);
        for name in ["flannel", "flannel-cni-plugin"] {
            options = options.image(archives.join(format!("{name}.tar")));
        }
        let cluster = Cluster::start(lab, &options)?;

        std::fs::create_dir_all(folder.join("bin"))?;
        std::os::unix::fs::symlink(binaries::kubernetes("kubectl")?, folder.join("bin/kubectl"))?;
        std::os::unix::fs::symlink(binaries::helm()?, folder.join("bin/helm"))?;
        std::os::unix::fs::symlink(std::fs::canonicalize(repository("conf"))?, folder.join("conf"))?;
        std::fs::copy(repository("e2e/tests/manifests/go-shaped.yml"), folder.join("go-flannel.yml"))?;
        let shell = Shell {
            folder: &folder,
            namespace: cluster.api.host().netns().name().to_owned(),
            kubeconfig: cluster.api.kubeconfig(lab::User::Admin, None)?.display().to_string(),
        };

        // Up to the policy with ours, then Go flannel's manifest over it, and back.
        shell.all(WHILE_THERE.get(..2).context("the beginning")?)?;
        cluster.wait_ready()?;
        shell.all(WHILE_THERE.get(2..).context("the rest")?)?;
        shell.all(WHILE_THERE.get(..2).context("the beginning")?)?;
        let addresses = shell.run(WHILE_THERE.iter().find(|command| command.contains("custom-columns")).context("addresses")?)?;
        ensure!(addresses.contains("192.168.56.101") && addresses.contains("192.168.56.102"), "{addresses}");
        for node in &cluster.nodes {
            let ready = node.host().netns().output("bash", &["-c", ON_A_NODE])?;
            ensure!(String::from_utf8_lossy(&ready.stdout).contains("ready"), "{}: {ready:?}", node.name());
        }
        ensure!(left(&cluster, 0)? == (true, true), "the node has no device or no CNI configuration");

        shell.all(REMOVAL)?;
        for number in 0..cluster.nodes.len() {
            ensure!(left(&cluster, number)? == (false, false), "node {number} is not clean (device, configuration): {:?}", left(&cluster, number)?);
        }
        eventually_ok(Duration::from_secs(60), "the namespace is gone", || match shell.run("kubectl get namespace kube-flannel") {
            Ok(text) => bail!("{text}"),
            Err(_) => Ok(()),
        })?;

        shell.all(CHART)?;
        shell.all(WHILE_THERE.get(1..3).context("the status")?)?;
        cluster.wait_ready()?;
        ensure!(left(&cluster, 0)? == (true, true), "the chart's network is not there");
        Ok(())
    })
}
