//! Kubernetes' own network tests, in whole clusters with flannel from the manifest: `make conformance`.
//!
//! Each run writes its report and log to target/conformance, and a table of all runs to target/conformance/table.md.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Cluster, ClusterOptions, Families, Lab, Launch, ProxyMode, User, binaries};
use serde_json::Value;

use crate::kube::installed::{
    install_and_wait_ready, manifest_changed_by, repository_path, with_images,
};

const ENDS: Duration = Duration::from_secs(45 * 60);

/// With the address families of the cluster.
struct Suite {
    name: &'static str,
    /// A regular expression for the names of the tests. `FLANNEL_TEST_FOCUS` replaces it.
    focus: &'static str,
    /// Tests whose names match `focus`.
    tests: usize,
    families: Families,
}

/// The conformance suite, with the Conntrack tests from outside the conformance profile: UDP flows continue while their pods end and start.
const CONFORMANCE: Suite = Suite {
    name: "conformance",
    focus: r"\[sig-network\].*\[Conformance\]|\[sig-network\] Conntrack",
    tests: 54,
    families: Families::V4,
};
const DUAL_STACK: Suite = Suite {
    name: "dual-stack",
    focus: r"\[sig-network\].*\[Feature:IPv6DualStack\]",
    tests: 22,
    families: Families::Dual,
};
/// Few kernels have SCTP, and disruptive tests restart the nodes of a cloud.
const SKIP: &str = r"\[Feature:SCTPConnectivity\]|\[Disruptive\]";

#[test]
#[ignore = "run by make conformance"]
fn conformance_with_kube_proxy_by_iptables() -> Result<()> {
    require_suite_passes(&CONFORMANCE, ProxyMode::Iptables)
}

#[test]
#[ignore = "run by make conformance"]
fn conformance_with_kube_proxy_by_nftables() -> Result<()> {
    require_suite_passes(&CONFORMANCE, ProxyMode::Nftables)
}

#[test]
#[ignore = "run by make conformance"]
fn dual_stack_with_kube_proxy_by_iptables() -> Result<()> {
    require_suite_passes(&DUAL_STACK, ProxyMode::Iptables)
}

#[test]
#[ignore = "run by make conformance"]
fn dual_stack_with_kube_proxy_by_nftables() -> Result<()> {
    require_suite_passes(&DUAL_STACK, ProxyMode::Nftables)
}

/// All tests of the suite pass at the first attempt.
fn require_suite_passes(suite: &Suite, proxy: ProxyMode) -> Result<()> {
    let folder = repository_path("target/conformance");
    std::fs::create_dir_all(&folder)?;
    let name = format!("{} {proxy:?}", suite.name).to_lowercase().replace(' ', ".");
    let focus = std::env::var("FLANNEL_TEST_FOCUS").ok();
    let report = folder.join(format!("{name}.json"));
    Lab::run(&name, |lab| {
        let options = ClusterOptions::new(2)
            .families(suite.families)
            .proxy(proxy)
            .kubelet_cluster_dns()
            .overlayfs_snapshotter();
        let cluster = Cluster::start_with_registered_nodes(
            lab,
            &suite_image_archives()?.into_iter().fold(with_images(options)?, ClusterOptions::image),
        )?;
        install_and_wait_ready(
            &cluster,
            &manifest_changed_by(|text| enable_ipv6_in_manifest_if_dual(&text, suite.families))?,
        )?;
        install_name_service(&cluster)?;
        add_pod_routes_on_api_host(&cluster)?;
        let launch = e2e_test_launch(&cluster, focus.as_deref().unwrap_or(suite.focus), &report)?;
        let mut process = cluster.api.host().spawn("e2e.test", &launch)?;
        let ended = process.wait();
        std::fs::write(folder.join(format!("{name}.log")), process.log())?;
        ended.with_context(|| process.log_tail(20)).map(drop)
    })?;
    let outcomes = read_ginkgo_outcomes(&report)?;
    write_table()?;
    let failed: Vec<String> = outcomes
        .iter()
        .filter(|(_, outcome)| outcome.trouble.is_some())
        .map(|(test, outcome)| format!("{test}: {:?}", outcome.trouble))
        .collect();
    ensure!(
        failed.is_empty(),
        "{} of {} failed:\n{}",
        failed.len(),
        outcomes.len(),
        failed.join("\n")
    );
    ensure!(
        focus.is_some() || outcomes.len() == suite.tests,
        "{} tests ran, not {}",
        outcomes.len(),
        suite.tests
    );
    println!("{name}: {} of {} passed", outcomes.len(), outcomes.len());
    Ok(())
}

/// Runs the tests that match `focus` with Kubernetes' test program and writes a JSON report.
fn e2e_test_launch(cluster: &Cluster, focus: &str, report: &Path) -> Result<Launch> {
    Ok(Launch::new(binaries::cached_file("conformance-1.36/e2e.test")?)
        .arg(format!("--kubeconfig={}", cluster.api.write_kubeconfig(User::Admin, None)?.display()))
        .arg(format!("--kubectl-path={}", binaries::kubernetes_program("kubectl")?.display()))
        .args([
            "--provider=local",
            "--num-nodes=2",
            "--minStartupPods=1",
            "--dns-domain=cluster.local",
        ])
        .args([
            "--disable-log-dump",
            "--dump-logs-on-failure=false",
            "--ginkgo.no-color",
            "--ginkgo.v",
            "--ginkgo.seed=1",
        ])
        .arg(format!("--ginkgo.focus={focus}"))
        .arg(format!("--ginkgo.skip={SKIP}"))
        .arg(format!("--ginkgo.timeout={}s", ENDS.as_secs()))
        .arg(format!("--ginkgo.json-report={}", report.display())))
}

