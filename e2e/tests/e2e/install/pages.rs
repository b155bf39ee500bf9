//! The commands in the Kubernetes documentation. A real cluster runs those that can run in a test. For each other one, a reason is listed.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use lab::{Cluster, ClusterOptions, Lab, stdout_text, until_ok};

use super::{
    images, read_repository_file, repository_path, require_pages_have_exactly_these_commands,
    shapes,
};
use crate::install::operator::{Operator, shell_command_blocks};

/// Each with the heading of the part whose commands the test runs. An empty heading means the whole document.
const PAGES: &[(&str, &str)] = &[
    ("docs/kubernetes.md", ""),
    ("docs/kubernetes-k3s.md", ""),
    ("docs/vagrant.md", ""),
    ("docs/migrating.md", "## On Kubernetes"),
];

/// Commands that cannot run in the test, and the reasons.
const NOT_HERE: &[(&str, &str)] = &[
    ("make image", "the test builds the images of the programs that it runs, by the same script"),
    ("make image ARCH=arm64", "another compiler and minutes: make test-images"),
    (
        "ctr -n k8s.io images import flannel.tar",
        "the nodes here import with the snapshotter that works below a test",
    ),
    ("ctr -n k8s.io images import flannel-cni-plugin.tar", "the same"),
    (
        "curl -sfL https://get.k3s.io | sh -s - --flannel-backend=none --disable-network-policy --cluster-cidr=10.42.0.0/16",
        "there is no k3s here",
    ),
    ("mkdir -p /opt/cni/bin", "the same"),
    (
        "for plugin in bridge host-local loopback portmap; do ln -sf /var/lib/rancher/k3s/data/current/bin/$plugin /opt/cni/bin/; done",
        "the same",
    ),
    (
        "for plugin in bridge host-local loopback portmap; do for folder in /usr/lib/cni /usr/libexec/cni; do [ ! -x $folder/$plugin ] || ln -sf $folder/$plugin /opt/cni/bin/; done; done",
        "there is no RKE2 here",
    ),
    ("mkdir -p /var/lib/rancher/k3s/agent/images", "there is no k3s here"),
    ("cp flannel.tar flannel-cni-plugin.tar /var/lib/rancher/k3s/agent/images/", "the same"),
    ("systemctl restart k3s", "the same"),
    (KUBELET[0], "kubelet has other files here: a test of its own"),
    (KUBELET[1], "the same"),
    ("systemctl restart kubelet", "kubelet is no service here"),
    (
        "kubectl delete node node-1",
        "its kubelet would have to be restarted: kube::nodes and kube::configuration register Nodes anew",
    ),
    (
        "kubeadm init --apiserver-advertise-address=192.168.56.11 --pod-network-cidr=10.244.0.0/16",
        "there is no kubeadm here",
    ),
    (
        "helm install flannel conf/chart --namespace kube-flannel --set podCidr=10.42.0.0/16",
        "the cluster here has another pod network",
    ),
    (
        "crictl exec $(crictl ps -q --name kube-flannel) flannelctl doctor",
        "there is no crictl here",
    ),
    (
        "talosctl patch machineconfig --nodes 10.0.0.11,10.0.0.12,10.0.0.13 --patch @cni.yaml",
        "there is no Talos here",
    ),
    ("kubectl -n kube-system get configmap kube-flannel-cfg -o yaml > before.yaml", "the same"),
    ("kubectl -n kube-system delete daemonset kube-flannel", "the same"),
    (
        "kubectl -n kube-system get daemonset,configmap -l tier=node -o yaml > before.yaml",
        "there is no kubespray here",
    ),
    ("kubectl -n kube-system delete daemonset -l k8s-app=flannel", "the same"),
    (SELINUX[0], "there is no SELinux here"),
    (SELINUX[1], "the same"),
];

/// They change the SELinux type of the pods.
const SELINUX: [&str; 2] = [
    "helm upgrade --install flannel conf/chart --namespace kube-flannel --set podCidr=10.244.0.0/16 --set flannel.podSecurityContext.seLinuxOptions.type=spc_t",
    r#"kubectl -n kube-flannel patch daemonset kube-flannel-ds --patch '{"spec": {"template": {"spec": {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}}}}'"#,
];

/// They add kubelet arguments.
const KUBELET: [&str; 2] = [
    "grep -qs '^KUBELET_EXTRA_ARGS=' /etc/default/kubelet || echo KUBELET_EXTRA_ARGS= >> /etc/default/kubelet",
    r#"sed -i -E "/^KUBELET_EXTRA_ARGS=/{s/--node-ip=[^ \"']* *//;s/=[\"']?/&--node-ip=192.168.56.11 /}" /etc/default/kubelet"#,
];

