//! Checks that the doctor's first finding reports a fault of the API server's response, and that the doctor's commands fix the fault.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use lab::{
    Answer, Flanneld, FlanneldOptions, Lab, Launch, NodeObject, Process, User, binaries, json,
    until, until_ok,
};
use serde_json::Value;

use crate::kube::bed::{Bed, VXLAN};
use crate::kube::doctor::causes;
use crate::operator::Operator;

/// Adds the DaemonSet's environment variables, so that the doctor's commands use kubectl.
fn in_a_pod(options: FlanneldOptions) -> FlanneldOptions {
    options
        .env("POD_NAMESPACE", "kube-flannel")
        .env("POD_NAME", "kube-flannel-ds-x")
}

/// Waits until the doctor reports only the finding of `check` and the metrics count the finding, and returns the finding.
fn found(daemon: &Flanneld, check: &str) -> Result<Value> {
    // A running daemon reports a refusal after a minute.
    until_ok(&format!("the doctor finds {check}"), || {
        let output = daemon.flannelctl(&["doctor", "-o", "json"])?;
        let report = json(&output)?;
        ensure!(
            causes(&report)? == [check] && output.status.code() == Some(3),
            "{:#}",
            report["findings"]
        );
        ensure!(
            daemon.findings(check)?.is_some_and(|count| count > 0),
            "no metric"
        );
        Ok(report["findings"][0].clone())
    })
}

/// Waits until the daemon is ready and the doctor reports no finding.
fn gone(daemon: &Flanneld) -> Result<()> {
    until("the daemon is ready", || daemon.is_ready()).with_context(|| daemon.log_tail(10))?;
    until_ok("nothing is found", || {
        let output = daemon.flannelctl(&["doctor", "-o", "json"])?;
        let report = json(&output)?;
        ensure!(
            causes(&report)?.is_empty() && output.status.success(),
            "{:#}",
            report["findings"]
        );
        Ok(())
    })
}

fn command(finding: &Value) -> Result<&str> {
    ensure!(
        finding["remedy"]["commands"]
            .as_array()
            .is_some_and(|commands| commands.len() == 1),
        "{finding:#}"
    );
    finding["remedy"]["commands"][0]
        .as_str()
        .context("a command")
}

#[test]
fn missing_right_is_reported_and_granted() -> Result<()> {
    Lab::run("doctor: rbac", |lab| {
        let bed = Bed::empty(lab, 1, VXLAN)?;
        bed.admin().create_node(&bed.node(1))?;
        let operator = Operator::of(lab, &bed.api)?;
        let host = &bed.hosts[0];
        let config = bed
            .api
            .kubeconfig(User::Nobody, Some(&bed.proxies[0].url()))?;
        // The proxy passes the requests on as the same user, instead of another one.
        bed.proxies[0].on(|_| Answer::As(User::Nobody.token()));
        let options = FlanneldOptions::kube("h1", &bed.net_conf)
            .arg(&format!("--kubeconfig-file={}", config.display()));
        let daemon = host.start_flanneld(&in_a_pod(options))?;
        let finding = found(&daemon, "rbac")?;
        ensure!(
            finding["what"]
                == lab::code_or_text(
                    "rbac",
                    "flanneld is not allowed to watch nodes: flanneld's account lacks the permission"
                ),
            "{finding:#}"
        );
        let text = finding["evidence"].to_string();
        let is_seen = ["(403)", "cannot watch resource"]
            .iter()
            .all(|part| text.contains(lab::code_or_text("rbac", part)));
        ensure!(
            is_seen && finding["remedy"]["on"] == "a node with kubectl",
            "{finding:#}"
        );

        let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/flannel";
        let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/flannel";
        bed.admin().merge(role, &serde_json::json!({ "rules": [{ "apiGroups": ["example.org"], "resources": ["things"], "verbs": ["get"] }] }))?;
        println!(
            "{}\n{}",
            command(&finding)?,
            operator.run(command(&finding)?)?
        );
        gone(&daemon)?;
        // Rules and subjects that others added stay.
        let (role, binding) = (bed.admin().get(role)?, bed.admin().get(binding)?);
        ensure!(
            role["rules"].to_string().contains("things"),
            "{}",
            role["rules"]
        );
        ensure!(
            binding["subjects"]
                .as_array()
                .is_some_and(|subjects| subjects.len() == 2),
            "{}",
            binding["subjects"]
        );

        // A token that the API server does not know.
        bed.proxies[0].on(|_| Answer::As("a-token-of-nobody".to_owned()));
        bed.proxies[0].disconnect();
        let finding = found(&daemon, "rbac")?;
        ensure!(
            finding["what"]
                == lab::code_or_text(
                    "rbac",
                    "the API server does not know the credentials of flanneld"
                ),
            "{finding:#}"
        );
        let wanted =
            "kubectl -n kube-flannel delete pod -l app=flannel --field-selector spec.nodeName=h1";
        ensure!(
            command(&finding)? == wanted
                && finding["evidence"]
                    .to_string()
                    .contains(lab::code_or_text("rbac", "(401)")),
            "{finding:#}"
        );
        bed.proxies[0].on(|_| Answer::As(User::Nobody.token()));
        bed.proxies[0].disconnect();
        gone(&daemon)
    })
}

