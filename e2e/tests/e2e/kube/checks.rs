//! Checks that the doctor's first finding reports a fault of the API server's response, and that the doctor's commands fix the fault.

use anyhow::{Context, Result, ensure};
use lab::{Answer, Flanneld, FlanneldOptions, Lab, NodeObject, User, stdout_json, until, until_ok};
use serde_json::Value;

use crate::install::operator::Operator;
use crate::kube::doctor::unexplained_findings;
use crate::kube::testbed::{ApiTestbed, VXLAN};

/// The DaemonSet's environment variables, with which the doctor's commands use kubectl.
fn with_pod_name_variables(options: FlanneldOptions) -> FlanneldOptions {
    options.env("POD_NAMESPACE", "kube-flannel").env("POD_NAME", "kube-flannel-ds-x")
}

/// Waits until the doctor reports only the finding of `check` and the metrics count it.
fn wait_only_cause(daemon: &Flanneld, check: &str) -> Result<Value> {
    // A running daemon reports a refusal after a minute.
    until_ok(&format!("the doctor finds {check}"), || {
        let output = daemon.flannelctl(&["doctor", "-o", "json"])?;
        let report = stdout_json(&output)?;
        ensure!(
            unexplained_findings(&report)? == [check] && output.status.code() == Some(3),
            "{:#}",
            report["findings"]
        );
        ensure!(daemon.findings(check)?.is_some_and(|count| count > 0), "no metric");
        Ok(report["findings"][0].clone())
    })
}

/// Waits until the daemon is ready and the doctor reports no finding.
fn wait_no_findings(daemon: &Flanneld) -> Result<()> {
    until("the daemon is ready", || daemon.is_ready()).with_context(|| daemon.log_tail(10))?;
    until_ok("nothing is found", || {
        let output = daemon.flannelctl(&["doctor", "-o", "json"])?;
        let report = stdout_json(&output)?;
        ensure!(
            unexplained_findings(&report)?.is_empty() && output.status.success(),
            "{:#}",
            report["findings"]
        );
        Ok(())
    })
}

fn only_remedy_command(finding: &Value) -> Result<&str> {
    ensure!(
        finding["remedy"]["commands"].as_array().is_some_and(|commands| commands.len() == 1),
        "{finding:#}"
    );
    finding["remedy"]["commands"][0].as_str().context("a command")
}

#[test]
fn missing_right_is_reported_and_granted() -> Result<()> {
    Lab::run("doctor: rbac", |lab| {
        let bed = ApiTestbed::with_real_api(lab, 1, VXLAN)?;
        bed.admin().create_node(&bed.node(1))?;
        let operator = Operator::with_admin_rights(lab, &bed.api)?;
        let host = &bed.hosts[0];
        let config = bed.api.write_kubeconfig(User::Nobody, Some(&bed.proxies[0].url()))?;
        // The proxy passes the requests on as the same user, instead of another one.
        bed.proxies[0].set_judge(|_| Answer::As(User::Nobody.token()));
        let options = FlanneldOptions::kube("h1", &bed.net_conf)
            .arg(&format!("--kubeconfig-file={}", config.display()));
        let daemon = host.start_flanneld(&with_pod_name_variables(options))?;
        let finding = wait_only_cause(&daemon, "rbac")?;
        let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/flannel";
        let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/flannel";
        bed.admin().merge(role, &serde_json::json!({ "rules": [{ "apiGroups": ["example.org"], "resources": ["things"], "verbs": ["get"] }] }))?;
        operator.run(only_remedy_command(&finding)?)?;
        wait_no_findings(&daemon)?;
        // Rules and subjects that others added stay.
        let (role, binding) = (bed.admin().get(role)?, bed.admin().get(binding)?);
        ensure!(role["rules"].to_string().contains("things"), "{}", role["rules"]);
        ensure!(
            binding["subjects"].as_array().is_some_and(|subjects| subjects.len() == 2),
            "{}",
            binding["subjects"]
        );

        // A token that the API server does not know.
        bed.proxies[0].set_judge(|_| Answer::As("a-token-of-nobody".to_owned()));
        bed.proxies[0].close_open_connections();
        let finding = wait_only_cause(&daemon, "rbac")?;
        let wanted =
            "kubectl -n kube-flannel delete pod -l app=flannel --field-selector spec.nodeName=h1";
        ensure!(only_remedy_command(&finding)? == wanted, "{finding:#}");
        bed.proxies[0].set_judge(|_| Answer::As(User::Nobody.token()));
        bed.proxies[0].close_open_connections();
        wait_no_findings(&daemon)
    })
}

#[test]
fn node_without_pod_cidr_gets_one() -> Result<()> {
    Lab::run("doctor: pod-cidr", |lab| {
        let bed = ApiTestbed::with_real_api(lab, 1, VXLAN)?;
        let host = &bed.hosts[0];
        bed.admin().create_node(&NodeObject::new("h1").add_internal_address(host.v4()?))?;
        let daemon = host.start_flanneld(&with_pod_name_variables(bed.options[0].clone()))?;
        let finding = wait_only_cause(&daemon, "pod-cidr")?;
        // Only the manifest's folder and the program that reads it are simulated.
        let folder = lab.ensure_folder("manifests")?;
        let place = "/etc/kubernetes/manifests";
        ensure!(only_remedy_command(&finding)?.contains(place), "{finding:#}");
        let typed = only_remedy_command(&finding)?.replace(place, &folder.display().to_string());
        let manifest = folder.join("kube-controller-manager.yaml");
        let plain = "spec:\n  containers:\n  - command:\n    - kube-controller-manager\n    - --controllers=*\n    image: x\n";
        std::fs::write(&manifest, plain)?;
        host.netns().exec("sh", &["-ec", &typed])?;
        let once = std::fs::read_to_string(&manifest)?;
        let added = "    - kube-controller-manager\n    - --allocate-node-cidrs=true\n    - --cluster-cidr=10.244.0.0/16\n";
        ensure!(once == plain.replace("    - kube-controller-manager\n", added), "{once}");
        // The command can be repeated without harm.
        host.netns().exec("sh", &["-ec", &typed])?;
        ensure!(std::fs::read_to_string(&manifest)? == once, "it was added twice");
        // The controller manager then does this.
        let given = serde_json::json!({ "spec": { "podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"] } });
        bed.admin().merge("/api/v1/nodes/h1", &given)?;
        wait_no_findings(&daemon)
    })
}
