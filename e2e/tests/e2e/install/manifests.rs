//! A real API server accepts the manifests, and flannel-rs' and Go flannel's can replace each other.

use anyhow::{Context, Result, ensure};
use lab::{ApiServer, Lab};
use serde_json::{Value, json};

use super::{
    chart, dry_run, find_object, net_conf, read_repository_file, repository_path, shapes,
    start_real_api_server_on_new_host,
};

fn daemon_set(api: &ApiServer) -> Result<Value> {
    api.admin().get("/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds")
}

#[test]
fn manifests_are_accepted_by_an_api_server() -> Result<()> {
    Lab::run("manifests", |lab| {
        let api = start_real_api_server_on_new_host(lab, &["kube-flannel"])?;
        for (file, count) in [
            ("conf/kube-flannel.yml", 10),
            ("conf/kube-flannel-policy.yml", 2),
            ("conf/kube-flannel-cleanup.yml", 1),
        ] {
            let objects = dry_run(lab, &api, &read_repository_file(file)?)?;
            ensure!(objects.len() == count, "{file}: {} objects", objects.len());
        }
        let objects = dry_run(lab, &api, &read_repository_file("conf/kube-flannel.yml")?)?;
        ensure!(
            net_conf(&objects, None)?
                == json!({ "Network": "10.244.0.0/16", "EnableNFTables": false, "Backend": { "Type": "vxlan" } }),
            "net-conf"
        );
        let spec = &find_object(&objects, None, "DaemonSet", "kube-flannel-ds")?["spec"];
        let pod = &spec["template"]["spec"];
        let container = &pod["containers"][0];
        let rights = json!({
            "privileged": false, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW", "DAC_OVERRIDE"] },
        });
        ensure!(container["securityContext"] == rights, "{}", container["securityContext"]);
        ensure!(
            pod["securityContext"] == json!({ "seccompProfile": { "type": "RuntimeDefault" } }),
            "{}",
            pod["securityContext"]
        );
        ensure!(
            spec["updateStrategy"]["rollingUpdate"]
                == json!({ "maxUnavailable": 1, "maxSurge": 0 }),
            "{}",
            spec["updateStrategy"]
        );
        for effect in ["NoSchedule", "NoExecute"] {
            let tolerated = json!({ "operator": "Exists", "effect": effect });
            ensure!(
                pod["tolerations"].as_array().is_some_and(|all| all.contains(&tolerated)),
                "{effect} is not tolerated"
            );
        }
        Ok(())
    })
}

/// The kustomize overlay in docs/kubernetes.md uses images from a registry, and changes nothing else.
#[test]
fn kustomization_equals_the_manifest_and_accepts_the_documented_overlay() -> Result<()> {
    Lab::run("kustomization", |lab| {
        let api = start_real_api_server_on_new_host(lab, &["kube-flannel"])?;
        let folder = lab.ensure_folder("kustomization")?;
        std::fs::create_dir_all(folder.join("flannel-rs/conf"))?;
        std::fs::create_dir_all(folder.join("overlay"))?;
        for file in ["kube-flannel.yml", "kustomization.yaml"] {
            std::fs::copy(
                repository_path("conf").join(file),
                folder.join("flannel-rs/conf").join(file),
            )?;
        }
        let page = read_repository_file("docs/kubernetes.md")?;
        let overlay = page
            .split("```yaml\n")
            .nth(1)
            .and_then(|rest| rest.split("```").next())
            .context("no overlay on the page")?;
        std::fs::write(folder.join("overlay/kustomization.yaml"), overlay)?;
        let rendered = |name: &str| {
            dry_run(
                lab,
                &api,
                &api.kubectl(&["kustomize", &folder.join(name).display().to_string()])?,
            )
        };

        let (plain, own) = (rendered("flannel-rs/conf")?, rendered("overlay")?);
        let written = dry_run(lab, &api, &read_repository_file("conf/kube-flannel.yml")?)?;
        ensure!(
            plain.len() == written.len() && own.len() == written.len(),
            "{} and {} objects",
            plain.len(),
            own.len()
        );
        let set = |objects: &[Value]| -> Result<String> {
            Ok(find_object(objects, None, "DaemonSet", "kube-flannel-ds")?["spec"].to_string())
        };
        ensure!(set(&plain)? == set(&written)?, "the kustomization is another manifest");
        let changed = set(&written)?
            .replace("docker.io/flannel-rs/", "registry.example.org/")
            .replace("\"Never\"", "\"IfNotPresent\"");
        ensure!(set(&own)? == changed, "{} instead of {changed}", set(&own)?);
        Ok(())
    })
}

fn apply_manifests(lab: &Lab, api: &ApiServer, text: &str) -> Result<String> {
    let file = lab.ensure_folder("manifests")?.join("applied.yml");
    std::fs::write(&file, text)?;
    api.kubectl(&["apply", "--filename", &file.display().to_string()])
}

