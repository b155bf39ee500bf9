//! Tests of the doctor in real clusters: `kubectl exec` returns the doctor's reports, and the tests run the doctor's commands as printed.

use std::process::Output;

use anyhow::{Context, Result, bail, ensure};
use lab::{
    Cluster, ClusterOptions, Lab, Member, describe_outcome, stdout_and_stderr, stdout_json,
    until_ok,
};
use serde_json::Value;

use crate::install::operator::{Operator, documented_remedies_if_all_addresses_are_equal};
use crate::install::shapes;
use crate::kube::installed::{
    apply_echo_pods_and_service, apply_echo_pods_and_wait_connected, install_and_wait_ready,
    manifest_changed_by, with_frequent_probes, with_images,
};
use crate::kube::upstream::wait_current_flannel_pods_ready;

/// That runs on the node now.
pub(super) fn flannel_pod(cluster: &Cluster, node: &Member) -> Result<String> {
    let query =
        format!("labelSelector=app%3Dflannel&fieldSelector=spec.nodeName%3D{}", node.name());
    let found =
        cluster.api.admin().get(&format!("/api/v1/namespaces/kube-flannel/pods?{query}"))?;
    let alive = |pod: &&Value| {
        pod["metadata"]["deletionTimestamp"].is_null()
            && pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    };
    let pod = found["items"]
        .as_array()
        .into_iter()
        .flatten()
        .find(alive)
        .with_context(|| format!("no flannel pod runs on {}", node.name()))?;
    Ok(pod["metadata"]["name"].as_str().context("a name")?.to_owned())
}

/// Runs in the flannel pod of a node, possibly more than once.
fn run_flannelctl_in_pod(
    operator: &Operator,
    cluster: &Cluster,
    node: &Member,
    words: &str,
) -> Result<Output> {
    operator.rerun_until_output(&format!(
        "kubectl -n kube-flannel exec {} -c kube-flannel -- flannelctl {words}",
        flannel_pod(cluster, node)?
    ))
}

/// Findings that no other one explains.
pub(super) fn unexplained_findings(report: &Value) -> Result<Vec<&str>> {
    let findings = report["findings"].as_array().context("no findings")?;
    Ok(findings
        .iter()
        .filter(|finding| finding["explained_by"].is_null())
        .filter_map(|finding| finding["check"].as_str())
        .collect())
}

/// Runs the doctor in the flannel pod of a node, and checks its exit code.
fn run_doctor_in_pod(operator: &Operator, cluster: &Cluster, node: &Member) -> Result<Value> {
    let output = run_flannelctl_in_pod(operator, cluster, node, "doctor -o json")?;
    let report = stdout_json(&output)?;
    let broken = report["findings"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|finding| finding["severity"] == "broken");
    ensure!(
        output.status.code() == Some(if broken { 3 } else { 0 }),
        "{:?}: {report:#}",
        output.status
    );
    Ok(report)
}

/// Waits until the doctor of every node finds exactly these causes. The result is the last report.
fn wait_only_causes_on_all_nodes(
    operator: &Operator,
    cluster: &Cluster,
    wanted: &[&str],
) -> Result<Value> {
    let mut last = Value::Null;
    for node in &cluster.nodes {
        last = until_ok(&format!("the doctor of {} finds {wanted:?}", node.name()), || {
            let report = run_doctor_in_pod(operator, cluster, node)?;
            let found = unexplained_findings(&report)?;
            ensure!(found == wanted, "{found:?}: {:#}", report["findings"]);
            Ok(report)
        })?;
    }
    Ok(last)
}

/// Every node reports that flannel uses the NAT interface, and the documented commands fix it.
fn fix_nat_trap_as_documented(
    operator: &Operator,
    cluster: &Cluster,
    documented: &[String],
) -> Result<()> {
    let report = wait_only_causes_on_all_nodes(operator, cluster, &["wrong-interface"])?;
    let remedy = &report["findings"][0]["remedy"];
    let [look, mend, rest @ ..] = documented else {
        bail!("two commands or more, not {documented:?}")
    };
    ensure!(
        remedy["commands"] == serde_json::json!([mend]) && remedy["on"] == "a node with kubectl",
        "{remedy} is not {mend}"
    );
    let looked = operator.rerun_until_output(look)?;
    ensure!(
        stdout_and_stderr(&looked).contains("wrong-interface")
            && stdout_and_stderr(&looked).contains(mend.as_str()),
        "{look}: {}",
        describe_outcome(&looked)
    );
    for command in std::iter::once(mend).chain(rest) {
        operator.run(command)?;
    }
    apply_echo_pods_and_wait_connected(cluster)?;
    wait_only_causes_on_all_nodes(operator, cluster, &[]).map(drop)
}

