//! flannel-rs' manifest and chart over Go flannel's, and vice versa.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use lab::{Cluster, ClusterOptions, Lab, stdout_and_stderr, until_ok};
use serde_json::Value;

use crate::install::operator::{Operator, shell_command_blocks};
use crate::install::shapes;
use crate::kube::installed::{
    apply_echo_pods_and_service, install_and_wait_ready, manifest_changed_by, repository_path,
    require_no_failed_sandbox, wait_pod_service_host_port_traffic, with_frequent_probes,
    with_images,
};
use crate::kube::streams::Streams;

const OURS: [&str; 2] =
    ["docker.io/flannel-rs/flannel:v0.1.0", "docker.io/flannel-rs/flannel-cni-plugin:v0.1.0"];
/// The path of an archive of Go flannel's daemon and plugin images, as `docker save` and `ctr images export` write it.
const GO_FLANNEL_IMAGE: &str = "GO_FLANNEL_IMAGE";

/// Go flannel's released manifest, with more frequent probes.
fn go_manifest_with_frequent_probes() -> Result<String> {
    Ok(with_frequent_probes(&shapes::released_go_manifest()?))
}

/// flannel-rs' manifest over Go flannel's, and then Go flannel's again, while packets flow: none is lost.
fn install_ours_over_theirs_and_back(cluster: &Cluster, theirs: &str) -> Result<()> {
    let ours = manifest_changed_by(|text| with_frequent_probes(&text))?;
    apply_changes_without_loss(
        cluster,
        || install_and_wait_ready(cluster, theirs),
        &[
            ("ours over it", &|| install_and_wait_ready(cluster, &ours)),
            ("and back", &|| install_and_wait_ready(cluster, theirs)),
        ],
    )
}

/// Its name, and what makes it.
type Change<'a> = (&'a str, &'a dyn Fn() -> Result<()>);

/// Runs `first`, then makes the changes while packets flow between pods: none is lost.
fn apply_changes_without_loss(
    cluster: &Cluster,
    first: impl FnOnce() -> Result<()>,
    changes: &[Change],
) -> Result<()> {
    // In Go flannel's manifest the CNI configuration comes before the daemon, so pods that wait for their network find it before subnet.env exists.
    apply_echo_pods_and_service(cluster)?;
    first()?;
    wait_pod_service_host_port_traffic(cluster)?;
    let streams = Streams::deploy_pods_and_start(cluster)?;
    for (name, change) in changes {
        let start = Instant::now();
        change().with_context(|| (*name).to_owned())?;
        println!("{name}: {:.1?}", start.elapsed());
        wait_pod_service_host_port_traffic(cluster).with_context(|| (*name).to_owned())?;
    }
    streams.require_clean()
}

/// Waits until each node has one flannel pod, which is ready and of the current DaemonSet.
pub(super) fn wait_current_flannel_pods_ready(cluster: &Cluster) -> Result<()> {
    cluster.wait_nodes_ready()?;
    until_ok("each node has one flannel pod of the present DaemonSet", || {
        let set = cluster
            .api
            .admin()
            .get("/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds")?;
        let pods = cluster.api.admin().get("/api/v1/namespaces/kube-flannel/pods")?;
        let pods: Vec<&Value> = pods["items"].as_array().into_iter().flatten().collect();
        let mut nodes: Vec<&str> =
            pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
        nodes.sort_unstable();
        ensure!(nodes == ["n1", "n2"] && pods.len() == 2, "{} pods on {nodes:?}", pods.len());
        pods.into_iter().try_for_each(|pod| require_pod_current_and_ready(pod, &set))
    })
}

/// The DaemonSet has created `pod` from its current template, and it is ready.
fn require_pod_current_and_ready(pod: &Value, set: &Value) -> Result<()> {
    let (metadata, template) = (&pod["metadata"], &set["spec"]["template"]);
    let labels = |labels: &Value| -> Vec<(String, Value)> {
        let all = labels
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.clone()));
        all.filter(|(key, _)| {
            !["controller-revision-hash", "pod-template-generation"].contains(&key.as_str())
        })
        .collect()
    };
    let names = |spec: &Value| -> Vec<Value> {
        spec["initContainers"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|container| container["name"].clone())
            .collect()
    };
    let is_of_template = labels(&metadata["labels"]) == labels(&template["metadata"]["labels"])
        && names(&pod["spec"]) == names(&template["spec"]);
    // An adopted pod is older than the DaemonSet.
    let since =
        |object: &Value| object["creationTimestamp"].as_str().unwrap_or_default().to_owned();
    ensure!(
        since(metadata) >= since(&set["metadata"]),
        "{} was adopted and stayed",
        metadata["name"]
    );
    ensure!(
        metadata["ownerReferences"][0]["uid"] == set["metadata"]["uid"],
        "{} has another owner",
        metadata["name"]
    );
    ensure!(
        is_of_template,
        "{} is of another template: {}, {:?}",
        metadata["name"],
        metadata["labels"],
        names(&pod["spec"])
    );
    ensure!(
        pod["status"]["containerStatuses"][0]["ready"] == true,
        "{} is not ready",
        metadata["name"]
    );
    Ok(())
}