/// A manifest with the labels and selectors of Go flannel's objects replaces Go flannel's manifest.
#[test]
fn objects_have_the_labels_of_their_go_counterparts() -> Result<()> {
    Lab::run("labels", |lab| {
        let api = start_real_api_server_on_new_host(lab, &["kube-flannel"])?;
        let (both, one) =
            (json!({ "app": "flannel", "k8s-app": "flannel" }), json!({ "app": "flannel" }));
        let (pods_of_both, pods_of_one) = (
            json!({ "tier": "node", "app": "flannel", "k8s-app": "flannel" }),
            json!({ "tier": "node", "app": "flannel" }),
        );
        for (name, text, selector, pods) in [
            ("Go flannel as released", shapes::released_go_manifest()?, &both, &pods_of_both),
            ("our manifest", read_repository_file("conf/kube-flannel.yml")?, &both, &pods_of_both),
            ("Go flannel's raw manifest", shapes::raw_go_manifest()?, &one, &pods_of_one),
            ("Go flannel's chart", shapes::rendered_go_chart()?, &one, &pods_of_one),
            ("our chart", chart::render_chart("kube-flannel", &[])?, &one, &pods_of_one),
        ] {
            let objects = dry_run(lab, &api, &text)?;
            let set = find_object(&objects, None, "DaemonSet", "kube-flannel-ds")?;
            ensure!(
                set["spec"]["selector"]["matchLabels"] == *selector,
                "{name} selects {}",
                set["spec"]["selector"]
            );
            ensure!(
                set["spec"]["template"]["metadata"]["labels"] == *pods,
                "{name} has pods with {}",
                set["spec"]["template"]["metadata"]
            );
            ensure!(
                set["metadata"]["labels"] == *pods,
                "{name} has a DaemonSet with {}",
                set["metadata"]["labels"]
            );
            for object in objects.iter().filter(|_| selector == &both) {
                ensure!(
                    object["metadata"]["labels"]["k8s-app"] == "flannel",
                    "{name}: {} lacks the label",
                    object["metadata"]
                );
            }
        }
        Ok(())
    })
}

#[test]
fn manifests_apply_over_their_counterparts_and_fail_over_others() -> Result<()> {
    Lab::run("manifests over each other", |lab| {
        let api = start_real_api_server_on_new_host(lab, &["kube-flannel"])?;
        let (manifest, chart) = (
            read_repository_file("conf/kube-flannel.yml")?,
            chart::render_chart("kube-flannel", &[])?,
        );
        for (name, theirs, ours, other) in [
            ("the manifest", shapes::released_go_manifest()?, &manifest, &chart),
            ("the chart", shapes::rendered_go_chart()?, &chart, &manifest),
            ("the raw manifest", shapes::raw_go_manifest()?, &chart, &manifest),
        ] {
            require_daemon_set_is_changed_in_place(lab, &api, &theirs, ours)
                .with_context(|| format!("{name} of Go flannel"))?;
            let refused = apply_manifests(lab, &api, other);
            ensure!(
                refused
                    .as_ref()
                    .is_err_and(|why| format!("{why:#}").contains("field is immutable")),
                "{name} of Go flannel: the other selector: {refused:?}"
            );
            api.kubectl(&["delete", "--namespace=kube-flannel", "daemonset", "kube-flannel-ds"])?;
        }
        Ok(())
    })
}

/// flannel-rs' manifest over Go flannel's, then Go flannel's, then flannel-rs' again. The DaemonSet keeps its uid, and
/// nothing of the replaced spec remains.
fn require_daemon_set_is_changed_in_place(
    lab: &Lab,
    api: &ApiServer,
    theirs: &str,
    ours: &str,
) -> Result<()> {
    let containers = |set: &Value| -> Vec<String> {
        let spec = &set["spec"]["template"]["spec"];
        let all = [&spec["initContainers"], &spec["containers"]]
            .into_iter()
            .flat_map(|list| list.as_array().cloned().unwrap_or_default());
        all.map(|container| container["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    apply_manifests(lab, api, theirs)?;
    let first = daemon_set(api)?;
    apply_manifests(lab, api, ours)?;
    let second = daemon_set(api)?;
    ensure!(
        containers(&second) == ["install-cni-plugin", "kube-flannel"],
        "{:?}",
        containers(&second)
    );
    apply_manifests(lab, api, theirs)?;
    let third = daemon_set(api)?;
    ensure!(
        third["spec"] == first["spec"],
        "what was ours is left:\n{}\nand at first\n{}",
        third["spec"],
        first["spec"]
    );
    apply_manifests(lab, api, ours)?;
    ensure!(daemon_set(api)?["spec"] == second["spec"], "what was theirs is left");
    ensure!(
        first["metadata"]["uid"] == third["metadata"]["uid"],
        "the DaemonSet was replaced, not changed"
    );
    Ok(())
}