/// The DaemonSet's container, with arguments and environment variables.
fn daemon_set_container(cluster: &Cluster) -> Result<Value> {
    let set = cluster
        .api
        .admin()
        .get("/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds")?;
    Ok(set["spec"]["template"]["spec"]["containers"][0].clone())
}

#[test]
fn nat_trap_in_a_cluster_is_fixed_by_documented_commands() -> Result<()> {
    Lab::run("cluster: the trap", |lab| {
        let [_, by_argument, by_variable] = documented_remedies_if_all_addresses_are_equal()?;
        let mut cluster = Cluster::start_control_plane_only(
            lab,
            &with_images(ClusterOptions::new(2).nat_with_equal_addresses())?,
        )?;
        cluster.start_and_register_nodes(0..2)?;
        let operator = Operator::with_admin_rights(lab, &cluster.api)?;

        // Every machine has the address 10.0.2.15, and the manifest names that interface.
        let right = manifest_changed_by(|text| with_frequent_probes(&text))?;
        let wrong = right.replace(
            "        - --kube-subnet-mgr\n",
            "        - --kube-subnet-mgr\n        - --iface=enp0s3\n",
        );
        ensure!(right != wrong, "no trap");
        cluster.apply(&wrong)?;
        cluster.wait_nodes_ready()?;
        apply_echo_pods_and_service(&cluster)?;
        let before = daemon_set_container(&cluster)?;
        fix_nat_trap_as_documented(&operator, &cluster, &by_argument)
            .context("one address everywhere")?;
        // The command changed only that argument.
        let changed = before.to_string().replace("--iface=enp0s3", "--iface=enp0s8");
        let after = daemon_set_container(&cluster)?.to_string();
        ensure!(after == changed, "{after} instead of {changed}");

        // Now each node has its own address, and a variable names the interface.
        cluster.nodes[1]
            .host()
            .netns()
            .run_ip_batch("address del 10.0.2.15/24 dev enp0s3\naddress add 10.0.2.16/24 dev enp0s3\nroute replace default via 10.0.2.2 dev enp0s3")?;
        cluster.apply(&right)?;
        operator.run("kubectl -n kube-flannel set env daemonset/kube-flannel-ds -c kube-flannel FLANNELD_IFACE=enp0s3")?;
        cluster.wait_daemon_set("kube-flannel", "kube-flannel-ds")?;
        let before = daemon_set_container(&cluster)?;
        fix_nat_trap_as_documented(&operator, &cluster, &by_variable).context("an address each")?;
        let changed = before.to_string().replace("\"enp0s3\"", "\"enp0s8\"");
        let after = daemon_set_container(&cluster)?.to_string();
        ensure!(after == changed, "{after} instead of {changed}");

        // The doctor can read the addresses of pods from flannel's own pod.
        let unknown =
            wait_only_causes_on_all_nodes(&operator, &cluster, &[])?["unknown"].to_string();
        ensure!(!unknown.contains("ipam-full"), "{unknown}");
        block_api_service_and_apply_remedy(&operator, &cluster)
    })
}

/// Cuts each node off from the API server's Service, and restarts flanneld on each.
fn block_api_service_and_apply_remedy(operator: &Operator, cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        node.host().netns().exec_with_input(
            "nft",
            &["-f", "-"],
            "table ip hole { chain c { type filter hook output priority -300; ip daddr 10.96.0.1 drop; }; }\n",
        )?;
    }
    operator.run("kubectl -n kube-flannel delete pod -l app=flannel")?;
    let report = wait_only_causes_on_all_nodes(operator, cluster, &["api-by-service"])?;
    let command =
        report["findings"][0]["remedy"]["commands"][0].as_str().context("a command")?.to_owned();
    operator.run(&command)?;
    cluster.wait_daemon_set("kube-flannel", "kube-flannel-ds")?;
    wait_only_causes_on_all_nodes(operator, cluster, &[])?;
    apply_echo_pods_and_wait_connected(cluster)
}