#[test]
fn kubelet_arguments_are_kept_by_documented_commands() -> Result<()> {
    let lab = Lab::create("kubelet's arguments")?;
    let file = lab.ensure_folder("default")?.join("kubelet");
    for (before, after) in [
        ("", "KUBELET_EXTRA_ARGS=--node-ip=192.168.56.11 \n"),
        (
            "# mine\nKUBELET_EXTRA_ARGS=--v=2 --x\n",
            "# mine\nKUBELET_EXTRA_ARGS=--node-ip=192.168.56.11 --v=2 --x\n",
        ),
        (
            "KUBELET_EXTRA_ARGS=\"--v=2\"\nOTHER=1\n",
            "KUBELET_EXTRA_ARGS=\"--node-ip=192.168.56.11 --v=2\"\nOTHER=1\n",
        ),
        (
            "KUBELET_EXTRA_ARGS=--v=2 --node-ip=10.0.2.15 --x\n",
            "KUBELET_EXTRA_ARGS=--node-ip=192.168.56.11 --v=2 --x\n",
        ),
        ("KUBELET_EXTRA_ARGS='--v=2'\n", "KUBELET_EXTRA_ARGS='--node-ip=192.168.56.11 --v=2'\n"),
    ] {
        std::fs::write(&file, before)?;
        for command in KUBELET {
            let command = command.replace("/etc/default/kubelet", &file.display().to_string());
            ensure!(
                std::process::Command::new("bash").args(["-c", &command]).status()?.success(),
                "{command}"
            );
        }
        ensure!(
            std::fs::read_to_string(&file)? == after,
            "{before:?}: {:?}",
            std::fs::read_to_string(&file)?
        );
    }
    Ok(())
}

/// The test runs these before the removal of the network, in this order.
const WHILE_THERE: &[&str] = &[
    "kubectl apply -f conf/kube-flannel.yml",
    "kubectl -n kube-flannel rollout status daemonset/kube-flannel-ds",
    "kubectl get nodes",
    "kubectl -n kube-flannel get pods -o wide",
    "kubectl -n kube-flannel logs daemonset/kube-flannel-ds -c kube-flannel --tail=20",
    "kubectl -n kube-flannel logs -l app=flannel -c kube-flannel --prefix --tail=-1 | grep 'packets between nodes'",
    "kubectl -n kube-flannel exec daemonset/kube-flannel-ds -c kube-flannel -- flannelctl doctor",
    "kubectl get nodes -o custom-columns='NAME:.metadata.name,PUBLIC-IP:.metadata.annotations.flannel\\.alpha\\.coreos\\.com/public-ip'",
    "kubectl apply -f conf/kube-flannel-policy.yml",
    "kubectl -n kube-flannel rollout restart daemonset/kube-flannel-ds",
    r#"kubectl -n kube-flannel patch daemonset kube-flannel-ds --patch '{"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "5%"}}}}'"#,
    "kubectl get daemonset --all-namespaces -o custom-columns='NAMESPACE:.metadata.namespace,NAME:.metadata.name,SELECTOR:.spec.selector.matchLabels,IMAGE:.spec.template.spec.containers[*].image' | grep -i flannel",
    "kubectl -n kube-flannel get configmap kube-flannel-cfg -o yaml | grep -vE 'resourceVersion:|uid:' > kube-flannel-cfg.yaml",
    "sed 's/type: RollingUpdate/type: OnDelete/' conf/kube-flannel.yml | kubectl apply --selector component!=net-conf -f -",
    "kubectl -n kube-flannel delete pod -l app=flannel --field-selector spec.nodeName=node-7",
    "kubectl apply -f conf/kube-flannel.yml --selector component!=net-conf",
    "kubectl apply -f go-flannel.yml",
    "kubectl apply -f kube-flannel-cfg.yaml",
    "kubectl -n default delete role,rolebinding flannel",
    "kubectl -n kube-flannel delete role,rolebinding flannel-pods",
    "kubectl delete --ignore-not-found -f conf/kube-flannel-policy.yml",
];

/// They replace a DaemonSet by one with another label selector. `kube::upstream` runs them while packets flow.
const CROSSED: &[&str] = &[
    "helm upgrade flannel conf/chart --namespace kube-flannel --reset-then-reuse-values",
    "helm history flannel --namespace kube-flannel",
    "helm rollback flannel --namespace kube-flannel",
    "kubectl -n kube-flannel label pods -l app=flannel k8s-app=flannel pod-template-generation-",
    "kubectl -n kube-flannel label pods -l app=flannel pod-template-generation-",
    "kubectl -n kube-flannel delete daemonset kube-flannel-ds --cascade=orphan",
    "kubectl -n kube-flannel delete secret -l owner=helm,name=flannel",
    "helm install flannel conf/chart --namespace kube-flannel --take-ownership --set podCidr=10.244.0.0/16",
    "kubectl -n kube-system get daemonset,configmap -l app=flannel -o yaml > before.yaml",
    "kubectl -n kube-system delete daemonset -l app=flannel",
    "kubectl -n kube-system delete configmap/kube-flannel-cfg serviceaccount/flannel",
];