/// Starts the controller manager with the arguments in kubeadm's manifest, as kubelet starts it.
fn controller_manager(bed: &Bed, manifest: &Path) -> Result<Process> {
    let text = std::fs::read_to_string(manifest)?;
    let args = text
        .lines()
        .filter_map(|line| line.strip_prefix("    - --"))
        .map(|arg| format!("--{arg}"));
    let admin = bed.api.kubeconfig(User::Admin, None)?;
    let launch = Launch::new(binaries::kubernetes("kube-controller-manager")?)
        .args(args.collect::<Vec<_>>())
        .args([
            "--leader-elect=false",
            "--secure-port=0",
            "--use-service-account-credentials=true",
        ])
        .arg(format!("--kubeconfig={}", admin.display()))
        .arg(format!(
            "--service-account-private-key-file={}",
            bed.api.certificates().server_key().display()
        ));
    bed.api.host().spawn("kube-controller-manager", &launch)
}

#[test]
fn node_without_pod_cidr_gets_one() -> Result<()> {
    Lab::run("doctor: pod-cidr", |lab| {
        let bed = Bed::empty(lab, 1, VXLAN)?;
        let host = &bed.hosts[0];
        bed.admin()
            .create_node(&NodeObject::new("h1").internal(host.v4()?))?;
        let daemon = host.start_flanneld(&in_a_pod(bed.options[0].clone()))?;
        let finding = found(&daemon, "pod-cidr")?;
        ensure!(
            finding["what"] == lab::code_or_text("pod-cidr", "the Node h1 has no podCIDR")
                && finding["remedy"]["on"] == "each node of the control plane",
            "{finding:#}"
        );

        // Only the manifest's folder and the program that reads it are simulated.
        let folder = lab.folder("manifests")?;
        let place = "/etc/kubernetes/manifests";
        ensure!(command(&finding)?.contains(place), "{finding:#}");
        let typed = command(&finding)?.replace(place, &folder.display().to_string());
        let manifest = folder.join("kube-controller-manager.yaml");
        let plain = "spec:\n  containers:\n  - command:\n    - kube-controller-manager\n    - --controllers=*\n    image: x\n";
        std::fs::write(&manifest, plain)?;
        host.netns().exec("sh", &["-ec", &typed])?;
        let once = std::fs::read_to_string(&manifest)?;
        let added = "    - kube-controller-manager\n    - --allocate-node-cidrs=true\n    - --cluster-cidr=10.244.0.0/16\n";
        ensure!(
            once == plain.replace("    - kube-controller-manager\n", added),
            "{once}"
        );
        // The command can be repeated without harm.
        host.netns().exec("sh", &["-ec", &typed])?;
        ensure!(
            std::fs::read_to_string(&manifest)? == once,
            "it was added twice"
        );
        let _controllers = controller_manager(&bed, &manifest)?;
        gone(&daemon)
    })
}

#[test]
fn unserved_api_service_is_reported() -> Result<()> {
    Lab::run("doctor: api-by-service", |lab| {
        let bed = Bed::empty(lab, 1, VXLAN)?;
        bed.admin().create_node(&bed.node(1))?;
        let operator = Operator::of(lab, &bed.api)?;
        let host = &bed.hosts[0];
        let service = |options: FlanneldOptions| {
            in_a_pod(options)
                .env("KUBERNETES_SERVICE_HOST", "10.96.0.1")
                .env("KUBERNETES_SERVICE_PORT", "443")
        };
        let config = bed
            .api
            .kubeconfig(User::Flannel, Some("https://10.96.0.1:443"))?;
        let options = FlanneldOptions::kube("h1", &bed.net_conf)
            .arg(&format!("--kubeconfig-file={}", config.display()));
        let mut daemon = host.start_flanneld(&service(options))?;
        let finding = found(&daemon, "api-by-service")?;
        // The shell expands the variable in the command to the address at which kubectl reaches the API server.
        let set = "kubectl -n kube-flannel set env daemonset/kube-flannel-ds -c kube-flannel ";
        let variable = command(&finding)?
            .strip_prefix(set)
            .with_context(|| format!("{finding:#}"))?;
        let printed = operator.run(&format!("printf %s {variable}"))?;
        ensure!(
            printed == format!("FLANNELD_KUBE_API_URL={}", bed.api.url()),
            "{printed}"
        );
        ensure!(daemon.terminate()?.success());
        let config = bed.api.kubeconfig(User::Flannel, None)?;
        let options = FlanneldOptions::kube("h1", &bed.net_conf)
            .arg(&format!("--kubeconfig-file={}", config.display()));
        let daemon =
            host.start_flanneld(&service(options).env("FLANNELD_KUBE_API_URL", &bed.api.url()))?;
        gone(&daemon)
    })
}