/// The folder has the files that docs/migrating.md uses: `conf`, and Go flannel's manifest and chart.
fn operator_with_migration_files(lab: &Lab, cluster: &Cluster, go: &str) -> Result<Operator> {
    let operator = Operator::with_admin_rights(lab, &cluster.api)?;
    let folder = operator.folder();
    for (from, to) in [("conf", "conf"), ("e2e/tests/manifests/go-chart", "go-chart")] {
        let output = Command::new("cp")
            .arg("-r")
            .arg(repository_path(from))
            .arg(folder.join(to))
            .output()?;
        ensure!(output.status.success(), "{output:?}");
    }
    for file in
        ["conf/kube-flannel.yml", "conf/chart/values.yaml", "go-chart/templates/flannel.yaml"]
    {
        let text = std::fs::read_to_string(folder.join(file))?;
        ensure!(text != with_frequent_probes(&text), "{file} has other probes");
        std::fs::write(folder.join(file), with_frequent_probes(&text))?;
    }
    std::fs::write(folder.join("go-flannel.yml"), go)?;
    Ok(operator)
}

/// The commands below a heading of docs/migrating.md, grouped by code block.
fn migration_commands_below(heading: &str) -> Result<Vec<Vec<String>>> {
    let page = std::fs::read_to_string(repository_path("docs/migrating.md"))?;
    let part = page.split_once(heading).with_context(|| format!("no {heading}"))?.1;
    Ok(shell_command_blocks(part.split("\n#").next().unwrap_or_default()))
}

#[test]
fn manifest_over_go_flannels_and_back_loses_no_packet() -> Result<()> {
    Lab::run("cluster: Go flannel's manifest", |lab| {
        let cluster =
            Cluster::start_with_registered_nodes(lab, &with_images(ClusterOptions::new(2))?)?;
        install_ours_over_theirs_and_back(&cluster, &go_manifest_with_frequent_probes()?)?;
        require_no_failed_sandbox(&cluster)
    })
}

#[test]
fn chart_over_go_flannels_and_back_loses_no_packet() -> Result<()> {
    Lab::run("cluster: Go flannel's chart", |lab| {
        let cluster =
            Cluster::start_with_registered_nodes(lab, &with_images(ClusterOptions::new(2))?)?;
        let operator = operator_with_migration_files(lab, &cluster, "")?;
        operator.run("kubectl create namespace kube-flannel")?;
        let [over, back] = <[Vec<String>; 2]>::try_from(migration_commands_below("### The chart")?)
            .map_err(|found| anyhow!("two blocks, not {found:#?}"))?;
        let run = |commands: &[String]| -> Result<()> {
            commands.iter().try_for_each(|command| operator.run(command).map(drop))?;
            wait_current_flannel_pods_ready(&cluster)
        };
        // The bed has already created the ClusterRole for its users, so helm has to take it over.
        let theirs =
            ["helm install flannel go-chart --namespace kube-flannel --take-ownership".to_owned()];
        apply_changes_without_loss(
            &cluster,
            || run(&theirs),
            &[("ours over it", &|| run(&over)), ("and back", &|| run(&back))],
        )?;
        require_no_failed_sandbox(&cluster)
    })
}