/// Runs while the network is installed.
const ON_A_NODE: &str = "curl -s http://127.0.0.1:8081/readyz";

/// They remove flannel. Afterwards, those in `CHART` install the chart.
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

#[test]
fn documented_commands_are_run_or_excluded_with_a_reason() -> Result<()> {
    let mut on_pages = BTreeSet::new();
    for (file, heading) in PAGES {
        let page = read_repository_file(file)?;
        let part = page.split_once(heading).with_context(|| format!("{file} has no {heading}"))?.1;
        let part = if heading.is_empty() {
            part
        } else {
            part.split_once("\n## ").map_or(part, |(part, _)| part)
        };
        on_pages.extend(shell_command_blocks(part).into_iter().flatten());
    }
    let run = [WHILE_THERE, REMOVAL, CHART, CROSSED, &[ON_A_NODE]].concat();
    require_pages_have_exactly_these_commands(&on_pages, &run, NOT_HERE)?;
    Ok(())
}

/// Whether a node has flannel's device, and whether it has flannel's CNI configuration.
fn has_device_and_cni_configuration(cluster: &Cluster, number: usize) -> Result<(bool, bool)> {
    let node = cluster.nodes.get(number).context("a node")?;
    let device = node.host().netns().output("ip", &["link", "show", "flannel.1"])?.status.success();
    let conf = node.command(&["ls", "/etc/cni/net.d"])?.contains("10-flannel.conflist");
    Ok((device, conf))
}

#[test]
fn documented_commands_work_in_a_real_cluster() -> Result<()> {
    Lab::run("commands of the pages", |lab| {
        let archives = lab.ensure_folder("archives")?.join("images");
        images::build_images(&archives)?;
        let mut options = ClusterOptions::new(2);
        for name in ["flannel", "flannel-cni-plugin"] {
            options = options.image(archives.join(format!("{name}.tar")));
        }
        let cluster = Cluster::start_with_registered_nodes(lab, &options)?;

        let shell = Operator::with_admin_rights(lab, &cluster.api)?;
        std::os::unix::fs::symlink(
            std::fs::canonicalize(repository_path("conf"))?,
            shell.folder().join("conf"),
        )?;
        std::fs::write(shell.folder().join("go-flannel.yml"), shapes::released_go_manifest()?)?;

        // Installs our manifest, runs the commands up to the policy and Go flannel's manifest over it, and returns to ours.
        shell.run_all(WHILE_THERE.get(..2).context("the beginning")?)?;
        cluster.wait_nodes_ready()?;
        shell.run_all(WHILE_THERE.get(2..).context("the rest")?)?;
        shell.run_all(WHILE_THERE.get(..2).context("the beginning")?)?;
        let addresses = shell.run(
            WHILE_THERE
                .iter()
                .find(|command| command.contains("custom-columns"))
                .context("addresses")?,
        )?;
        ensure!(
            addresses.contains("192.168.56.101") && addresses.contains("192.168.56.102"),
            "{addresses}"
        );
        for node in &cluster.nodes {
            let ready = node.host().netns().output("bash", &["-c", ON_A_NODE])?;
            ensure!(stdout_text(&ready).contains("ready"), "{}: {ready:?}", node.name());
        }
        ensure!(
            has_device_and_cni_configuration(&cluster, 0)? == (true, true),
            "the node has no device or no CNI configuration"
        );

        shell.run_all(REMOVAL)?;
        for number in 0..cluster.nodes.len() {
            ensure!(
                has_device_and_cni_configuration(&cluster, number)? == (false, false),
                "node {number} is not clean (device, configuration): {:?}",
                has_device_and_cni_configuration(&cluster, number)?
            );
        }
        until_ok("the namespace is gone", || {
            match shell.run("kubectl get namespace kube-flannel") {
                Ok(text) => bail!("{text}"),
                Err(_) => Ok(()),
            }
        })?;

        shell.run_all(CHART)?;
        shell.run_all(WHILE_THERE.get(1..3).context("the status")?)?;
        cluster.wait_nodes_ready()?;
        ensure!(
            has_device_and_cni_configuration(&cluster, 0)? == (true, true),
            "the chart's network is not there"
        );
        Ok(())
    })
}
