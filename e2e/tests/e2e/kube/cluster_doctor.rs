//! `flannelctl doctor --cluster`, which reports the findings of all nodes, from outside the cluster.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use lab::{Cluster, ClusterOptions, Lab, binaries, stdout_json, until_ok};
use serde_json::{Value, json};

use crate::install::operator::Operator;
use crate::kube::installed::{
    apply_echo_pods_and_service, apply_echo_pods_and_wait_connected, install_and_wait_ready,
    manifest_changed_by, with_frequent_probes, with_images,
};

/// What `kubectl flannel doctor` prints.
fn run_kubectl_doctor(operator: &Operator) -> Result<Value> {
    stdout_json(&operator.run_in_bash("kubectl flannel doctor -o json")?)
}

fn array_items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Each finding with the names of its nodes and of the nodes whose findings it explains.
fn findings_with_nodes(document: &Value) -> Vec<(&str, Vec<&str>, BTreeSet<&str>)> {
    let findings = array_items(&document["findings"]).map(|shared| {
        let explained = array_items(&shared["explains"]).filter_map(|one| one["node"].as_str());
        let nodes = array_items(&shared["nodes"]).filter_map(Value::as_str);
        let check = shared["finding"]["check"].as_str().unwrap_or_default();
        (check, nodes.collect(), explained.collect())
    });
    findings.collect()
}

fn add_nft_drop_rule(cluster: &Cluster, node: usize, hook: &str, rule: &str) -> Result<()> {
    let table = format!(
        "table inet {hook} {{ chain c {{ type filter hook {hook} priority 0; {rule} drop; }}; }}\n"
    );
    let host = cluster.nodes[node].host();
    host.netns().exec_with_input("nft", &["-f", "-"], &table).map(drop)
}

/// A node's bundle has the logs that only the Kubernetes API provides. The image has no writable folder, so flannelctl in the pod prints the bundle
/// to standard output.
fn require_kubectl_plugin_commands_work(operator: &Operator) -> Result<()> {
    operator.run("kubectl flannel support-bundle --node=n1 --file=n1.tar.gz")?;
    let log = operator.run("tar -xzOf n1.tar.gz --wildcards '*/flanneld/pod.log'")?;
    ensure!(log.contains("flanneld starts"), "{log}");
    let names = operator.run("tar -tzf n1.tar.gz")?;
    for name in [
        "flanneld/node.json",
        // No container has ended, so there is no earlier log.
        "flanneld/pod-previous.log.missing",
    ] {
        ensure!(names.lines().any(|line| line.ends_with(name)), "{name}: {names}");
    }
    // The plugin runs other commands in the pod as well, and returns their exit codes.
    // On a busy machine, the pod may respond too late.
    let status = until_ok("the pod responds", || operator.run("kubectl flannel status --node n2"))?;
    ensure!(status.contains("n2 is ready"), "{status}");
    let printed = |command: &str| {
        until_ok("the pod responds", || stdout_json(&operator.run_in_bash(command)?))
    };
    let peers = printed("kubectl flannel peers --node=n2 --all -o json")?;
    ensure!(peers["node"] == "n2", "{peers:#}");
    let doctor = printed("kubectl flannel doctor --node n2 -o json")?;
    ensure!(doctor["node"] == "n2", "{doctor:#}");
    for (command, code) in [
        ("kubectl flannel probe --node n2 127.0.0.1:1", 3),
        ("kubectl flannel probe --node n2 nowhere", 1),
        ("kubectl flannel status", 1),
    ] {
        let output = operator.run_in_bash(command)?;
        ensure!(
            output.status.code() == Some(code),
            "{command}: {}",
            lab::describe_outcome(&output)
        );
    }
    require_dashboard_command_works(operator)?;
    let wrong =
        operator.run_in_bash("kubectl flannel support-bundle --node=none --file=none.tar.gz")?;
    ensure!(
        wrong.status.code() == Some(1) && !operator.folder().join("none.tar.gz").exists(),
        "{}",
        lab::describe_outcome(&wrong)
    );
    Ok(())
}

/// The command that `dashboard` prints reaches the status page of the node.
fn require_dashboard_command_works(operator: &Operator) -> Result<()> {
    let printed = operator.run("kubectl flannel dashboard --node n2")?;
    let command = printed.lines().last().unwrap_or_default().trim();
    ensure!(command.starts_with("kubectl -n kube-flannel port-forward pod/"), "{printed}");
    let page = operator.run(&format!(
        "{command} > forward.log 2>&1 & forward=$!
         for _ in $(seq 300); do curl -sf http://127.0.0.1:8474/ > page.html && break; sleep 0.1; done
         kill $forward; cat page.html"
    ))?;
    ensure!(page.contains("seen from") && page.contains("n2"), "{page}");
    Ok(())
}

/// One node's fault is one finding, which explains the other nodes' findings about it. A second node does not reach the API server. The kubelet of a
/// third one is unreachable.
#[test]
fn findings_of_all_nodes_are_folded_by_cause() -> Result<()> {
    Lab::run("cluster: all doctors", |lab| {
        let cluster =
            Cluster::start_with_registered_nodes(lab, &with_images(ClusterOptions::new(3))?)?;
        let operator = Operator::with_admin_rights(lab, &cluster.api)?;
        std::os::unix::fs::symlink(
            binaries::flannel_binary("flannelctl")?,
            operator.folder().join("bin/kubectl-flannel"),
        )?;
        install_and_wait_ready(
            &cluster,
            &manifest_changed_by(|text| with_frequent_probes(&text))?,
        )?;
        apply_echo_pods_and_service(&cluster)?;
        apply_echo_pods_and_wait_connected(&cluster)?;
        until_ok("nothing is found on three nodes", || {
            let document = run_kubectl_doctor(&operator)?;
            ensure!(
                document["findings"] == json!([])
                    && document["answered"] == json!(["n1", "n2", "n3"])
                    && document["source"] == "pods",
                "{document:#}"
            );
            Ok(())
        })?;

        require_kubectl_plugin_commands_work(&operator)?;

        add_nft_drop_rule(&cluster, 1, "prerouting", "udp dport 8472")?;
        add_nft_drop_rule(&cluster, 2, "output", "tcp dport 6443")?;
        until_ok("each fault is the finding of its node", || {
            let document = run_kubectl_doctor(&operator)?;
            let wanted = [
                ("encap-blocked", vec!["n2"], BTreeSet::from(["n1", "n3"])),
                ("store-unreachable", vec!["n3"], BTreeSet::new()),
            ];
            let found = findings_with_nodes(&document);
            ensure!(
                found.len() == wanted.len() && wanted.iter().all(|one| found.contains(one)),
                "{document:#}"
            );
            Ok(())
        })?;
        let text = operator.run_in_bash("kubectl flannel doctor")?;
        ensure!(text.status.code() == Some(3), "{}", lab::describe_outcome(&text));

        // The kubelet of the third node is unreachable. The document names this node, and has the findings of the others.
        add_nft_drop_rule(&cluster, 2, "input", "tcp dport 10250")?;
        let without = run_kubectl_doctor(&operator)?;
        ensure!(
            without["answered"] == json!(["n1", "n2"])
                && without["unanswered"][0]["node"] == "n3"
                && without["unanswered"][1].is_null(),
            "{without:#}"
        );
        Ok(())
    })
}