#[test]
fn selector_change_by_documented_commands_loses_no_packet() -> Result<()> {
    Lab::run("cluster: another selector", |lab| {
        let cluster =
            Cluster::start_with_registered_nodes(lab, &with_images(ClusterOptions::new(2))?)?;
        let operator = operator_with_migration_files(
            lab,
            &cluster,
            &with_frequent_probes(&shapes::raw_go_manifest()?),
        )?;
        let found = migration_commands_below("### Another selector")?;
        let [to_manifest, to_chart, back] = <[Vec<String>; 3]>::try_from(found)
            .map_err(|found| anyhow!("three blocks, not {found:#?}"))?;
        let run = |commands: &[String]| -> Result<()> {
            commands.iter().try_for_each(|command| operator.run(command).map(drop))?;
            wait_current_flannel_pods_ready(&cluster)
        };
        let theirs = ["kubectl apply -f go-flannel.yml".to_owned()];
        let refused = || {
            let output = operator.run_in_bash(
                "kubectl apply -f conf/kube-flannel.yml --selector component!=net-conf",
            )?;
            ensure!(
                !output.status.success()
                    && stdout_and_stderr(&output).contains("field is immutable"),
                "{}",
                stdout_and_stderr(&output)
            );
            Ok(())
        };
        let changes: [Change; 5] = [
            ("without the commands", &refused),
            ("the raw file to our manifest", &|| run(&to_manifest)),
            ("to our chart", &|| run(&to_chart)),
            ("to our manifest again", &|| run(&to_manifest)),
            ("and back to the raw file", &|| run(&back)),
        ];
        apply_changes_without_loss(&cluster, || run(&theirs), &changes)?;
        require_no_failed_sandbox(&cluster)
    })
}

#[test]
fn kube_system_manifest_replaced_by_documented_commands_loses_no_packet() -> Result<()> {
    Lab::run("cluster: kube-system", |lab| {
        let cluster =
            Cluster::start_with_registered_nodes(lab, &with_images(ClusterOptions::new(2))?)?;
        let operator = operator_with_migration_files(
            lab,
            &cluster,
            &with_frequent_probes(&shapes::go_manifest_in_kube_system()?),
        )?;
        let [over] = <[Vec<String>; 1]>::try_from(migration_commands_below("### Up to v0.18")?)
            .map_err(|found| anyhow!("one block, not {found:#?}"))?;
        let theirs = || {
            operator.run("kubectl apply -f go-flannel.yml")?;
            cluster.wait_nodes_ready()?;
            cluster.wait_daemon_set("kube-system", "kube-flannel-ds")
        };
        let ours = || {
            over.iter().try_for_each(|command| operator.run(command).map(drop))?;
            wait_current_flannel_pods_ready(&cluster)?;
            let left = operator.run(
                "kubectl -n kube-system get pods,daemonsets,configmaps -l app=flannel -o name",
            )?;
            ensure!(left.trim().is_empty(), "{left} is left");
            Ok(())
        };
        apply_changes_without_loss(&cluster, theirs, &[("ours in its place", &ours)])?;
        require_no_failed_sandbox(&cluster)
    })
}

#[test]
#[ignore = "run by make test-interop GO_FLANNEL_IMAGE=/path/to/archive.tar"]
fn manifest_over_a_running_go_flannel_and_back_loses_no_packet() -> Result<()> {
    let archive =
        std::env::var_os(GO_FLANNEL_IMAGE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let archive = archive.with_context(|| {
        format!("{GO_FLANNEL_IMAGE} does not name an archive of Go flannel's images")
    })?;
    ensure!(archive.is_file(), "{GO_FLANNEL_IMAGE}={} is no file", archive.display());
    Lab::run("cluster: Go flannel", |lab| {
        let cluster = Cluster::start_with_registered_nodes(
            lab,
            &with_images(ClusterOptions::new(2))?.image(&archive),
        )?;
        let images = cluster.nodes[0].command(&[
            "ctr",
            "--namespace",
            "k8s.io",
            "images",
            "list",
            "--quiet",
        ])?;
        let theirs = |of_plugin: bool| {
            let mut found = images.lines().filter(|name| {
                name.contains("flannel") && !name.contains("@") && !OURS.contains(name)
            });
            found
                .find(|name| name.contains("plugin") == of_plugin)
                .with_context(|| format!("{} has: {images}", archive.display()))
        };
        // Not every version of Go flannel has these, but all have cp and /healthz.
        let text = go_manifest_with_frequent_probes()?
            .replace("- /opt/bin/install-conf\n", "- cp\n")
            .replace(
                "- /etc/kube-flannel/cni-conf.json\n",
                "- -f\n        - /etc/kube-flannel/cni-conf.json\n",
            );
        ensure!(
            text.contains("- -f\n        - /etc/kube-flannel"),
            "another form of the manifest: {text}"
        );
        let text = text
            .replace("path: /readyz", "path: /healthz")
            .replace(OURS[0], theirs(false)?)
            .replace(OURS[1], theirs(true)?);
        install_ours_over_theirs_and_back(&cluster, &text)
    })
}
