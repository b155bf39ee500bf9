//! Tests of the doctor in real clusters: `kubectl exec` returns the doctor's reports, and the tests run the doctor's commands as printed.

use std::net::{SocketAddr, TcpStream};
use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{Cluster, ClusterOptions, Lab, Member, json, outcome, texts, until_ok};
use serde_json::Value;

use crate::install::shapes;
use crate::kube::installed::{
    apply_pods, impatient, install, manifest, require_reach, with_images,
};
use crate::kube::upstream::require_installed;
use crate::operator::{Operator, remedies_of_the_trap};

/// Returns the name of the flannel pod that runs on a node now.
pub(super) fn flannel_pod(cluster: &Cluster, node: &Member) -> Result<String> {
    let query = format!(
        "labelSelector=app%3Dflannel&fieldSelector=spec.nodeName%3D{}",
        node.name()
    );
    let found = cluster
        .api
        .admin()
        .get(&format!("/api/v1/namespaces/kube-flannel/pods?{query}"))?;
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
    Ok(pod["metadata"]["name"]
        .as_str()
        .context("a name")?
        .to_owned())
}

/// Runs `flannelctl` with the arguments `words` in the flannel pod of a node. The function may run the command more than once.
fn flannelctl(
    operator: &Operator,
    cluster: &Cluster,
    node: &Member,
    words: &str,
) -> Result<Output> {
    operator.reads(&format!(
        "kubectl -n kube-flannel exec {} -c kube-flannel -- flannelctl {words}",
        flannel_pod(cluster, node)?
    ))
}

/// Returns a report's findings that no other finding explains.
pub(super) fn causes(report: &Value) -> Result<Vec<&str>> {
    let findings = report["findings"].as_array().context("no findings")?;
    Ok(findings
        .iter()
        .filter(|finding| finding["explained_by"].is_null())
        .filter_map(|finding| finding["check"].as_str())
        .collect())
}