/// Archives of the images that Kubernetes' tests use.
fn suite_image_archives() -> Result<Vec<PathBuf>> {
    let folder = binaries::cached_file("conformance-images")?;
    Ok(std::fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "tar"))
        .collect())
}

/// The manifest with a network configuration for these families.
fn enable_ipv6_in_manifest_if_dual(text: &str, families: Families) -> String {
    let dual = "\"Network\": \"10.244.0.0/16\",\n      \"EnableIPv6\": true,\n      \"IPv6Network\": \"fd10:244::/48\",";
    if families == Families::Dual {
        text.replace("\"Network\": \"10.244.0.0/16\",", dual)
    } else {
        text.to_owned()
    }
}

/// CoreDNS from Kubernetes' own manifest, without upstream servers, because the lab has no name server.
fn install_name_service(cluster: &Cluster) -> Result<()> {
    let text =
        std::fs::read_to_string(binaries::cached_file("conformance-1.36/coredns.yaml.base")?)?;
    let text = text
        .replace("__DNS__DOMAIN__", "cluster.local")
        .replace("__DNS__SERVER__", "10.96.0.10")
        .replace("__DNS__MEMORY__LIMIT__", "170Mi");
    let text = text
        .replace(
            "        forward . /etc/resolv.conf {\n            max_concurrent 1000\n        }\n",
            "",
        )
        .replace("        loop\n", "");
    cluster.apply(&text)?;
    cluster
        .kubectl(&[
            "--namespace=kube-system",
            "rollout",
            "status",
            "deployment/coredns",
            "--timeout=120s",
        ])
        .map(drop)
}

/// Routes from the API server to pods, because it proxies requests to them. A control plane that is itself a node has them.
fn add_pod_routes_on_api_host(cluster: &Cluster) -> Result<()> {
    for member in &cluster.nodes {
        let node = cluster.api.admin().node(member.name())?;
        for cidr in
            node["spec"]["podCIDRs"].as_array().into_iter().flatten().filter_map(Value::as_str)
        {
            let via = if cidr.contains(':') {
                member.host().v6()?.to_string()
            } else {
                member.host().v4_of("enp0s8")?.to_string()
            };
            cluster.api.host().netns().run_ip_batch(&format!("route add {cidr} via {via}"))?;
        }
    }
    Ok(())
}

struct Outcome {
    seconds: f64,
    /// Why the test did not pass.
    trouble: Option<String>,
}

/// The selected tests, by name.
fn read_ginkgo_outcomes(report: &Path) -> Result<BTreeMap<String, Outcome>> {
    let document: Value = serde_json::from_str(
        &std::fs::read_to_string(report).with_context(|| report.display().to_string())?,
    )?;
    let suites = document.as_array().into_iter().flatten();
    let specs = suites.flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten());
    // A test that the focus leaves out is skipped without a message.
    let chosen = specs.filter(|spec| {
        spec["LeafNodeType"] == "It"
            && (spec["State"] != "skipped" || spec["Failure"]["Message"].is_string())
    });
    Ok(chosen
        .map(|spec| {
            let texts = spec["ContainerHierarchyTexts"]
                .as_array()
                .into_iter()
                .flatten()
                .chain([&spec["LeafNodeText"]]);
            let name = texts.filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
            let trouble = (spec["State"] != "passed")
                .then(|| format!("{}: {}", spec["State"], spec["Failure"]["Message"]));
            (name, Outcome { seconds: spec["RunTime"].as_f64().unwrap_or_default() / 1e9, trouble })
        })
        .collect())
}

/// Covers all existing reports, by suite and by kube-proxy's mode.
fn write_table() -> Result<()> {
    let folder = repository_path("target/conformance");
    let modes = ["iptables", "nftables"];
    let mut text = String::new();
    for suite in [&CONFORMANCE, &DUAL_STACK] {
        let found = modes.map(|mode| {
            read_ginkgo_outcomes(&folder.join(format!("{}.{mode}.json", suite.name)))
                .unwrap_or_default()
        });
        let names: std::collections::BTreeSet<&String> =
            found.iter().flat_map(BTreeMap::keys).collect();
        text.push_str(&format!(
            "## {}\n\n| test | {} |\n|---|---|---|\n",
            suite.name,
            modes.join(" | ")
        ));
        for name in names {
            let cell = |outcomes: &BTreeMap<String, Outcome>| match outcomes.get(name) {
                None => "not run".to_owned(),
                Some(Outcome { seconds, trouble: None }) => format!("passed, {seconds:.0} s"),
                Some(Outcome { seconds, .. }) => format!("**failed**, {seconds:.0} s"),
            };
            let cells = found.each_ref().map(cell).join(" | ");
            text.push_str(&format!(
                "| {} | {cells} |\n",
                name.trim_start_matches("[sig-network] ")
            ));
        }
        text.push('\n');
    }
    std::fs::write(folder.join("table.md"), text)?;
    Ok(())
}