#[test]
fn orphaned_pod_is_reported_and_adopted() -> Result<()> {
    Lab::run("cluster: orphans", |lab| {
        let cluster =
            Cluster::start_with_registered_nodes(lab, &with_images(ClusterOptions::new(2))?)?;
        let operator = Operator::with_admin_rights(lab, &cluster.api)?;
        install_and_wait_ready(&cluster, &with_frequent_probes(&shapes::raw_go_manifest()?))?;
        apply_echo_pods_and_service(&cluster)?;
        apply_echo_pods_and_wait_connected(&cluster)?;
        // Skips the step that labels the pods.
        operator
            .run("kubectl -n kube-flannel delete daemonset kube-flannel-ds --cascade=orphan")?;
        cluster.apply(&manifest_changed_by(|text| with_frequent_probes(&text))?)?;
        let report = wait_only_causes_on_all_nodes(&operator, &cluster, &["daemon-set"])?;
        let finding = &report["findings"][0];
        let command = finding["remedy"]["commands"][0].as_str().context("a command")?;
        // A pod that the DaemonSet replaces may disappear between the list and the label, so the operator repeats the command.
        until_ok("all pods are labelled", || operator.run(command))?;
        wait_current_flannel_pods_ready(&cluster)?;
        wait_only_causes_on_all_nodes(&operator, &cluster, &[])?;
        apply_echo_pods_and_wait_connected(&cluster)
    })
}

/// The API server does not reach the node's kubelet.
fn run_doctor_without_kubelet(cluster: &Cluster, node: &Member) -> Result<Value> {
    let output = cluster.exec_output(
        "kube-flannel",
        &flannel_pod(cluster, node)?,
        &["/opt/bin/flannelctl", "doctor", "-o", "json"],
    )?;
    stdout_json(&output)
}

#[test]
fn kubelet_that_reports_a_nat_address_is_reconfigured() -> Result<()> {
    Lab::run("cluster: InternalIP", |lab| {
        let mut cluster = Cluster::start_control_plane_only(
            lab,
            &with_images(ClusterOptions::new(2).nat_with_equal_addresses())?.without_node_ip(),
        )?;
        cluster.start_and_register_nodes(0..2)?;
        let operator = Operator::with_admin_rights(lab, &cluster.api)?;
        install_and_wait_ready(
            &cluster,
            &manifest_changed_by(|text| with_frequent_probes(&text))?,
        )?;
        for number in 0..cluster.nodes.len() {
            let wanted = cluster.nodes[number].host().v4_of("enp0s8")?.to_string();
            // The argument that kubeadm wrote there stays.
            cluster.nodes[number].command(&[
                "sh",
                "-c",
                "echo 'KUBELET_KUBEADM_ARGS=\"--v=1\"' > /var/lib/kubelet/kubeadm-flags.env",
            ])?;
            let commands = until_ok("the doctor finds it", || {
                let report = run_doctor_without_kubelet(&cluster, &cluster.nodes[number])?;
                ensure!(
                    unexplained_findings(&report)? == ["node-internal-ip"],
                    "{:#}",
                    report["findings"]
                );
                Ok(report["findings"][0]["remedy"]["commands"].clone())
            })?;
            ensure!(
                run_flannelctl_in_pod(&operator, &cluster, &cluster.nodes[number], "status")?
                    .status
                    .code()
                    == Some(1),
                "kubectl exec works already"
            );
            for command in commands.as_array().into_iter().flatten().filter_map(Value::as_str) {
                // Only this command is simulated, because kubelet is not a service here.
                if command == "systemctl restart kubelet" {
                    cluster.node(number)?.stop_kubelet()?;
                    cluster.node(number)?.start_kubelet()?;
                } else {
                    cluster.nodes[number].command(&["sh", "-ec", command])?;
                }
            }
            let flags =
                cluster.nodes[number].command(&["cat", "/var/lib/kubelet/kubeadm-flags.env"])?;
            ensure!(
                flags.trim() == format!("KUBELET_KUBEADM_ARGS=\"--v=1 --node-ip={wanted}\""),
                "{flags}"
            );
        }
        for node in &cluster.nodes {
            until_ok("kubectl exec works, and nothing is found", || {
                let report = run_doctor_in_pod(&operator, &cluster, node)?;
                ensure!(unexplained_findings(&report)?.is_empty(), "{:#}", report["findings"]);
                Ok(())
            })?;
        }
        apply_echo_pods_and_wait_connected(&cluster)
    })
}