/// Runs the doctor in the flannel pod of a node, checks the exit code, and returns the report.
fn report(operator: &Operator, cluster: &Cluster, node: &Member) -> Result<Value> {
    let output = flannelctl(operator, cluster, node, "doctor -o json")?;
    let report = json(&output)?;
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

/// Waits until the doctor of every node finds exactly the causes `wanted`, and returns the last report.
fn expect(operator: &Operator, cluster: &Cluster, wanted: &[&str]) -> Result<Value> {
    let mut last = Value::Null;
    for node in &cluster.nodes {
        last = until_ok(
            &format!("the doctor of {} finds {wanted:?}", node.name()),
            || {
                let report = report(operator, cluster, node)?;
                let found = causes(&report)?;
                ensure!(found == wanted, "{found:?}: {:#}", report["findings"]);
                Ok(report)
            },
        )?;
    }
    Ok(last)
}

/// Checks that every node reports that flannel uses the NAT interface, and that the documented commands fix the fault.
fn out_of_the_trap(operator: &Operator, cluster: &Cluster, documented: &[String]) -> Result<()> {
    let begun = Instant::now();
    let report = expect(operator, cluster, &["wrong-interface"])?;
    println!("named on every node after {:.1?}", begun.elapsed());
    for node in &cluster.nodes {
        // On a busy machine, the daemon's response may take longer than `flannelctl status` waits.
        let what = format!("flannelctl status on {} names the interface", node.name());
        until_ok(&what, || {
            let output = flannelctl(operator, cluster, node, "status")?;
            let second = texts(&output).lines().nth(1).unwrap_or_default().to_owned();
            ensure!(
                output.status.code() == Some(3)
                    && second.starts_with("  broken: flannel uses enp0s3, the NAT interface"),
                "{}",
                outcome(&output)
            );
            Ok(())
        })?;
    }
    let remedy = &report["findings"][0]["remedy"];
    let [look, mend, rest @ ..] = documented else {
        bail!("two commands or more, not {documented:?}")
    };
    ensure!(
        remedy["commands"] == serde_json::json!([mend]) && remedy["on"] == "a node with kubectl",
        "{remedy} is not {mend}"
    );
    let looked = operator.reads(look)?;
    ensure!(
        texts(&looked).contains("wrong-interface") && texts(&looked).contains(mend.as_str()),
        "{look}: {}",
        outcome(&looked)
    );
    for command in std::iter::once(mend).chain(rest) {
        println!("{command}\n{}", operator.run(command)?.trim_end());
    }
    require_reach(cluster)?;
    println!("pods reach each other after {:.1?}", begun.elapsed());
    expect(operator, cluster, &[]).map(drop)
}

/// Returns the DaemonSet's container, with the container's arguments and environment variables.
fn container(cluster: &Cluster) -> Result<Value> {
    let set = cluster
        .api
        .admin()
        .get("/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds")?;
    Ok(set["spec"]["template"]["spec"]["containers"][0].clone())
}

#[test]
fn nat_trap_in_a_cluster_is_fixed_by_documented_commands() -> Result<()> {
    Lab::run("cluster: the trap", |lab| {
        let [_, by_argument, by_variable] = remedies_of_the_trap()?;
        let mut cluster = Cluster::prepare(lab, &with_images(ClusterOptions::new(2).vagrant())?)?;
        cluster.start_nodes(0..2)?;
        let operator = Operator::of(lab, &cluster.api)?;

        // Every machine has the address 10.0.2.15, and the manifest names that interface.
        let right = manifest(|text| impatient(&text))?;
        let wrong = right.replace(
            "        - --kube-subnet-mgr\n",
            "        - --kube-subnet-mgr\n        - --iface=enp0s3\n",
        );
        ensure!(right != wrong, "no trap");
        cluster.apply(&wrong)?;
        cluster.wait_ready()?;
        apply_pods(&cluster)?;
        let before = container(&cluster)?;
        out_of_the_trap(&operator, &cluster, &by_argument).context("one address everywhere")?;
        // The command changed only that argument.
        let changed = before
            .to_string()
            .replace("--iface=enp0s3", "--iface=enp0s8");
        let after = container(&cluster)?.to_string();
        ensure!(after == changed, "{after} instead of {changed}");
        status_api_is_for_the_node_only(&operator, &cluster)?;

        // Now each node has its own address, and a variable names the interface.
        cluster.nodes[1]
            .host()
            .netns()
            .ip("address del 10.0.2.15/24 dev enp0s3\naddress add 10.0.2.16/24 dev enp0s3\nroute replace default via 10.0.2.2 dev enp0s3")?;
        cluster.apply(&right)?;
        operator.run("kubectl -n kube-flannel set env daemonset/kube-flannel-ds -c kube-flannel FLANNELD_IFACE=enp0s3")?;
        cluster.wait_daemon_set("kube-flannel", "kube-flannel-ds")?;
        let before = container(&cluster)?;
        out_of_the_trap(&operator, &cluster, &by_variable).context("an address each")?;
        let changed = before.to_string().replace("\"enp0s3\"", "\"enp0s8\"");
        let after = container(&cluster)?.to_string();
        ensure!(after == changed, "{after} instead of {changed}");

        // The doctor could run all checks, except those that need the container runtime.
        let report = expect(&operator, &cluster, &[])?;
        let unknown: Vec<&Value> = report["unknown"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|unknown| &unknown["check"])
            .collect();
        ensure!(
            unknown.iter().all(|check| **check != "ipam-full"),
            "{:#}",
            report["unknown"]
        );
        api_service_is_unserved(&operator, &cluster)
    })
}

/// Returns whether the status API of a daemon accepts a connection.
fn ask(netns: &lab::Netns, address: &str) -> Result<bool> {
    let address: SocketAddr = address.parse()?;
    Ok(netns
        .run(|| TcpStream::connect_timeout(&address, Duration::from_secs(2)))?
        .is_ok())
}

/// Pod on `h1` that uses the host network.
const HOST_POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: host-network}
spec:
  nodeName: h1
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers:
  - {name: c, image: localhost/busybox:1, imagePullPolicy: Never, command: [sleep, infinity]}
";

/// Checks that neither a pod nor another host reaches the status API. A pod with the host network reaches
/// the status API only with an allowed Host header, and never through the Unix socket.
fn status_api_is_for_the_node_only(operator: &Operator, cluster: &Cluster) -> Result<()> {
    let node = cluster.nodes[0].host();
    let gateway = node
        .netns()
        .exec("ip", &["-4", "-brief", "address", "show", "dev", "cni0"])?;
    let gateway = gateway
        .split_whitespace()
        .nth(2)
        .and_then(|net| net.split('/').next())
        .context("cni0 has no address")?
        .to_owned();
    let outside = [
        cluster.netns("default", "p1")?,
        cluster.netns("default", "p2")?,
        cluster.nodes[1].host().netns().clone(),
        cluster.api.host().netns().clone(),
    ];
    ensure!(ask(node.netns(), "127.0.0.1:8474")?, "the daemon listens");
    for netns in &outside {
        for address in [
            format!("{}:8474", node.v4_of("enp0s8")?),
            format!("{gateway}:8474"),
        ] {
            ensure!(!ask(netns, &address)?, "{} reaches {address}", netns.name());
        }
    }
    for netns in &outside[..2] {
        ensure!(
            !ask(netns, "127.0.0.1:8474")?,
            "{} has an API of its own",
            netns.name()
        );
    }
    cluster.apply(HOST_POD)?;
    cluster.wait_pod("default", "host-network")?;
    let asked = |host: &str| -> Result<String> {
        let get = format!(
            "printf 'GET /api/v1/node HTTP/1.0\\r\\nHost: {host}\\r\\n\\r\\n' | nc 127.0.0.1 8474"
        );
        cluster.exec("default", "host-network", &["sh", "-c", &get])
    };
    for (host, code) in [
        ("127.0.0.1:8474", 200),
        ("localhost", 200),
        ("h1", 200),
        ("evil.example", 421),
        ("h2", 421),
    ] {
        let answer = asked(host)?;
        ensure!(
            answer.starts_with(&format!("HTTP/1.0 {code} "))
                || answer.starts_with(&format!("HTTP/1.1 {code} ")),
            "{host}: {answer}"
        );
        ensure!(
            answer.contains("10.244.") == (code == 200),
            "{host}: {answer}"
        );
    }
    let files = cluster.exec(
        "default",
        "host-network",
        &["sh", "-c", "ls -d /run/flannel 2>&1 || true"],
    )?;
    ensure!(files.contains("No such file"), "{files}");

    let answer = asked("localhost")?;
    require_no_token(operator, cluster, &answer)?;
    operator.run("kubectl delete pod host-network").map(drop)
}

/// Checks that no response, log or bundle contains flanneld's token for the API server.
fn require_no_token(operator: &Operator, cluster: &Cluster, answer: &str) -> Result<()> {
    let tokens = cluster.nodes[0].command(&[
        "sh",
        "-c",
        "cat /var/lib/kubelet/pods/*/volumes/kubernetes.io~projected/*/token",
    ])?;
    let tokens: Vec<&str> = tokens
        .split_inclusive("\n")
        .flat_map(|text| text.split("eyJ"))
        .filter(|part| part.len() > 100)
        .collect();
    ensure!(!tokens.is_empty(), "no token");
    let pod = flannel_pod(cluster, &cluster.nodes[0])?;
    let mut texts_of_flannel = operator.run(&format!(
        "kubectl -n kube-flannel logs {pod} -c kube-flannel"
    ))?;
    for words in [
        "status",
        "status -o json",
        "peers",
        "peers -o json",
        "doctor",
        "doctor -o json",
        "support-bundle --file=/run/flannel/b.tar.gz",
    ] {
        texts_of_flannel += &texts(&flannelctl(operator, cluster, &cluster.nodes[0], words)?);
    }
    texts_of_flannel += answer;
    texts_of_flannel += &cluster.nodes[0].command(&["tar", "-xzOf", "/run/flannel/b.tar.gz"])?;
    for token in tokens {
        let signature = token.rsplit('.').next().unwrap_or_default().trim();
        ensure!(
            signature.len() < 40 || !texts_of_flannel.contains(signature),
            "the signature of a token is in an answer, log or bundle"
        );
    }
    Ok(())
}

/// Cuts each node off from the API server's Service, and restarts flanneld on each node.
fn api_service_is_unserved(operator: &Operator, cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        node.host().netns().feed(
            "nft",
            &["-f", "-"],
            "table ip hole { chain c { type filter hook output priority -300; ip daddr 10.96.0.1 drop; }; }\n",
        )?;
    }
    operator.run("kubectl -n kube-flannel delete pod -l app=flannel")?;
    let report = expect(operator, cluster, &["api-by-service"])?;
    let command = report["findings"][0]["remedy"]["commands"][0]
        .as_str()
        .context("a command")?
        .to_owned();
    println!("{command}\n{}", operator.run(&command)?);
    cluster.wait_daemon_set("kube-flannel", "kube-flannel-ds")?;
    expect(operator, cluster, &[])?;
    require_reach(cluster)
}

#[test]
fn orphaned_pod_is_reported_and_adopted() -> Result<()> {
    Lab::run("cluster: orphans", |lab| {
        let cluster = Cluster::start(lab, &with_images(ClusterOptions::new(2))?)?;
        let operator = Operator::of(lab, &cluster.api)?;
        install(&cluster, &impatient(&shapes::raw()?))?;
        apply_pods(&cluster)?;
        require_reach(&cluster)?;
        // Skips the step that labels the pods.
        operator
            .run("kubectl -n kube-flannel delete daemonset kube-flannel-ds --cascade=orphan")?;
        cluster.apply(&manifest(|text| impatient(&text))?)?;
        let report = expect(&operator, &cluster, &["daemon-set"])?;
        let finding = &report["findings"][0];
        ensure!(
            finding["severity"] == "degraded" && finding["remedy"]["on"] == "a node with kubectl",
            "{finding:#}"
        );
        let command = finding["remedy"]["commands"][0]
            .as_str()
            .context("a command")?;
        // A pod that the DaemonSet replaces may disappear between the list and the label, so the operator repeats the command.
        println!(
            "{command}\n{}",
            until_ok("all pods are labelled", || operator.run(command))?
        );
        require_installed(&cluster)?;
        expect(&operator, &cluster, &[])?;
        require_reach(&cluster)
    })
}

/// Returns the doctor's report from the flannel pod of a node whose kubelet the API server does not reach.
fn report_without_kubelet(cluster: &Cluster, node: &Member) -> Result<Value> {
    let output = cluster.exec_output(
        "kube-flannel",
        &flannel_pod(cluster, node)?,
        &["/opt/bin/flannelctl", "doctor", "-o", "json"],
    )?;
    json(&output)
}

#[test]
fn kubelet_that_reports_a_nat_address_is_reconfigured() -> Result<()> {
    Lab::run("cluster: InternalIP", |lab| {
        let mut cluster = Cluster::prepare(
            lab,
            &with_images(ClusterOptions::new(2).vagrant())?.without_node_ip(),
        )?;
        cluster.start_nodes(0..2)?;
        let operator = Operator::of(lab, &cluster.api)?;
        install(&cluster, &manifest(|text| impatient(&text))?)?;
        for number in 0..cluster.nodes.len() {
            let wanted = cluster.nodes[number].host().v4_of("enp0s8")?.to_string();
            // The argument that kubeadm wrote there stays.
            cluster.nodes[number].command(&[
                "sh",
                "-c",
                "echo 'KUBELET_KUBEADM_ARGS=\"--v=1\"' > /var/lib/kubelet/kubeadm-flags.env",
            ])?;
            let commands = until_ok("the doctor finds it", || {
                let report = report_without_kubelet(&cluster, &cluster.nodes[number])?;
                ensure!(
                    causes(&report)? == ["node-internal-ip"],
                    "{:#}",
                    report["findings"]
                );
                Ok(report["findings"][0]["remedy"]["commands"].clone())
            })?;
            ensure!(
                flannelctl(&operator, &cluster, &cluster.nodes[number], "status")?
                    .status
                    .code()
                    == Some(1),
                "kubectl exec works already"
            );
            for command in commands
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
            {
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
                let report = report(&operator, &cluster, node)?;
                ensure!(causes(&report)?.is_empty(), "{:#}", report["findings"]);
                Ok(())
            })?;
        }
        require_reach(&cluster)
    })
}
